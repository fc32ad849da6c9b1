package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/sim"
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
	// Progress, when set, is told after each run how many of how many are done.
	// Calls never overlap.
	Progress func(done, all int)
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
		names = append(slices.Clone(firstOf(p.Scenario.Policies, policy.Names())), sim.Oracle)
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
	var progress sync.Mutex
	done := 0
	finished := func() {
		progress.Lock()
		defer progress.Unlock()
		done++
		if p.Progress != nil {
			p.Progress(done, len(setups))
		}
	}
	workers := p.Workers
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	var running sync.WaitGroup
	for range min(workers, len(setups)) {
		running.Go(func() {
			for i := range todo {
				if results[i], failures[i] = sim.Run(ctx, &p.Scenario, setups[i]); failures[i] != nil {
					stop()
				}
				finished()
			}
		})
	}
	running.Wait()
	return results, firstFailure(failures)
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
