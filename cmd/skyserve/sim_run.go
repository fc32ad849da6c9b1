package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
	"skyserve/internal/sim/workload"
	"skyserve/lbd/policy"
	"skyserve/plan"
)

// simRunOptions are the flags of `skyserve sim run`.
type simRunOptions struct {
	policies []string
	pushes   []string
	layout   string
	seeds    int
	settings []string
	output   string
	quiet    bool
	paper    bool

	strategies []string // of SageServe's scenarios, as regionMix
	regionMix  string

	trace   string
	replay  workload.TraceOptions
	weights []string
}

func newSimRunCmd() *cobra.Command {
	var o simRunOptions
	cmd := &cobra.Command{
		Use:   "run NAME|FILE.yaml...",
		Short: "Run scenarios and compare policies on them",
		Long: `Run scenarios for policies and seeds side by side and print what was measured
after the warm-up: the mean over the seeds and its spread (the standard
deviation). The row with the most output tokens a second has a star. REFERENCE
is what a faithful model of SkyLB's paper gave: output tokens a second and the
P90 of TTFT; --paper says how far off it is, and prints what the paper itself
claims of the comparison. A NAME may stand for several: fig10 is every fig10-...
A FILE.yaml holds a scenario of your own; 'skyserve sim list -o yaml NAME' writes
one to start from.

--trace replays a request trace instead of the scenario's workload: each request
when it came, in the region that it names or that --weights draw. The formats are
those of 'skyserve load'. The file is read as the run goes on, so it may be of any
length; --set engine=light keeps the lengths of prompts and answers only, which is
several times as fast, for policies that do not look at prefixes.

A policy runs at its canonical push rule and layout unless the scenario, --push
or --layout say otherwise: those that send blindly as one balancer in the US for all
replicas, the others as one balancer a region.

--set changes a scenario: ` + strings.Join(sim.SettingNames(), ", ") + `.

The scenarios sage-... are SageServe's evaluation: replicas come and go, --strategy
compares how that is decided, and --set takes ` + strings.Join(eval.SageSettingNames(), ", ") + `. Their
--trace is a table of demand with the columns minute, model, tier, prompt_tokens.

With -o json each scenario is one object on a line; -o html is one page for a
browser: the table, drawings, and the load over time (of seed 1).`,
		Example: `  skyserve sim run fig8c
  skyserve sim run fig8a tot30 --policy least-load,skylb --seeds 5
  skyserve sim run fig10 --policy skylb
  skyserve sim run fig9 --paper
  skyserve sim run mixed-gpu failover -o html > report.html
  skyserve sim run mine.yaml --set rate=4 --set sigma=2
  skyserve sim run fig8a --trace conversation.jsonl.gz --scale 2 --weights us=2,eu=1
  skyserve sim run week.yaml --trace requests.csv.gz --set engine=light --policy sageserve,least-load
  skyserve sim run bfio-table1 --seeds 1
  skyserve sim run sage-day --seeds 3 --paper
  skyserve sim run sage-day --strategy lt-ua,auto --trace week.csv.gz --set day=wed
  skyserve sim run fig8c --policy skylb --push blind,pending,outstanding:16
  skyserve sim run fig8c --set duration=100s --set clients.us=80 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("want at least one scenario"), "skyserve sim list shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSim(cmd.Context(), &o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "policies to compare, with commas: "+strings.Join(policy.Names(), ", ")+" (default: the scenario's, or all)")
	flags.StringSliceVar(&o.pushes, "push", nil, "push rules to run each policy at: pending, outstanding:N, blind (default: the scenario's, or the canonical one)")
	flags.StringVar(&o.layout, "layout", "", "single or regional: where the balancers stand (default: the canonical one)")
	flags.IntVar(&o.seeds, "seeds", 3, "run seeds 1 to `N`")
	flags.StringArrayVar(&o.settings, "set", nil, "change the scenario, as `KEY=VALUE`, repeatable")
	flags.StringVarP(&o.output, "output", "o", "table", "table, json or html")
	flags.BoolVar(&o.quiet, "quiet", false, "show no progress")
	flags.BoolVar(&o.paper, "paper", false, "print what the scenario's paper claims beside what is measured")
	flags.StringVar(&o.trace, "trace", "", "replay a request trace from `FILE`")
	flags.DurationVar(&o.replay.From, "from", 0, "with --trace: begin at this time of the trace")
	flags.DurationVar(&o.replay.To, "to", 0, "with --trace: end at this time of the trace (default: its end)")
	flags.Float64Var(&o.replay.RateScale, "scale", 1, "with --trace: let requests come so many times as fast")
	flags.StringSliceVar(&o.strategies, "strategy", nil, "of sage-...: scaling strategies to compare, with commas: "+strings.Join(plan.StrategyNames(), ", "))
	flags.StringVar(&o.regionMix, "region-mix", "", "of sage-... with --trace: spread its requests over the regions as this `FILE` does")
	flags.StringSliceVar(&o.weights, "weights", nil, "with --trace: shares of the requests as `REGION=W,...` (default: by clients)")
	return cmd
}

func runSim(ctx context.Context, o *simRunOptions, names []string, out, talk io.Writer) error {
	// What a simulation keeps is little beside what it makes: collecting a
	// quarter as often saves a fifth of the time.
	debug.SetGCPercent(400)
	if slices.ContainsFunc(names, eval.IsSage) {
		return o.runSage(ctx, names, out, talk)
	}
	if len(o.strategies) > 0 || o.regionMix != "" {
		return usage(errors.New("--strategy and --region-mix: are for the scenarios sage-... only"), "skyserve sim list shows them")
	}
	if slices.ContainsFunc(names, eval.IsBFIO) {
		return o.runBFIO(ctx, names, out)
	}
	plans, err := o.plans(names)
	if err != nil {
		return usage(err, "")
	}
	var reports []*eval.Report
	for i := range plans {
		report, err := o.runPlan(ctx, plans[i], i > 0, out, talk)
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if o.output == "html" {
		return eval.WriteHTML(out, reports)
	}
	return nil
}

// plans reads the flags; nothing runs unless every plan can.
func (o *simRunOptions) plans(names []string) ([]eval.Plan, error) {
	if !slices.Contains([]string{"table", "json", "html"}, o.output) {
		return nil, fmt.Errorf("-o %s: want table, json or html", o.output)
	}
	var plans []eval.Plan
	for _, name := range names {
		scenarios, err := scenariosOf(name)
		if err != nil {
			return nil, err
		}
		for i := range scenarios {
			planned, err := o.planOf(&scenarios[i])
			if err != nil {
				return nil, err
			}
			plans = append(plans, planned)
		}
	}
	return plans, nil
}

// scenariosOf finds the scenarios of a name, or reads that of a file.
func scenariosOf(name string) ([]sim.Scenario, error) {
	if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
		return sim.Named(name)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading a scenario: %w", err)
	}
	s, err := sim.ParseFile(name, data)
	if err != nil {
		return nil, err
	}
	return []sim.Scenario{*s}, nil
}

// planOf is what to compare on a scenario, as the flags change it.
func (o *simRunOptions) planOf(s *sim.Scenario) (eval.Plan, error) {
	for _, setting := range o.settings {
		key, value, found := strings.Cut(setting, "=")
		if !found {
			return eval.Plan{}, fmt.Errorf("--set %s: want KEY=VALUE", setting)
		}
		if err := s.Set(key, value); err != nil {
			return eval.Plan{}, fmt.Errorf("--set %s: %w", setting, err)
		}
	}
	if err := o.readTrace(s); err != nil {
		return eval.Plan{}, err
	}
	plan := eval.Plan{
		Scenario: *s, Policies: o.policies, Pushes: o.pushes, Layout: sim.Layout(o.layout), Seeds: o.seeds, Paper: o.paper,
	}
	return plan, plan.Check()
}

// readTrace lets a scenario replay the trace, if one was given.
func (o *simRunOptions) readTrace(s *sim.Scenario) error {
	if o.trace == "" {
		if len(o.weights) > 0 || o.replay.From != 0 || o.replay.To != 0 || o.replay.RateScale != 1 {
			return errors.New("--from, --to, --scale and --weights: want --trace too")
		}
		return nil
	}
	if !(o.replay.RateScale > 0) {
		return fmt.Errorf("--scale: must be more than zero, got %v", o.replay.RateScale)
	}
	options := o.replay
	for _, entry := range o.weights {
		region, text, _ := strings.Cut(entry, "=")
		w, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("--weights %s: want REGION=W with a number for W", entry)
		}
		options.Weights = append(options.Weights, workload.Weight{Region: region, Weight: w})
	}
	open := func() (io.ReadCloser, error) {
		f, err := os.Open(o.trace)
		if err != nil {
			return nil, fmt.Errorf("reading a trace: %w", err)
		}
		return f, nil
	}
	return s.ReadTrace(o.trace, open, options)
}

// runPlan runs one scenario and prints it, but for HTML.
func (o *simRunOptions) runPlan(ctx context.Context, plan eval.Plan, more bool, out, talk io.Writer) (*eval.Report, error) {
	if !o.quiet && isTerminal(talk) {
		plan.Progress = func(done, all int, share float64) {
			redrawLine(talk, fmt.Sprintf("%s %s %3.0f %%, %d of %d runs", plan.Scenario.Name, bar(share), 100*share, done, all))
		}
	}
	began := time.Now()
	report, err := eval.Run(ctx, plan)
	if plan.Progress != nil {
		redrawLine(talk, "")
	}
	if err != nil {
		return nil, err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	switch o.output {
	case "html":
		return report, nil
	case "json":
		return report, json.NewEncoder(out).Encode(report)
	}
	if more {
		fmt.Fprintln(out)
	}
	if err := report.WriteTable(out); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(talk, simSpeed(report))
	return report, err
}

// bar draws a share (0..1) as a bar of 20 places.
func bar(share float64) string {
	const places = 20
	full := min(int(share*places), places)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", places-full) + "]"
}

// simSpeed says how fast the simulator was.
func simSpeed(r *eval.Report) string {
	seconds := r.WallMillis / 1000
	return fmt.Sprintf("%d requests in %.1f s: %.0f a second", r.Issued, seconds, float64(r.Issued)/seconds)
}
