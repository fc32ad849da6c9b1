package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// The kinds of fleet events.
const (
	fleetWake   kind = iota // index (VM), wakeSeq: an engine step ends
	fleetSubmit             // index (call): a request reaches its replica
	fleetReady              // index (VM): a replica becomes ready
	fleetScale              // the scaler runs
	fleetSignal             // endpoints report their utilisation to the deferred queue
	fleetSample             // the time series is sampled
	fleetProbe              // the balancer probes the replicas
	fleetMinute             // a minute of the run ends
)

// fleet is a run of a FleetScenario.
type fleet struct {
	s     *FleetScenario
	setup FleetSetup

	now      time.Duration
	queue    queue
	events   int64
	arrivals *arrivalSource
	starts   *rand.Rand

	endpoints []*endpoint // by model, region and pool
	spare     []int       // by region
	remote    [][]bool    // by model and region: the storage there lacks the weights
	vms       []*vm
	calls     []call
	free      []int32 // of calls
	facts     policy.Facts
	responses []int // expected output tokens, by model
	view      FleetView
	samples   []FleetSample
	tally     [][tiers]fleetTally // by model
	balancer  *fleetBalancer      // nil = requests are sent when they arrive
	rejected  int                 // requests
	failed    error
}

// endpoint holds the replicas of a model in a region that serve the same requests.
type endpoint struct {
	index, model, region int
	deferred             bool
	ready                []*vm // by id
	donated              []*vm
	// candidates are the ready replicas followed by the other regions' endpoints, as input of the
	// policy.
	candidates   []policy.Candidate
	peers        []*endpoint
	router       policy.Policy
	counts       [vmStates]int
	kv, capacity int // of the ready replicas, in tokens
	backlog      backlog
	waiting      int   // interactive requests without a first token
	firsts, late int64 // IW-F requests with a first token, and with a late one

	interactive, deferredTokens int64
	minutes                     []MinuteTokens
	arrived                     int64 // at the last sample of the time series
	waitingTokens               int64 // of deferred requests, at the end of the run
	hours                       [vmStates]time.Duration
	starts, redeployed          int
	launched                    int
	tally                       [tiers]fleetTally
}

// vm is a VM and its replica.
type vm struct {
	index    int32
	id       string
	endpoint *endpoint // whose weights it has
	state    VMState
	since    time.Duration // when the state began
	fetches  bool          // its weights come from another region
	engine   *engine.Engine
	at       int // index in endpoint.ready, while ready

	inFlight  int // unfinished requests sent there
	remaining int // estimated tokens to process for those
	kv        int
	waiting   []int32 // calls, with an order other than FCFS

	reported int64 // generated tokens that the balancer knows

	waking  bool
	wakeAt  time.Duration
	wakeSeq uint64
}

// call is a request in progress.
type call struct {
	arrival
	id       string // at the balancer
	vm       *vm
	away     bool // served by a region other than the client's
	live     bool
	priority int
	first    time.Duration // when the first token left the engine, 0 = not yet
}

// streamStarts separates start-up times from other random draws of a seed.
const streamStarts = 0x737461727473

