package testkit

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// DocumentedRoutes returns the routes of an OpenAPI document, as "METHOD /path", sorted.
func DocumentedRoutes(t testing.TB, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var routes []string
	for path, operations := range document.Paths {
		for method := range maps.Keys(operations) {
			routes = append(routes, strings.ToUpper(method)+" "+path)
		}
	}
	return slices.Sorted(slices.Values(routes))
}
