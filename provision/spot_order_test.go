package provision_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
)

// zoneList returns the zones of offerings, with the type of those that differ from the first.
func zoneList(os provision.Offerings) string {
	var zones []string
	for _, o := range os {
		name := o.Zone
		if o.Type != os[0].Type {
			name += "/" + o.Type
		}
		zones = append(zones, name)
	}
	return strings.Join(zones, " ")
}

// factsOf returns facts by zone, of spot offerings only.
func factsOf(events map[string]float64, running map[string]int, scores map[string]float64) func(provision.Offering) provision.SpotFacts {
	return func(o provision.Offering) provision.SpotFacts {
		f := provision.SpotFacts{Running: running[o.Zone]}
		if o.Capacity == service.CapacitySpot {
			f.Events = events[o.Zone]
		}
		if score, known := scores[o.Zone]; known {
			f.Score = &score
		}
		return f
	}
}

func TestOrderSpot(t *testing.T) {
	zones := provision.Offerings{spotIn("b", service.CapacitySpot), spotIn("c", service.CapacitySpot), spotIn("a", service.CapacitySpot), spotIn("b", service.CapacityOnDemand), spotIn("a", service.CapacityOnDemand)}
	for _, c := range []struct {
		name    string
		events  map[string]float64
		running map[string]int
		scores  map[string]float64
		prices  map[string]float64
		want    string
	}{
		{name: "no events keep the order", running: map[string]int{"b": 5}, want: "b c a b a"},
		{name: "a recent event", events: map[string]float64{"b": 1}, want: "c a b b a"},
		{name: "the fewest events first", events: map[string]float64{"b": 2, "c": 1}, want: "a c b b a"},
		{name: "equal zones keep their order", events: map[string]float64{"b": 1, "c": 1, "a": 1}, want: "b c a b a"},
		{name: "a crowded calm zone is not first", events: map[string]float64{"b": 1}, running: map[string]int{"c": 3, "a": 1}, want: "a b c b a"},
		{name: "an old event does not count against a crowd", events: map[string]float64{"b": 0.1}, running: map[string]int{"c": 1, "a": 1}, want: "b c a b a"},
		{name: "the best score first", scores: map[string]float64{"a": 0.9, "b": 0.3, "c": 0.6}, want: "a c b b a"},
		{name: "an unknown score is last", scores: map[string]float64{"c": 0.1}, want: "c b a b a"},
		{name: "an event outweighs a score", events: map[string]float64{"a": 1}, scores: map[string]float64{"a": 0.9, "b": 0.3, "c": 0.6}, want: "c b a b a"},
		{name: "the price decides between equal scores", scores: map[string]float64{"a": 0.5, "b": 0.5, "c": 0.5}, prices: map[string]float64{"a": 0.3, "b": 0.5, "c": 0.4}, want: "a c b b a"},
		{name: "a score outweighs a price", scores: map[string]float64{"a": 0.5, "b": 0.6, "c": 0.5}, prices: map[string]float64{"a": 0.3, "b": 0.5, "c": 0.4}, want: "b a c b a"},
		{name: "an unknown price is last", prices: map[string]float64{"a": 0.3, "c": 0.4}, want: "a c b b a"},
	} {
		in := zones.SortedByCapacity(nil)
		for _, o := range zones {
			if o.Capacity == service.CapacitySpot {
				o.PricePerHour = c.prices[o.Zone]
			}
			in = append(in, o)
		}
		if got := in.OrderSpot(factsOf(c.events, c.running, c.scores)); zoneList(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.name, zoneList(got), c.want)
		}
	}
}

// A larger type in a calm zone precedes the smaller one in a zone with events, and follows it elsewhere. Types
// with the same GPUs share the events of a zone.
func TestOrderSpotAcrossTypes(t *testing.T) {
	var in provision.Offerings
	for _, kind := range []string{"g6.xlarge", "g6.2xlarge"} {
		for _, zone := range []string{"a", "b"} {
			o := spotIn(zone, service.CapacitySpot)
			o.Type, o.PricePerHour = kind, 0.3*float64(len(kind)-8)
			in = append(in, o)
		}
	}
	if got := zoneList(in.OrderSpot(factsOf(map[string]float64{"a": 1}, nil, nil))); got != "b b/g6.2xlarge a a/g6.2xlarge" {
		t.Errorf("got %s", got)
	}
	var h provision.SpotHistory
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	small, large := in[0], in[2]
	small.GPU, small.GPUs, large.GPU, large.GPUs = "L4", 1, "L4", 1
	if h.Add(small, now); h.RecentEvents(large, now) != 1 {
		t.Errorf("%s in %s has %g events, want that of %s", large.Type, large.Zone, h.RecentEvents(large, now), small.Type)
	}
	if large.GPUs = 4; h.RecentEvents(large, now) != 0 {
		t.Error("a machine with other GPUs has the event")
	}
	if got := zoneList(in.OrderSpot(factsOf(nil, nil, nil))); got != "a b a/g6.2xlarge b/g6.2xlarge" {
		t.Errorf("without events: got %s", got)
	}
}

// Ordering loses and invents no offering, never moves one to another capacity type, and is stable.
func TestOrderSpotIsPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacities := []service.CapacityType{service.CapacityReserved, service.CapacityOnDemand, service.CapacitySpot}
		var in provision.Offerings
		for range rapid.IntRange(0, 12).Draw(t, "offerings") {
			o := spotIn(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "zone"), rapid.SampledFrom(capacities).Draw(t, "capacity"))
			o.PricePerHour = float64(rapid.IntRange(0, 3).Draw(t, "price"))
			in = append(in, o)
		}
		in = in.SortedByCapacity(capacities)
		facts := factsOf(map[string]float64{"a": rapid.Float64Range(0, 2).Draw(t, "events")}, map[string]int{"b": rapid.IntRange(0, 3).Draw(t, "running")}, map[string]float64{"c": rapid.Float64Range(0, 1).Draw(t, "score")})
		out := in.OrderSpot(facts)
		count := map[provision.Offering]int{}
		for i := range in {
			count[in[i]]++
			count[out[i]]--
			if in[i].Capacity != out[i].Capacity || in[i].Capacity != service.CapacitySpot && in[i] != out[i] {
				t.Fatalf("place %d: %v became %v", i, in[i], out[i])
			}
		}
		for o, n := range count {
			if n != 0 {
				t.Fatalf("%v: %+d", o, -n)
			}
		}
		if again := out.OrderSpot(facts); zoneList(again) != zoneList(out) {
			t.Fatalf("ordered twice: %s, then %s", zoneList(out), zoneList(again))
		}
	})
}

func TestSpotChoiceIsExplained(t *testing.T) {
	zones := provision.Offerings{spotIn("c", service.CapacitySpot), spotIn("a", service.CapacitySpot), spotIn("a", service.CapacityOnDemand)}
	facts := factsOf(map[string]float64{"a": 1.25}, nil, map[string]float64{"c": 0.9})
	if got, want := zones.ExplainSpot(facts), "spot zones: c (no recent events, score 0.9), a (1.2 recent events)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := zones.ExplainSpot(factsOf(nil, nil, nil)); got != "" {
		t.Errorf("nothing is known, but the reason is %q", got)
	}
	if got := zones[2:].ExplainSpot(facts); got != "" {
		t.Errorf("an on-demand machine has the reason %q", got)
	}
}
