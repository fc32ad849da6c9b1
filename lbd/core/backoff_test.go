package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// failed is the event of a request whose target failed.
func failed(id string) Event {
	return Event{Kind: EventFailed, ID: id, Outcome: &Outcome{Retryable: true}}
}

// placeOf returns the target to which actions send a request; empty if they do not send it.
func placeOf(actions []Action, id string) string {
	for _, a := range actions {
		if a.ID == id && (a.Kind == ActionDispatch || a.Kind == ActionForward) {
			return a.Target
		}
	}
	return ""
}

// until advances time in steps of a millisecond, with reports of the replicas, until a request is
// sent. It returns the target and the elapsed time.
func until(t *testing.T, b *Balancer, now time.Duration, id string, replicas ...string) (target string, later time.Duration) {
	t.Helper()
	for later = 0; later < time.Minute; later += time.Millisecond {
		actions := slices.Clone(b.Step(now+later, Event{Kind: EventTick}))
		for _, r := range replicas {
			actions = append(actions, b.Step(now+later, idle(r))...)
		}
		if target = placeOf(actions, id); target != "" {
			return target, later
		}
	}
	t.Fatalf("%s is sent nowhere", id)
	return "", 0
}

// A request that failed at the only replica is sent to it again, each time after a longer backoff
// with its own jitter.
func TestRetryToSameTargetWaitsForBackoff(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.MaxAttempts, cfg.MaxRetryBackoff = 8, 200*time.Millisecond
		b, now := start(cfg, 1), time.Duration(0)
		ask(t, b, 0, Request{ID: "q"})
		for round, want := range []time.Duration{50, 75, 112, 168, 200, 200, 200} {
			if actions := b.Step(now, failed("q")); len(actions) > 0 {
				t.Fatalf("round %d: at once %+v", round, actions)
			}
			_, rest := until(t, b, now, "q", "r0")
			if want *= time.Millisecond; rest < want*8/10 || rest > want*12/10+time.Millisecond {
				t.Errorf("round %d: it rested %s, want %s and a fifth more or less", round, rest, want)
			}
			now += rest
		}
		if a := b.Step(now, failed("q")); len(a) != 1 || a[0].Reason != RejectRetriesExhausted {
			t.Errorf("after all tries: %+v", a)
		}
	})
}

// Another replica, or peer, is tried immediately, also one that is added during the backoff.
func TestRetryToOtherTargetIsImmediate(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.MaxAttempts, cfg.RetryBackoff = 9, time.Hour
		b := start(cfg, 2)
		first := ask(t, b, 0, Request{ID: "q", Session: "s"})
		second := placeOf(b.Step(0, failed("q")), "q")
		if second == "" || second == first {
			t.Fatalf("from %s it went to %q", first, second)
		}
		if actions := b.Step(0, failed("q")); len(actions) > 0 {
			t.Fatalf("with no other one: %+v", actions)
		}
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r2", Model: "m"}})
		if got := placeOf(b.Step(0, idle("r2")), "q"); got != "r2" {
			t.Fatalf("a new replica came, and it went to %q", got)
		}
		b.Step(0, failed("q"))
		b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
		load := ModelLoad{Model: "m", Replicas: 1, Available: 1}
		for _, id := range []string{"r0", "r1", "r2"} { // full, so that every policy forwards
			b.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &ProbeReport{Ready: true, Pending: policy.Known(1)}})
		}
		if got := placeOf(b.Step(0, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{load}}}), "q"); got != "eu" {
			t.Errorf("a peer came, and it went to %q", got)
		}
	})
}

// Complaint: a request waits although a replica of its model is idle at a peer, because requests for another model were
// just sent there.
func TestForwardsOfOtherModelsTakeNoCapacity(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := start(cfg, 0)
		b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
		b.Step(0, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{
			{Model: "a", Replicas: 1, Available: 1}, {Model: "b", Replicas: 20, Available: 20},
		}}})
		arrive := func(id, model string) string {
			return placeOf(b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: model}}), id)
		}
		for i := range 10 {
			if got := arrive(fmt.Sprint(i), "b"); got != "eu" {
				t.Fatalf("request %d for b went to %q", i, got)
			}
		}
		if got := arrive("q", "a"); got != "eu" {
			t.Errorf("the request for a went to %q", got)
		}
	})
}

// A request in backoff does not delay others, and does not exceed its maximum wait.
func TestRequestInBackoffDoesNotBlockQueue(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.RetryBackoff, cfg.MaxRetryBackoff, cfg.MaxWait = time.Hour, time.Hour, time.Second
		b := start(cfg, 1)
		ask(t, b, 0, Request{ID: "rests"})
		b.Step(0, failed("rests"))
		for i := range 20 {
			now := time.Duration(i) * 10 * time.Millisecond
			b.Step(now, idle("r0"))
			id := fmt.Sprint("passes", i)
			if got := ask(t, b, now, Request{ID: id}); got != "r0" {
				t.Fatalf("%s went to %q", id, got)
			}
			b.Step(now, Event{Kind: EventFinished, ID: id})
		}
		if a := b.Step(time.Second, Event{Kind: EventTick}); len(a) != 1 || a[0].ID != "rests" || a[0].Reason != RejectWaitExceeded {
			t.Errorf("when its time is over: %+v", a)
		}
	})
}

// The backoff depends only on the id and the round, and differs between ids.
func TestBackoffJitterDependsOnID(t *testing.T) {
	cfg := DefaultConfig(nil)
	low, high, sum := time.Hour, time.Duration(0), time.Duration(0)
	const ids = 1000
	for i := range ids {
		rest := cfg.retryBackoff(fmt.Sprint("req-", i), 0)
		if again := cfg.retryBackoff(fmt.Sprint("req-", i), 0); rest != again {
			t.Fatalf("%s, then %s", rest, again)
		}
		low, high, sum = min(low, rest), max(high, rest), sum+rest
	}
	if low < 40*time.Millisecond || low > 41*time.Millisecond || high < 59*time.Millisecond || high > 60*time.Millisecond {
		t.Errorf("from %s to %s, want 40 to 60 ms", low, high)
	}
	if mean := sum / ids; mean < 49*time.Millisecond || mean > 51*time.Millisecond {
		t.Errorf("%s in the mean, want 50 ms", mean)
	}
	if rest := cfg.retryBackoff("q", 1000); rest > cfg.MaxRetryBackoff*12/10 || rest < cfg.MaxRetryBackoff*8/10 {
		t.Errorf("after a thousand rounds %s", rest)
	}
	cfg.RetryBackoff = 0
	if rest := cfg.retryBackoff("q", 3); rest != 0 {
		t.Errorf("without a wait %s", rest)
	}
}
