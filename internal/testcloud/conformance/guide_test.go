package conformance_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"skyserve/provision"
)

var (
	checkName  = regexp.MustCompile(`\n\t\t\{"([^"]+)", [a-zA-Z]+\},`)
	sourcePath = regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)+(?:\\.go)?)`")
)

// The guide for providers names every method of the interfaces, every conformance check, and only files
// that exist.
func TestGuideNamesMethodsAndChecks(t *testing.T) {
	const root = "../../../"
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	guide := read(root + "docs/adding-a-provider.md")
	for _, of := range []reflect.Type{reflect.TypeFor[provision.Provider](), reflect.TypeFor[provision.KeyAttestor](), reflect.TypeFor[provision.Pricer]()} {
		for i := range of.NumMethod() {
			if name := "`" + of.Name() + "." + of.Method(i).Name + "`"; !strings.Contains(guide, name) {
				t.Errorf("the guide does not name %s", name)
			}
		}
	}
	checks := checkName.FindAllStringSubmatch(read("conformance.go"), -1)
	if len(checks) < 10 {
		t.Fatalf("found %d checks in conformance.go", len(checks))
	}
	for _, c := range checks {
		if !strings.Contains(guide, "| "+c[1]+" |") {
			t.Errorf("the guide does not explain the check %q", c[1])
		}
	}
	paths := sourcePath.FindAllStringSubmatch(guide, -1)
	if len(paths) < 10 {
		t.Fatalf("found %d paths in the guide", len(paths))
	}
	for _, p := range paths {
		if _, err := os.Stat(filepath.Join(root, p[1])); err != nil {
			t.Errorf("the guide names %s: %v", p[1], err)
		}
	}
}
