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

	nodes        []*node
	homes        [][]*node // by region: the balancers of its clients and replicas
	replicas     []*replica
	clients      []*client         // closed loop
	arrivals     []*arrivals       // open loop, by region
	rows         Rows              // of a trace; nil without one
	row          workload.TraceRow // the next one
	taken        int               // rows replayed so far
	spare        []*clientRequest  // finished row requests for reuse
	sessions     int32             // clients created so far, in either loop
	engines      uint64            // created so far with cache events: the seed of the last one's block names
	requestCount uint64            // created so far: the number of the last one
	jobs         uint64            // submitted to engines so far

	links  map[[2]int32]bool // pairs of balancers whose link is cut, lower index first
	probes *rand.Rand        // which probes are lost

	warm      bool // the warm-up has ended
	tally     tally
	samples   []LoadSample
	violation error // the first violated invariant
	failed    error // an external error: an unreadable trace row
}

// streamJitter separates the phases of probes, heartbeats and ticks from other random draws of a seed, streamDistant
// those of requests for the cache updates of other regions, streamProbes the lost probes.
const (
	streamDistant = 0x64697374616e74
	streamJitter  = 0x6a6974746572
	streamProbes  = 0x70726f626573
)

// startSpread is the period over which clients start, to avoid a simultaneous start.
const startSpread = time.Second

// checkEvery is the number of events between two checks of the context.
const checkEvery = 4096

// Run simulates a scenario with a setup. It returns an error for an invalid scenario, an unknown
// policy, the end of ctx, and a violated invariant of audit.go.
func Run(ctx context.Context, s *Scenario, setup Setup) (*Result, error) {
	return RunWithProgress(ctx, s, setup, func(time.Duration) {})
}

// RunWithProgress is Run that reports the simulated time every few thousand events.
func RunWithProgress(ctx context.Context, s *Scenario, setup Setup, watch func(now time.Duration)) (*Result, error) {
	w, err := newWorld(s, setup)
	if err != nil {
		return nil, err
	}
	err = w.runEvents(ctx, watch)
	if w.rows != nil {
		err = cmp.Or(err, w.rows.Close())
	}
	if err != nil {
		return nil, err
	}
	if err := w.audit(); err != nil {
		return nil, fmt.Errorf("simulating %s with %s, push %s, seed %d: %w", s.Name, setup.Policy, setup.Push, setup.Seed, err)
	}
	return w.worldResult(), nil
}

// runEvents processes events until the end.
func (w *world) runEvents(ctx context.Context, watch func(time.Duration)) error {
	end := w.scenario.Duration
	for w.violation == nil && w.failed == nil {
		if next := w.queue.peek(); next == nil || next.at >= end {
			break
		}
		if w.events%checkEvery == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			watch(w.now)
		}
		w.stepEvent()
	}
	w.now = end
	for _, r := range w.replicas {
		w.advanceReplica(r)
	}
	return w.failed
}

// light reports whether engines simulate only lengths.
func (w *world) light() bool { return w.scenario.Engine == LightEngine }

// newWorld creates all objects and schedules the initial events.
func newWorld(s *Scenario, setup Setup) (*world, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := setup.checkSetup(); err != nil {
		return nil, err
	}
	if setup.Policy == Oracle && s.Engine == LightEngine {
		return nil, fmt.Errorf("policy %s: requires the %s engine, because it reads prefix caches", Oracle, FullEngine)
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
	w.queue.pushEvent(event{at: w.warmupEnd(), kind: evWarmupEnd})
	w.queue.pushEvent(event{at: 0, kind: evSampleLoad})
	return w, nil
}

// warmupEnd returns the end of the warm-up.
func (w *world) warmupEnd() time.Duration {
	return time.Duration(w.scenario.Warmup * float64(w.scenario.Duration))
}

// addNodes creates the balancers and makes them peers.
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
	distant := rand.New(rand.NewPCG(w.setup.Seed, streamDistant))
	for _, n := range w.nodes {
		w.addPeers(n)
		w.queue.pushEvent(event{at: phase(w.scenario.Interval), kind: evTick, index: n.index})
		if w.scenario.Forward && len(w.nodes) > 1 {
			w.queue.pushEvent(event{at: phase(w.scenario.Interval), kind: evHeartbeat, index: n.index})
		}
		if w.setup.Layout == Regional && len(w.homes[n.region]) > 1 {
			w.queue.pushEvent(event{at: phase(prefixInterval), kind: evRequestPrefixes, index: n.index})
		} else if w.setup.Layout == Regional && w.scenario.Forward && len(w.nodes) > 1 {
			w.queue.pushEvent(event{at: time.Duration(distant.Int64N(int64(prefixInterval))), kind: evRequestPrefixes, index: n.index})
		}
	}
	return nil
}

// addNode creates the i-th balancer of a region.
func (w *world) addNode(region, i int) error {
	n, err := newNode(w, region, i)
	if err != nil {
		return err
	}
	w.nodes = append(w.nodes, n)
	return nil
}

// pushEvent schedules an event after a delay.
func (w *world) pushEvent(after time.Duration, e event) {
	e.at = w.now + after
	w.queue.pushEvent(e)
}

// stepEvent processes the next event.
func (w *world) stepEvent() {
	e := w.queue.pop()
	if e.at < w.now {
		w.violate("an event scheduled for %v is processed at %v", e.at, w.now)
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
	case evMessage:
		w.receive(e.leg, e.try, e.message)
	case evClientMessage:
		w.deliver(e.request, e.message, e.at)
	case evCancel:
		w.cancel(e.leg)
	case evAbort:
		w.abort(e.leg)
	case evTimeout:
		w.timeOut(e.request)
	default:
		w.stepTimed(&e)
	}
}

// stepTimed processes timed events, which no request causes.
func (w *world) stepTimed(e *event) {
	switch e.kind {
	case evWake:
		w.wake(w.replicas[e.index], e.wakeSeq)
	case evProbe:
		w.probe(w.replicas[e.index])
	case evCache:
		w.receiveCache(w.replicas[e.index], e.cache)
	case evReport:
		w.reportProbe(w.replicas[e.index], e.probe)
	case evHeartbeat:
		w.heartbeat(w.nodes[e.index])
	case evPeer:
		w.peerReport(w.nodes[e.index], w.nodes[e.arg], e.peer)
	case evRequestPrefixes:
		w.requestPrefixes(w.nodes[e.index])
	case evPrefixes:
		w.receivePrefixes(w.nodes[e.index], w.nodes[e.arg], e.learned)
	case evTick:
		w.tick(w.nodes[e.index])
	case evFault:
		w.fault(&w.scenario.Faults[e.index], e.arg == faultEnds)
	case evAdopt:
		w.adopt(w.nodes[e.index], e.arg)
	case evWarmupEnd:
		w.beginFigures()
	case evSampleLoad:
		w.sampleLoad()
	}
}

// failRun ends the run with an external error.
func (w *world) failRun(err error) {
	if w.failed == nil {
		w.failed = err
	}
}

// violate records the first violated invariant, which ends the run.
func (w *world) violate(format string, args ...any) {
	if w.violation == nil {
		w.violation = fmt.Errorf(format, args...)
	}
}
