package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/controller"
	"skyserve/internal/printable"
	"skyserve/plan"
)

// planLookback is the length of the history that a plan fetches from a running service: two weeks,
// so that it contains each weekday twice.
const planLookback = 14 * 24 * time.Hour

// planOptions are the flags of `skyserve plan`.
type planOptions struct {
	target   string
	history  string
	at       string
	problem  string
	solver   string
	review   plan.ReviewOptions
	reserve  bool
	detailed bool
	list     outputFlags
	format   outputFormat // parsed from list
	file     string
	apply    bool
	reason   string
	yes      bool
	force    bool
	clouds   cloudFlags
	errOut   io.Writer
	// listPrices uses list prices without querying the clouds.
	listPrices bool
	// service and courses are shown on the HTML page in addition to the proposal.
	service string
	courses []plan.LoadCurve
}

func newPlanCmd() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [NAME|SERVICE.yaml]",
		Short: "Forecast the load and plan the cheapest replicas for it",
		Long: `Forecast the load and compute the cheapest replicas that serve it: counts per model,
region, GPU and capacity type, with the reason for each. Without --apply nothing is
changed. With --apply, new replicas are added; when they are ready, excess ones are drained,
then stopped (or donated: autoscale.donate), within regions[].replicas.min and .max. Changes
are stored with the service, and 'skyserve up' keeps them. If a zone has no capacity, --apply
tries the next zone, capacity type, GPU and region, as 'skyserve up' does.

PEAK TOK/S is the planned peak: by default the median of the forecast peak (--peak-quantile).
'skyserve status' and 'skyserve top' show the 95th percentile of the forecast peak.

The plan uses the history of the running service, or --history FILE or URL (see
skyserve forecast --help). Assumptions about unknown values are listed in the output. If
the service of SERVICE.yaml is not running, the plan starts from zero replicas.

Prices come from service.yaml, otherwise from the clouds (with your credentials),
otherwise from the built-in list. Reserved capacity (regions[].reserved) adds no cost and
is used first. A plan uses spot or flex_start only if regions[].capacity lists it before all
other types except reserved. -o html writes a single self-contained page.

--survive any serves all load even after the loss of any one region, --survive A,B after
the loss of A or B.

--compare-reserved compares the costs of four options, based on the history: reserved capacity
for each region's own peak; reserved capacity for the peak of all regions together;
reserved capacity up to break-even, the remainder on demand; all capacity on demand.

--problem solves an optimisation problem given as JSON: models, regions, gpus, n[i][j][k],
theta[i][k], alpha[k], sigma[i][k], rho[i][j][w], epsilon, capacity[j][k], min[i][j] and
max[i][j]; each of the last three may be null. For model i in region j on GPU k, n is the
number of replicas, theta the tokens per second of one, alpha its cost per hour, and sigma
the cost of adding one; rho is the load in tokens per second in window w, and epsilon the
share of its own peak that each region must serve itself (see --local-share). The solution is
delta[i][j][k], the changes of n that minimise sum alpha[k]*(n+delta) + sum
sigma[i][k]*max(0,delta). docs/json.md describes all fields.
-o lp and -o mps export the problem for another solver; --solver runs an installed
solver and checks its solution.

Exit codes: 0 a plan was found (with --problem also if there is none: see the status in the
output), 1 no plan satisfies the bounds, 2 usage; with --detailed-exitcode, 10 if counts
change; with --apply, 1 if applying failed and 3 if the plan was partly applied.`,
		Example: `  skyserve plan
  skyserve plan --apply
  skyserve plan service.yaml --history week.csv --at 2025-01-31T12:00:00Z
  skyserve plan -o html --out plan.html
  skyserve plan service.yaml --history week.csv --compare-reserved
  skyserve plan --problem problem.json -o json
  skyserve plan --problem problem.json -o lp --out problem.lp`,
		Args: argsBetween(0, 1, "[NAME|SERVICE.yaml]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.target, args, "NAME|SERVICE.yaml"); err != nil {
				return err
			}
			if err := checkPlanFlags(cmd); err != nil {
				return err
			}
			o.errOut = cmd.ErrOrStderr()
			return runPlan(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	registerService(cmd, &o.target)
	flags := cmd.Flags()
	o.reviewFlags(cmd)
	flags.StringVar(&o.at, "at", "", "start of the planned period, as `TIME` such as 2025-01-31T12:00:00Z (default: now, or the end of --history)")
	flags.StringVar(&o.problem, "problem", "", "solve the optimisation problem in `FILE` (- = standard input)")
	flags.StringVar(&o.solver, "solver", "", "solve with an installed `SOLVER`: highs, cbc or glpsol (default: built-in)")
	flags.BoolVar(&o.reserve, "compare-reserved", false, "compare the cost of reserved and on-demand capacity, based on the history; reserves nothing")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 10 instead of 0 when counts change")
	flags.BoolVar(&o.apply, "apply", false, "apply the plan to the running service")
	flags.StringVar(&o.reason, "reason", "", "why you apply the plan: `TEXT` is shown by 'skyserve events' (default: the command)")
	flags.BoolVar(&o.yes, "yes", false, "skip confirmation of billed changes of --apply (local and static regions need none)")
	flags.BoolVar(&o.force, "force", false, "allow --apply to remove replicas of a model while another replica of it is down")
	flags.BoolVar(&o.listPrices, "builtin-prices", false, "use the built-in list prices instead of querying the clouds")
	o.clouds.registerFlags(flags)
	o.list.registerList(cmd, planFormats...)
	flags.StringVar(&o.file, "out", "", "write to `FILE` instead of standard output")
	cmd.AddCommand(newPlanBacktestCmd())
	return cmd
}

