package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry/demand"
	"skyserve/plan"
)

// planLookback is how much history a plan asks a running service for: two
// weeks, so that each day of the week was seen twice.
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
	output   string
	file     string
	apply    bool
	yes      bool
	clouds   cloudFlags
	talk     io.Writer
	// listPrices leaves the clouds unasked.
	listPrices bool
	// service and courses are what a page shows beyond the proposal.
	service string
	courses []plan.Course
}

func newPlanCmd() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [NAME|SERVICE.yaml]",
		Short: "Propose how many replicas each region needs next",
		Long: `Forecast the load and solve for the cheapest replicas that carry it: counts per
model, region and GPU, with the reason for each. Nothing is changed, unless
--apply makes the running service so: replicas are added and, once those serve,
others are drained and stopped, within replicas.min and max. What it decides is kept with the service, so that 'skyserve up' leaves it so. In clouds those
are machines: on which GPU is decided by what can be had, in the order of the file.

The history is the running service's own unless --history names a file or a URL
(see skyserve forecast --help); whatever is not known is assumed, and said. A
SERVICE.yaml of a service that does not run is planned from nothing.

Prices are those of service.yaml, else what clouds tell with your credentials, else a
list's. What the service has committed to (regions[].reserved) costs nothing more to use;
spot is planned with where capacity: tries it before on demand. --survive asks that
all load is carried with a region gone: region for any one, or the names of those
of which any one may go. -o html is one page to hand on.

--reserve says instead what to commit to over the history: for each region's own
peak, for the peak of all regions together, or to what pays, the rest on demand.

--problem solves a bare problem: JSON with models, regions, gpus, n[i][j][k],
theta[i][k], alpha[k], sigma[i][k], rho[i][j][w], epsilon, and capacity[j][k],
min[i][j] and max[i][j] or null. The answer minimises
sum alpha*(n+delta) + sum sigma*max(0,delta). docs/json.md lists what a problem may
state beyond that. -o lp and -o mps write the problem for another solver instead
of solving it; --solver runs one that is installed and checks its answer.

Exit codes: 0 a plan (or, with --problem, any answer), 1 no plan satisfies the
bounds, 2 usage; with --detailed-exitcode 10 when counts change; with
--apply 1 also when it could not be carried out, and 3 when only a part of it was.`,
		Example: `  skyserve plan
  skyserve plan --apply
  skyserve plan service.yaml --history week.csv --at 2025-01-31T12:00:00Z
  skyserve plan -o html --out plan.html
  skyserve plan service.yaml --history week.csv --reserve
  skyserve plan --problem problem.json -o json
  skyserve plan --problem problem.json -o lp --out problem.lp`,
		Args: argsBetween(0, 1, "at most one NAME or SERVICE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.target = args[0]
			}
			o.talk = cmd.ErrOrStderr()
			return runPlan(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	o.reviewFlags(cmd)
	flags.StringVar(&o.at, "at", "", "plan for the time from `TIME` on, such as 2025-01-31T12:00:00Z (default: now, or the end of --history)")
	flags.StringVar(&o.problem, "problem", "", "solve the bare problem in `FILE` (- is standard input)")
	flags.StringVar(&o.solver, "solver", "", "solve with an installed `SOLVER`: highs, cbc or glpsol (default: the one built in)")
	flags.BoolVar(&o.reserve, "reserve", false, "say what to commit to over the history instead")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 10 instead of 0 when counts change")
	flags.BoolVar(&o.apply, "apply", false, "make the running service what the plan says")
	flags.BoolVar(&o.yes, "yes", false, "do not ask before --apply makes what is billed (local and static regions never ask)")
	flags.BoolVar(&o.listPrices, "list-prices", false, "plan with list prices instead of asking clouds for theirs")
	o.clouds.add(flags)
	flags.StringVarP(&o.output, "output", "o", "table", strings.Join(planFormats, ", "))
	flags.StringVar(&o.file, "out", "", "write to `FILE` instead of standard output")
	cmd.AddCommand(newPlanBacktestCmd())
	cmd.MarkFlagsMutuallyExclusive("problem", "history")
	cmd.MarkFlagsMutuallyExclusive("problem", "at")
	cmd.MarkFlagsMutuallyExclusive("problem", "reserve")
	cmd.MarkFlagsMutuallyExclusive("apply", "reserve")
	return cmd
}

// planFormats are the values of -o.
var planFormats = []string{"table", "json", "html", "lp", "mps"}

