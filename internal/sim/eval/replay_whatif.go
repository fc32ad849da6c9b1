package eval

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// WhatIf configures the simulation of a record's requests under other policies.
type WhatIf struct {
	// Policies are compared in this order; none = the recorded one.
	Policies []string
	// Push is the push mode for them; empty = the recorded one.
	Push string
	// Profile is the profile of each replica, Speed its speed-up.
	Profile engine.Profile
	Speed   float64
	// Seeds is the number of seeds, from 1.
	Seeds int
}

// Check returns an error if the options are invalid.
func (w *WhatIf) Check() error {
	for _, name := range w.Policies {
		if _, err := policy.New(name); err != nil {
			return err
		}
	}
	if _, err := core.ParsePush(w.Push); err != nil {
		return err
	}
	if w.Seeds < 1 {
		return fmt.Errorf("seeds: must be at least 1, got %d", w.Seeds)
	}
	return w.profile().Validate()
}

// profile returns Profile scaled by Speed.
func (w *WhatIf) profile() engine.Profile {
	if w.Speed == 1 {
		return w.Profile
	}
	p := w.Profile.Scaled(1 / w.Speed)
	p.Name = fmt.Sprintf("%s x%g", w.Profile.Name, w.Speed)
	return p
}

// ReplayWhatIf replays a record like ReplayRecord and then simulates the same requests under other
// policies. A record cannot contain the consequences of another decision, so the requests are sent to
// simulated engines: at their recorded times, with the recorded lengths and shared prefixes. The
// recorded policy is simulated too: compare the others with that row, not with the recorded figures.
// The report lists the assumptions. A record whose replay differs is not simulated.
func ReplayWhatIf(ctx context.Context, name string, in io.Reader, w WhatIf) (*ReplayReport, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	load := newRecordedLoad()
	report, err := replayRecord(ctx, name, in, load.applyStep)
	if err != nil || report.Replay.Difference != nil {
		return report, err
	}
	recorded := &report.Constants.Config
	s, assumed, err := load.scenario(name, &report.Constants, w.profile())
	if err != nil {
		return nil, fmt.Errorf("simulating %s: %w", name, err)
	}
	s.Duration = max(load.span(), report.span)
	if w.Push == "" {
		w.Push = recorded.Push
	}
	if len(w.Policies) == 0 {
		w.Policies = []string{recorded.Policy}
	}
	plans := []Comparison{{Scenario: *s, Policies: []string{recorded.Policy}, Pushes: []string{recorded.Push}, Layout: sim.Regional, Seeds: w.Seeds}}
	others := w.Policies
	if w.Push == recorded.Push {
		others = slices.DeleteFunc(slices.Clone(others), func(p string) bool { return p == recorded.Policy })
	}
	if len(others) > 0 {
		plans = append(plans, Comparison{Scenario: *s, Policies: others, Pushes: []string{w.Push}, Layout: sim.Regional, Seeds: w.Seeds})
	}
	for _, plan := range plans {
		if err := report.simulate(ctx, plan); err != nil {
			return nil, fmt.Errorf("simulating %s: %w", name, err)
		}
	}
	report.Assumed = assumed
	return report, nil
}

// span returns the time from the first request to the last.
func (l *recordedLoad) span() time.Duration {
	return l.requests[len(l.requests)-1].at - l.requests[0].at + 1
}

// simulate adds the rows and summaries of a plan.
func (r *ReplayReport) simulate(ctx context.Context, plan Comparison) error {
	ran, err := Run(ctx, plan)
	if err != nil {
		return err
	}
	r.Simulated = &ran.Constants // the same for all plans
	for i := range ran.Rows {
		row := &ran.Rows[i]
		seed := row.Seed
		r.Rows = append(r.Rows, ReplayRow{
			Source: "simulated", Policy: row.Policy, Push: row.Push, Seed: &seed, RunFigures: row.RunFigures, Requests: row.Requests,
		})
	}
	for i := range ran.Summary {
		summary := ran.Summary[i]
		summary.Best = false // the recorded run does not compete
		r.Summary = append(r.Summary, summary)
	}
	return nil
}
