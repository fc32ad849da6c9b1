package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
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
	homes    []int // by region: the balancer that its clients ask, and its replicas' owner
	replicas []*replica
	clients  []*client   // of the closed loop
	arrivals []*arrivals // of the open one, by region
	sessions int32       // clients made so far, in either
	flights  uint64      // made so far: the last one's number
	jobs     uint64      // submitted to engines so far

	links  map[[2]int32]bool // pairs of balancers that are cut off from each other, lower index first
	probes *rand.Rand        // which probes are lost

	warm   bool // the figures have begun
	tally  tally
	breach error // the first law that was seen broken
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
	w, err := newWorld(s, setup)
	if err != nil {
		return nil, err
	}
	for len(w.queue.heap) > 0 && w.queue.heap[0].at < s.Duration && w.breach == nil {
		if w.events%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w.step()
	}
	w.now = s.Duration
	for _, r := range w.replicas {
		w.settle(r)
	}
	if err := w.audit(); err != nil {
		return nil, fmt.Errorf("simulating %s with %s, push %s, seed %d: %w", s.Name, setup.Policy, setup.Push, setup.Seed, err)
	}
	return w.result(), nil
}

// newWorld builds everything and schedules what starts by itself.
func newWorld(s *Scenario, setup Setup) (*world, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := setup.check(); err != nil {
		return nil, err
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
	return w, nil
}

// begin is when the figures begin.
func (w *world) begin() time.Duration {
	return time.Duration(w.scenario.Warmup * float64(w.scenario.Duration))
}

// addNodes makes the balancers and introduces them to each other.
func (w *world) addNodes(phase func(time.Duration) time.Duration) error {
	for i := range w.scenario.Regions {
		region := i
		if w.setup.Layout != Regional {
			if region = w.scenario.region(w.scenario.Home); i > 0 {
				w.homes = append(w.homes, 0)
				continue
			}
		}
		n, err := newNode(w, len(w.nodes), region)
		if err != nil {
			return err
		}
		w.homes = append(w.homes, len(w.nodes))
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		w.meet(n)
		w.queue.push(event{at: phase(w.scenario.Interval), kind: evTick, index: n.index})
		if w.scenario.Forward && len(w.nodes) > 1 {
			w.queue.push(event{at: phase(w.scenario.Interval), kind: evHeartbeat, index: n.index})
		}
	}
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
		w.replay(int(e.index))
	case evIssue:
		w.issueAll(e.issue)
	case evArrive:
		w.arrive(e.leg)
	case evSubmit:
		w.submit(e.leg, e.try)
	case evUp:
		w.hear(e.leg, e.try, e.word)
	case evAnswer:
		w.answer(e.flight, e.word)
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
	case evTick:
		w.tick(w.nodes[e.index])
	case evFault:
		w.fault(&w.scenario.Faults[e.index], e.from == faultEnds)
	case evAdopt:
		w.adopt(w.nodes[e.index])
	case evWarm:
		w.beginFigures()
	}
}

// broke notes the first law seen broken; the run ends there.
func (w *world) broke(format string, args ...any) {
	if w.breach == nil {
		w.breach = fmt.Errorf(format, args...)
	}
}
