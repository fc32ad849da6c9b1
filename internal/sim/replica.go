package sim

import (
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// replica is an engine with the balancer that owns it.
type replica struct {
	index  int32
	id     string
	region int
	node   *node // current owner
	home   *node // initial owner
	engine *engine.Engine
	clock  clock          // the engine's
	jobs   map[uint64]job // in the engine, by number

	down   bool        // it does not respond
	before engine.Load // counters of earlier engines
	lost   int64       // requests lost with them

	// The engine is woken at wakeAt by the event with the current wakeSeq; events with an older one are
	// ignored.
	waking  bool
	wakeAt  time.Duration
	wakeSeq uint64

	// For the oracle: the last reported load, and the requests on their way or without a first token.
	revealed engine.Load
	due      map[*leg]bool

	probedTokens     int64         // generated tokens at the last successful probe
	unreportedTokens int           // tokens received by the balancer since its last tick
	newest           time.Duration // read time of the last report received

	atWarm  engine.Load // at the end of the warm-up
	samples int         // probes since then
	seen    int         // sum over those of the outstanding requests in the engine
}

// probeResult is a probe's result in transit.
type probeResult struct {
	report core.ProbeReport
	to     *node         // the probing balancer
	read   time.Duration // when
	// tokens is the number of tokens generated since the previous probe. They reach the balancer in
	// responses continuously; reporting them with the next probe is as coarse as the ticks of its core.
	tokens int
}

// job is a request in an engine: one attempt of a leg.
type job struct {
	leg *leg
	try int32
}

// addReplicas creates the replicas and attaches each to its balancer.
func (w *world) addReplicas(phase func(time.Duration) time.Duration) error {
	for region := range w.scenario.Regions {
		r := &w.scenario.Regions[region]
		for i := range r.Replicas {
			e, err := w.newEngine(*w.scenario.profile(r, i))
			if err != nil {
				return err
			}
			rep := &replica{
				index: int32(len(w.replicas)), id: replicaID(r.Name, i), region: region,
				home: w.homes[region][i%len(w.homes[region])], engine: e, jobs: map[uint64]job{}, due: map[*leg]bool{},
			}
			w.replicas = append(w.replicas, rep)
			w.assignReplica(rep, rep.home)
			w.queue.pushEvent(event{at: phase(w.scenario.Interval), kind: evProbe, index: rep.index})
		}
	}
	return nil
}

// newEngine creates an engine of the scenario's model.
func (w *world) newEngine(p engine.Profile) (*engine.Engine, error) {
	if w.light() {
		return engine.NewLight(p)
	}
	e, err := engine.New(p, engine.ReportChanges)
	if err == nil && w.scenario.CacheEvents {
		w.engines++
		e.ReportCache(cacheBlock, w.engines)
	}
	return e, err
}

// assignReplica makes a balancer the owner of a replica.
func (w *world) assignReplica(r *replica, to *node) {
	w.forgetCache(r)
	if r.node != nil && !r.node.dead {
		w.sendEvent(r.node, core.Event{Kind: core.EventReplicaRemoved, Target: r.id})
	}
	r.node, r.unreportedTokens = to, 0
	w.sendEvent(to, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: r.id, Model: model}})
}

// load returns a replica's counters over all its lives, and the current load of its engine.
func (r *replica) load() engine.Load {
	l, b := r.engine.Load(), &r.before
	for _, sum := range []struct {
		to   *int64
		more int64
	}{
		{&l.Submitted, b.Submitted},
		{&l.Finished, b.Finished},
		{&l.Cancelled, b.Cancelled},
		{&l.Rejected, b.Rejected},
		{&l.Preempted, b.Preempted},
		{&l.QueriedTokens, b.QueriedTokens},
		{&l.HitTokens, b.HitTokens},
		{&l.PromptTokens, b.PromptTokens},
		{&l.GeneratedTokens, b.GeneratedTokens},
		{&l.PrefilledTokens, b.PrefilledTokens},
		{&l.PrefillSteps, b.PrefillSteps},
		{&l.DecodeSteps, b.DecodeSteps},
		{&l.EvictedTokens, b.EvictedTokens},
		{&l.RecomputedTokens, b.RecomputedTokens},
	} {
		*sum.to += sum.more
	}
	l.BusyTime += b.BusyTime
	return l
}

func (w *world) replicaNamed(id string) *replica {
	for _, r := range w.replicas {
		if r.id == id {
			return r
		}
	}
	return nil
}

// submit submits a request to its engine.
func (w *world) submit(l *leg, try int32) {
	w.jobs++
	l.job = w.jobs
	r, f := l.replica, l.request
	if r.down {
		w.pushEvent(w.networkDelay(r, l), event{kind: evMessage, leg: l, try: try, message: msgRefused})
		return
	}
	r.jobs[l.job] = job{l, try}
	r.engine.Submit(r.clock.at(w.now), engine.Request{
		ID: l.job, Prompt: f.prompt, PromptTokens: f.promptTokens(), MaxNew: f.maxNew, Output: f.response, OutputLen: f.request.OutputTokens,
	})
	w.advanceReplica(r)
}

