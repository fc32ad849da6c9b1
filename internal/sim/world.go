package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"skyserve/internal/sim/workload"
)

// world is a run in progress.
type world struct {
	scenario *Scenario
	setup    Setup
	delay    [][]time.Duration // one-way, between regions

	now    time.Duration
	queue  queue
	events int64

	nodes    []*node
	homes    [][]*node // by region: the balancers that its clients ask, and its replicas' owners
	replicas []*replica
	clients  []*client    // of the closed loop
	arrivals []*arrivals  // of the open one, by region
	rows     Rows         // of a trace; nil without one
	row      workload.Row // that comes next
	taken    int          // rows so far
	spare    []*flight    // of rows, to be used again
	sessions int32        // clients made so far, in either
	flights  uint64       // made so far: the last one's number
	jobs     uint64       // submitted to engines so far

	links  map[[2]int32]bool // pairs of balancers that are cut off from each other, lower index first
	probes *rand.Rand        // which probes are lost

	warm   bool // the figures have begun
	tally  tally
	course []Moment
	breach error // the first law that was seen broken
	failed error // what came from outside: a row of a trace that cannot be read
}

// streamJitter keeps the phases of probes, heartbeats and ticks apart from other
// draws of a seed, streamProbes which probes are lost.
const (
	streamJitter = 0x6a6974746572
	streamProbes = 0x70726f626573
)

// startSpread is the time over which clients start: not all at one instant.
const startSpread = time.Second

// checkEvery is how many events happen between two looks at the context.
const checkEvery = 4096

// Run simulates a scenario under a setup. An impossible scenario, an unknown
// policy, the end of ctx and a broken law of audit.go are errors.
func Run(ctx context.Context, s *Scenario, setup Setup) (*Result, error) {
	return RunWatched(ctx, s, setup, func(time.Duration) {})
}

// RunWatched is Run that tells, every few thousand events, how much of the
// scenario's Duration has passed.
func RunWatched(ctx context.Context, s *Scenario, setup Setup, watch func(now time.Duration)) (*Result, error) {
	w, err := newWorld(s, setup)
	if err != nil {
		return nil, err
	}
	err = w.run(ctx, watch)
	if w.rows != nil {
		err = cmp.Or(err, w.rows.Close())
	}
	if err != nil {
		return nil, err
	}
	if err := w.audit(); err != nil {
		return nil, fmt.Errorf("simulating %s with %s, push %s, seed %d: %w", s.Name, setup.Policy, setup.Push, setup.Seed, err)
	}
	return w.result(), nil
}

// run lets everything happen until the end.
func (w *world) run(ctx context.Context, watch func(time.Duration)) error {
	end := w.scenario.Duration
	for w.breach == nil && w.failed == nil {
		if next := w.queue.peek(); next == nil || next.at >= end {
			break
		}
		if w.events%checkEvery == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			watch(w.now)
		}
		w.step()
	}
	w.now = end
	for _, r := range w.replicas {
		w.settle(r)
	}
	return w.failed
}

// light says whether engines keep lengths only.
func (w *world) light() bool { return w.scenario.Engine == LightEngine }

// newWorld builds everything and schedules what starts by itself.
func newWorld(s *Scenario, setup Setup) (*world, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := setup.check(); err != nil {
		return nil, err
	}
	if setup.Policy == Oracle && s.Engine == LightEngine {
		return nil, fmt.Errorf("policy %s: wants the %s engine, for what is in its cache", Oracle, FullEngine)
	}
	w := &world{
		scenario: s, setup: setup, delay: s.delays(),
		links: map[[2]int32]bool{}, probes: rand.New(rand.NewPCG(setup.Seed, streamProbes)),
	}
	jitter := rand.New(rand.NewPCG(setup.Seed, streamJitter))
	phase := func(of time.Duration) time.Duration { return time.Duration(jitter.Int64N(int64(of))) }
	if err := w.addNodes(phase); err != nil {
		return nil, err
	}
	if err := w.addReplicas(phase); err != nil {
		return nil, err
	}
	if err := w.addLoad(phase); err != nil {
		return nil, err
	}
	w.addFaults()
	w.queue.push(event{at: w.begin(), kind: evWarm})
	w.queue.push(event{at: 0, kind: evMoment})
	return w, nil
}

