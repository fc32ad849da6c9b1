package aws_test

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Spot machines that EC2 has terminated are reported with their zone; machines that a user terminated, or
// skyserve itself, are not, and neither are those of another service.
func TestInterruptionsAreReported(t *testing.T) {
	fake := newCloud(nil)
	p := open(t, fake)
	launchPrerequisites(t, p, east)
	start := func(id string) provision.Object {
		o, err := p.Launch(t.Context(), machine(id, provision.KindReplica, east, service.CapacitySpot))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	taken, byUser, own := start("us-east-1-0"), start("us-east-1-1"), start("us-east-1-2")
	fake.InterruptInstance(taken.Handle)
	fake.TerminateInstance(byUser.Handle)
	if err := p.Terminate(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	found, err := p.Interruptions(t.Context(), east, "chat")
	if err != nil || len(found) != 1 || found[0].Handle != taken.Handle || !found[0].Interrupted || found[0].Offering.Zone != taken.Offering.Zone || found[0].Offering.Capacity != service.CapacitySpot {
		t.Fatalf("got %+v, %v, want the one that EC2 interrupted", found, err)
	}
	if !strings.Contains(found[0].TerminatedReason, "Spot") {
		t.Errorf("the reason is %q", found[0].TerminatedReason)
	}
	if none, err := p.Interruptions(t.Context(), east, "other"); err != nil || len(none) > 0 {
		t.Errorf("another service has %+v, %v", none, err)
	}
	listed, err := p.List(t.Context(), "chat")
	if err != nil || slices.ContainsFunc(listed, func(o provision.Object) bool { return o.Interrupted }) {
		t.Errorf("the list contains an ended machine: %+v, %v", listed, err)
	}
}
