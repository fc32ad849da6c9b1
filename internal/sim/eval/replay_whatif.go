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

// WhatIf is what to decide a record's requests with instead.
type WhatIf struct {
	// Policies are compared in this order; none = the recorded one.
	Policies []string
	// Push is the push rule for them; empty = the recorded one.
	Push string
	// Profile is what each replica is, Speed how many times faster it runs.
	Profile engine.Profile
	Speed   float64
	// Seeds is how many seeds to run, from 1.
	Seeds int
}

// Check says what makes the question impossible, or nil.
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

// profile is Profile in the time that it runs in.
func (w *WhatIf) profile() engine.Profile {
	if w.Speed == 1 {
		return w.Profile
	}
	p := w.Profile.Scaled(1 / w.Speed)
	p.Name = fmt.Sprintf("%s x%g", w.Profile.Name, w.Speed)
	return p
}

// ReplayWhatIf is ReplayRecord, and then what other policies would have made of
// the same requests. A record cannot tell what would have followed another
// decision, so the requests are asked of simulated engines as they came: at the
// recorded times, with prompts that share what the recorded ones shared and of
// the recorded lengths. The recorded policy is simulated too: what is said of the
// others is to be compared with that, not with the recorded figures. What had to
// be assumed is in the report. A record that does not repeat is not simulated.
func ReplayWhatIf(ctx context.Context, name string, in io.Reader, w WhatIf) (*ReplayReport, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	load := newRecordedLoad()
	report, err := replayRecord(ctx, name, in, load.step)
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
	plans := []Plan{{Scenario: *s, Policies: []string{recorded.Policy}, Pushes: []string{recorded.Push}, Layout: sim.Regional, Seeds: w.Seeds}}
	others := w.Policies
	if w.Push == recorded.Push {
		others = slices.DeleteFunc(slices.Clone(others), func(p string) bool { return p == recorded.Policy })
	}
	if len(others) > 0 {
		plans = append(plans, Plan{Scenario: *s, Policies: others, Pushes: []string{w.Push}, Layout: sim.Regional, Seeds: w.Seeds})
	}
	for _, plan := range plans {
		if err := report.simulate(ctx, plan); err != nil {
			return nil, fmt.Errorf("simulating %s: %w", name, err)
		}
	}
	report.Assumed = assumed
	return report, nil
}

// span is from the first request to the last.
func (l *recordedLoad) span() time.Duration {
	return l.requests[len(l.requests)-1].at - l.requests[0].at + 1
}

// simulate adds the rows and summaries of a plan.
func (r *ReplayReport) simulate(ctx context.Context, plan Plan) error {
	ran, err := Run(ctx, plan)
	if err != nil {
		return err
	}
	r.Simulated = &ran.Constants // alike for all plans
	for i := range ran.Rows {
		row := &ran.Rows[i]
		seed := row.Seed
		r.Rows = append(r.Rows, ReplayRow{
			Of: "simulated", Policy: row.Policy, Push: row.Push, Seed: &seed, Figures: row.Figures, Requests: row.Requests,
		})
	}
	for i := range ran.Summary {
		summary := ran.Summary[i]
		summary.Best = false // the recorded run is no competitor
		r.Summary = append(r.Summary, summary)
	}
	return nil
}
