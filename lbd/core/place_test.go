package core

import (
	"testing"

	"skyserve/lbd/policy"
)

// scriptedHolds is a policy that sends a request to the replica that to names, and holds any other for r0. It records how
// many requests it was told are held for r0.
type scriptedHolds struct {
	policy.Policy
	to   map[string]string
	held map[string]int
}

func (scriptedHolds) Traits() policy.Traits { return policy.Traits{Holds: true} }

func (p scriptedHolds) Choose(f *policy.Facts) policy.Choice {
	index := map[string]int{}
	for i, c := range f.Candidates {
		index[c.ID] = i
	}
	p.held[f.ID] = f.Candidates[index["r0"]].Held
	if to := p.to[f.ID]; to != "" {
		return policy.Choice{Index: index[to], Reason: policy.ReasonRotation}
	}
	return policy.Choice{Index: index["r0"], Hold: true, Reason: policy.ReasonPrefixMatch}
}

// When the capacity is used up, requests that were evaluated before stay held without another evaluation. A new request
// behind them sees them counted.
func TestHoldsThatAreNotEvaluatedAgainCount(t *testing.T) {
	p := scriptedHolds{policy.NewCost(), map[string]string{"busy": "r0"}, map[string]int{}}
	cfg := DefaultConfig(p)
	var err error
	if cfg.Push, err = ParsePush("outstanding:1"); err != nil {
		t.Fatal(err)
	}
	b := start(cfg, 2)
	if got := ask(t, b, 0, Request{ID: "busy"}); got != "r0" {
		t.Fatalf("busy was sent to %s", got)
	}
	for _, id := range []string{"first", "second"} {
		b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m"}})
	}
	p.to["first"] = "r1"
	delete(p.held, "second")
	actions := b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "new", Model: "m"}})
	if got := sentTo(actions, "first"); got != "r1" {
		t.Fatalf("first was sent to %q", got)
	}
	if n, again := p.held["second"]; again {
		t.Errorf("second was evaluated again, and told that %d are held", n)
	}
	if got := p.held["new"]; got != 1 {
		t.Errorf("new was told that %d requests are held for r0, want 1", got)
	}
	if got := findTarget(b.replicas, "r0").heldRequests; got != 2 {
		t.Errorf("%d requests are held for r0, want second and new", got)
	}
}
