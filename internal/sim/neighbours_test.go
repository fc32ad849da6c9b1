package sim

import (
	"testing"
	"time"

	"skyserve/lbd/core"
)

// pairs is fig8a with two balancers per region.
func pairs(t testing.TB, duration time.Duration) *Scenario {
	s := short(t, "fig8a", duration)
	if err := s.Set("balancers", "2"); err != nil {
		t.Fatal(err)
	}
	return s
}

// Two balancers in a region share its clients and replicas equally, and perform like one.
func TestBalancersShareARegion(t *testing.T) {
	setup := Setup{Policy: "cost", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 1}
	one := run(t, short(t, "fig8a", 100*time.Second), setup)
	two := run(t, pairs(t, 100*time.Second), setup)
	if len(two.Balancers) != 6 {
		t.Fatalf("%d balancers", len(two.Balancers))
	}
	for i, c := range two.Balancers {
		own, other := c.Arrived-c.ForwardedIn, two.Balancers[i^1].Arrived-two.Balancers[i^1].ForwardedIn
		if own < other/3 || c.Finished == 0 {
			t.Errorf("balancer %d: %+v", i, c)
		}
	}
	if a, b := one.Figures.OutputTokensPerSecond, two.Figures.OutputTokensPerSecond; b < 0.9*a {
		t.Errorf("two balancers per region yield %.0f tok/s, one %.0f", b, a)
	}
	single := pairs(t, 20*time.Second)
	setup.Layout = Single
	if r := run(t, single, setup); len(r.Balancers) != 1 {
		t.Errorf("one balancer for all regions is %d", len(r.Balancers))
	}
}

// A balancer's observed prefixes reach its neighbour, even after the neighbour's restart.
func TestNeighboursExchangePrefixes(t *testing.T) {
	s := pairs(t, 60*time.Second)
	s.Faults = []Fault{{Kind: BalancerDown, Region: "us", Balancer: 2, From: 20 * time.Second, To: 30 * time.Second}}
	w, err := newWorld(s, Setup{Policy: "cost", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	received := map[int32]int{}
	distant := 0 // entries from other regions
	late := 0    // what the stopped balancer received afterwards
	for next := w.queue.peek(); next.at < s.Duration && w.violation == nil; next = w.queue.peek() {
		if next.kind == evPrefixes {
			received[next.index] += len(next.learned.entries)
			if next.index == 1 && next.at > 30*time.Second {
				late += len(next.learned.entries)
			}
			if w.nodes[next.index].region != w.nodes[next.arg].region {
				distant += len(next.learned.entries)
			}
		}
		w.stepEvent()
	}
	if err := w.audit(); err != nil {
		t.Fatal(err)
	}
	for _, n := range w.nodes {
		if received[n.index] < 10 {
			t.Errorf("balancer %s received %d prompts", n.id, received[n.index])
		}
	}
	if distant < 10 {
		t.Errorf("balancers received %d prompts from other regions", distant)
	}
	if late < 10 {
		t.Errorf("after its crash it received %d prompts", late)
	}
	if w.nodes[1].lives != 1 || w.nodes[0].lives != 0 {
		t.Errorf("ended processes: %d and %d, want only the second balancer's", w.nodes[0].lives, w.nodes[1].lives)
	}
}

// Complaint: when clients of several regions ask about the same contexts, each region computes all of them.
func TestRegionsDoNotComputeTheSameContexts(t *testing.T) {
	s := short(t, "shared-contexts", 60*time.Second)
	s.Regions = []Region{{Name: "us", Replicas: 2, Clients: 20}, {Name: "eu", Replicas: 2, Clients: 20}, {Name: "asia", Replicas: 2, Clients: 20}}
	s.Home, s.Rate = "us", 12
	prefilled := map[Layout]int64{}
	for _, layout := range []Layout{Single, Regional} {
		r := run(t, s, Setup{Policy: "cost", Push: core.PushMode{Kind: core.PushPending}, Layout: layout, Seed: 1})
		for _, l := range r.Replicas {
			prefilled[layout] += l.PrefilledTokens
		}
	}
	if one, regional := prefilled[Single], prefilled[Regional]; float64(regional) > 1.25*float64(one) {
		t.Errorf("a balancer in each region: %d prompt tokens computed; one balancer: %d", regional, one)
	}
}
