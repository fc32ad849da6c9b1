package main

import (
	"context"
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

	"skyserve/internal/printable"
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
	seedBase uint64
	settings []string
	output   outputFlags
	format   outputFormat
	quiet    bool
	paper    bool

	strategies []string // of SageServe's scenarios only, as is regionMix
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
		Long: `Run scenarios with several policies and seeds, and print the results after the warm-up:
the mean over the seeds and the standard deviation. A star marks the row with the highest
output tokens per second. REFERENCE is the result of a separate simulation that follows
SkyLB's paper closely: output tokens per second and P90 of TTFT. --paper prints the
deviation from the reference, and the claims of the paper. A NAME may be a prefix: fig10
selects every fig10-... scenario. A FILE.yaml contains a custom scenario; 'skyserve sim
list -o yaml NAME' prints one to start from.

--trace replays a request trace in place of the scenario's workload: each request at its
recorded time, in its recorded region or in one drawn with --weights. The formats are
those of 'skyserve load'. The file is streamed and may have any length. --set
engine=light keeps only the lengths of prompts and responses, which is several times
faster, for policies that do not use prefixes.

Unless the scenario, --push or --layout set them, the push mode and layout follow the paper or
project of a policy. cost, longest-prefix, skylb and skylb-ch push pending, the others blind.
cost, longest-prefix, skylb, skylb-ch, gorgo and sageserve have one balancer per region
(layout regional), the others one balancer for all replicas, in the region of the setting
home (layout single).
cache-aware:skylb is cache-aware with the constants that SGLang's router had at the time of
SkyLB's evaluation.

--set overrides a setting of a scenario; 'skyserve sim list -o yaml NAME' prints the
values of its settings. .REGION limits a setting to one region.

` + settingsHelp(sim.AllSettings()) + `

The sage-... scenarios are SageServe's evaluation: replicas are autoscaled, --strategy
compares scaling strategies. The demand file given by --trace is CSV with the columns
minute (0 = Monday 00:00, not a Unix time), model, tier (IW = fast and normal together, or NIW)
and prompt_tokens. --set accepts these settings:

` + settingsHelp(eval.AllSageSettings()) + `

-o json prints one object per scenario, one per line; -o yaml prints one document per
scenario. -o html prints a page with the table, charts, and the load over time (of the first
seed).`,
		Example: `  skyserve sim run fig8c
  skyserve sim run fig8a tot30 --policy least-load,skylb --seeds 5
  skyserve sim run fig10 --policy skylb
  skyserve sim run fig9 --paper
  skyserve sim run mixed-gpu failover -o html > report.html
  skyserve sim run mine.yaml --set rate=4 --set length_spread=2
  skyserve sim run fig8a --trace conversation.jsonl.gz --rate-scale 2 --weights us=2,eu=1
  skyserve sim run week.yaml --trace requests.csv.gz --set engine=light --policy sageserve,least-load
  skyserve sim run fig8a --seed-base 1000 --set think=5s
  skyserve sim run bfio-table1 --seeds 1
  skyserve sim run sage-day --seeds 3 --paper
  skyserve sim run sage-day --strategy lt-ua,auto --trace week.csv.gz --set day=wed
  skyserve sim run fig8c --policy skylb --push blind,pending,outstanding:16
  skyserve sim run fig8c --set duration=100s --set clients.us=80 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("requires at least 1 argument: NAME or FILE.yaml"), "'skyserve sim list' lists the scenarios")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSim(cmd.Context(), &o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.policies, "policy", nil, "policies to compare, comma-separated: "+strings.Join(policy.Names(), ", ")+"; docs/service-yaml.md explains them (default: the scenario's, or all)")
	flags.StringSliceVar(&o.pushes, "push", nil, "push modes of each policy: pending, outstanding:N, blind; see skyserve lb --help (default: the scenario's, or the policy's own)")
	flags.StringVar(&o.layout, "layout", "", "placement of the balancers: single or regional (default: the policy's own)")
	flags.IntVar(&o.seeds, "seeds", 3, "run `N` seeds, from 1 or after --seed-base")
	flags.Uint64Var(&o.seedBase, "seed-base", 0, "run the seeds after `N`: N+1, N+2, ...")
	flags.StringArrayVar(&o.settings, "set", nil, "override a setting of the scenario, as `KEY=VALUE` (repeatable)")
	o.output.registerResult(cmd, outputHTML)
	flags.BoolVar(&o.quiet, "quiet", false, "hide progress")
	flags.BoolVar(&o.paper, "paper", false, "print the claims of the scenario's paper next to the results")
	flags.StringVar(&o.trace, "trace", "", "replay a request trace from `FILE`")
	flags.DurationVar(&o.replay.From, "from", 0, "with --trace: start at this time of the trace")
	flags.DurationVar(&o.replay.To, "to", 0, "with --trace: end at this time of the trace (default: its end)")
	flags.Float64Var(&o.replay.RateScale, "rate-scale", 1, "with --trace: scale the request rate, 2 = twice the rate")
	flags.StringSliceVar(&o.strategies, "strategy", nil, "with sage-...: scaling strategies to compare, comma-separated: "+strings.Join(plan.StrategyNames(), ", ")+"; docs/service-yaml.md explains them")
	flags.StringVar(&o.regionMix, "region-mix", "", "with sage-... and --trace: how the load is distributed over the regions (default: as SageServe published), from a CSV `FILE` with the columns tenant, tier and requests_in_sample; a tenant belongs to the region at the end of its name, without digits: prod-westus3 to westus")
	flags.StringSliceVar(&o.weights, "weights", nil, "with --trace: regions' shares of the requests, as `REGION=W,...` (default: by clients)")
	return cmd
}

// settingsHelp lists settings with their meanings.
func settingsHelp(settings []sim.Setting) string {
	width := 0
	for _, s := range settings {
		width = max(width, len(s.Name))
	}
	lines := make([]string, len(settings))
	for i, s := range settings {
		lines[i] = fmt.Sprintf("    %-*s  %s", width, s.Name, s.Meaning)
	}
	return strings.Join(lines, "\n")
}

func runSim(ctx context.Context, o *simRunOptions, names []string, out, errOut io.Writer) error {
	// A simulation allocates much more than it keeps: collecting a quarter as often saves a
	// fifth of the time.
	debug.SetGCPercent(400)
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return err
	}
	if err := checkSeeds(o.seeds); err != nil {
		return usage(err, "")
	}
	if slices.ContainsFunc(names, eval.IsSageName) {
		return o.runSage(ctx, names, out, errOut)
	}
	if len(o.strategies) > 0 || o.regionMix != "" {
		return usage(errors.New("--strategy and --region-mix: apply to sage-... scenarios only"), "'skyserve sim list' lists the scenarios")
	}
	if slices.ContainsFunc(names, eval.IsBFIOName) {
		return o.runBFIO(ctx, names, out, errOut)
	}
	plans, err := o.plans(names)
	if hinted := (*exitError)(nil); errors.As(err, &hinted) {
		return err
	} else if err != nil {
		return usage(err, "")
	}
	if !o.quiet {
		writeSelected(errOut, names, plans)
	}
	var reports []*eval.SimReport
	for i := range plans {
		report, err := o.runPlan(ctx, plans[i], i > 0, out, errOut)
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if o.format.kind == outputHTML {
		return eval.WriteHTML(out, reports)
	}
	return nil
}

// writeSelected lists the scenarios of each name that selects several, which may take long.
func writeSelected(w io.Writer, names []string, plans []eval.Comparison) {
	for _, name := range names {
		var selected []string
		for i := range plans {
			if s := plans[i].Scenario.Name; strings.HasPrefix(s, name+"-") {
				selected = append(selected, s)
			}
		}
		if len(selected) > 1 && !slices.ContainsFunc(plans, func(p eval.Comparison) bool { return p.Scenario.Name == name }) {
			fmt.Fprintf(w, "%s selects %d scenarios: %s\n", name, len(selected), strings.Join(selected, ", "))
		}
	}
}

// plans returns the comparisons to run, after checking all of them.
func (o *simRunOptions) plans(names []string) ([]eval.Comparison, error) {
	var plans []eval.Comparison
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

// hintScenarioFile follows an error of a scenario file.
const hintScenarioFile = "'skyserve sim list -o yaml NAME' prints a scenario file to start from"

// scenariosOf returns the scenarios of a name, or the scenario in a file.
func scenariosOf(name string) ([]sim.Scenario, error) {
	if !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
		found, err := findScenarios(name)
		if info, missing := os.Stat(name); err != nil && missing == nil {
			problem := "the name of a scenario file must end in .yaml"
			if info.IsDir() {
				problem = "is a directory, not a scenario file"
			}
			err = usage(fmt.Errorf("%s: %s", name, problem), hintScenarioFile)
		}
		return found, err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading a scenario: %w", err)
	}
	s, err := sim.ParseFile(name, data)
	if err != nil {
		return nil, usage(err, hintScenarioFile)
	}
	return []sim.Scenario{*s}, nil
}

// planOf returns the comparison of a scenario, with the settings of the flags.
func (o *simRunOptions) planOf(s *sim.Scenario) (eval.Comparison, error) {
	for _, setting := range o.settings {
		key, value, found := strings.Cut(setting, "=")
		if !found {
			return eval.Comparison{}, fmt.Errorf("--set %s: must be KEY=VALUE", setting)
		}
		if err := s.Set(key, value); err != nil {
			return eval.Comparison{}, fmt.Errorf("--set %s: %w", setting, err)
		}
	}
	if err := o.readTrace(s); err != nil {
		return eval.Comparison{}, err
	}
	plan := eval.Comparison{
		Scenario: *s, Policies: o.policies, Pushes: o.pushes, Layout: sim.Layout(o.layout), Seeds: o.seeds, SeedBase: o.seedBase, Paper: o.paper,
	}
	return plan, plan.Check()
}

// readTrace makes a scenario replay the trace of --trace, if it is set.
func (o *simRunOptions) readTrace(s *sim.Scenario) error {
	if o.trace == "" {
		if len(o.weights) > 0 || o.replay.From != 0 || o.replay.To != 0 || o.replay.RateScale != 1 {
			return errors.New("--from, --to, --rate-scale and --weights: require --trace")
		}
		return nil
	}
	if err := checkTraceFlags(o.replay); err != nil {
		return err
	}
	options := o.replay
	for _, entry := range o.weights {
		region, text, _ := strings.Cut(entry, "=")
		w, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("--weights %s: must be REGION=W with a number W", entry)
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

// runPlan runs one scenario and, unless the output is HTML, prints it.
func (o *simRunOptions) runPlan(ctx context.Context, plan eval.Comparison, more bool, out, errOut io.Writer) (*eval.SimReport, error) {
	shown := o.runProgress(errOut, plan.Scenario.Name)
	if shown.terminal { // without, the simulation need not count
		plan.Progress = shown.setShare
	}
	began := time.Now()
	report, err := eval.Run(ctx, plan)
	shown.clear()
	if err == nil && o.trace != "" {
		err = checkMeasured(o.trace, report)
	}
	if err != nil {
		return nil, err
	}
	report.WallMillis = float64(time.Since(began)) / float64(time.Millisecond)
	switch {
	case o.format.kind == outputHTML:
		return report, nil
	case o.format.isResult():
		return report, o.format.writeItem(out, report.Scenario, report)
	}
	if more {
		fmt.Fprintln(out)
	}
	if err := report.WriteTable(out); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(errOut, simSpeed(report.Issued, report.WallMillis))
	return report, err
}

// checkMeasured returns an error if a trace was shorter than the warm-up, so that no figure includes any of its requests.
func checkMeasured(trace string, r *eval.SimReport) error {
	if slices.ContainsFunc(r.Rows, func(row eval.RunRow) bool { return row.Completed+row.Rejected > 0 }) {
		return nil
	}
	warmup := time.Duration(r.Constants.Warmup * r.Constants.Duration * float64(time.Second))
	return usage(fmt.Errorf("--trace %s: no request ended after the warm-up of %s, which the results exclude", trace, warmup),
		"measure the whole run with --set warmup=0, or set a shorter one with --set duration=TIME")
}

// simSpeed returns how fast a simulation of a number of requests ran.
func simSpeed(requests int, wallMillis float64) string {
	seconds := wallMillis / 1000
	return fmt.Sprintf("%s in %.1f s: %.0f per second", printable.Count(requests, "request"), seconds, float64(requests)/seconds)
}
