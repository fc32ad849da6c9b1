package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"skyserve/internal/sim"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// Comparison configures a comparison on one scenario.
type Comparison struct {
	Scenario sim.Scenario
	// Policies are compared in this order; none = those of the scenario, or all policies, and with full
	// engines the oracle.
	Policies []string
	// Pushes are the push modes for each policy; none = those of the scenario, or the policy's canonical
	// one.
	Pushes []string
	// Layout is the placement of balancers; empty = that of the scenario, or of the policy's source.
	Layout sim.Layout
	// Seeds is the number of seeds, from SeedBase+1.
	Seeds    int
	SeedBase uint64
	// Paper adds the claims of the scenario's paper to the report.
	Paper bool
	// Workers is the number of concurrent runs; 0 = the number of processors.
	Workers int
	// Progress, if set, receives the number of finished runs, the number of all runs, and the simulated
	// share (0..1) of all runs: after each run and at every percent. Calls never overlap.
	Progress func(done, all int, share float64)
}

// CanonicalLayout returns the balancer layout of a policy's source: one balancer for all replicas if
// the policy pushes blindly and does not use regions, otherwise one per region (SkyLB 5.1).
func CanonicalLayout(name string) (sim.Layout, error) {
	if name == sim.Oracle {
		return sim.Everywhere, nil
	}
	p, err := policy.New(name)
	if err != nil {
		return "", err
	}
	if policy.CanonicalPush(name) == string(core.PushBlind) && !p.Traits().Peers {
		return sim.Single, nil
	}
	return sim.Regional, nil
}

// Check returns an error if the plan cannot run; it runs nothing.
func (p *Comparison) Check() error {
	_, err := p.setups()
	return err
}

// setups returns the runs in the order of their rows: by policy, push and seed.
func (p *Comparison) setups() ([]sim.Setup, error) {
	if err := p.Scenario.Validate(); err != nil {
		return nil, err
	}
	if p.Seeds < 1 {
		return nil, fmt.Errorf("seeds: must be at least 1, got %d", p.Seeds)
	}
	names := p.Policies
	if len(names) == 0 {
		names = slices.Clone(firstNonEmpty(p.Scenario.Policies, policy.Names()))
		if p.Scenario.Engine == sim.FullEngine {
			names = append(names, sim.Oracle)
		}
	}
	requested := cmp.Or(p.Layout, p.Scenario.Layout)
	var setups []sim.Setup
	for _, name := range names {
		pushes := firstNonEmpty(p.Pushes, p.Scenario.Pushes, []string{policy.CanonicalPush(name)})
		layout, err := CanonicalLayout(name)
		if err != nil {
			return nil, err
		}
		if name == sim.Oracle {
			pushes = []string{policy.CanonicalPush(name)} // the oracle supports no other push mode
		} else if requested != "" {
			if layout, err = sim.ParseLayout(string(requested)); err != nil {
				return nil, err
			}
		}
		for _, mode := range pushes {
			push, err := core.ParsePush(mode)
			if err != nil {
				return nil, err
			}
			for seed := range p.Seeds {
				setups = append(setups, sim.Setup{Policy: name, Push: push, Layout: layout, Seed: p.SeedBase + uint64(seed) + 1})
			}
		}
	}
	return setups, nil
}

// firstNonEmpty returns the first non-empty list.
func firstNonEmpty(lists ...[]string) []string {
	for _, l := range lists {
		if len(l) > 0 {
			return l
		}
	}
	return nil
}

// Run runs the plan and returns its report. It returns the error of the first failed run in the order
// of the rows, or the end of ctx; the other runs are then cancelled.
func Run(ctx context.Context, p Comparison) (*SimReport, error) {
	setups, err := p.setups()
	if err != nil {
		return nil, err
	}
	results, err := runAll(ctx, &p, setups)
	if err != nil {
		return nil, err
	}
	return newReport(&p, setups, results), nil
}

// runAll runs the setups on concurrent workers and keeps the order of the results.
func runAll(ctx context.Context, p *Comparison, setups []sim.Setup) ([]*sim.Result, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	results, failures := make([]*sim.Result, len(setups)), make([]error, len(setups))
	todo := make(chan int, len(setups))
	for i := range setups {
		todo <- i
	}
	close(todo)
	progress := newProgress(p, len(setups))
	workers := p.Workers
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	var running sync.WaitGroup
	for range min(workers, len(setups)) {
		running.Go(func() {
			for i := range todo {
				watch := func(now time.Duration) { progress.advance(i, now) }
				if results[i], failures[i] = sim.RunWithProgress(ctx, &p.Scenario, setups[i], watch); failures[i] != nil {
					stop()
				}
				progress.done(i)
			}
		})
	}
	running.Wait()
	return results, firstFailure(failures)
}

// progress tracks the progress of concurrent runs.
type progress struct {
	mu              sync.Mutex
	plan            *Comparison
	simulated       []time.Duration // simulated time of each run
	sum             time.Duration
	finished        int
	reportedPercent int // last reported percent
}

func newProgress(p *Comparison, runs int) *progress {
	return &progress{plan: p, simulated: make([]time.Duration, runs)}
}

// advance updates the simulated time of run i.
func (p *progress) advance(i int, now time.Duration) {
	if p.plan.Progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum += now - p.simulated[i]
	p.simulated[i] = now
	if int(100*p.share()) > p.reportedPercent {
		p.report()
	}
}

// done marks run i as finished.
func (p *progress) done(i int) {
	p.advance(i, p.plan.Scenario.Duration)
	if p.plan.Progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished++
	p.report()
}

// share returns the simulated share of all runs.
func (p *progress) share() float64 {
	return p.sum.Seconds() / (float64(len(p.simulated)) * p.plan.Scenario.Duration.Seconds())
}

func (p *progress) report() {
	p.reportedPercent = int(100 * p.share())
	p.plan.Progress(p.finished, len(p.simulated), p.share())
}

// firstFailure returns the first error that is not a cancellation; if there is none, the first
// cancellation.
func firstFailure(failures []error) error {
	var stopped error
	for _, err := range failures {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if stopped == nil {
			stopped = err
		}
	}
	return stopped
}
