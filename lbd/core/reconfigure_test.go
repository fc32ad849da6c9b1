package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// drawOther returns another configuration for a running balancer.
func drawOther(rt *rapid.T) Config {
	cfg := drawConfig(rt)
	cfg.QueueLimit = rapid.SampledFrom([]int{0, 3, 6, 50}).Draw(rt, "queue limit")
	cfg.MaxWait = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(rt, "max wait")
	cfg.Forward = rapid.Bool().Draw(rt, "forward")
	cfg.PeerQueueLimit = rapid.IntRange(0, 3).Draw(rt, "tau")
	cfg.MaxAttempts = rapid.IntRange(1, 5).Draw(rt, "tries")
	cfg.RetryBurst = rapid.IntRange(0, 2).Draw(rt, "retries")
	cfg.EjectAfter = rapid.IntRange(0, 2).Draw(rt, "eject after")
	cfg.MaxEjectTime = rapid.SampledFrom([]time.Duration{time.Millisecond, time.Minute}).Draw(rt, "eject most")
	cfg.SessionLead = rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(rt, "lead")
	cfg.ModelDeadlines = map[string]TierDeadlines{"n": {Fast: time.Duration(rapid.IntRange(0, 3000).Draw(rt, "target")) * time.Millisecond}}
	return cfg
}

// reconfigure applies another configuration and compares the actions with the model.
func (w *world) reconfigure(t fatal, cfg Config) {
	w.now += 37 * time.Millisecond
	before := maps.Clone(w.at)
	actions := w.b.Reconfigure(w.now, cfg)
	did, err := json.Marshal(actions)
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.events = append(w.events, did)
	for _, a := range actions {
		switch {
		case a.Kind != ActionDispatch && a.Kind != ActionForward:
			t.Fatalf("a new configuration did %+v", a)
		case a.Target == "" || a.Decision == nil || a.Reason == "":
			t.Fatalf("unexplained %+v", a)
		case w.at[a.ID] != "":
			t.Fatalf("%s was at %s and was sent to %s", a.ID, w.at[a.ID], a.Target)
		}
		w.at[a.ID] = a.Target
	}
	for id, at := range before {
		if at != "" && w.at[id] != at {
			t.Fatalf("%s was at %s and is at %q", id, at, w.at[id])
		}
	}
}

// checkPlaces checks that the balancer has every request in the place of the model, and that its
// queues and pools contain exactly these.
func (w *world) checkPlaces(t fatal) {
	queued := 0
	for _, q := range w.b.queues {
		all := q.Waiting(nil)
		if len(all) != q.Len() || q.unevaluated < 0 || q.unevaluated > q.Len() {
			t.Fatalf("queue of %s: %d in its levels, %d counted, %d not weighed", q.model, len(all), q.Len(), q.unevaluated)
		}
		for _, r := range all {
			if at, inFlight := w.at[r.ID]; !inFlight || at != "" || r.target != nil {
				t.Fatalf("%s waits, but is at %q", r.ID, at)
			}
		}
		queued += len(all) + q.Parked()
	}
	there := map[*target]int{}
	for id, at := range w.at {
		r := w.b.requests[id]
		if r == nil || (r.target == nil) != (at == "") || (r.target != nil && r.target.id != at) {
			t.Fatalf("%s is at %q, the balancer has %+v", id, at, r)
		}
		if r.target == nil {
			queued--
			continue
		}
		there[r.target]++
	}
	if queued != 0 {
		t.Fatalf("%d more wait than should", queued)
	}
	for x, n := range there {
		if x.outstanding != n || (w.b.pools.policy != nil && len(x.requests) != n) {
			t.Fatalf("%s: %d are there, %d counted, %d in its pool", x.id, n, x.outstanding, len(x.requests))
		}
	}
}

