package core

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// trial runs a balancer with replicas that serve, fail and die as a test defines, in steps of 10
// ms, with a report of each replica and a tick every 100 ms.
type trial struct {
	*testing.T
	b    *Balancer
	now  time.Duration
	ids  []string
	dead map[string]bool
	// serve returns the service time of a request at a replica, and its outcome there: nil =
	// served, kill = the replica dies.
	serve func(request, replica string) (time.Duration, *Outcome)

	there map[string]stay     // requests at replicas
	tries map[string][]string // replicas, by request
	sent  map[string]int      // tries, by replica
	ends  map[string]string   // "finished", or the reason of a rejection
	ended map[string]time.Duration
	given map[string]Action // the last action of each request
}

// stay is a request at a replica.
type stay struct {
	replica string
	until   time.Duration
	out     *Outcome
}

// kill is the outcome of a request that the replica dies of.
var kill = &Outcome{Cause: "kill"}

// served is the outcome of a request at a working engine.
func served() *Outcome { return &Outcome{OutputTokens: policy.Known(100)} }

func newTrial(t *testing.T, cfg Config, replicas int) *trial {
	w := &trial{
		T: t, b: start(cfg, replicas), dead: map[string]bool{}, there: map[string]stay{}, tries: map[string][]string{},
		sent: map[string]int{}, ends: map[string]string{}, ended: map[string]time.Duration{}, given: map[string]Action{},
		serve: func(string, string) (time.Duration, *Outcome) { return time.Second, nil },
	}
	for i := range replicas {
		w.ids = append(w.ids, fmt.Sprintf("r%d", i))
	}
	return w
}

// step passes an event to the balancer and performs its actions.
func (w *trial) step(ev Event) {
	for _, a := range slices.Clone(w.b.Step(w.now, ev)) {
		w.given[a.ID] = a
		switch a.Kind {
		case ActionDispatch:
			w.tries[a.ID] = append(w.tries[a.ID], a.Target)
			w.sent[a.Target]++
			took, out := w.serve(a.ID, a.Target)
			if w.dead[a.Target] {
				took, out = 0, &Outcome{Retryable: true, Unreachable: true, Cause: "refused"}
			}
			w.there[a.ID] = stay{a.Target, w.now + took, out}
		case ActionReject:
			w.ends[a.ID], w.ended[a.ID] = a.Reason, w.now
		}
	}
}

// share returns a replica's share, 0..1, of all sent requests.
func (w *trial) share(replica string) float64 {
	all := 0
	for _, n := range w.sent {
		all += n
	}
	return float64(w.sent[replica]) / float64(all)
}

// ask sends a request.
func (w *trial) ask(r Request) {
	r.Model = "m"
	w.step(Event{Kind: EventArrived, Request: &r})
}

// pass advances time.
func (w *trial) pass(d time.Duration) {
	for end := w.now + d; w.now < end; {
		w.now += 10 * time.Millisecond
		for _, id := range w.due() {
			w.end(id)
		}
		if w.now%(100*time.Millisecond) == 0 {
			for _, id := range w.ids {
				w.report(id)
			}
			w.step(Event{Kind: EventTick})
		}
	}
}

func (w *trial) report(id string) {
	if w.dead[id] {
		w.step(Event{Kind: EventReplicaReport, Target: id, Report: &ProbeReport{Reason: "connection refused"}})
		return
	}
	w.step(idle(id))
}

// due lists the requests whose time at their replica is over, in order.
func (w *trial) due() (ids []string) {
	for id, s := range w.there {
		if s.until <= w.now {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(w.there[a].until, w.there[b].until), cmp.Compare(a, b))
	})
	return ids
}

// end ends a request's stay at a replica.
func (w *trial) end(id string) {
	s, there := w.there[id]
	if !there {
		return // it ended with the replica of another request
	}
	delete(w.there, id)
	switch {
	case s.out == kill:
		w.die(s.replica, id)
	case s.out != nil && s.out.ClientError:
		w.ends[id], w.ended[id] = "finished", w.now
		w.step(Event{Kind: EventFinished, ID: id, Outcome: s.out})
	case s.out != nil:
		w.step(Event{Kind: EventFailed, ID: id, Outcome: s.out})
	default:
		w.ends[id], w.ended[id] = "finished", w.now
		w.step(Event{Kind: EventFinished, ID: id, Outcome: served()})
	}
}

// die makes a replica die: the connections of all its requests break, including that of the request
// that killed it.
func (w *trial) die(replica string, also ...string) {
	w.dead[replica] = true
	broken := also
	for id, s := range w.there {
		if s.replica == replica {
			broken = append(broken, id)
		}
	}
	slices.Sort(broken)
	for _, id := range broken {
		delete(w.there, id)
	}
	for _, id := range broken {
		w.step(Event{Kind: EventFailed, ID: id, Outcome: &Outcome{Retryable: true, EngineMayHaveDied: true, Cause: "broke the connection"}})
	}
}

func mustPolicy(name string) policy.Policy {
	p, err := policy.New(name)
	if err != nil {
		panic(err)
	}
	return p
}

// forEachPolicy runs a test with every policy at its own push mode.
func forEachPolicy(t *testing.T, test func(*testing.T, Config)) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig(mustPolicy(name))
			var err error
			if cfg.Push, err = ParsePush(policy.CanonicalPush(name)); err != nil {
				t.Fatal(err)
			}
			test(t, cfg)
		})
	}
}
