package testcloud

import (
	"strings"
	"testing"
)

func TestConditionsFollowGoogle(t *testing.T) {
	machine := gceResource{"compute.googleapis.com/Instance", "projects/p/zones/us-central1-a/instances/skyserve-replica-chat--a"}
	project := gceResource{"cloudresourcemanager.googleapis.com/Project", "projects/p"}
	const prefixed = `resource.type != "compute.googleapis.com/Instance" || resource.name.extract("/instances/{name}").startsWith("skyserve-replica-chat--")`
	for _, tt := range []struct {
		condition string
		resource  gceResource
		want      bool
	}{
		{"", machine, true},
		{`resource.type == "compute.googleapis.com/Instance"`, machine, true},
		{`resource.type == 'compute.googleapis.com/Instance'`, project, false},
		{`resource.service == "compute.googleapis.com"`, machine, true},
		{`resource.name.startsWith("projects/p/zones/")`, machine, true},
		{`resource.name.endsWith("--b")`, machine, false},
		{`!resource.name.endsWith("--b")`, machine, true},
		{`resource.name.extract("/zones/{zone}/") == "us-central1-a"`, machine, true},
		{`resource.name.extract("/disks/{name}") == ""`, machine, true},
		{prefixed, machine, true},
		{prefixed, project, true},
		{prefixed, gceResource{machine.kind, "projects/p/zones/us-central1-a/instances/skyserve-balancer-chat--lb"}, false},
		{prefixed, gceResource{machine.kind, "projects/p/zones/us-central1-a/instances/x-skyserve-replica-chat--a"}, false},
		{`resource.type == "a" && resource.type == "b" || resource.name.startsWith("projects")`, machine, true},
		{`resource.name.startsWith("x") && (resource.type == "a" || resource.name.startsWith("projects"))`, machine, false},
	} {
		if got, err := tt.resource.satisfies(tt.condition); err != nil || got != tt.want {
			t.Errorf("%s of %s: %v, %v; want %v", tt.condition, tt.resource.name, got, err, tt.want)
		}
	}
}

// Unsupported expressions are errors at any position.
func TestConditionsRejectUnsupported(t *testing.T) {
	for _, condition := range []string{
		`request.time < timestamp("2030-01-01T00:00:00Z")`, `resource.name`, `resource.name.size() > 3`, `resource.type == "a" ||`,
		`(resource.type == "a"`, `resource.type == "a" resource.name == "b"`, `resource.name.startsWith("projects") || resource.matchTag("a", "b")`,
		`"a" && "b"`, `!"a"`, `resource.name.startsWith(`,
	} {
		if got, err := (gceResource{"a", "projects/p"}).satisfies(condition); err == nil || !strings.Contains(err.Error(), "condition") {
			t.Errorf("%s: %v, %v; want an error", condition, got, err)
		}
	}
}
