package core

import (
	"fmt"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// burstEngine is an engine with a number of slots. It starts requests in order, produces a first
// token a millisecond after the start, and keeps the slot for a while.
type burstEngine struct {
	slots   int
	hold    time.Duration
	queue   []string
	running []burstRun
}

type burstRun struct {
	id      string
	started time.Duration
}

// advance returns the events of one millisecond.
func (e *burstEngine) advance(now time.Duration) (evs []Event) {
	keep := e.running[:0]
	for _, r := range e.running {
		switch now - r.started {
		case time.Millisecond:
			evs = append(evs, Event{Kind: EventFirstToken, ID: r.id})
		case e.hold:
			evs = append(evs, Event{Kind: EventFinished, ID: r.id})
			continue
		}
		keep = append(keep, r)
	}
	e.running = keep
	for len(e.queue) > 0 && len(e.running) < e.slots {
		e.running = append(e.running, burstRun{e.queue[0], now})
		e.queue = e.queue[1:]
	}
	return evs
}

// burstOutcome is the result of the bursts: the longest wait in the balancer's queue in the last
// burst, and the most requests that waited in the engine.
type burstOutcome struct {
	lastWait   time.Duration
	maxWaiting int
}

// sendBursts sends a burst every second to one engine, with a report every probe interval.
func sendBursts(e *burstEngine, size, bursts int) (o burstOutcome) {
	b := start(DefaultConfig(policy.NewSkyLB()), 1)
	queuedAt := map[string]time.Duration{}
	step := func(now time.Duration, ev Event) {
		for _, a := range append([]Action(nil), b.Step(now, ev)...) {
			if a.Kind != ActionDispatch {
				continue
			}
			e.queue = append(e.queue, a.ID)
			if now >= time.Duration(bursts-1)*time.Second {
				o.lastWait = max(o.lastWait, now-queuedAt[a.ID])
			}
		}
	}
	for now := time.Duration(0); now < time.Duration(bursts)*time.Second; now += time.Millisecond {
		evs := e.advance(now)
		o.maxWaiting = max(o.maxWaiting, len(e.queue))
		for _, ev := range evs {
			step(now, ev)
		}
		if now%(100*time.Millisecond) == 0 {
			step(now, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{
				Ready: true, Age: time.Millisecond, Pending: policy.Known(len(e.queue)), Running: policy.Known(len(e.running)),
			}})
		}
		if now%time.Second == 50*time.Millisecond {
			for i := range size {
				id := fmt.Sprint(now, i)
				queuedAt[id] = now
				step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m"}})
			}
		}
	}
	return o
}

func TestBurstsToFastEngineAreNotQueued(t *testing.T) {
	for _, size := range []int{8, 20, 48} {
		o := sendBursts(&burstEngine{slots: 64, hold: 200 * time.Millisecond}, size, 12)
		if o.lastWait > 0 {
			t.Errorf("bursts of %d: a request of the last one waited %s", size, o.lastWait)
		}
	}
}

func TestBurstsDoNotFillSlowEngine(t *testing.T) {
	c := DefaultConfig(policy.NewSkyLB())
	for _, slots := range []int{1, 4, 16} {
		o := sendBursts(&burstEngine{slots: slots, hold: 400 * time.Millisecond}, 48, 12)
		if o.maxWaiting > c.UnconfirmedLimit {
			t.Errorf("%d slots: %d requests waited in the engine, want at most %d", slots, o.maxWaiting, c.UnconfirmedLimit)
		}
	}
}

// Complaint: with a probe every second, a replica that had a pending request when it was probed receives nothing
// for a second, although that request has long started.
func TestFirstTokensEndPendingBeforeTheNextProbe(t *testing.T) {
	for _, c := range []struct {
		name            string
		pending, others int // in the report; others were sent by somebody else
		started         int // first tokens since the report
		want            bool
	}{
		{"nothing pending", 0, 0, 0, true},
		{"still pending", 1, 0, 0, false},
		{"one of two started", 2, 0, 1, false},
		{"both started", 2, 0, 2, true},
		{"pending requests of others", 2, 2, 2, false},
	} {
		b := start(DefaultConfig(policy.NewSkyLB()), 1)
		for i := range 2 {
			if ask(t, b, 0, Request{ID: fmt.Sprint(i)}) != "r0" {
				t.Fatal("not sent")
			}
			b.Step(0, idle("r0"))
			b.Step(time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(0), Running: policy.Known(i + 1)}})
		}
		b.Step(time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{
			Ready: true, Pending: policy.Known(c.pending), Running: policy.Known(2 - c.pending + c.others),
		}})
		for i := range c.started {
			b.Step(time.Second, Event{Kind: EventFirstToken, ID: fmt.Sprint(i)})
		}
		if got := b.Snapshot(time.Second).Replicas[0].Available; got != c.want {
			t.Errorf("%s: available %v", c.name, got)
		}
	}
}

