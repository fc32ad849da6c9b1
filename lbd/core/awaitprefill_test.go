package core

import (
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// arrival sends a request of 4,000 tokens, and returns its target, empty if it is queued, and the reason for that.
func arrival(b *Balancer, now time.Duration, id string, prompt prefix.Key, streamed bool) (target, reason string) {
	r := &Request{ID: id, Model: "m", Prompt: prompt, PromptTokens: 4000, Streamed: streamed}
	for _, a := range b.Step(now, Event{Kind: EventArrived, Request: r}) {
		switch a.Kind {
		case ActionDispatch:
			target = a.Target
		case ActionQueue:
			reason = a.Reason
		}
	}
	return target, reason
}

// sentIn returns the ids of the requests that actions send to replicas.
func sentIn(actions []Action) (ids []string) {
	for _, a := range actions {
		if a.Kind == ActionDispatch {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// Engines cache a prompt when they have computed it. A second request with the same beginning is sent when the first one
// has its first token, or has ended, or should have been computed: 4,000 tokens take two seconds.
func TestSharedPromptIsNotComputedTwice(t *testing.T) {
	long, half := fresh(rand.New(rand.NewPCG(1, 1)), 250), fresh(rand.New(rand.NewPCG(1, 2)), 250)
	copy(half, long[:125])
	const now = time.Second
	for _, c := range []struct {
		name   string
		second prefix.Key
		then   Event
		at     time.Duration
	}{
		{"first token", long, Event{Kind: EventFirstToken, ID: "a"}, now},
		{"a shared half", half, Event{Kind: EventFirstToken, ID: "a"}, now},
		{"cancelled", long, Event{Kind: EventCancelled, ID: "a", Outcome: &Outcome{}}, now},
		{"served", long, Event{Kind: EventFinished, ID: "a", Outcome: &Outcome{}}, now},
		{"no first token in time", long, Event{Kind: EventTick}, now + 2100*time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(DefaultConfig(policy.NewCost()), 1)
			b.Step(now, idle("r0"))
			if target, _ := arrival(b, now, "a", long, true); target != "r0" {
				t.Fatalf("the first request was sent to %q", target)
			}
			if target, reason := arrival(b, now, "b", c.second, true); target != "" || reason != QueuedForPrefill {
				t.Fatalf("the second request was sent to %q, reason %q", target, reason)
			}
			if c.at > now {
				b.Step(now+1900*time.Millisecond, idle("r0"))
			}
			if ids := sentIn(b.Step(max(now, c.at-200*time.Millisecond), Event{Kind: EventTick})); len(ids) > 0 {
				t.Fatalf("%v was sent while the first prompt is computed", ids)
			}
			if ids := sentIn(b.Step(c.at, c.then)); len(ids) != 1 || ids[0] != "b" {
				t.Errorf("sent %v", ids)
			}
		})
	}
}

// A request is sent at once where waiting would save nothing, or nothing would end it in time.
func TestRequestDoesNotAwaitOtherPrompts(t *testing.T) {
	long, other := fresh(rand.New(rand.NewPCG(1, 1)), 250), fresh(rand.New(rand.NewPCG(1, 2)), 250)
	short := fresh(rand.New(rand.NewPCG(1, 3)), 250)
	copy(short, long[:6]) // 96 of 4,000 tokens
	const now = time.Second
	for _, c := range []struct {
		name          string
		policy        policy.Policy
		first, second prefix.Key
		streamed      bool
	}{
		{"nothing shared", policy.NewCost(), long, other, true},
		{"computed in less than a step", policy.NewCost(), long, short, true},
		{"first without a stream", policy.NewCost(), long, long, false},
		{"a policy that holds nothing", policy.NewSkyLB(), long, long, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(DefaultConfig(c.policy), 1)
			b.Step(now, idle("r0"))
			arrival(b, now, "a", c.first, c.streamed)
			if target, reason := arrival(b, now, "b", c.second, true); target != "r0" {
				t.Errorf("the second request is queued: %q", reason)
			}
		})
	}
}

// A request that awaits a prompt delays no request with another one, and once the prompt is cached, none waits for it.
func TestRequestsPassTheOneThatAwaitsAPrompt(t *testing.T) {
	long, other := fresh(rand.New(rand.NewPCG(1, 1)), 250), fresh(rand.New(rand.NewPCG(1, 2)), 250)
	const now = time.Second
	b := start(DefaultConfig(policy.NewCost()), 1)
	b.Step(now, idle("r0"))
	arrival(b, now, "a", long, true)
	arrival(b, now, "b", long, true)
	if target, reason := arrival(b, now, "c", other, true); target != "r0" {
		t.Errorf("a request with another prompt is queued: %q", reason)
	}
	b.Step(now, Event{Kind: EventFirstToken, ID: "a"})
	if target, reason := arrival(b, now, "d", long, true); target != "r0" {
		t.Errorf("a request whose prompt is cached is queued: %q", reason)
	}
}