// planFormats are the formats of plans alone.
var planFormats = []string{outputHTML, "lp", "mps"}

// reviewFlags adds the flags of a review.
func (o *planOptions) reviewFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.history, "history", "", "history `FILE` or URL (default: the running service's)")
	flags.DurationVar(&o.review.Horizon, "horizon", 0, "length of the planned period (default: autoscale.every, at least 1h)")
	flags.StringVar(&o.review.Forecaster, "forecaster", "", "forecaster, one of those of 'skyserve forecast' (default: the service's, else auto)")
	flags.DurationVar(&o.review.Step, "step", plan.DefaultStep, "load is averaged over windows of this length before its peak is taken")
	flags.StringVar(&o.review.PeakQuantile, "peak-quantile", plan.DefaultPeakQuantile, "quantile of the forecast peak to plan for: "+strings.Join(forecast.PeakQuantiles, ", ")+" (expected = the mean); the default is what the controller plans for, and suits strategies that correct the counts between plans; pass p90 or more for a plan that you apply with autoscale.strategy manual or lt-i, which keep the counts until the next plan; docs/service-yaml.md explains the strategies")
	flags.Float64Var(&o.review.Gap, "gap", 0, "relative optimality gap at which the solver stops (0 = proven optimal)")
	flags.Float64Var(&o.review.LocalShare, "local-share", plan.DefaultLocalShare, "minimum share of a region's own peak that its own replicas must serve")
	flags.StringSliceVar(&o.review.Survive, "survive", nil, "serve all load even after the loss of any one of these `REGIONS`, comma-separated; any = any one region of the service")
	flags.DurationVar(&o.review.MaxRTT, "max-rtt", 0, "maximum round-trip time to a region that serves another region's load (default: the service's, else unlimited)")
	flags.BoolVar(&o.review.AllowSwitch, "reuse-machines", false, "allow a model to reuse machines that another model releases")
}

func runPlan(ctx context.Context, o *planOptions, in io.Reader, out io.Writer) error {
	if err := o.checkOptions(); err != nil {
		return err
	}
	if err := o.checkApply(); err != nil {
		return err
	}
	if o.problem != "" {
		return o.solveBare(ctx, in, out)
	}
	if o.reserve {
		return o.printReservation(ctx, out)
	}
	r, err := o.makeReview(ctx)
	if err != nil {
		return err
	}
	o.courses, o.service = r.LoadCurves, r.Service
	if err := o.printProposal(out, r.Problem, r.Proposal); err != nil {
		return err
	}
	switch {
	case o.exportsProblem():
		return nil
	case r.Proposal.Status == plan.StatusInfeasible:
		return failed(errors.New("no plan satisfies the bounds: "+r.Proposal.Infeasible[0]), "raise the replicas.max of that region, or lower --local-share")
	case r.Proposal.Status == plan.StatusUnknown:
		return failed(errors.New("no plan was found within the solver's limits"), "retry with another --solver: highs, cbc or glpsol")
	}
	if o.apply {
		return o.applyProposal(ctx, r.Proposal, in)
	}
	return o.exitCode(r.Proposal)
}