// RunFleet simulates a service with scaling. It returns an error for an invalid scenario, an error of
// the scaler, or the end of ctx. The same scenario, setup and seed yield the same result, byte for
// byte, and the same requests regardless of the scaler.
func RunFleet(ctx context.Context, s *FleetScenario, setup FleetSetup) (*FleetResult, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if setup.Scaler == nil || !setup.Deferred.Enabled() && s.Silo == 0 {
		return nil, fmt.Errorf("scenario %s: requires a scaler and, without silos, a rule for deferred requests", s.Name)
	}
	f, err := newFleet(s, setup)
	if err != nil {
		return nil, err
	}
	for f.stepEvent() {
		if f.events%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if f.failed != nil {
		return nil, fmt.Errorf("simulating %s, seed %d, at %s: %w", s.Name, setup.Seed, f.now, f.failed)
	}
	return f.fleetResult(), nil
}

func newFleet(s *FleetScenario, setup FleetSetup) (*fleet, error) {
	f := &fleet{
		s: s, setup: setup, arrivals: newArrivalSource(s, setup.Seed), starts: rand.New(rand.NewPCG(setup.Seed, streamStarts)),
		tally: make([][tiers]fleetTally, len(s.Models)),
		spare: slices.Repeat([]int{s.Spare}, len(s.Regions)),
	}
	if s.Balancer != nil {
		f.balancer = newFleetBalancer(s.Balancer())
		f.queue.pushEvent(event{at: f.balancer.interval, kind: fleetProbe})
	}
	for m := range s.Models {
		f.remote = append(f.remote, make([]bool, len(s.Regions)))
		for _, r := range s.Models[m].RemoteIn {
			f.remote[m][r] = true
		}
		f.responses = append(f.responses, int(s.Models[m].Lengths.Output.Mean()+0.5))
		for r := range s.Regions {
			for p := range s.pools() {
				if err := f.addEndpoint(m, r, p); err != nil {
					return nil, err
				}
			}
		}
	}
	f.view = FleetView{Endpoints: make([]EndpointView, len(f.endpoints)), Spare: f.spare}
	for _, e := range f.endpoints {
		for r := range s.Regions {
			if r != e.region {
				e.peers = append(e.peers, f.endpoint(e.model, r, e.deferred))
			}
		}
		f.rebuildCandidates(e)
	}
	f.queue.pushEvent(event{at: time.Minute, kind: fleetMinute})
	f.queue.pushEvent(event{at: 0, kind: fleetScale})
	f.queue.pushEvent(event{at: 0, kind: fleetSignal})
	if s.SampleInterval > 0 {
		f.queue.pushEvent(event{at: 0, kind: fleetSample})
	}
	return f, nil
}

// addEndpoint creates an endpoint with its VMs, all ready.
func (f *fleet) addEndpoint(m, r, p int) error {
	s := f.s
	n := s.VMs - s.Silo
	if p > 0 {
		n = s.Silo
	}
	e := &endpoint{index: len(f.endpoints), model: m, region: r, deferred: p > 0, router: policy.NewSageServe()}
	f.endpoints = append(f.endpoints, e)
	for range n {
		v, err := f.newVM(e)
		if err != nil {
			return err
		}
		f.setState(v, VMReady)
		e.ready = append(e.ready, v)
		f.attach(v)
	}
	return nil
}

// newVM creates a VM without a state for an endpoint.
func (f *fleet) newVM(e *endpoint) (*vm, error) {
	v := &vm{index: int32(len(f.vms)), id: fmt.Sprintf("vm-%05d", len(f.vms)), endpoint: e, state: vmStates}
	f.vms = append(f.vms, v)
	return v, f.loadModel(v, e.model)
}

// loadModel creates a VM's engine for a model.
func (f *fleet) loadModel(v *vm, model int) error {
	e, err := engine.NewLight(f.s.Models[model].Profile)
	v.engine, v.reported = e, 0
	return err
}

// endpoint returns an endpoint.
func (f *fleet) endpoint(model, region int, deferred bool) *endpoint {
	i := (model*len(f.s.Regions) + region) * f.s.pools()
	if deferred {
		i++
	}
	return f.endpoints[i]
}

// stepEvent processes the next event; it returns false at the end.
func (f *fleet) stepEvent() bool {
	if f.failed != nil {
		return false
	}
	end := f.s.Duration
	until := end
	if next := f.queue.peek(); next != nil && next.at < until {
		until = next.at
	}
	if q := f.arrivals.nextArrival(until); q != nil {
		f.now = q.at
		f.arrivals.head++
		f.events++
		f.arrive(q)
		f.stepBalancer()
		return true
	}
	if until == end {
		f.now = end
		return false
	}
	e := f.queue.pop()
	f.now = e.at
	f.events++
	f.handle(&e)
	f.stepBalancer()
	return true
}

func (f *fleet) handle(e *event) {
	switch e.kind {
	case fleetWake:
		if v := f.vms[e.index]; v.waking && v.wakeSeq == e.wakeSeq {
			v.waking = false
			f.advanceVM(v)
		}
	case fleetSubmit:
		f.submit(e.index)
	case fleetReady:
		f.markReady(f.vms[e.index])
	case fleetScale:
		f.runScaler()
		f.queue.pushEvent(event{at: f.now + f.s.Period, kind: fleetScale})
	case fleetSignal:
		f.signal()
		f.queue.pushEvent(event{at: f.now + f.s.SignalPeriod, kind: fleetSignal})
	case fleetMinute:
		for _, e := range f.endpoints {
			e.minutes = append(e.minutes, MinuteTokens{e.interactive, e.deferredTokens})
		}
		f.queue.pushEvent(event{at: f.now + time.Minute, kind: fleetMinute})
	case fleetProbe:
		f.probeReplicas()
		f.queue.pushEvent(event{at: f.now + f.balancer.interval, kind: fleetProbe})
	case fleetSample:
		f.takeSample()
		f.queue.pushEvent(event{at: f.now + f.s.SampleInterval, kind: fleetSample})
	}
}

// submit submits a request to its replica's engine, or queues it there.
func (f *fleet) submit(i int32) {
	v := f.calls[i].vm
	if f.s.Order == core.OrderFCFS || f.s.Order == "" {
		f.submitToEngine(v, i)
	} else {
		v.waiting = append(v.waiting, i)
	}
	f.advanceVM(v)
}

// submitToEngine submits a request to an engine.
func (f *fleet) submitToEngine(v *vm, i int32) {
	c := &f.calls[i]
	v.engine.Submit(f.now, engine.Request{
		ID: uint64(i) + 1, PromptTokens: int(c.prompt), OutputLen: int(c.output), Priority: c.priority,
	})
}

// advanceVM processes an engine's events, admits queued requests, and schedules its next wake-up.
func (f *fleet) advanceVM(v *vm) {
	for _, ev := range v.engine.Advance(f.now) {
		f.handleEngineEvent(v, &ev)
	}
	for len(v.waiting) > 0 && v.engine.Load().Pending == 0 {
		f.submitToEngine(v, f.popQueued(v))
	}
	l := v.engine.Load()
	if v.state == VMReady {
		v.endpoint.kv += l.KVActive - v.kv
		c := &v.endpoint.candidates[v.at]
		c.KV = policy.Known(float64(l.KVActive) / float64(l.KVCapacity))
		c.RemainingTokens = v.remaining
	}
	v.kv = l.KVActive
	if v.state == VMDraining && v.inFlight == 0 {
		f.setState(v, VMDonated)
		f.detach(v)
		if !f.s.ReclaimDraining {
			v.endpoint.donated = append(v.endpoint.donated, v)
		}
	}
	at, more := v.engine.NextAt()
	if more == v.waking && at == v.wakeAt {
		return
	}
	v.waking, v.wakeAt = more, at
	if more {
		v.wakeSeq++
		f.queue.pushEvent(event{at: at, kind: fleetWake, index: v.index, wakeSeq: v.wakeSeq})
	}
}

// handleEngineEvent processes an engine's event.
func (f *fleet) handleEngineEvent(v *vm, ev *engine.Event) {
	i := int32(ev.ID - 1)
	c := &f.calls[i]
	switch ev.Kind {
	case engine.TokenEmitted:
		c.first = ev.At
		f.observeEngine(c, core.EventFirstToken)
		v.endpoint.leave(c)
		f.firstToken(c)
		v.remaining -= int(c.prompt)
	case engine.Finished:
		v.inFlight--
		v.remaining -= f.responses[c.model]
		f.completed(c, ev.At)
		f.observeEngine(c, core.EventFinished)
		f.release(i)
	case engine.Rejected:
		f.failed = fmt.Errorf("the engine rejected a prompt of %d tokens: %s", c.prompt, ev.Reason)
	}
}

// newCall creates the call of a request.
func (f *fleet) newCall(q *arrival) int32 {
	i := int32(len(f.calls))
	if n := len(f.free); n > 0 {
		i = f.free[n-1]
		f.free = f.free[:n-1]
	} else {
		f.calls = append(f.calls, call{})
	}
	f.calls[i] = call{arrival: *q, live: true}
	return i
}

func (f *fleet) release(i int32) {
	f.calls[i] = call{}
	f.free = append(f.free, i)
}

// popQueued removes the first request by order from a replica's queue; of equals, the earliest.
func (f *fleet) popQueued(v *vm) int32 {
	rank := func(i int32) core.QueuePosition {
		c := &f.calls[i]
		return core.QueuePositionOf(f.s.Order, f.s.Deadlines, f.s.SevereAfter, f.s.UrgentBefore, tierOrder[c.tier], c.at, f.now)
	}
	best, first := 0, rank(v.waiting[0])
	for k := 1; k < len(v.waiting); k++ {
		if r := rank(v.waiting[k]); r.Before(first) {
			best, first = k, r
		}
	}
	i := v.waiting[best]
	v.waiting = append(v.waiting[:best], v.waiting[best+1:]...)
	return i
}