// For random changes while requests wait and run, each request stays in its place or is sent, each
// ends once, and all counters return to zero.
func TestReconfigureLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(drawConfig(rt))
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			if rapid.IntRange(0, 5).Draw(rt, "changes") == 0 {
				w.reconfigure(rt, drawOther(rt))
			} else {
				w.step(rt, w.draw(rt))
			}
			w.checkCounts(rt)
			w.checkPlaces(rt)
		}
		for _, id := range slices.Sorted(maps.Keys(w.at)) {
			if _, inFlight := w.at[id]; inFlight {
				w.step(rt, Event{Kind: EventCancelled, ID: id})
			}
		}
		if c := w.b.Snapshot(w.now).Counts; c.Queued != 0 || c.Outstanding != 0 || len(w.b.requests) != 0 {
			rt.Fatalf("traffic ended, still counted: %+v", c)
		}
		for _, x := range slices.Concat(w.b.replicas, w.b.peers) {
			if x.outstanding != 0 || len(x.unconfirmed) != 0 || x.work != (work{}) || x.streaming != 0 || len(x.requests) != 0 {
				rt.Fatalf("%s: %d outstanding, %d unconfirmed, %+v to do, %d talking after the end", x.id, x.outstanding, len(x.unconfirmed), x.work, x.streaming)
			}
		}
	})
}

// If nothing was sent yet, history has no effect: a balancer that is reconfigured later decides
// like one that had the configuration from the start.
func TestReconfigureDecidesLikeNew(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawConfig(rt)
		twin := func() Config {
			c := cfg
			c.Policy, _ = policy.New(cfg.Policy.Name())
			return c
		}
		before := drawConfig(rt)
		before.TreeOrder, before.ScaleToZero = cfg.TreeOrder, cfg.ScaleToZero
		cfg.QueueLimit, before.QueueLimit = 12, 12 // nobody gives way, also in the half for models without a replica
		late, early := newWorld(before), newWorld(twin())
		both := func(ev Event) {
			got, want := outline(late.step(rt, ev)), outline(early.step(rt, ev))
			if !slices.Equal(got, want) {
				rt.Fatalf("%+v: %v reconfigured, %v from the start", ev, got, want)
			}
		}
		for _, id := range replicaNames {
			both(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		}
		for i := range rapid.IntRange(0, 6).Draw(rt, "waiting") { // the replicas have not responded yet
			both(Event{Kind: EventArrived, Request: &Request{
				ID: fmt.Sprintf("w%d", i), Model: "m", PromptTokens: rapid.IntRange(0, 99).Draw(rt, "tokens"),
				Prompt: letters(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 5, -1).Draw(rt, "prompt")),
				Tenant: rapid.SampledFrom([]string{"", "t1", "t2"}).Draw(rt, "tenant"),
				Tier:   rapid.SampledFrom(service.Tiers()).Draw(rt, "tier"),
			}})
		}
		late.reconfigure(rt, twin())
		early.now = late.now
		for range 30 {
			both(late.draw(rt))
		}
		if got, want := fmt.Sprint(late.b.ModelLoads(late.now)), fmt.Sprint(early.b.ModelLoads(early.now)); got != want {
			rt.Fatalf("load %s reconfigured, %s from the start", got, want)
		}
	})
}

// The same history results in the same bytes, including changes of configuration.
func TestReconfigureIsReproducible(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fresh := func(cfg Config) Config {
			cfg.Policy, _ = policy.New(cfg.Policy.Name())
			return cfg
		}
		begin, changes := drawConfig(rt), map[int]Config{} // by the number of earlier events
		w := newWorld(fresh(begin))
		for range 40 {
			if rapid.IntRange(0, 5).Draw(rt, "changes") == 0 {
				changes[len(w.log)] = drawOther(rt)
				w.reconfigure(rt, fresh(changes[len(w.log)]))
			}
			w.step(rt, w.draw(rt))
		}
		again := newWorld(fresh(begin))
		for i, ev := range w.log {
			if cfg, changed := changes[i]; changed {
				again.reconfigure(rt, fresh(cfg))
			}
			again.step(rt, ev)
		}
		for i := range w.events {
			if string(again.events[i]) != string(w.events[i]) {
				rt.Fatalf("step %d: first\n%s\nthen\n%s", i, w.events[i], again.events[i])
			}
		}
	})
}

