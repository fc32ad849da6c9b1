package core

import (
	"fmt"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// failing is a service of n replicas in which r0 fails every request.
type failing struct {
	*testing.T
	b        *Balancer
	now      time.Duration
	sent     map[string]int // by replica
	requests int
}

func newFailing(t *testing.T, n int) *failing {
	p, err := policy.New("round-robin")
	if err != nil {
		t.Fatal(err)
	}
	return &failing{T: t, b: start(DefaultConfig(p), n), sent: map[string]int{}}
}

// step processes an event, and every dispatch that follows from it: r0 fails the request, the
// others serve it.
func (f *failing) step(ev Event) {
	actions := append([]Action(nil), f.b.Step(f.now, ev)...)
	for _, a := range actions {
		if a.Kind != ActionDispatch {
			continue
		}
		f.sent[a.Target]++
		if a.Target == "r0" {
			f.step(Event{Kind: EventFailed, ID: a.ID, Outcome: &Outcome{Retryable: true, Cause: "500"}})
		} else {
			f.step(Event{Kind: EventFinished, ID: a.ID})
		}
	}
}

// ask advances time by 10 ms, with the reports that are due, and sends a request.
func (f *failing) ask() {
	f.now += 10 * time.Millisecond
	if f.requests++; f.requests%10 == 0 {
		for _, v := range f.b.Snapshot(f.now).Replicas {
			f.step(idle(v.ID))
		}
		f.step(Event{Kind: EventTick})
	}
	f.step(Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(f.requests), Model: "m"}})
}

// A replica that reports ready but fails its requests receives only trial requests, at increasing
// intervals; other replicas serve its requests. Once it serves again, it has its full share.
func TestFailingReplicaIsEjected(t *testing.T) {
	f := newFailing(t, 3)
	for range 12_000 { // two minutes
		f.ask()
	}
	c := f.b.Snapshot(f.now)
	if c.Counts.Finished != 12_000 || c.Counts.Rejected != 0 {
		t.Fatalf("counts %+v", c.Counts)
	}
	// Five failures until the ejection, then trials after 5, 10, 20, 40 s.
	if f.sent["r0"] < 8 || f.sent["r0"] > 10 || c.Ejections != int64(f.sent["r0"]-4) {
		t.Errorf("r0 was sent %d requests and ejected %d times", f.sent["r0"], c.Ejections)
	}
	if r := c.Replicas[0]; r.Ready || r.Available || len(r.Reason) < 10 || r.Reason[:7] != "ejected" {
		t.Errorf("r0 is %+v", r)
	}
	f.step(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m", Process: "restarted"}})
	f.step(idle("r0"))
	before := f.sent["r0"]
	f.ask()
	f.ask()
	f.ask()
	if f.sent["r0"] == before {
		t.Error("a restarted replica is still left out")
	}
}

// Only consecutive failures are counted: one success resets the count.
func TestSuccessResetsFailureCount(t *testing.T) {
	p, _ := policy.New("round-robin")
	b := start(DefaultConfig(p), 2)
	now := time.Duration(0)
	for i := range 100 {
		now += 10 * time.Millisecond
		b.Step(now, idle("r0"))
		b.Step(now, idle("r1"))
		id := fmt.Sprint(i)
		at := ask(t, b, now, Request{ID: id})
		if at == "r0" && i%8 < 6 {
			b.Step(now, Event{Kind: EventFailed, ID: id, Outcome: &Outcome{Cause: "500"}})
		} else {
			b.Step(now, Event{Kind: EventFinished, ID: id})
		}
	}
	if v := b.Snapshot(now); v.Ejections != 0 {
		t.Errorf("%d ejections", v.Ejections)
	}
}

// Requests in flight when a connection breaks fail together and count as one failure.
func TestBrokenConnectionCountsAsOneFailure(t *testing.T) {
	cfg := DefaultConfig(&policy.RoundRobin{})
	cfg.Push = PushMode{Kind: PushBlind}
	b := start(cfg, 2)
	for i := range 40 {
		ask(t, b, 1, Request{ID: fmt.Sprint(i)})
	}
	for i := range 40 {
		b.Step(2, Event{Kind: EventFailed, ID: fmt.Sprint(i), Outcome: &Outcome{Cause: "connection reset"}})
	}
	if v := b.Snapshot(3); v.Ejections != 0 || v.Counts.Outstanding != 0 {
		t.Errorf("%d ejections, counts %+v", v.Ejections, v.Counts)
	}
}

// For any number of failing replicas, at most half of a model's replicas are ejected, and a single
// one never is.
func TestEjectionKeepsEnoughReplicas(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 4: 2, 7: 3} {
		b := start(DefaultConfig(&policy.RoundRobin{}), n)
		now := time.Duration(0)
		for i := range 400 {
			now += 10 * time.Millisecond
			for k := range n {
				b.Step(now, idle(fmt.Sprintf("r%d", k)))
			}
			id := fmt.Sprint(i)
			for _, a := range b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m"}}) {
				if a.Kind == ActionDispatch {
					b.Step(now, Event{Kind: EventFailed, ID: a.ID, Outcome: &Outcome{Cause: "500"}})
				}
			}
			out := 0
			for _, r := range b.Snapshot(now).Replicas {
				if !r.Ready {
					out++
				}
			}
			if out > most {
				t.Fatalf("%d of %d replicas are left out", out, n)
			}
		}
		if b.Snapshot(now).Ejections == 0 && most > 0 {
			t.Errorf("of %d replicas that fail none was left out", n)
		}
	}
}

