package cloud_test

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// hedgedInput returns a region with two desired spot replicas and a number of overprovisioned ones (extra).
func hedgedInput(t *testing.T, extra int) (cloud.LayoutInput, service.Region) {
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

// A machine that its cloud terminates soon (Ending) does not count towards replicas.max, whether it is an extra replica
// or a desired one. Other terminating machines count.
func TestEndingMachinesDoNotCountTowardsMax(t *testing.T) {
	const all = "us-east-1-0 us-east-1-1 us-east-1-2"
	for _, tt := range []struct {
		name, ending, terminating string
		desired                   int
		want                      string
	}{
		{"nothing ends", "", "", 2, all},
		{"the extra replica ends: another one is launched", "us-east-1-2", "us-east-1-2", 2, all + " us-east-1-3"},
		{"the extra replica is replaced, and counts until it has terminated", "", "us-east-1-2", 2, all},
		{"the extra replica ends: its place is that of a desired one", "us-east-1-2", "us-east-1-2", 3, all + " us-east-1-3"},
		{"a desired replica ends: the extra one stays", "us-east-1-1", "us-east-1-1", 2, all + " us-east-1-3"},
		{"all end: all are replaced", all, all, 2, all + " us-east-1-3 us-east-1-4 us-east-1-5"},
	} {
		in, r := hedgedInput(t, 1)
		in.Spec.Regions[0].Replicas.Max = 3
		for _, w := range replicasOf(plan(t, in), r) {
			in.Have = append(in.Have, provision.Object{ID: w.ID, Kind: w.Kind, Region: r, Labels: w.Labels, Handle: "i-" + w.ID})
		}
		if len(in.Have) != 3 {
			t.Fatalf("%d replicas exist", len(in.Have))
		}
		set := func(ids string) map[string]bool {
			of := map[string]bool{}
			for id := range strings.FieldsSeq(ids) {
				of[id] = true
			}
			return of
		}
		in.Ending, in.NeedReplacement = set(tt.ending), set(tt.terminating)
		in.Counts = map[cloud.ReplicaGroup]provision.ClassCounts{{Model: in.Spec.Models[0].Name, Region: r}: {provision.ReplicaClass{}: tt.desired}}
		var got []string
		for _, w := range replicasOf(plan(t, in), r) {
			got = append(got, w.ID)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: got %q, want %s", tt.name, got, tt.want)
		}
	}
}

// After an interruption a new replica tries on-demand offerings first. A spot replica that replaces an on-demand one,
// existing replicas and extra ones do not. Without dynamic fallback the order does not change.
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
	in.NeedReplacement = map[string]bool{"us-east-1-1": true}
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
