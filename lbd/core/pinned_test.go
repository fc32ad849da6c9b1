package core

import (
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// sentTo returns the target of request id in these actions; "" if it was not sent.
func sentTo(actions []Action, id string) string {
	for _, a := range actions {
		if a.ID == id && (a.Kind == ActionDispatch || a.Kind == ActionForward) {
			return a.Target
		}
	}
	return ""
}

func rejected(actions []Action, id string) string {
	for _, a := range actions {
		if a.ID == id && a.Kind == ActionReject {
			return a.Reason
		}
	}
	return ""
}

func TestPinnedRequestGoesOnlyToItsTarget(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := start(cfg, 4)
		for _, id := range []string{"a", "b", "c", "d"} {
			if got := ask(t, b, 0, Request{ID: id, PromptTokens: 100, PinnedTo: "r2"}); got != "r2" {
				t.Errorf("%s, which r2 alone can serve, went to %s", id, got)
			}
		}
	})
}

func TestPinnedRequestDoesNotBlockOthers(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		if cfg.Push.Kind == PushBlind {
			return // no request waits for it
		}
		b := start(cfg, 2)
		full := Event{Kind: EventReplicaReport, Target: "r1", Report: &ProbeReport{Ready: true, Pending: policy.Known(9), Running: policy.Known(9), KV: policy.Known(1.0)}}
		if cfg.Push.Kind == PushOutstanding {
			for b.Snapshot(0).Replicas[1].Outstanding < cfg.Push.N {
				ask(t, b, 0, Request{ID: string(rune('A' + b.Snapshot(0).Replicas[1].Outstanding)), PromptTokens: 1, PinnedTo: "r1"})
			}
		}
		b.Step(0, full)
		held := b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "held", Model: "m", PinnedTo: "r1"}})
		if to := sentTo(held, "held"); to != "" {
			t.Fatalf("it went to %s, although its holder is full", to)
		}
		if got := ask(t, b, 0, Request{ID: "free", PromptTokens: 10}); got != "r0" {
			t.Errorf("the one behind it went to %s", got)
		}
		b.Step(0, Event{Kind: EventFinished, ID: "A", Outcome: &Outcome{}})
		b.Step(time.Millisecond, idle("r1"))
		if at := b.requests["held"]; at == nil || at.target == nil || at.target.id != "r1" {
			t.Errorf("it was not sent when its holder had room: %+v", at)
		}
	})
}

func TestRemovedTargetEndsPinnedRequests(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := start(cfg, 2)
		unknown := b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "unknown", Model: "m", PinnedTo: "r9"}})
		if got := rejected(unknown, "unknown"); got != RejectPinnedGone {
			t.Errorf("a holder that nobody knows: rejected for %q", got)
		}
		ask(t, b, 0, Request{ID: "there", PinnedTo: "r1"})
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r1", Report: &ProbeReport{Reason: "it loads"}})
		if to := sentTo(b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "waits", Model: "m", PinnedTo: "r1"}}), "waits"); to != "" {
			t.Fatalf("it went to %s, which is not ready", to)
		}
		if got := rejected(b.Step(0, Event{Kind: EventReplicaRemoved, Target: "r1"}), "waits"); got != RejectPinnedGone {
			t.Errorf("its holder was removed while it waited: rejected for %q", got)
		}
		failed := b.Step(0, Event{Kind: EventFailed, ID: "there", Outcome: &Outcome{Retryable: true}})
		if got := rejected(failed, "there"); got != RejectPinnedGone {
			t.Errorf("its holder was removed and then failed: rejected for %q", got)
		}
		if c := b.Snapshot(0).Counts; c.Queued != 0 || c.Outstanding != 0 || c.Rejected != 3 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestPinnedRequestIsRetriedAtItsTarget(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.RetryBurst = 100
		b := start(cfg, 3)
		if got := ask(t, b, 0, Request{ID: "a", PinnedTo: "r1"}); got != "r1" {
			t.Fatalf("it went to %s", got)
		}
		var last []Action
		for range cfg.MaxAttempts - 1 {
			last = b.Step(0, Event{Kind: EventFailed, ID: "a", Outcome: &Outcome{Retryable: true}})
			if to := sentTo(last, "a"); to != "r1" {
				b.Step(time.Hour, idle("r1")) // it was excluded for a while
				if at := b.requests["a"].target; at == nil || at.id != "r1" {
					t.Fatalf("after a failure it went to %q", to)
				}
			}
		}
		last = b.Step(time.Hour, Event{Kind: EventFailed, ID: "a", Outcome: &Outcome{Retryable: true}})
		if got := rejected(last, "a"); got != RejectRetriesExhausted {
			t.Errorf("rejected for %q, want %q", got, RejectRetriesExhausted)
		}
	})
}

func TestRequestIsPinnedToPeer(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.Forward = true
		b := start(cfg, 2)
		for _, p := range []PeerInfo{{ID: "eu"}, {ID: "asia"}, {ID: "us-1", SameRegion: true}} {
			b.Step(0, Event{Kind: EventPeerAdded, Peer: &p})
			b.Step(0, Event{Kind: EventPeerReport, Target: p.ID, PeerReport: &PeerReport{Models: []ModelLoad{{Model: "m", Replicas: 1, Available: 1}}}})
		}
		for i, peer := range []string{"eu", "us-1", "asia"} {
			id := string(rune('a' + i))
			if to := sentTo(b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", PinnedTo: peer}}), id); to != peer {
				t.Errorf("what %s alone can serve went to %q, with replicas idle here", peer, to)
			}
		}
		// A request from another region may not be forwarded to a third one.
		far := b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "far", Model: "m", PinnedTo: "eu", From: "asia", Hop: HopRemote}})
		if got := rejected(far, "far"); got != RejectPinnedGone {
			t.Errorf("a second crossing: rejected for %q", got)
		}
	})
}