// reviewFlags are the flags that say how a review is made.
func (o *planOptions) reviewFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.history, "history", "", "history `FILE` or URL (default: the running service's own)")
	flags.DurationVar(&o.review.Horizon, "horizon", 0, "how far ahead (default: the time between two plans that the service states, at least 1h)")
	flags.StringVar(&o.review.Forecaster, "forecaster", "", "forecaster (default: what the service says, else auto)")
	flags.DurationVar(&o.review.Step, "step", plan.DefaultStep, "average load over so long before its peak is planned for")
	flags.StringVar(&o.review.Peak, "peak", plan.DefaultPeak, "forecast peak to plan for: "+strings.Join(forecast.PeakLevels, ", "))
	flags.Float64Var(&o.review.Gap, "gap", 0, "relative gap at which solving stops; 0 = proven optimal")
	flags.Float64Var(&o.review.Epsilon, "epsilon", plan.DefaultEpsilon, "share of its own peak that a region must carry itself")
	flags.StringSliceVar(&o.review.Survive, "survive", nil, "carry all load with a region gone: `region` (any one), or names, any one of which may go")
	flags.DurationVar(&o.review.MaxRTT, "max-rtt", 0, "longest round trip over which a region serves another's load (default: what the service says, else any)")
	flags.BoolVar(&o.review.Switch, "switch", false, "let a model take over machines that another one gives up")
}

func runPlan(ctx context.Context, o *planOptions, in io.Reader, out io.Writer) error {
	if err := o.check(); err != nil {
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
	o.courses, o.service = r.Courses, r.Service
	if err := o.print(out, r.Problem, r.Proposal); err != nil {
		return err
	}
	switch {
	case o.output == "lp" || o.output == "mps":
		return nil
	case r.Proposal.Status == plan.StatusInfeasible:
		return failed(errors.New("no plan satisfies the bounds: "+r.Proposal.Infeasible[0]), "raise replicas.max where it says so, or lower --epsilon")
	case r.Proposal.Status == plan.StatusUnknown:
		return failed(errors.New("no plan was found within the effort allowed"), "a larger --gap needs less")
	}
	if o.apply {
		return o.carryOut(ctx, r.Proposal, in)
	}
	return o.exit(r.Proposal)
}

// check refuses what cannot be meant.
func (o *planOptions) check() error {
	switch {
	case !slices.Contains(planFormats, o.output):
		return usage(fmt.Errorf("-o %s: want table, json, html, lp or mps", o.output), "")
	case o.problem != "" && o.output == "html":
		return usage(errors.New("-o html: needs a service, and --problem has none"), "")
	case o.reserve && o.output != "table" && o.output != "json":
		return usage(fmt.Errorf("-o %s: --reserve wants table or json", o.output), "")
	case o.review.MaxRTT < 0:
		return usage(fmt.Errorf("--max-rtt: must not be negative, got %s", o.review.MaxRTT), "")
	case !(o.review.Epsilon > 0 && o.review.Epsilon <= 1):
		return usage(fmt.Errorf("--epsilon: must be above 0 and at most 1, got %g", o.review.Epsilon), "")
	case !(o.review.Gap >= 0 && o.review.Gap < 1):
		return usage(fmt.Errorf("--gap: must be at least 0 and below 1, got %g", o.review.Gap), "")
	case o.solver != "" && findSolver(o.solver) == nil:
		return usage(fmt.Errorf("--solver %s: want highs, cbc or glpsol", o.solver), "")
	case o.problem != "" && o.target != "":
		return usage(fmt.Errorf("--problem and %s: want one of them", o.target), "")
	}
	return nil
}

// exit is nil, or exit code 10 when that was asked for and counts change.
func (o *planOptions) exit(p plan.Proposal) error {
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
		return usage(fmt.Errorf("reading problem: %w", err), "")
	}
	p, err := plan.ReadProblem(o.problem, data)
	if err != nil {
		return usage(err, "skyserve plan --help describes the format")
	}
	if o.output == "lp" || o.output == "mps" {
		return o.print(out, p, plan.Proposal{})
	}
	begin := time.Now()
	res, by, err := o.solve(ctx, p)
	if err != nil {
		return err
	}
	proposal := plan.Propose(p, res, plan.Context{Assumed: by})
	proposal.SolveMillis = float64(time.Since(begin).Microseconds()) / 1000
	if err := o.print(out, p, proposal); err != nil {
		return err
	}
	return o.exit(proposal)
}

// solve solves with the solver that was asked for, and says so when it is
// another than the one built in.
func (o *planOptions) solve(ctx context.Context, p *plan.Problem) (plan.Result, []string, error) {
	if o.solver == "" {
		res, err := plan.Solve(p, plan.Options{Gap: o.review.Gap})
		return res, nil, err
	}
	res, err := findSolver(o.solver).solve(ctx, p, o.review.Gap)
	return res, []string{solverNote(o.solver)}, err
}

