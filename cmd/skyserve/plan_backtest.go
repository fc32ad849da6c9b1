package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"skyserve/plan"

	"github.com/spf13/cobra"
)

// backtestOptions are the flags of `skyserve plan backtest`.
type backtestOptions struct {
	planOptions
	from, until, counts string
	every               time.Duration
}

func newPlanBacktestCmd() *cobra.Command {
	var o backtestOptions
	cmd := &cobra.Command{
		Use:   "backtest [NAME|SERVICE.yaml]",
		Short: "Backtest plans on a history: cost and overload",
		Long: `Compute a plan for each interval --every of a history, using only earlier data, and simulate
applying the plans: replicas are ready after their start-up time and billed from their launch.
The rows are:

  predictive  autoscale.strategy predictive, which follows the load between plans
  hourly      the planned counts (for --peak-quantile), kept until the next plan; the row is
              called hourly whatever --every is
  constant    constant counts, sized with hindsight for each region's peak
  threshold   without a forecast: adds replicas when the load of the previous minute is
              above 70 % of the capacity, and removes one below 30 %
  actual      with --counts: the actual counts

--counts is CSV with a header: minute (minutes since the Unix epoch, UTC) or at (a
time), model, region, replicas and, optionally, gpu. A count holds until the next row of its
model, region and GPU.`,
		Example: `  skyserve plan backtest service.yaml --history week.csv
  skyserve plan backtest service.yaml --history week.csv --forecaster seasonal-naive --peak-quantile p90
  skyserve plan backtest --from 2025-01-30T00:00:00Z --to 2025-01-31T00:00:00Z -o json`,
		Args: argsBetween(0, 1, "[NAME|SERVICE.yaml]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.target, args, "NAME|SERVICE.yaml"); err != nil {
				return err
			}
			if err := checkPositive(cmd, "horizon", "step", "max-rtt", "every"); err != nil {
				return err
			}
			o.errOut = cmd.ErrOrStderr()
			return o.runBacktest(cmd.Context(), cmd.OutOrStdout())
		},
	}
	registerService(cmd, &o.target)
	flags := cmd.Flags()
	o.reviewFlags(cmd)
	flags.Lookup("horizon").Usage = "length of the planned period (default: --every, at least 1h)"
	flags.StringVar(&o.from, "from", "", "start of the evaluated period, as `TIME` (default: one day plus --horizon after the start of the history, or its middle, whichever is earlier)")
	flags.StringVar(&o.until, "to", "", "end of the evaluated period, as `TIME` (default: the history's end)")
	flags.DurationVar(&o.every, "every", 0, "time between two plans (default: autoscale.every, else 1h)")
	flags.StringVar(&o.counts, "counts", "", "`FILE` with the actual counts of replicas")
	o.list.registerDocument(cmd)
	flags.StringVar(&o.file, "out", "", "write to `FILE` instead of standard output")
	return cmd
}

func (o *backtestOptions) runBacktest(ctx context.Context, out io.Writer) error {
	if err := o.checkOptions(); err != nil {
		return err
	}
	b, err := o.newBacktester(ctx)
	if err != nil {
		return err
	}
	// Errors that affect every review are reported before computing all of them.
	if err := b.Forecast(0); err != nil {
		return usage(err, "")
	}
	if err := inParallel(ctx, b.NumReviews(), b.Forecast, newProgress(o.errOut, "computing forecasts", "reviews")); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return usage(err, "")
	}
	var t *plan.Backtest
	evaluate := func(int) error { t, err = b.Report(); return err }
	if err := inParallel(ctx, 1, evaluate, newProgress(o.errOut, "computing and evaluating the plans", "parts")); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return usage(err, "")
	}
	return o.writeOutput(out, func(w io.Writer) error {
		if o.format.isDocument() {
			return o.format.writeDocument(w, t)
		}
		return t.WriteTable(w)
	})
}

// newBacktester loads the backtest's inputs.
func (o *backtestOptions) newBacktester(ctx context.Context) (*plan.Backtester, error) {
	var b plan.BacktestOptions
	for _, t := range []struct {
		flag, text string
		to         *time.Time
	}{{"--from", o.from, &b.From}, {"--to", o.until, &b.To}} {
		if t.text == "" {
			continue
		}
		var err error
		if *t.to, err = time.Parse(time.RFC3339, t.text); err != nil {
			return nil, usage(fmt.Errorf("%s: must be a time such as 2025-01-31T12:00:00Z, got %q", t.flag, t.text), "")
		}
	}
	g, err := o.gatherInputs(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	if g.history.Minutes == 0 {
		return nil, usage(errors.New("plan backtest: the service has no history"), "pass --history FILE")
	}
	if o.counts != "" {
		text, err := os.ReadFile(o.counts)
		if err != nil {
			return nil, usage(fmt.Errorf("reading --counts: %w", err), "")
		}
		if b.ActualCounts, err = plan.ReadCounts(o.counts, strings.NewReader(string(text))); err != nil {
			return nil, usage(err, "")
		}
	}
	b.Every, b.Review = o.every, o.review
	bt, err := plan.NewBacktest(g.Spec, g.history, b)
	if err != nil {
		return nil, usage(err, "")
	}
	return bt, nil
}
