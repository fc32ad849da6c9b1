package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/lbd/policy"
)

// Whatever arrives and is cancelled while a model has no replica, every other request is sent to the
// first replica as soon as it is ready, in the order of arrival.
func TestColdRequestsAreServedInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p, err := policy.New(rapid.SampledFrom([]string{"round-robin", "least-load", "skylb", "cost"}).Draw(rt, "policy"))
		if err != nil {
			rt.Fatal(err)
		}
		cfg := DefaultConfig(p)
		cfg.Push, cfg.ScaleToZero = PushMode{Kind: PushBlind}, map[string]bool{"m": true}
		w := newWorld(cfg)
		var waiting []string
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			w.now += time.Duration(rapid.IntRange(0, 25).Draw(rt, "seconds")) * time.Second
			w.step(rt, Event{Kind: EventTick})
			if len(waiting) > 0 && rapid.IntRange(0, 3).Draw(rt, "cancel") == 0 {
				i := rapid.IntRange(0, len(waiting)-1).Draw(rt, "which")
				w.step(rt, Event{Kind: EventCancelled, ID: waiting[i]})
				waiting = slices.Delete(waiting, i, i+1)
				continue
			}
			w.next++
			id := fmt.Sprintf("q%d", w.next)
			w.step(rt, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m"}})
			waiting = append(waiting, id)
			w.checkCounts(rt)
		}
		w.step(rt, Event{Kind: EventTick})
		w.step(rt, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}})
		var sent []string
		for _, a := range w.step(rt, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(0)}}) {
			if a.Kind != ActionDispatch {
				rt.Fatalf("want only dispatches, got %+v", a)
			}
			sent = append(sent, a.ID)
		}
		w.checkCounts(rt)
		if p.Name() == "cost" { // it may hold requests for the replica; none is lost
			sent = append(sent, waiting[len(sent):]...)
		}
		if !slices.Equal(sent, waiting) {
			rt.Fatalf("sent %q, want %q", sent, waiting)
		}
	})
}

// Requests for a model that starts from zero replicas are not late, however long its machine takes.
func TestColdStartIsNoLongQueue(t *testing.T) {
	p, err := policy.New("round-robin")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.ScaleToZero = map[string]bool{"m": true}
	w := newWorld(cfg)
	w.step(t, Event{Kind: EventTick})
	w.step(t, Event{Kind: EventArrived, Request: &Request{ID: "q1", Model: "m"}})
	oldest := func(after time.Duration, want time.Duration) {
		t.Helper()
		for range after / time.Second {
			w.now += time.Second
			w.step(t, Event{Kind: EventTick})
		}
		if got := w.b.Snapshot(w.now).OldestActiveWait; got != want {
			t.Errorf("the oldest request waits for %v, want %v", got, want)
		}
	}
	oldest(5*time.Minute, 0)
	w.step(t, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}})
	w.step(t, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(1), Running: policy.Known(1)}})
	w.step(t, Event{Kind: EventTick})
	w.now += time.Second
	if got := w.b.Snapshot(w.now).OldestActiveWait; got < time.Second || got > 2*time.Second {
		t.Errorf("a second after the start it waits for %v, want 1s and the time since the last tick", got)
	}
}

// The time without use starts after the last request, and again when a replica becomes ready.
func TestIdleTimeOfAModel(t *testing.T) {
	p, err := policy.New("round-robin")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(DefaultConfig(p))
	step := func(at time.Duration, ev Event, want time.Duration) {
		t.Helper()
		w.now = at
		w.b.Step(at, ev)
		if got := w.b.Snapshot(at).Models[0].Idle; got != want {
			t.Errorf("after %s at %v: idle for %v, want %v", ev.Kind, at, got, want)
		}
	}
	ready := Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true}}
	tick := Event{Kind: EventTick}
	step(time.Second, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}}, 0)
	step(3*time.Second, tick, 2*time.Second)
	step(5*time.Second, ready, 0)
	step(5500*time.Millisecond, ready, 500*time.Millisecond)
	step(6*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "a", Model: "m"}}, 0)
	step(20*time.Second, tick, 0) // a long request
	step(20500*time.Millisecond, Event{Kind: EventCancelled, ID: "a"}, 500*time.Millisecond)
	step(23*time.Second, tick, 3*time.Second)
}