// If the others die, an ejected replica is tried immediately: it is better than none.
func TestEjectedReplicaIsUsedIfItIsTheOnlyOne(t *testing.T) {
	f := newFailing(t, 2)
	for range 20 {
		f.ask()
	}
	if f.b.Snapshot(f.now).Replicas[0].Ready {
		t.Fatal("r0 was not ejected")
	}
	f.step(Event{Kind: EventReplicaReport, Target: "r1", Report: &ProbeReport{Reason: "gone"}})
	f.now += 10 * time.Millisecond
	f.step(Event{Kind: EventTick})
	if at := ask(t, f.b, f.now, Request{ID: "last"}); at != "r0" {
		t.Errorf("sent to %s", at)
	}
}

// A fleet in which every replica fails does not receive many more requests than arrive.
func TestRetryBudgetBoundsRetries(t *testing.T) {
	cfg := DefaultConfig(&policy.RoundRobin{})
	cfg.EjectAfter, cfg.RetryBurst = 0, 20
	b := start(cfg, 4)
	sends, now := 0, time.Duration(0)
	var fail func(actions []Action)
	fail = func(actions []Action) {
		for _, a := range append([]Action(nil), actions...) {
			if a.Kind == ActionDispatch {
				sends++
				fail(b.Step(now, Event{Kind: EventFailed, ID: a.ID, Outcome: &Outcome{Retryable: true}}))
			}
		}
	}
	const arrivals = 1000
	for i := range arrivals {
		now += time.Millisecond
		for k := range 4 {
			fail(b.Step(now, idle(fmt.Sprintf("r%d", k))))
		}
		fail(b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(i), Model: "m"}}))
	}
	now += 2 * cfg.RetryBackoff // the backoff of the last ones has ended
	fail(b.Step(now, Event{Kind: EventTick}))
	v := b.Snapshot(now)
	if want := arrivals + cfg.RetryBurst + arrivals/5; sends > want || sends < want-5 || v.RetriesOverBudget < 700 {
		t.Errorf("%d sends for %d arrivals, %d retries refused; want %d sends", sends, arrivals, v.RetriesOverBudget, want)
	}
	if v.Counts.Rejected != arrivals || v.Counts.Queued+v.Counts.Outstanding != 0 {
		t.Errorf("counts %+v", v.Counts)
	}
}