func solverNote(solver string) string {
	return solver + " solved it: rows and cost were checked here, the bound is its word"
}

// print writes the answer in the asked form to the asked place.
func (o *planOptions) print(out io.Writer, p *plan.Problem, proposal plan.Proposal) error {
	return o.write(out, func(w io.Writer) error { return o.printTo(w, p, proposal) })
}

// write lets an answer be printed to the asked place.
func (o *planOptions) write(out io.Writer, print func(io.Writer) error) error {
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
	switch o.output {
	case "json":
		return json.NewEncoder(out).Encode(proposal)
	case "html":
		return plan.Page{Service: o.service, Proposal: proposal, Courses: o.courses}.WriteHTML(out)
	case "lp":
		return p.WriteLP(out)
	case "mps":
		return p.WriteMPS(out)
	}
	return proposal.WriteTable(out)
}

// makeReview gathers what is known of the service and reviews it.
func (o *planOptions) makeReview(ctx context.Context) (*plan.Reviewed, error) {
	g, err := o.gather(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	o.askClouds(ctx, g.Spec)
	if o.solver != "" {
		o.review.Notes = append(o.review.Notes, solverNote(o.solver))
		o.review.Solve = func(p *plan.Problem, po plan.Options) (plan.Result, error) {
			return findSolver(o.solver).solve(ctx, p, po.Gap)
		}
	}
	r, err := plan.Review(g.Spec, g.Counts, g.history, g.at, o.review)
	var own *exitError
	if err != nil && !errors.As(err, &own) {
		err = usage(err, "")
	}
	return r, err
}

// gathered is what is known of a service, and the time that is meant.
type gathered struct {
	*controller.Observed
	history *forecast.History
	at      time.Time
}

// gather finds the service, its history and the time that is meant.
func (o *planOptions) gather(ctx context.Context, now time.Time) (*gathered, error) {
	at, err := o.time(now)
	if err != nil {
		return nil, err
	}
	from := now
	if !at.IsZero() {
		from = at
	}
	since := from.Add(-planLookback).Unix() / 60
	observed, err := o.observe(ctx, since)
	if err != nil {
		return nil, err
	}
	if o.talk != nil && observed.Spec != nil {
		warn(o.talk, cmp.Or(o.target, observed.Spec.Name), observed.Spec)
	}
	o.review.Notes, o.review.RTT = observed.Notes, observed.RTT
	var h *forecast.History
	if o.history != "" {
		var notes []string
		h, notes, err = loadHistory(ctx, o.history, from.Add(-planLookback))
		o.review.Notes = slices.Concat(observed.Notes, notes)
	} else {
		h, err = demand.Traffic(observed.Points)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case !at.IsZero():
	case o.history != "" && h.Minutes > 0:
		at = time.Unix(h.End()*60, 0)
	default:
		at = now
	}
	return &gathered{observed, h, at}, nil
}

// time reads --at; zero when it is not given.
func (o *planOptions) time(now time.Time) (time.Time, error) {
	if o.at == "" || o.at == "now" {
		if o.at == "now" {
			return now, nil
		}
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, o.at)
	if err != nil {
		return t, usage(fmt.Errorf("--at: want a time such as 2025-01-31T12:00:00Z, got %q", o.at), "")
	}
	return t, nil
}

// observe finds the service that is meant: running, or in a file only.
func (o *planOptions) observe(ctx context.Context, since int64) (*controller.Observed, error) {
	own := o.history == ""
	if !namesFile(o.target) {
		_, admins, err := runningAdmins(o.target)
		if err != nil {
			return nil, err
		}
		observed, err := controller.Observe(ctx, admins, since, own)
		if err != nil {
			return nil, failed(err, "'skyserve status' says whether the service is up")
		}
		return observed, nil
	}
	text, err := os.ReadFile(o.target)
	if err != nil {
		return nil, usage(fmt.Errorf("reading the service: %w", err), "skyserve init writes a first service.yaml")
	}
	spec, err := service.Parse(o.target, text)
	if err != nil {
		return nil, usage(err, "")
	}
	observed := &controller.Observed{}
	if _, admins, err := runningAdmins(spec.Name); err == nil {
		if running, err := controller.Observe(ctx, admins, since, own); err == nil {
			observed = running
		}
	}
	observed.Spec = spec
	return observed, nil
}

// namesFile tells a file from a service's name, which holds no dot or slash.
func namesFile(target string) bool { return strings.ContainsAny(target, "./"+string(os.PathSeparator)) }