// abort cancels a request in its engine, if it is still there.
func (w *world) abort(l *leg) {
	r := l.replica
	delete(r.due, l)
	r.engine.Cancel(r.clock.at(w.now), l.job)
	delete(r.jobs, l.job)
	w.advanceReplica(r)
}

func (w *world) wake(r *replica, turn uint64) {
	if r.waking && r.wakeSeq == turn {
		r.waking = false
		w.advanceReplica(r)
	}
}

// advanceReplica relays an engine's events and schedules its next wake-up.
func (w *world) advanceReplica(r *replica) {
	now := r.clock.at(w.now)
	for _, ev := range r.engine.Advance(now) {
		// A preemption is decided when a step is planned and reported at its end.
		if ev.At != now && ev.Kind != engine.Preempted {
			w.violate("replica %s: event of %v reported at %v", r.id, ev.At, now)
		}
		w.relay(r, &ev)
	}
	if w.scenario.CacheEvents {
		w.publishCache(r)
	}
	at, more := r.engine.NextAt()
	at = r.clock.when(at)
	if more && at <= w.now {
		w.violate("replica %s: next event at %v is not in the future", r.id, at)
	}
	if w.setup.Layout == Everywhere && !r.down {
		w.reportToOracle(r)
	}
	if more == r.waking && at == r.wakeAt {
		return
	}
	r.waking, r.wakeAt = more, at
	if more {
		r.wakeSeq++
		w.queue.pushEvent(event{at: at, kind: evWake, index: r.index, wakeSeq: r.wakeSeq})
	}
}

// relay sends an engine's event about a request to the balancer.
func (w *world) relay(r *replica, ev *engine.Event) {
	j, known := r.jobs[ev.ID]
	if !known {
		return // cancelled
	}
	msg := msgFirstToken
	delete(r.due, j.leg)
	switch ev.Kind {
	case engine.TokenEmitted:
	case engine.Finished:
		j.leg.request.finished(ev)
		delete(r.jobs, ev.ID)
		msg = msgDone
	case engine.Rejected:
		j.leg.request.rejected = true
		delete(r.jobs, ev.ID)
		msg = msgFailed
	default:
		return
	}
	w.pushEvent(w.networkDelay(r, j.leg), event{kind: evMessage, leg: j.leg, try: j.try, message: msg})
}

// probe reads an engine's load; it reaches the balancer after the network delay. A stopped replica
// refuses the connection.
func (w *world) probe(r *replica) {
	w.advanceReplica(r)
	half := w.delay[r.region][r.node.region]
	if w.setup.Layout == Everywhere {
		half = 0
	}
	fresh := &probeResult{to: r.node, read: w.now, report: core.ProbeReport{Age: half, Reason: "connection refused"}}
	if !r.down {
		l := r.engine.Load()
		if w.warm {
			r.samples++
			r.seen += l.Pending + l.Running
		}
		fresh.report = core.ProbeReport{
			Age: half, Ready: true, Pending: policy.Known(l.Pending), Running: policy.Known(l.Running),
			KV: policy.Known(float64(l.KVActive) / float64(l.KVCapacity)),
		}
		fresh.tokens = int(l.GeneratedTokens - r.probedTokens)
	}
	lost, late, hidden := w.probeFaults(r)
	if hidden {
		fresh.report.Pending, fresh.report.Running, fresh.report.KV = policy.Maybe[int]{}, policy.Maybe[int]{}, policy.Maybe[float64]{}
	}
	if !lost {
		r.probedTokens += int64(fresh.tokens)
		fresh.report.Age += late
		w.pushEvent(fresh.report.Age, event{kind: evReport, index: r.index, probe: fresh})
	}
	w.pushEvent(w.scenario.Interval, event{kind: evProbe, index: r.index})
}

// probeFaults returns whether a probe is lost, how late it is, and whether its figures are hidden.
func (w *world) probeFaults(r *replica) (lost bool, late time.Duration, hidden bool) {
	for i := range w.scenario.Faults {
		f := &w.scenario.Faults[i]
		if f.Kind == ProbeLoss && w.affects(f, r) && w.probes.Float64() < f.Share {
			lost = true
		}
		if f.Kind == ReportDelay && w.affects(f, r) {
			late += f.Delay
		}
		if f.Kind == NoMetrics && w.affects(f, r) {
			hidden = true
		}
	}
	return lost, late, hidden
}

// reportProbe delivers a probe's result to the balancer, unless it no longer owns the replica or has a newer
// one.
func (w *world) reportProbe(r *replica, n *probeResult) {
	if n.to != r.node || n.to.dead || n.read < r.newest {
		return
	}
	r.newest = n.read
	r.unreportedTokens += n.tokens
	w.sendEvent(r.node, core.Event{Kind: core.EventReplicaReport, Target: r.id, Report: &n.report})
}

// progress reports the tokens that a balancer's replicas generated since its last tick.
func (w *world) progress(n *node) {
	for _, r := range w.replicas {
		if r.node == n && r.unreportedTokens > 0 {
			w.sendEvent(n, core.Event{Kind: core.EventProgress, Target: r.id, Tokens: r.unreportedTokens})
			r.unreportedTokens = 0
		}
	}
}