// If a bound is removed, its ejections end. Requests beyond a new queue limit stay, but no more are
// accepted.
func TestReconfigureAppliesBounds(t *testing.T) {
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.EjectAfter, cfg.EjectShare, cfg.Push = 1, 1, PushMode{Kind: PushOutstanding, N: 1}
	w := newWorld(cfg)
	w.step(t, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}})
	w.step(t, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r1", Model: "m"}})
	w.step(t, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true}})
	w.step(t, Event{Kind: EventArrived, Request: &Request{ID: "a", Model: "m"}})
	w.step(t, Event{Kind: EventReplicaReport, Target: "r1", Report: &ProbeReport{Ready: true}})
	w.step(t, Event{Kind: EventFailed, ID: "a", Outcome: &Outcome{Retryable: true}})
	if at := w.at["a"]; at != "r1" || w.b.Snapshot(w.now).Ejections != 1 {
		t.Fatalf("a is at %q after %d ejections, want r1 after one", at, w.b.Snapshot(w.now).Ejections)
	}
	for _, id := range []string{"b", "c", "d"} {
		w.step(t, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m"}})
	}
	cfg.EjectAfter, cfg.QueueLimit = 0, 1
	w.reconfigure(t, cfg)
	if at := w.at["b"]; at != "r0" {
		t.Errorf("b is at %q, want r0, which is not left out any more", at)
	}
	if c := w.b.Snapshot(w.now).Counts; c.Queued != 2 || c.Outstanding != 2 {
		t.Errorf("counts %+v, want two queued beyond the limit of one", c)
	}
	w.step(t, Event{Kind: EventArrived, Request: &Request{ID: "e", Model: "m"}})
	if how := w.ended["e"]; how != string(ActionReject) {
		t.Errorf("e ended %q, want a rejection by the new limit", how)
	}
}

// Served tokens are kept when the order changes: a tenant with a long answer waits for a tenant
// without one.
func TestReconfigureKeepsServedTokens(t *testing.T) {
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.Push = PushMode{Kind: PushOutstanding, N: 1}
	w := newWorld(cfg)
	w.step(t, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}})
	w.step(t, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true}})
	for _, id := range []string{"a1", "a2", "b1", "b2"} {
		w.step(t, Event{Kind: EventArrived, Request: &Request{ID: id, Tenant: id[:1], Model: "m", Tier: service.TierFast}})
	}
	w.step(t, Event{Kind: EventFinished, ID: "a1", Outcome: &Outcome{OutputTokens: policy.Known(1000)}})
	cfg.Order = OrderPF
	w.reconfigure(t, cfg)
	w.step(t, Event{Kind: EventFinished, ID: "b1"})
	if w.at["b2"] != "r0" || w.at["a2"] != "" {
		t.Errorf("sent are %v, want b2 before a2, which came first", w.at)
	}
}

// BenchmarkReconfigure measures a change of the policy and the order while a full queue waits for
// 64 replicas. No other decision is possible during this time.
func BenchmarkReconfigure(b *testing.B) {
	policies := [2]policy.Policy{}
	for i, name := range []string{"cost", "skylb"} {
		p, err := policy.New(name)
		if err != nil {
			b.Fatal(err)
		}
		policies[i] = p
	}
	cfg := DefaultConfig(policies[0])
	balancer := New(cfg)
	for i := range 64 {
		balancer.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: fmt.Sprintf("r%02d", i), Model: "m"}})
	}
	for i := range cfg.QueueLimit {
		balancer.Step(0, Event{Kind: EventArrived, Request: &Request{
			ID: fmt.Sprintf("q%d", i), Model: "m", Tenant: fmt.Sprint(i % 16), Tier: service.TierFast, Prompt: letters("abcabc"), PromptTokens: 96,
		}})
	}
	for i := 0; b.Loop(); i++ {
		cfg.Policy, cfg.Order = policies[(i+1)%2], []QueueOrder{OrderEDF, OrderFCFS}[i%2]
		balancer.Reconfigure(0, cfg)
	}
}
