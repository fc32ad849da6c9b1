package barrier

import (
	"math/rand/v2"

	"skyserve/lbd/bfio"
)

// Scenario is the decode fleet of section 6.2 of the paper. It is overloaded (the queue is filled up to
// VisibleRequests requests before every decision, and the run is measured in steps) or, with a Rate, open:
// requests arrive independently of the policy, and the run is measured in seconds, so that all policies
// get the same requests.
type Scenario struct {
	Workers         int // G
	Slots           int // concurrent requests per worker (B)
	VisibleRequests int // target number of visible waiting requests, in overload
	Steps           int // measured decode steps, in overload
	Warmup          int // decode steps before the measurement
	// Rate is the arrival rate in requests per second, a Poisson process; 0 = overload.
	Rate float64
	// Duration and WarmupSeconds are the measured seconds of an open fleet, and the seconds before.
	Duration, WarmupSeconds float64
	// OnArrival binds each request to a worker at the first decision after its arrival: it waits in that
	// worker's own FIFO queue (section 7.3).
	OnArrival bool
	// Growth is the growth of every active request in tokens per step, repeated cyclically (section
	// 5.1); empty = the options' Drift at every step.
	Growth []int64
	// Overhead (C) and PerToken (t_l) determine the length of a step, equation (6): C + t_l * highest
	// load, in seconds and seconds per token.
	Overhead, PerToken float64
	Lengths            Lengths
	Seed               uint64
}

// Table1 returns the scenario of the paper's Table 1. The printed figures determine only C + t_l * mean
// load = 12.4 ms of its two time constants; with t_l = 1e-7 s per token, C is chosen to give FCFS the
// paper's 14.2 ms per output token. The number of measured steps matches the paper's energy, some 5.5
// million tokens.
func Table1(seed uint64) Scenario {
	return Scenario{
		Workers: 16, Slots: 72, VisibleRequests: 256,
		Steps: 4800, Warmup: 1200,
		Overhead: 4.7e-3, PerToken: 1e-7,
		Lengths: SyntheticLengths, Seed: seed,
	}
}

// StepMetrics are the metrics of section 6.3 over the measured steps.
type StepMetrics struct {
	Imbalance   float64 // tokens, mean per step, equation (7)
	BarrierIdle float64 // share of the workers' time spent waiting for the slowest
	Throughput  float64 // tokens per second, equation (8)
	TPOT        float64 // seconds per output token, mean over the requests completed, equation (9)
	Linear      float64 // joules, by Power Linear, equation (10)
	Sublinear   float64 // joules, by Power Sublinear
	MaxWait     int     // longest wait of a request in steps, placed or not
	Completed   int     // finished requests
	Seconds     float64 // simulated time
}

// Sim replays a scenario step by step. The same scenario and policy yield the same figures, and all
// policies get the same requests in the same order.
type Sim struct {
	scenario Scenario
	options  bfio.Options
	rng      *rand.Rand
	step     int
	clock    float64 // seconds
	due      float64 // arrival of the next request in an open fleet, seconds
	active   [][]request
	queue    []request
	bound    [][]request // each worker's own queue, with OnArrival
	counts   Counts
	instance bfio.Instance
	figures  StepMetrics
	steps    int // measured
	tokens   int64
	waits    []float64 // seconds, of the requests started during the measurement
	departed []int64   // scratch: tokens and requests that end per step of the window
	ended    []int64
}

// Counts are the requests of a Sim since its start: Arrived is always the sum of the other three.
type Counts struct {
	Arrived, Done, Active, Waiting int
}

// request is a request. Its load is tokens from the step in which it starts.
type request struct {
	tokens, remaining, output int64
	arrived                   int     // step
	came, started             float64 // seconds
}

// NewSim returns a scenario with empty workers. Completions within the options' window are known
// exactly, for active requests only (section 4); for waiting requests only the prompt is known.
func NewSim(scenario Scenario, options bfio.Options) *Sim {
	s := &Sim{
		scenario: scenario,
		options:  options,
		rng:      rand.New(rand.NewPCG(scenario.Seed, 0x62662d696f)),
		active:   make([][]request, scenario.Workers),
		bound:    make([][]request, scenario.Workers),
		departed: make([]int64, options.H+1),
		ended:    make([]int64, options.H+1),
	}
	s.instance = bfio.Instance{Workers: make([]bfio.Worker, scenario.Workers), Options: options}
	for g := range s.instance.Workers {
		s.instance.Workers[g].Future = make([]int64, options.H)
	}
	if scenario.Rate > 0 {
		s.due = s.rng.ExpFloat64() / scenario.Rate
	}
	return s
}

// Run runs all steps of the scenario with the policy's decisions.
func (s *Sim) Run(policy Policy) StepMetrics {
	for !s.finished() {
		s.Apply(policy(s.Decision()))
	}
	return s.Figures()
}

func (s *Sim) finished() bool {
	if s.scenario.Rate > 0 {
		return s.clock >= s.scenario.WarmupSeconds+s.scenario.Duration
	}
	return s.step >= s.scenario.Warmup+s.scenario.Steps
}

func (s *Sim) measured() bool {
	if s.scenario.Rate > 0 {
		return s.clock >= s.scenario.WarmupSeconds
	}
	return s.step >= s.scenario.Warmup
}

// Counts returns the number of requests in each state.
func (s *Sim) Counts() Counts { return s.counts }

