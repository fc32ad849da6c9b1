package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// serveOneByOne runs requests one after the other at the replicas to which they are sent, with a
// token per step of the replica.
func serveOneByOne(t *testing.T, b *Balancer, now time.Duration, n int, step map[string]time.Duration, cached int) time.Duration {
	t.Helper()
	const tokens = 50
	report := func() {
		for r := range len(b.replicas) {
			b.Step(now, idle(fmt.Sprintf("r%d", r)))
		}
	}
	report()
	for i := range n {
		id := fmt.Sprintf("warm-%v-%d", now, i)
		target := ask(t, b, now, Request{ID: id, PromptTokens: 100})
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
		now += (tokens - 1) * step[target]
		b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{
			OutputTokens: policy.Known(tokens), CachedTokens: policy.Known(cached),
		}})
		report()
		b.Step(now, Event{Kind: EventTick})
	}
	return now
}

// One replica is ten times as fast as the two others. The balancer estimates this from answers: the
// replica receives nearly all requests that the fleet can run at once.
func TestCostLearnsFastReplicas(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 3)
	steps := map[string]time.Duration{"r0": 60 * time.Millisecond, "r1": 6 * time.Millisecond, "r2": 66 * time.Millisecond}
	now := serveOneByOne(t, b, time.Second, 40, steps, 0)
	got := map[string]int{}
	for i := range 30 {
		id := fmt.Sprintf("q%d", i)
		got[ask(t, b, now, Request{ID: id, PromptTokens: 100})]++
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
	}
	if got["r1"] != 30 {
		t.Errorf("requests by replica: %v", got)
	}
	v := map[string]float64{}
	for _, r := range b.Snapshot(now).Replicas {
		v[r.ID] = r.Pace
	}
	if v["r0"] != v["r2"] || v["r1"] > 0.2*v["r0"] {
		t.Errorf("paces %v: r0 and r2 are alike, r1 is ten times as fast", v)
	}
}

// Replicas of the same hardware have random differences in speed. The estimates must not outweigh
// their caches.
func TestRandomVariationDoesNotChangePace(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 3)
	steps := map[string]time.Duration{"r0": 60 * time.Millisecond, "r1": 54 * time.Millisecond, "r2": 66 * time.Millisecond}
	now := serveOneByOne(t, b, time.Second, 40, steps, 0)
	got := map[string]int{}
	for i := range 30 {
		id := fmt.Sprintf("q%d", i)
		got[ask(t, b, now, Request{ID: id, PromptTokens: 100})]++
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
	}
	for r, n := range got {
		if n != 10 {
			t.Errorf("%s got %d of 30", r, n)
		}
	}
}

// An answer in one piece, and a clock jump, are not measurements of a replica's speed.
func TestUnstreamedAnswerDoesNotChangePace(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	now := time.Second
	for i := range 20 {
		id := fmt.Sprint(i)
		b.Step(now, idle("r0"))
		ask(t, b, now, Request{ID: id, PromptTokens: 100})
		now += 10 * time.Second
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
		b.Step(now+time.Millisecond, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(100)}})
		b.Step(now, idle("r0"))
	}
	b.Step(now, Event{Kind: EventTick})
	if got := b.Snapshot(now).Replicas[0].Pace; got != 1 {
		t.Errorf("pace %v", got)
	}
}

// order returns the sequence in which waiting requests are sent once there is capacity.
func order(b *Balancer, now time.Duration) (ids []string) {
	for range 20 {
		now += 100 * time.Millisecond
		for _, a := range slices.Clone(b.Step(now, idle("r0"))) {
			if a.Kind == ActionDispatch {
				ids = append(ids, a.ID)
				b.Step(now, Event{Kind: EventFinished, ID: a.ID, Outcome: &Outcome{}})
			}
		}
	}
	return ids
}

// A started conversation is finished before new ones begin, without any session id: its start is
// known from its prefix. If engines have nothing cached, the order is first come, first served.
func TestCachedConversationsGoFirst(t *testing.T) {
	for _, c := range []struct {
		cached int
		want   string
	}{{100, "turn new"}, {0, "new turn"}} {
		b := start(DefaultConfig(policy.NewCost()), 1)
		b.Step(time.Second, idle("r0"))
		b.Step(time.Second, idle("r0"))
		ask(t, b, time.Second, Request{ID: "opening", Prompt: letters("ab"), PromptTokens: 100})
		b.Step(2*time.Second, Event{Kind: EventFinished, ID: "opening", Outcome: &Outcome{Key: letters("abANSWER"), CachedTokens: policy.Known(c.cached)}})
		busy := idle("r0")
		busy.Report.Pending = policy.Known(3)
		b.Step(3*time.Second, busy)
		b.Step(3*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "new", Model: "m", Prompt: letters("xyz"), PromptTokens: 100}})
		b.Step(4*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", Prompt: letters("abANSWERcd"), PromptTokens: 100}})
		if got := fmt.Sprint(order(b, 5*time.Second)); got != "["+c.want+"]" {
			t.Errorf("%d of 100 tokens cached: %s, want %s", c.cached, got, c.want)
		}
	}
}

// A forwarded request keeps its session's age at the receiving balancer.
func TestForwardIncludesSessionAge(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	heartbeat := Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{RTT: time.Millisecond, Models: []ModelLoad{{Model: "m", Replicas: 8, Available: 8}}}}
	b.Step(time.Second, idle("r0"))
	ask(t, b, time.Second, Request{ID: "opening", Prompt: letters("ab"), PromptTokens: 100})
	b.Step(3*time.Second, Event{Kind: EventFinished, ID: "opening", Outcome: &Outcome{Key: letters("abANSWER")}})
	full := idle("r0")
	full.Report.Pending = policy.Known(500)
	b.Step(10*time.Second, full)
	b.Step(10*time.Second, heartbeat)
	actions := b.Step(10*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", Prompt: letters("abANSWERcd"), PromptTokens: 100}})
	if len(actions) != 1 || actions[0].Kind != ActionForward || actions[0].SessionAge != 9*time.Second {
		t.Fatalf("got %+v", actions)
	}
	// There it precedes requests that arrived earlier but whose session began later.
	there := start(DefaultConfig(policy.NewCost()), 1)
	there.Step(20*time.Second, full)
	there.Step(20*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "local", Model: "m", PromptTokens: 100}})
	there.Step(20100*time.Millisecond, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", PromptTokens: 100, From: "us", Hop: HopRemote, SessionAge: 9 * time.Second}})
	if got := fmt.Sprint(order(there, 20100*time.Millisecond)); got != "[turn local]" {
		t.Errorf("sent in the order %s", got)
	}
}
