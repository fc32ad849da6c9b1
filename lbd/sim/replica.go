package sim

import (
	"fmt"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/engine"
	"skyserve/lbd/policy"
)

// replica is an engine with the balancer that owns it.
type replica struct {
	index  int32
	id     string
	region int
	node   *node
	engine *engine.Engine
	jobs   map[uint64]job // in the engine

	// The engine is woken at wakeAt by the event that carries turn; what carries
	// an older turn comes to nothing.
	waking bool
	wakeAt time.Duration
	turn   uint64

	told  int64 // tokens generated, as of the last probe
	heard int   // tokens that reached the balancer since its last tick

	atWarm  engine.Load // when the figures began
	samples int         // since then, by probes
	load    int         // sum over those of what was outstanding in the engine
}

// news is what a probe read, on its way.
type news struct {
	report core.Report
	// tokens is how many were generated since the probe before. They come to the
	// balancer in answers all the time; that it hears of them with the next probe
	// only is as coarse as the ticks that it tells its core at.
	tokens int
}

// job is a request in an engine: one try of a leg.
type job struct {
	leg *leg
	try int32
}

// addReplicas makes the replicas and hands each to its balancer.
func (w *world) addReplicas(phase func(time.Duration) time.Duration) error {
	for region, r := range w.scenario.Regions {
		for i := range r.Replicas {
			e, err := engine.New(w.scenario.Profile, engine.ReportChanges)
			if err != nil {
				return err
			}
			rep := &replica{
				index: int32(len(w.replicas)), id: fmt.Sprintf("%s-%02d", r.Name, i+1), region: region,
				node: w.nodes[w.homes[region]], engine: e, jobs: map[uint64]job{},
			}
			w.replicas = append(w.replicas, rep)
			w.tell(rep.node, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: rep.id, Model: model}})
			w.queue.push(event{at: phase(w.scenario.Interval), kind: evProbe, index: rep.index})
		}
	}
	return nil
}

func (w *world) replicaNamed(id string) *replica {
	for _, r := range w.replicas {
		if r.id == id {
			return r
		}
	}
	return nil
}

// submit hands a request to its engine.
func (w *world) submit(l *leg, try int32) {
	w.jobs++
	l.job = w.jobs
	r, f := l.replica, l.flight
	r.jobs[l.job] = job{l, try}
	r.engine.Submit(w.now, engine.Request{ID: l.job, Prompt: f.prompt, MaxNew: f.maxNew, Output: f.answer})
	w.settle(r)
}

// abort takes a request out of its engine, if it is still there.
func (w *world) abort(l *leg) {
	r := l.replica
	r.engine.Cancel(w.now, l.job)
	delete(r.jobs, l.job)
	w.settle(r)
}

func (w *world) wake(r *replica, turn uint64) {
	if r.waking && r.turn == turn {
		r.waking = false
		w.settle(r)
	}
}

// settle passes on what an engine has to say by now and sees to it that it is
// woken when it next has something to say.
func (w *world) settle(r *replica) {
	for _, ev := range r.engine.Advance(w.now) {
		// A preemption is decided when a step is planned and told at its end.
		if ev.At != w.now && ev.Kind != engine.Preempted {
			w.broke("replica %s: told at %v what happened at %v", r.id, w.now, ev.At)
		}
		w.relay(r, &ev)
	}
	at, more := r.engine.NextAt()
	if more && at <= w.now {
		w.broke("replica %s: has more to say at %v", r.id, at)
	}
	if more == r.waking && at == r.wakeAt {
		return
	}
	r.waking, r.wakeAt = more, at
	if more {
		r.turn++
		w.queue.push(event{at: at, kind: evWake, index: r.index, turn: r.turn})
	}
}

// relay sends what an engine says of a request to the balancer.
func (w *world) relay(r *replica, ev *engine.Event) {
	j, known := r.jobs[ev.ID]
	if !known {
		return // cancelled
	}
	said := saidFirst
	switch ev.Kind {
	case engine.TokenEmitted:
	case engine.Finished:
		j.leg.flight.finished(ev)
		delete(r.jobs, ev.ID)
		said = saidDone
	case engine.Rejected:
		j.leg.flight.refused = true
		delete(r.jobs, ev.ID)
		said = saidFailed
	default:
		return
	}
	w.push(w.delay[r.region][r.node.region], event{kind: evUp, leg: j.leg, try: j.try, word: said})
}

// probe reads an engine's figures as they are; they are known to the balancer
// when they have travelled there.
func (w *world) probe(r *replica) {
	w.settle(r)
	l := r.engine.Load()
	if w.warm {
		r.samples++
		r.load += l.Pending + l.Running
	}
	fresh := &news{
		report: core.Report{
			Age: w.delay[r.region][r.node.region], Ready: true, Pending: policy.Known(l.Pending), Running: policy.Known(l.Running),
			KV: policy.Known(float64(l.KVActive) / float64(l.KVCapacity)),
		},
		tokens: int(l.GeneratedTokens - r.told),
	}
	r.told = l.GeneratedTokens
	w.push(fresh.report.Age, event{kind: evReport, index: r.index, news: fresh})
	w.push(w.scenario.Interval, event{kind: evProbe, index: r.index})
}

// report gives the balancer what a probe read.
func (w *world) report(r *replica, n *news) {
	r.heard += n.tokens
	w.tell(r.node, core.Event{Kind: core.EventReplicaReport, Target: r.id, Report: &n.report})
}

// progress tells a balancer what its replicas generated since its last tick.
func (w *world) progress(n *node) {
	for _, r := range w.replicas {
		if r.node == n && r.heard > 0 {
			w.tell(n, core.Event{Kind: core.EventProgress, Target: r.id, Tokens: r.heard})
			r.heard = 0
		}
	}
}