// Decision adds the arrived requests, or in overload refills the queue, and returns the instance to
// decide. It belongs to the Sim and is valid until Apply.
func (s *Sim) Decision() bfio.Instance {
	if s.scenario.Rate > 0 {
		s.arrive()
	} else {
		for s.counts.Waiting < s.scenario.VisibleRequests {
			s.addRequest(s.clock)
		}
	}
	s.instance.Jobs = s.instance.Jobs[:0]
	for _, r := range s.queue {
		s.instance.Jobs = append(s.instance.Jobs, bfio.Job{Prefill: r.tokens, Waited: s.step - r.arrived})
	}
	for g := range s.instance.Workers {
		s.observe(g)
	}
	if s.scenario.OnArrival {
		s.observeQueues()
	}
	return s.instance
}

// addRequest adds a request with an arrival time.
func (s *Sim) addRequest(came float64) {
	prompt, output := s.scenario.Lengths(s.rng)
	s.queue = append(s.queue, request{tokens: prompt, remaining: output, output: output, arrived: s.step, came: came})
	s.counts.Arrived++
	s.counts.Waiting++
}

// observe updates the state of worker g: a request with n steps left is present in steps 0..n-1 of the
// window.
func (s *Sim) observe(g int) {
	w := &s.instance.Workers[g]
	clear(s.departed)
	clear(s.ended)
	w.Load, w.Free = 0, s.scenario.Slots-len(s.active[g])
	for _, r := range s.active[g] {
		w.Load += r.tokens
		if r.remaining < int64(len(s.departed)) {
			s.departed[r.remaining] += r.tokens
			s.ended[r.remaining]++
		}
	}
	load, running, grown := w.Load, int64(len(s.active[g])), int64(0)
	for h := 1; h <= len(w.Future); h++ {
		load -= s.departed[h]
		running -= s.ended[h]
		grown += s.growth(s.step + h - 1)
		w.Future[h-1] = load + grown*running
	}
}

// growth returns the growth of an active request in a step, in tokens.
func (s *Sim) growth(step int) int64 {
	if n := len(s.scenario.Growth); n > 0 {
		return s.scenario.Growth[step%n]
	}
	return s.options.Drift
}

// Apply starts the jobs of the last Decision as assigned and runs one step. With OnArrival the jobs
// join their workers' queues, whose oldest start.
func (s *Sim) Apply(assignment []int) {
	kept := s.queue[:0]
	for i, r := range s.queue {
		s.recordWait(r)
		switch g := assignment[i]; {
		case g == bfio.Unplaced:
			kept = append(kept, r)
		case s.scenario.OnArrival:
			s.bound[g] = append(s.bound[g], r)
		default:
			s.start(g, r)
		}
	}
	s.queue = kept
	if s.scenario.OnArrival {
		s.startBound()
	}
	s.decode()
}

func (s *Sim) recordWait(r request) {
	if s.measured() {
		s.figures.MaxWait = max(s.figures.MaxWait, s.step-r.arrived)
	}
}

func (s *Sim) start(g int, r request) {
	r.started = s.clock
	s.active[g] = append(s.active[g], r)
	s.counts.Waiting--
	s.counts.Active++
	if s.measured() {
		s.waits = append(s.waits, s.clock-r.came)
	}
}

// decode runs one step: its length is that of the slowest worker, every active request gets
// one token, and finished ones are removed.
func (s *Sim) decode() {
	var peak, sum int64
	for g, active := range s.active {
		load := int64(0)
		for _, r := range active {
			load += r.tokens
		}
		s.instance.Workers[g].Load = load
		peak, sum = max(peak, load), sum+load
	}
	length := s.scenario.Overhead + s.scenario.PerToken*float64(peak)
	if s.measured() {
		s.account(length, float64(int64(s.scenario.Workers)*peak-sum))
	}
	s.clock += length
	for g := range s.active {
		s.active[g] = s.emit(s.active[g], s.growth(s.step))
	}
	s.step++
}

// account adds the figures of one step.
func (s *Sim) account(length, imbalance float64) {
	s.steps++
	s.figures.Imbalance += imbalance
	s.figures.BarrierIdle += s.scenario.PerToken * imbalance / float64(s.scenario.Workers)
	s.figures.Seconds += length
	for g, active := range s.active {
		s.tokens += int64(len(active))
		load := float64(s.instance.Workers[g].Load)
		busy := (s.scenario.Overhead + s.scenario.PerToken*load) / length
		s.figures.Linear += length * Linear(busy)
		s.figures.Sublinear += length * Sublinear(busy)
	}
}

// emit adds a token to each request and returns those that have not finished.
func (s *Sim) emit(active []request, growth int64) []request {
	kept := active[:0]
	for _, r := range active {
		r.remaining--
		r.tokens += growth
		if r.remaining > 0 {
			kept = append(kept, r)
			continue
		}
		s.counts.Active--
		s.counts.Done++
		if s.measured() {
			s.figures.TPOT += (s.clock - r.started) / float64(r.output)
			s.figures.Completed++
		}
	}
	return kept
}

// Figures returns the metrics of the steps measured so far.
func (s *Sim) Figures() StepMetrics {
	f := s.figures
	f.Imbalance /= float64(max(1, s.steps))
	f.TPOT /= float64(max(1, f.Completed))
	if f.Seconds > 0 {
		f.BarrierIdle /= f.Seconds
		f.Throughput = float64(s.tokens) / f.Seconds
	}
	return f
}