// begin is when the figures begin.
func (w *world) begin() time.Duration {
	return time.Duration(w.scenario.Warmup * float64(w.scenario.Duration))
}

// addNodes makes the balancers and introduces them to each other.
func (w *world) addNodes(phase func(time.Duration) time.Duration) error {
	for region := range w.scenario.Regions {
		if w.setup.Layout != Regional {
			if region == 0 {
				if err := w.addNode(w.scenario.region(w.scenario.Home), 0); err != nil {
					return err
				}
			}
			w.homes = append(w.homes, w.nodes)
			continue
		}
		first := len(w.nodes)
		for i := range w.scenario.Regions[region].balancers() {
			if err := w.addNode(region, i); err != nil {
				return err
			}
		}
		w.homes = append(w.homes, w.nodes[first:])
	}
	for _, n := range w.nodes {
		w.meet(n)
		w.queue.push(event{at: phase(w.scenario.Interval), kind: evTick, index: n.index})
		if w.scenario.Forward && len(w.nodes) > 1 {
			w.queue.push(event{at: phase(w.scenario.Interval), kind: evHeartbeat, index: n.index})
		}
		if len(w.homes[n.region]) > 1 && w.setup.Layout == Regional {
			w.queue.push(event{at: phase(askEvery), kind: evAskPrefixes, index: n.index})
		}
	}
	return nil
}

// addNode makes the i-th balancer of a region.
func (w *world) addNode(region, i int) error {
	n, err := newNode(w, region, i)
	if err != nil {
		return err
	}
	w.nodes = append(w.nodes, n)
	return nil
}

// push schedules an event after a delay.
func (w *world) push(after time.Duration, e event) {
	e.at = w.now + after
	w.queue.push(e)
}

// step lets the next event happen.
func (w *world) step() {
	e := w.queue.pop()
	if e.at < w.now {
		w.broke("an event of %v happens at %v", e.at, w.now)
	}
	w.now = e.at
	w.events++
	switch e.kind {
	case evSession:
		w.beginSession(int(e.index))
	case evRow:
		w.replay()
	case evIssue:
		w.issueAll(e.issue)
	case evArrive:
		w.arrive(e.leg)
	case evSubmit:
		w.submit(e.leg, e.try)
	case evUp:
		w.hear(e.leg, e.try, e.word)
	case evAnswer:
		w.answer(e.flight, e.word, e.at)
	case evCancel:
		w.cancel(e.leg)
	case evAbort:
		w.abort(e.leg)
	case evPatience:
		w.giveUp(e.flight)
	default:
		w.stepTimed(&e)
	}
}

// stepTimed lets happen what comes by itself, not from a request.
func (w *world) stepTimed(e *event) {
	switch e.kind {
	case evWake:
		w.wake(w.replicas[e.index], e.turn)
	case evProbe:
		w.probe(w.replicas[e.index])
	case evReport:
		w.report(w.replicas[e.index], e.news)
	case evHeartbeat:
		w.heartbeat(w.nodes[e.index])
	case evPeer:
		w.peerReport(w.nodes[e.index], w.nodes[e.from], e.peer)
	case evAskPrefixes:
		w.askPrefixes(w.nodes[e.index])
	case evPrefixes:
		w.hearPrefixes(w.nodes[e.index], w.nodes[e.from], e.learned)
	case evTick:
		w.tick(w.nodes[e.index])
	case evFault:
		w.fault(&w.scenario.Faults[e.index], e.from == faultEnds)
	case evAdopt:
		w.adopt(w.nodes[e.index])
	case evWarm:
		w.beginFigures()
	case evMoment:
		w.lookAround()
	}
}

// fails ends the run with an error that is nobody's breach.
func (w *world) fails(err error) {
	if w.failed == nil {
		w.failed = err
	}
}

// broke notes the first law seen broken; the run ends there.
func (w *world) broke(format string, args ...any) {
	if w.breach == nil {
		w.breach = fmt.Errorf(format, args...)
	}
}