// checkPlanFlags rejects flags of `skyserve plan` that would have no effect together with others or without them.
func checkPlanFlags(cmd *cobra.Command) error {
	forecasts := []string{"horizon", "step", "forecaster", "peak-quantile", "survive", "max-rtt", "reuse-machines"}
	return cmp.Or(checkPositive(cmd, "horizon", "step", "max-rtt"),
		checkExclusive(cmd, "problem", slices.Concat([]string{"history", "at", "compare-reserved", "local-share", "builtin-prices"}, forecasts)...),
		checkExclusive(cmd, "apply", "compare-reserved"),
		checkExclusive(cmd, "compare-reserved", slices.Concat([]string{"solver", "detailed-exitcode"}, forecasts)...),
		checkRequires(cmd, "apply", "yes", "force", "reason"))
}

// checkPositive rejects durations of 0 or less of flags that are set. Without a flag, 0 stands for its default.
func checkPositive(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if d, err := cmd.Flags().GetDuration(name); err != nil || cmd.Flags().Changed(name) && d <= 0 {
			return cmp.Or(err, usage(fmt.Errorf("--%s: must be greater than 0, got %s", name, d), ""))
		}
	}
	return nil
}

// checkOptions rejects invalid flags and invalid combinations of them.
func (o *planOptions) checkOptions() error {
	var err error
	if o.format, err = o.list.parse(); err != nil {
		return err
	}
	switch {
	case o.problem != "" && o.format.kind == outputHTML:
		return usage(errors.New("-o html: cannot be combined with --problem"), "")
	case o.reserve && o.format.kind != outputText && !o.format.isDocument():
		return usage(fmt.Errorf("-o %s: must be text, json, yaml or jsonpath=PATH with --compare-reserved", o.format.kind), "")
	case o.review.PeakQuantile != "" && !slices.Contains(forecast.PeakQuantiles, o.review.PeakQuantile):
		return usage(fmt.Errorf("--peak-quantile %s: must be one of %s", o.review.PeakQuantile, strings.Join(forecast.PeakQuantiles, ", ")), "")
	case !(o.review.LocalShare > 0 && o.review.LocalShare <= 1):
		return usage(fmt.Errorf("--local-share: must be greater than 0 and at most 1, got %g", o.review.LocalShare), "")
	case !(o.review.Gap >= 0 && o.review.Gap < 1):
		return usage(fmt.Errorf("--gap: must be at least 0 and less than 1, got %g", o.review.Gap), "")
	case o.solver != "" && findSolver(o.solver) == nil:
		return usage(fmt.Errorf("--solver %s: must be one of highs, cbc, glpsol", o.solver), "")
	case o.problem != "" && o.target != "":
		return usage(fmt.Errorf("--problem: cannot be combined with %s", o.target), "")
	}
	return nil
}

// exitCode returns exit code 10 if --detailed-exitcode is set and counts change, otherwise nil.
func (o *planOptions) exitCode(p plan.Proposal) error {
	if o.detailed && p.Changed() {
		return &exitError{code: exitChanges, err: errors.New("")}
	}
	return nil
}

// solveBare solves the problem in a file.
func (o *planOptions) solveBare(ctx context.Context, in io.Reader, out io.Writer) error {
	var data []byte
	var err error
	if o.problem == "-" {
		data, err = io.ReadAll(in)
	} else {
		data, err = os.ReadFile(o.problem)
	}
	if err != nil {
		return usage(fmt.Errorf("reading --problem: %w", err), "")
	}
	p, err := plan.ReadProblem(o.problem, data)
	if err != nil {
		return usage(err, "'skyserve plan --help' describes the format")
	}
	if o.exportsProblem() {
		return o.printProposal(out, p, plan.Proposal{})
	}
	begin := time.Now()
	res, by, err := o.solveProblem(ctx, p)
	if err != nil {
		return err
	}
	proposal := plan.Propose(p, res, plan.ProposalContext{Assumed: by})
	proposal.SolveMillis = float64(time.Since(begin).Microseconds()) / 1000
	if err := o.printProposal(out, p, proposal); err != nil {
		return err
	}
	return o.exitCode(proposal)
}

