package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
)

// runSage runs scenarios of SageServe's paper.
func (o *simRunOptions) runSage(ctx context.Context, names []string, out, errOut io.Writer) error {
	plans, err := o.sagePlans(names)
	if err != nil {
		return usage(err, "")
	}
	var reports []*eval.SageReport
	for i := range plans {
		report, err := o.runSagePlan(ctx, plans[i], errOut)
		if err != nil {
			return err
		}
		reports = append(reports, report)
		switch {
		case o.format.isResult():
			err = o.format.writeItem(out, report.Scenario, report)
		case o.format.isTable():
			if i > 0 {
				fmt.Fprintln(out)
			}
			err = report.WriteTable(out)
		}
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	if o.format.kind == outputHTML {
		return eval.WriteSageHTML(out, reports)
	}
	return nil
}

// sagePlans returns the comparisons to run, after checking all of them.
func (o *simRunOptions) sagePlans(names []string) ([]eval.SageComparison, error) {
	if len(o.pushes) > 0 || len(o.policies) > 0 || o.layout != "" || len(o.weights) > 0 || o.replay.From != 0 || o.replay.To != 0 || o.replay.RateScale != 1 {
		return nil, errors.New("sage-... scenarios accept only --strategy, --seeds, --seed-base, --set, --trace, --region-mix, --paper, -o and --quiet")
	}
	trace, err := o.sageTrace()
	if err != nil {
		return nil, err
	}
	var plans []eval.SageComparison
	for _, name := range names {
		if !eval.IsSageName(name) {
			return nil, fmt.Errorf("%s: cannot be combined with sage-... scenarios", name)
		}
		scenarios, err := eval.FindSageScenarios(name)
		if err != nil {
			return nil, err
		}
		for i := range scenarios {
			p := eval.SageComparison{Scenario: scenarios[i], Strategies: o.strategies, Seeds: o.seeds, SeedBase: o.seedBase, Trace: trace, Paper: o.paper}
			for _, setting := range o.settings {
				key, value, found := strings.Cut(setting, "=")
				if !found {
					return nil, fmt.Errorf("--set %s: must be KEY=VALUE", setting)
				}
				if err := p.Settings.Set(key, value); err != nil {
					return nil, fmt.Errorf("--set %s: %w", setting, err)
				}
			}
			if err := p.Check(); err != nil {
				return nil, err
			}
			plans = append(plans, p)
		}
	}
	return plans, nil
}

// sageTrace reads the demand of --trace, if it is set.
func (o *simRunOptions) sageTrace() (*eval.SageTrace, error) {
	if o.trace == "" {
		if o.regionMix != "" {
			return nil, errors.New("--region-mix: requires --trace")
		}
		return nil, nil
	}
	f, err := os.Open(o.trace)
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	defer f.Close()
	trace, err := eval.ReadSageTrace(o.trace, f)
	if err != nil || o.regionMix == "" {
		return trace, err
	}
	mix, err := os.Open(o.regionMix)
	if err != nil {
		return nil, fmt.Errorf("reading a region mix: %w", err)
	}
	defer mix.Close()
	return trace, trace.ReadMix(o.regionMix, mix, sim.SageFleet().Regions)
}

// runSagePlan runs one scenario.
func (o *simRunOptions) runSagePlan(ctx context.Context, p eval.SageComparison, errOut io.Writer) (*eval.SageReport, error) {
	shown := o.runProgress(errOut, p.Scenario.Name)
	p.Progress = shown.setProgress
	began := time.Now()
	report, err := eval.RunSage(ctx, p)
	shown.clear()
	if err != nil {
		return nil, err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if o.format.isTable() {
		fmt.Fprintln(errOut, simSpeed(report.Requests, report.WallMillis))
	}
	return report, nil
}
