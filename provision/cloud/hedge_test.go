package cloud_test

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// hedgedInput returns a region with two desired spot replicas and a backup.
func hedgedInput(t *testing.T, extra int) (cloud.Input, service.Region) {
	t.Helper()
	spec := parse(t, threeRegions)
	spec.Models, spec.Regions = spec.Models[:1], spec.Regions[:1]
	r := &spec.Regions[0]
	r.OnDemandBase, r.Reserved, r.Replicas = 0, nil, service.Bounds{Min: 2, Max: 4}
	r.Capacity = []service.CapacityType{service.CapacitySpot, service.CapacityOnDemand}
	r.Spot = &service.SpotSpec{Overprovision: extra, DynamicFallback: true}
	return input(spec), r.Name
}

// firstChoices returns the capacity types of the first and the last offering of each replica; + marks an extra one.
func firstChoices(wants []provision.Desired) string {
	var all []string
	for _, w := range wants {
		text := string(w.Offerings[0].Capacity) + ".." + string(w.Offerings[len(w.Offerings)-1].Capacity)
		if cloud.IsOverprovisioned(provision.Object{Labels: w.Labels}) {
			text = "+" + text
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// Extra replicas are spot only, within replicas.max, and omitted while no zone has spot machines.
func TestOverprovisionedReplicas(t *testing.T) {
	for _, tt := range []struct {
		name      string
		extra     int
		exhausted bool
		want      string
	}{
		{"none", 0, false, "spot..on_demand spot..on_demand"},
		{"one", 1, false, "spot..on_demand spot..on_demand +spot..spot"},
		{"more than replicas.max allows", 9, false, "spot..on_demand spot..on_demand +spot..spot +spot..spot"},
		{"no spot machines", 1, true, "spot..on_demand spot..on_demand"},
	} {
		in, r := hedgedInput(t, tt.extra)
		in.Exhausted = func(o provision.Offering) bool { return tt.exhausted && o.Capacity == service.CapacitySpot }
		if got := firstChoices(replicasOf(plan(t, in), r)); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// After an interruption a new replica is on demand first. A replica that returns the region to spot, existing
// replicas and extra ones are not, and regions without dynamic fallback keep their order.
func TestReplacementIsOnDemandFirst(t *testing.T) {
	in, r := hedgedInput(t, 1)
	in.Have = []provision.Object{runs(plan(t, in).Desired, "us-east-1-0", "spot")}
	in.Interrupted = func(of service.Region) bool { return of == r }
	if got, want := firstChoices(replicasOf(plan(t, in), r)), "spot..on_demand on_demand..spot +spot..spot"; got != want {
		t.Errorf("after an interruption: %s, want %s", got, want)
	}
	in.Spec.Regions[0].Spot.DynamicFallback = false
	if got, want := firstChoices(replicasOf(plan(t, in), r)), "spot..on_demand spot..on_demand +spot..spot"; got != want {
		t.Errorf("without dynamic fallback: %s, want %s", got, want)
	}
	in.Spec.Regions[0].Spot = &service.SpotSpec{DynamicFallback: true}
	in.Have = append(in.Have, runs(plan(t, in).Desired, "us-east-1-1", "on_demand"))
	in.Terminating = map[string]bool{"us-east-1-1": true}
	got := replicasOf(plan(t, in), r)
	if len(got) != 3 || got[2].Labels["instead"] == "" || got[2].Offerings[0].Capacity != service.CapacitySpot {
		t.Errorf("the replica that returns to spot: %s", firstChoices(got))
	}
}

// runs returns a running replica of a plan on a capacity type.
func runs(wants []provision.Desired, id string, capacity service.CapacityType) provision.Object {
	w := wants[slices.IndexFunc(wants, func(w provision.Desired) bool { return w.ID == id })]
	offer := w.Offerings[slices.IndexFunc(w.Offerings, func(o provision.Offering) bool { return o.Capacity == capacity })]
	return provision.Object{ID: id, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, SpecHash: w.SpecHash, Labels: w.Labels, Handle: "h-" + id, Offering: &offer}
}