// isInterrupted returns a function that reports whether the command was interrupted, for a solver.
func isInterrupted(ctx context.Context) func() bool {
	return func() bool { return ctx.Err() != nil }
}

// solveProblem runs the solver of --solver, or the built-in one. The notes name an external solver.
func (o *planOptions) solveProblem(ctx context.Context, p *plan.Problem) (plan.Solution, []string, error) {
	if o.solver == "" {
		res, err := plan.Solve(p, plan.SolveOptions{Gap: o.review.Gap, Interrupt: isInterrupted(ctx)})
		return res, nil, cmp.Or(ctx.Err(), err)
	}
	res, err := findSolver(o.solver).solveProblem(ctx, p, o.review.Gap)
	return res, []string{solverNote(o.solver)}, err
}

func solverNote(solver string) string {
	return "solved by " + solver + ": skyserve checked feasibility and cost, but not the bound"
}

// printProposal writes the result in the format of -o to --out or out.
func (o *planOptions) printProposal(out io.Writer, p *plan.Problem, proposal plan.Proposal) error {
	return o.writeOutput(out, func(w io.Writer) error { return o.printTo(w, p, proposal) })
}

// writeOutput calls print with the file of --out, or with out.
func (o *planOptions) writeOutput(out io.Writer, print func(io.Writer) error) error {
	if o.file == "" {
		return print(out)
	}
	f, err := os.Create(o.file)
	if err != nil {
		return usage(fmt.Errorf("writing --out: %w", err), "")
	}
	return cmp.Or(print(f), f.Close())
}

func (o *planOptions) printTo(out io.Writer, p *plan.Problem, proposal plan.Proposal) error {
	switch o.format.kind {
	case outputHTML:
		return plan.Report{Service: o.service, Proposal: proposal, LoadCurves: o.courses}.WriteHTML(out)
	case "lp":
		return p.WriteLP(out)
	case "mps":
		return p.WriteMPS(out)
	}
	if o.format.kind == outputText && !o.format.noHeaders {
		return proposal.WriteTable(out)
	}
	return o.format.write(out, proposal, planTable(proposal))
}

// exportsProblem reports whether the format is one of other solvers.
func (o *planOptions) exportsProblem() bool { return o.format.kind == "lp" || o.format.kind == "mps" }

// planTable returns the table of a plan's changes.
func planTable(p plan.Proposal) list {
	t := list{
		titles:  []string{"MODEL", "REGION", "GPU", "CAPACITY", "CURRENT", titleChange, "PLANNED", "PEAK TOK/S", "CAPACITY TOK/S", "UTILISATION", "DONATE", "RECLAIM"},
		wide:    []string{"$/H CHANGE", "PEAK AT", "SENT TOK/S", "RECEIVED TOK/S", "REASON"},
		fitting: printable.Fitting{Optional: []string{"DONATE", "RECLAIM", "CAPACITY TOK/S", "PEAK TOK/S", "CAPACITY"}},
	}
	for _, c := range p.Changes {
		capacity, used, peak := "", "", ""
		if c.CapacityType != nil {
			capacity = *c.CapacityType
		}
		if c.Utilisation != nil {
			used = fmt.Sprintf("%.0f%%", 100**c.Utilisation)
		}
		if c.PeakAt != nil {
			peak = c.PeakAt.UTC().Format(time.RFC3339)
		}
		t.rows = append(t.rows, listRow{
			strings.Trim(strings.Join([]string{c.Model, c.Region, c.GPU, capacity}, "/"), "/"),
			[]string{
				c.Model, c.Region, c.GPU, capacity, strconv.Itoa(c.Current), fmt.Sprintf("%+d", c.Delta), strconv.Itoa(c.Planned), fmt.Sprintf("%.0f", c.PlannedPeakTPS),
				fmt.Sprintf("%.0f", c.CapacityTPS), used, strconv.Itoa(c.Donate), strconv.Itoa(c.Reclaim),
			},
			[]string{fmt.Sprintf("%+.2f", c.CostChangePerHour), peak, fmt.Sprintf("%.0f", c.ForwardedTPS), fmt.Sprintf("%.0f", c.ReceivedTPS), c.Reason},
		})
	}
	return t
}

