package bfio

import (
	"math"
	"math/rand/v2"
)

// Scenario is the decode fleet of section 6.2 of the paper, overloaded: the
// queue is filled up to Reveal requests before every decision.
type Scenario struct {
	Workers int // G
	Slots   int // B, requests at once on one worker
	Reveal  int // the revelation target
	Steps   int // decode steps measured
	Warmup  int // decode steps before them, not measured
	// Overhead (C) and PerToken (t_l) make up the length of a step, equation (6):
	// C + t_l * highest load, in seconds and seconds per token.
	Overhead, PerToken float64
	Lengths            Lengths
	Seed               uint64
}

// Table1 is the scenario of the paper's Table 1. Of its two time constants only
// C + t_l * mean load = 12.4 ms can be told from the figures printed; with t_l =
// 1e-7 s a token, C is what gives FCFS the paper's 14.2 ms per output token. The
// steps measured give the paper's energy, some 5.5 million tokens' worth.
func Table1(seed uint64) Scenario {
	return Scenario{
		Workers: 16, Slots: 72, Reveal: 256,
		Steps: 4800, Warmup: 1200,
		Overhead: 4.7e-3, PerToken: 1e-7,
		Lengths: SyntheticLengths, Seed: seed,
	}
}

// Figures are the metrics of section 6.3 over the steps measured.
type Figures struct {
	Imbalance   float64 // tokens, mean per step, equation (7)
	BarrierIdle float64 // share of the workers' time spent waiting for the slowest
	Throughput  float64 // tokens per second, equation (8)
	TPOT        float64 // seconds per output token, mean over the requests completed, equation (9)
	Linear      float64 // joules, by Power Linear, equation (10)
	Sublinear   float64 // joules, by Power Sublinear
	MaxWait     int     // steps that the request that waited longest has waited, placed or not
}

// Power is how many watts a worker draws in a step of which it computes the
// share busy and waits the rest.
type Power func(busy float64) float64

const (
	idleWatts = 100
	peakWatts = 400
)

// Linear draws in proportion to the share of the step that is computed. It gives
// the 360 to 400 W of the paper's Figure 7.
func Linear(busy float64) float64 { return idleWatts + (peakWatts-idleWatts)*busy }

// Sublinear is the model of the paper's appendix D, equation (57):
// Pidle + (Pmax - Pidle) * min(1, mfu/0.45)^0.7, where a worker that computes
// the whole step runs at the saturation 0.45, and at less in proportion.
func Sublinear(busy float64) float64 {
	const saturation, gamma = 0.45, 0.7
	mfu := busy * saturation
	return idleWatts + (peakWatts-idleWatts)*math.Pow(min(1, mfu/saturation), gamma)
}

// Sim replays a scenario step by step. The same scenario and policy give the
// same figures, and all policies are given the same requests in the same order.
type Sim struct {
	scenario Scenario
	options  Options
	rng      *rand.Rand
	step     int
	clock    float64 // seconds
	active   [][]request
	queue    []request
	instance Instance
	figures  Figures
	done     int
	tokens   int64
	seconds  float64
	gone     []int64 // scratch: tokens and requests that end per step of the window
	ended    []int64
}

// request is one request's life. Its load is tokens from the step it starts in.
type request struct {
	tokens, left, output int64
	arrived              int     // step
	started              float64 // seconds
}

// NewSim starts a scenario with empty workers. The options' window is for how
// many steps completions are foreseen, without error, for the active requests
// only (section 4); of a waiting one nothing but its prompt is known.
func NewSim(scenario Scenario, options Options) *Sim {
	s := &Sim{
		scenario: scenario,
		options:  options,
		rng:      rand.New(rand.NewPCG(scenario.Seed, 0x62662d696f)),
		active:   make([][]request, scenario.Workers),
		gone:     make([]int64, options.H+1),
		ended:    make([]int64, options.H+1),
	}
	s.instance = Instance{Workers: make([]Worker, scenario.Workers), Options: options}
	for g := range s.instance.Workers {
		s.instance.Workers[g].Future = make([]int64, options.H)
	}
	return s
}

