package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/internal/sim/eval"
)

// runBFIO runs a scenario of the BF-IO paper, or all of them.
func (o *simRunOptions) runBFIO(ctx context.Context, names []string, out, errOut io.Writer) error {
	for _, name := range names {
		if eval.IsBFIOName(name) && (len(names) > 1 || o.changesScenarios()) {
			return usage(fmt.Errorf("%s: accepts only --seeds, --seed-base, -o and --quiet, and cannot be combined with other scenarios", name), "")
		}
	}
	if o.format.kind == outputHTML {
		return usage(errors.New("-o html: is not available for scenarios of BF-IO"), "")
	}
	scenarios, err := bfioScenariosOf(names[0])
	if err != nil {
		return usage(err, "'skyserve sim list' lists the scenarios")
	}
	for i := range scenarios {
		if i > 0 && o.format.isTable() {
			fmt.Fprintln(out)
		}
		if err := o.printBFIO(ctx, scenarios[i].Name, out, errOut); err != nil {
			return err
		}
	}
	return nil
}

// printBFIO runs one scenario and prints it.
func (o *simRunOptions) printBFIO(ctx context.Context, name string, out, errOut io.Writer) error {
	shown := o.runProgress(errOut, name)
	began := time.Now()
	report, err := eval.RunBFIO(ctx, name, o.seeds, o.seedBase, func() time.Duration { return time.Since(began) }, shown.setProgress)
	shown.clear()
	if err != nil {
		return err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	if o.format.isResult() {
		return o.format.writeItem(out, report.Scenario, report)
	}
	return report.WriteTable(out)
}

// runProgress returns the progress of a scenario's runs, which --quiet hides.
func (o *simRunOptions) runProgress(errOut io.Writer, scenario string) *progress {
	if o.quiet {
		errOut = io.Discard
	}
	return newProgress(errOut, scenario, "runs")
}

// changesScenarios reports whether flags are set that do not apply to BF-IO's scenarios.
func (o *simRunOptions) changesScenarios() bool {
	replay := o.trace != "" || o.replay.From != 0 || o.replay.To != 0 || o.replay.RateScale != 1 || len(o.weights) > 0
	return replay || len(o.policies)+len(o.pushes)+len(o.settings) > 0 || o.layout != "" || o.paper
}
