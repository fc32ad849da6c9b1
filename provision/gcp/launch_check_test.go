package gcp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// A check of a launch names what Compute Engine would reject, and starts nothing.
func TestCheckLaunch(t *testing.T) {
	const family = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
	use := func(image string) func(*provision.Desired, *testcloud.GCE) {
		return func(w *provision.Desired, g *testcloud.GCE) {
			g.AddImage("old", "OBSOLETE")
			g.AddImage("own", "")
			w.Machine.Images = map[string]string{"L4": image}
		}
	}
	deny := func(action string) func(*provision.Desired, *testcloud.GCE) {
		return func(_ *provision.Desired, g *testcloud.GCE) {
			g.FailCalls(action, http.StatusForbidden, "forbidden", "Required '"+action+"' permission for 'projects/p'")
		}
	}
	const accepted, spec, denied, capacity = "accepted", "spec", "denied", "capacity"
	for _, tt := range []struct {
		name   string
		change func(*provision.Desired, *testcloud.GCE)
		want   string // the end of the message
		kind   string // of the error
	}{
		{"nothing is wrong", func(*provision.Desired, *testcloud.GCE) {}, "no problem found, boot image common-cu129-ubuntu-2204-nvidia-580-v1", accepted},
		{"own image", use("projects/p/global/images/own"), "no problem found, boot image own", accepted},
		{"own image by URL", use("https://www.googleapis.com/compute/v1/projects/p/global/images/own"), "no problem found, boot image own", accepted},
		{
			"family is gone", func(_ *provision.Desired, g *testcloud.GCE) {
				g.RemoveImageFamily("common-cu129-ubuntu-2204-nvidia-580")
			},
			"boot image " + family + ": not found; set regions[].images.L4 of gcp/us-central1 to an image that the project can use", spec,
		},
		{"image is gone", use("projects/p/global/images/gone"), "boot image projects/p/global/images/gone: not found; set regions[].images.L4 of gcp/us-central1 to an image that the project can use", spec},
		{"image is obsolete", use("projects/p/global/images/old"), "boot image projects/p/global/images/old: is obsolete, and Compute Engine launches nothing with it; set regions[].images.L4 of gcp/us-central1 to an image that the project can use", spec},
		{
			"no machine type", func(_ *provision.Desired, g *testcloud.GCE) { g.RemoveMachineType("us-central1-a", "g2-standard-4") },
			"zone us-central1-a does not have machine type g2-standard-4", capacity,
		},
		{
			"no GPU type", func(_ *provision.Desired, g *testcloud.GCE) { g.RemoveAccelerator("us-central1-a", "nvidia-l4") },
			"zone us-central1-a does not have GPU type nvidia-l4 of g2-standard-4", capacity,
		},
		{
			"missing permission", func(_ *provision.Desired, g *testcloud.GCE) { g.DenyPermissions("compute.instances.create") },
			"calling gcp: permission denied for compute.instances.create: project p does not grant it", denied,
		},
		{
			"denied image", deny("compute.images.getFromFamily"),
			"boot image common-cu129-ubuntu-2204-nvidia-580; not checked: boot image " + family + " (reading it is denied)", accepted,
		},
		{
			"denied test of permissions", deny("resourcemanager.projects.testIamPermissions"),
			"no problem found, boot image common-cu129-ubuntu-2204-nvidia-580-v1; not checked: permissions (reading it is denied)", accepted,
		},
		{
			"denied GPU type", deny("compute.acceleratorTypes.get"),
			"no problem found, boot image common-cu129-ubuntu-2204-nvidia-580-v1; not checked: GPU type nvidia-l4 (reading it is denied)", accepted,
		},
	} {
		g := newGCE(nil)
		w := replica("us-central1-0", service.CapacitySpot)
		tt.change(&w, g)
		c := provider(g).CheckLaunch(t.Context(), w)
		var noCapacity *provision.CapacityError
		var noSpec *provision.SpecError
		var noPermission *provision.CredentialsError
		kind := accepted
		switch {
		case errors.As(c.Err, &noCapacity):
			kind = capacity
		case errors.As(c.Err, &noSpec):
			kind = spec
		case errors.As(c.Err, &noPermission):
			kind = denied
		}
		start := "launching a replica on g2-standard-4 (" + string(w.Offerings[0].Capacity) + ") in us-central1-a: "
		if !strings.HasPrefix(c.Message, start) || !strings.HasSuffix(c.Message, tt.want) || c.OK != (tt.kind == accepted) || kind != tt.kind {
			t.Errorf("%s: got %s (%v), want %s", tt.name, c.Message, c.Err, tt.want)
		}
		if (c.Hint != "") != (tt.kind == denied) || len(g.Instances()) > 0 || len(g.Firewalls()) > 0 {
			t.Errorf("%s: hint %q, %d machines", tt.name, c.Hint, len(g.Instances()))
		}
	}
}