// Run takes every step of the scenario with the policy's decisions.
func (s *Sim) Run(policy Policy) Figures {
	for s.step < s.scenario.Warmup+s.scenario.Steps {
		s.Apply(policy(s.Decision()))
	}
	return s.Figures()
}

// Decision reveals what the queue lacks and returns the instance to decide now.
// It is the Sim's own and holds until Apply.
func (s *Sim) Decision() Instance {
	for len(s.queue) < s.scenario.Reveal {
		prompt, output := s.scenario.Lengths(s.rng)
		s.queue = append(s.queue, request{tokens: prompt, left: output, output: output, arrived: s.step})
	}
	s.instance.Jobs = s.instance.Jobs[:0]
	for _, r := range s.queue {
		s.instance.Jobs = append(s.instance.Jobs, Job{Prefill: r.tokens, Waited: s.step - r.arrived})
	}
	for g := range s.instance.Workers {
		s.observe(g)
	}
	return s.instance
}

// observe fills in what is known of worker g: a request with n steps left is
// there for the steps 0..n-1 of the window and gone from step n on.
func (s *Sim) observe(g int) {
	w := &s.instance.Workers[g]
	clear(s.gone)
	clear(s.ended)
	w.Load, w.Free = 0, s.scenario.Slots-len(s.active[g])
	for _, r := range s.active[g] {
		w.Load += r.tokens
		if r.left < int64(len(s.gone)) {
			s.gone[r.left] += r.tokens
			s.ended[r.left]++
		}
	}
	load, running := w.Load, int64(len(s.active[g]))
	for h := 1; h <= len(w.Future); h++ {
		load -= s.gone[h]
		running -= s.ended[h]
		w.Future[h-1] = load + int64(h)*s.options.Drift*running
	}
}

// Apply starts the jobs of the last Decision as assigned and takes one step.
func (s *Sim) Apply(assignment []int) {
	kept := s.queue[:0]
	for i, r := range s.queue {
		if s.measured() {
			s.figures.MaxWait = max(s.figures.MaxWait, s.step-r.arrived)
		}
		if g := assignment[i]; g != Unplaced {
			r.started = s.clock
			s.active[g] = append(s.active[g], r)
		} else {
			kept = append(kept, r)
		}
	}
	s.queue = kept
	s.decode()
}

func (s *Sim) measured() bool { return s.step >= s.scenario.Warmup }

// decode takes one step: its length is the slowest worker's, every active
// request gets one token, and those that have all theirs leave.
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
		s.active[g] = s.emit(s.active[g])
	}
	s.step++
}

// account adds one step's figures.
func (s *Sim) account(length, imbalance float64) {
	s.figures.Imbalance += imbalance
	s.figures.BarrierIdle += s.scenario.PerToken * imbalance / float64(s.scenario.Workers)
	s.seconds += length
	for g, active := range s.active {
		s.tokens += int64(len(active))
		load := float64(s.instance.Workers[g].Load)
		busy := (s.scenario.Overhead + s.scenario.PerToken*load) / length
		s.figures.Linear += length * Linear(busy)
		s.figures.Sublinear += length * Sublinear(busy)
	}
}

// emit gives each request its token and keeps those that have not ended.
func (s *Sim) emit(active []request) []request {
	kept := active[:0]
	for _, r := range active {
		r.left--
		r.tokens += s.options.Drift
		if r.left > 0 {
			kept = append(kept, r)
		} else if s.measured() {
			s.figures.TPOT += (s.clock - r.started) / float64(r.output)
			s.done++
		}
	}
	return kept
}

// Figures are the metrics of the steps measured so far.
func (s *Sim) Figures() Figures {
	f := s.figures
	f.Imbalance /= float64(max(1, s.step-s.scenario.Warmup))
	f.TPOT /= float64(max(1, s.done))
	if s.seconds > 0 {
		f.BarrierIdle /= s.seconds
		f.Throughput = float64(s.tokens) / s.seconds
	}
	return f
}
