package health

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var specKey = regexp.MustCompile(`\b(?:balancer|autoscale|local|slo)\.([a-z_]+)`)

// The keys that specKey finds in rules.go exist in service.yaml.
func TestNextStepsNameExistingKeys(t *testing.T) {
	rules, err := os.ReadFile("rules.go")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/service-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	found := specKey.FindAllStringSubmatch(string(rules), -1)
	if len(found) == 0 {
		t.Fatal("rules.go names no key")
	}
	for _, m := range found {
		if !strings.Contains(string(guide), "\n| `"+m[1]+"` |") {
			t.Errorf("%s is not a key of docs/service-yaml.md", m[0])
		}
	}
}
