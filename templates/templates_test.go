package templates_test

import (
	"testing"

	"skyserve/internal/service"
	"skyserve/templates"
)

func TestStartersAreValid(t *testing.T) {
	for _, cloud := range templates.Clouds() {
		for _, name := range []string{"", "my-service"} {
			text, err := templates.Starter(cloud, name)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := service.Parse(cloud+".yaml", text)
			if err != nil {
				t.Fatalf("the starter for %s:\n%v", cloud, err)
			}
			if want := max(name, "chat"); spec.Name != want {
				t.Errorf("the starter for %s has the name %q, want %q", cloud, spec.Name, want)
			}
			for _, r := range spec.Regions {
				if r.Name.Cloud() != cloud {
					t.Errorf("the starter for %s has the region %s", cloud, r.Name)
				}
			}
		}
	}
}

func TestStarterRejectsUnknownCloud(t *testing.T) {
	if _, err := templates.Starter("azure", ""); err == nil {
		t.Error("Starter returned no error for the unknown cloud azure")
	}
}