// Complaint: a large engine that runs 130 requests with 80 % of its memory free received at most 4 requests per
// step, and the others waited at the balancer for up to seconds.
func TestEngineWithFreeMemoryReceivesMore(t *testing.T) {
	for _, c := range []struct {
		name    string
		running int
		kv      policy.Maybe[float64]
		want    int // requests of a burst that are sent at once
	}{
		{"many requests, memory free", 128, policy.Known(0.25), 24},
		{"many requests, memory full", 128, policy.Known(0.97), 4},
		{"many requests, memory unknown", 128, policy.Maybe[float64]{}, 4},
		{"few requests, memory free", 8, policy.Known(0.05), 4},
		{"idle", 0, policy.Known(0.0), 4},
		{"more memory in use than there is", 128, policy.Known(1.5), 4},
	} {
		b := start(DefaultConfig(policy.NewSkyLB()), 1)
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{
			Ready: true, Pending: policy.Known(0), Running: policy.Known(c.running), KV: c.kv,
		}})
		sent := 0
		for i := range 64 {
			for _, a := range b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(i), Model: "m"}}) {
				if a.Kind == ActionDispatch {
					sent++
				}
			}
		}
		if sent != c.want {
			t.Errorf("%s: %d of 64 requests sent, want %d", c.name, sent, c.want)
		}
	}
}

// Complaint: with a probe every second, a replica whose requests have all ended seems full until the next report,
// and requests are sent to full replicas instead.
func TestEndedRequestsFreeMemoryBeforeTheNextProbe(t *testing.T) {
	for _, c := range []struct {
		name             string
		running, pending int     // in the report, of two requests sent from here and perhaps others
		kv               float64 // in the report
		ended            int     // since the report
		wantRunning      int
		wantKV           float64
	}{
		{"none ended", 2, 0, 0.8, 0, 2, 0.8},
		{"one of two ended", 2, 0, 0.8, 1, 2, 0.8},
		{"both ended", 2, 0, 0.8, 2, 0, 0},
		{"both ended, requests of another balancer run", 4, 0, 0.8, 2, 4, 0.8},
		{"one may still be pending", 1, 1, 0.8, 0, 1, 0.8},
		{"none was running", 0, 2, 0.1, 2, 0, 0.1},
	} {
		b := start(DefaultConfig(policy.NewCost()), 1)
		report := func(running, pending int, kv float64) {
			b.Step(time.Second, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{
				Ready: true, Running: policy.Known(running), Pending: policy.Known(pending), KV: policy.Known(kv),
			}})
		}
		for i := range 2 {
			ask(t, b, 0, Request{ID: fmt.Sprint(i)})
		}
		report(c.running, c.pending, c.kv)
		for i := range c.ended {
			b.Step(time.Second, Event{Kind: EventFinished, ID: fmt.Sprint(i)})
		}
		running, kv := b.replicas[0].stillRunning()
		if running != policy.Known(c.wantRunning) || kv != policy.Known(c.wantKV) {
			t.Errorf("%s: %v running, KV utilisation %v", c.name, running, kv)
		}
	}
}

// A replica is about to begin a prefill step for a decode step after it received a request, until its first token.
func TestReplicaAboutToStartAPrefill(t *testing.T) {
	spy := &candidates{Policy: policy.NewCost()}
	b := start(DefaultConfig(spy), 1)
	at := func(now time.Duration, id string) bool {
		b.Step(now, idle("r0"))
		ask(t, b, now, Request{ID: id, Prompt: letters(id), PromptTokens: 100, Streamed: true})
		return spy.replicas[0].JoinsPrefill
	}
	for _, c := range []struct {
		now  time.Duration
		id   string
		want bool
	}{{time.Second, "a", false}, {time.Second + 20*time.Millisecond, "b", true}, {time.Second + 90*time.Millisecond, "c", false}} {
		if got := at(c.now, c.id); got != c.want {
			t.Errorf("%s: %v", c.id, got)
		}
	}
	b.Step(time.Second+95*time.Millisecond, Event{Kind: EventFirstToken, ID: "c"})
	for _, id := range []string{"a", "b"} {
		b.Step(time.Second+95*time.Millisecond, Event{Kind: EventFirstToken, ID: id})
	}
	if at(time.Second+96*time.Millisecond, "d") {
		t.Error("all prompts are computed")
	}
}