// makeReview observes the service and plans for it.
func (o *planOptions) makeReview(ctx context.Context) (*plan.ReviewResult, error) {
	g, err := o.gatherInputs(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	o.fetchPrices(ctx, g.Spec)
	o.review.Interrupt = isInterrupted(ctx)
	if o.solver != "" {
		o.review.Notes = append(o.review.Notes, solverNote(o.solver))
		o.review.Solve = func(p *plan.Problem, po plan.SolveOptions) (plan.Solution, error) {
			return findSolver(o.solver).solveProblem(ctx, p, po.Gap)
		}
	}
	r, err := plan.Review(g.Spec, g.Counts, g.history, g.at, o.review)
	if ctx.Err() != nil { // prices may be missing, and the search may have ended early
		return nil, ctx.Err()
	}
	var own *exitError
	if err != nil && !errors.As(err, &own) {
		err = usage(err, "")
	}
	return r, err
}

// planInputs is an observed service with its history and the time to plan from.
type planInputs struct {
	*controller.Observed
	history *forecast.History
	at      time.Time
}

// gatherInputs observes the service and loads its history.
func (o *planOptions) gatherInputs(ctx context.Context, now time.Time) (*planInputs, error) {
	at, err := o.time(now)
	if err != nil {
		return nil, err
	}
	from := now
	if !at.IsZero() {
		from = at
	}
	since := from.Add(-planLookback).Unix() / 60
	observed, err := o.observeService(ctx, since)
	if err != nil {
		return nil, err
	}
	if err := o.checkSurvive(observed.Spec); err != nil {
		return nil, err
	}
	if o.errOut != nil && observed.Spec != nil {
		printWarnings(o.errOut, cmp.Or(o.target, observed.Spec.Name), observed.Spec.Warnings())
		printUnpinned(o.errOut, observed.Spec)
	}
	o.review.Notes, o.review.RTT = slices.Concat(observed.Notes, drainedNotes(observed)), observed.RTT
	var h *forecast.History
	if o.history != "" {
		var notes []string
		h, notes, err = loadHistory(ctx, o.history, observed.Spec, from.Add(-planLookback), o.errOut)
		o.review.Notes = append(o.review.Notes, notes...)
	} else {
		h, err = observed.History(now)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case !at.IsZero() && h.Minutes > 0 && at.Unix() < h.First*60:
		return nil, usage(fmt.Errorf("--at: must not be before the history, which begins at %s, got %q", time.Unix(h.First*60, 0).UTC().Format(time.RFC3339), o.at), "")
	case !at.IsZero():
	case o.history != "" && h.Minutes > 0:
		at = time.Unix(h.End()*60, 0)
	default:
		at = now
	}
	if at.Equal(now) { // at another time other batches are open
		o.review.Backlog = observed.Backlog
	}
	return &planInputs{observed, h, at}, nil
}

// time parses --at; zero if it is not set.
func (o *planOptions) time(now time.Time) (time.Time, error) {
	if o.at == "" || o.at == "now" {
		if o.at == "now" {
			return now, nil
		}
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, o.at)
	if err != nil {
		return t, usage(fmt.Errorf("--at: must be a time such as 2025-01-31T12:00:00Z, got %q", o.at), "")
	}
	return t, nil
}

// observeService observes the target: a running service, or one in a file.
func (o *planOptions) observeService(ctx context.Context, since int64) (*controller.Observed, error) {
	own := o.history == ""
	if !namesFile(o.target) {
		_, admins, err := findAdmins(ctx, o.target, nil)
		if none := (*exitError)(nil); errors.As(err, &none) && none.noService && !own {
			none.hint = "pass the file of the service to plan for: skyserve plan SERVICE.yaml --history ...; or " + none.hint
		}
		if err != nil {
			return nil, err
		}
		observed, err := controller.Observe(ctx, admins, since, own)
		if err != nil {
			return nil, failed(err, hintStatus)
		}
		return observed, nil
	}
	text, err := readServiceFile(o.target)
	if err != nil {
		return nil, err
	}
	spec, err := parseService(o.target, text)
	if err != nil {
		return nil, usage(err, "")
	}
	observed := &controller.Observed{}
	if _, admins, err := findAdmins(ctx, spec.Name, nil); err == nil {
		if running, err := controller.Observe(ctx, admins, since, own); err == nil {
			observed = running
		}
	}
	observed.Spec = spec
	return observed, nil
}

// namesFile reports whether target is a file: a service's name contains no dot or slash.
func namesFile(target string) bool { return strings.ContainsAny(target, "./"+string(os.PathSeparator)) }
