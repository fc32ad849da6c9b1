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

// Plan is what to compare on one scenario.
type Plan struct {
	Scenario sim.Scenario
	// Policies are compared in this order; none = the scenario's, or all there are.
	Policies []string
	// Pushes are the push rules to run each policy at; none = the scenario's, or
	// the policy's canonical one.
	Pushes []string
	// Layout is where balancers stand; empty = the scenario's, or where the policy's
	// source puts them.
	Layout sim.Layout
	// Seeds is how many seeds to run, from 1.
	Seeds int
	// Paper puts what the scenario's paper prints beside what is measured.
	Paper bool
	// Workers is how many runs go on at once; 0 = as many as there are processors.
	Workers int
	// Progress, when set, is told how many of how many runs are done, and which
	// share (0..1) of all that is to be simulated: after each run and with every
	// hundredth. Calls never overlap.
	Progress func(done, all int, share float64)
}

// CanonicalLayout is where a policy's source has its balancers: one for all
// replicas where it sends blindly and knows no regions, else one a region
// (SkyLB 5.1).
func CanonicalLayout(name string) (sim.Layout, error) {
	if name == sim.Oracle {
		return sim.Everywhere, nil
	}
	p, err := policy.New(name)
	if err != nil {
		return "", err
	}
	if policy.CanonicalPush(name) == string(core.PushBlind) && !p.Traits().Regions {
		return sim.Single, nil
	}
	return sim.Regional, nil
}

// Check says what makes the plan impossible, or nil, without running it.
func (p *Plan) Check() error {
	_, err := p.setups()
	return err
}

// setups lists the runs in the order of their rows: by policy, push and seed.
func (p *Plan) setups() ([]sim.Setup, error) {
	if err := p.Scenario.Validate(); err != nil {
		return nil, err
	}
	if p.Seeds < 1 {
		return nil, fmt.Errorf("seeds: must be at least 1, got %d", p.Seeds)
	}
	names := p.Policies
	if len(names) == 0 {
		names = slices.Clone(firstOf(p.Scenario.Policies, policy.Names()))
		if p.Scenario.Engine == sim.FullEngine {
			names = append(names, sim.Oracle)
		}
	}
	asked := cmp.Or(p.Layout, p.Scenario.Layout)
	var setups []sim.Setup
	for _, name := range names {
		pushes := firstOf(p.Pushes, p.Scenario.Pushes, []string{policy.CanonicalPush(name)})
		layout, err := CanonicalLayout(name)
		if err != nil {
			return nil, err
		}
		if name == sim.Oracle {
			pushes = []string{policy.CanonicalPush(name)} // it needs no other
		} else if asked != "" {
			if layout, err = sim.ParseLayout(string(asked)); err != nil {
				return nil, err
			}
		}
		for _, rule := range pushes {
			push, err := core.ParsePush(rule)
			if err != nil {
				return nil, err
			}
			for seed := range p.Seeds {
				setups = append(setups, sim.Setup{Policy: name, Push: push, Layout: layout, Seed: uint64(seed) + 1})
			}
		}
	}
	return setups, nil
}

// firstOf is the first list that holds something.
func firstOf(lists ...[]string) []string {
	for _, l := range lists {
		if len(l) > 0 {
			return l
		}
	}
	return nil
}

// Run runs the plan and reports. The first run that fails, in the order of the
// rows, is the error, and so is the end of ctx; the others are then stopped.
func Run(ctx context.Context, p Plan) (*Report, error) {
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

// runAll runs the setups on some workers and keeps each result in its place.
func runAll(ctx context.Context, p *Plan, setups []sim.Setup) ([]*sim.Result, error) {
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
				watch := func(now time.Duration) { progress.at(i, now) }
				if results[i], failures[i] = sim.RunWatched(ctx, &p.Scenario, setups[i], watch); failures[i] != nil {
					stop()
				}
				progress.done(i)
			}
		})
	}
	running.Wait()
	return results, firstFailure(failures)
}

// progress sums up how far runs side by side are.
type progress struct {
	mu     sync.Mutex
	plan   *Plan
	passed []time.Duration // of each run
	sum    time.Duration
	ended  int
	told   int // hundredths
}

func newProgress(p *Plan, runs int) *progress {
	return &progress{plan: p, passed: make([]time.Duration, runs)}
}

// at takes how far run i is.
func (p *progress) at(i int, now time.Duration) {
	if p.plan.Progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum += now - p.passed[i]
	p.passed[i] = now
	if int(100*p.share()) > p.told {
		p.tell()
	}
}

// done takes the end of run i.
func (p *progress) done(i int) {
	p.at(i, p.plan.Scenario.Duration)
	if p.plan.Progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.tell()
}

// share is the part of all runs that has been simulated.
func (p *progress) share() float64 {
	return p.sum.Seconds() / (float64(len(p.passed)) * p.plan.Scenario.Duration.Seconds())
}

func (p *progress) tell() {
	p.told = int(100 * p.share())
	p.plan.Progress(p.ended, len(p.passed), p.share())
}

// firstFailure is the first error that is not of a run that another one stopped;
// where all were stopped, it is that.
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
