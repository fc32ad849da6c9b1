package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/catalogue"
	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// DefaultLocalShare is the default share of its own peak that each region must be able to serve: epsilon in
// SageServe's section 5, which states no value. Other regions may serve the remainder. 0.7 is the memory utilisation
// from which SageServe routes requests to other regions (section 6.1).
const DefaultLocalShare = 0.7

// DefaultPeakQuantile is the default quantile of the forecast peak to plan for: the median, because a strategy corrects
// the counts between plans. If the counts stay for an hour, use p90 or more: with the median, much more load is above
// capacity than under the threshold rule (backtest_rules.go; `make compare-plan`). The mean (expected) is no better default:
// bursts that occur once a week dominate it.
const DefaultPeakQuantile = "p50"

// defaultPlanInterval is the default time between two plans (autoscale.every).
const defaultPlanInterval = time.Hour

// DefaultStep is the default interval over which load is averaged before its peak is planned for.
const DefaultStep = time.Minute

// minHistoryForSteps is the minimum history for steps longer than a minute.
const minHistoryForSteps = time.Hour

// maxReviewHorizon bounds the horizon of a plan: a longer forecast by the minute carries no
// information.
const maxReviewHorizon = 7 * 24 * time.Hour

// SurviveAny is the value of ReviewOptions.Survive for the loss of any region.
const SurviveAny = "any"

// formerSurviveAny is the former value, accepted for one version.
const formerSurviveAny = "region"

func isAnyRegion(name string) bool { return name == SurviveAny || name == formerSurviveAny }

// ReviewOptions configures a review; a zero field means its default.
type ReviewOptions struct {
	Horizon    time.Duration // default the time between two plans, at least an hour
	Forecaster string        // default the service's setting, else auto
	// PeakQuantile is the quantile of the forecast peak to plan capacity for, or "expected" for its mean: one of
	// forecast.PeakQuantiles; default p50.
	PeakQuantile string
	// Step is the interval over which load is averaged before it is forecast and its peak planned
	// for: whole minutes that divide the horizon; default DefaultStep. A history shorter than
	// minHistoryForSteps is forecast by the minute.
	Step       time.Duration
	LocalShare float64 // default DefaultLocalShare
	Gap        float64 // relative gap at which solving stops, default 0
	Effort     int64   // default DefaultEffort
	// Interrupt is SolveOptions.Interrupt.
	Interrupt func() bool
	// Survive requires that all load is served after the loss of a region: SurviveAny, or the
	// names of the regions, any one of which may be lost; empty = none.
	Survive []string
	// MaxRTT is the maximum round trip between a load and the region that serves it; 0 = the
	// service's setting, else no limit. RTT contains the measured round trips.
	MaxRTT time.Duration
	RTT    map[RegionPair]time.Duration
	// Prices are the clouds' current prices of machines; list prices replace those that are
	// missing.
	Prices []MachinePrice
	// Reservations are what the clouds report about the reservations that the service names by id. One
	// that is missing is planned for as in service.yaml.
	Reservations []ReservationState
	// Backlog is the accepted batches that have not ended; nil = none.
	Backlog []Backlog
	// StartUp is the time a new replica takes to become ready; 0 = the catalogue's value for its
	// cloud.
	StartUp time.Duration
	// AllowSwitch allows a model to take over VMs that another one frees.
	AllowSwitch bool
	// Solve solves the problem; nil = the function of that name.
	Solve func(*Problem, SolveOptions) (Solution, error)
	// Now is the clock that measures solving; nil = solving is not measured.
	Now func() time.Time
	// Notes are assumptions made before the review, as text.
	Notes []string
}

// horizonOf returns the horizon of a plan for a planning interval.
func horizonOf(every time.Duration) time.Duration { return max(defaultPlanInterval, every) }

// WithDefaults returns the options with defaults filled in.
func (o ReviewOptions) WithDefaults(spec *service.Spec) ReviewOptions {
	o.Horizon = cmp.Or(o.Horizon, horizonOf(spec.Autoscale.Every))
	o.Forecaster = cmp.Or(o.Forecaster, spec.Autoscale.Forecast, "auto")
	o.PeakQuantile = cmp.Or(o.PeakQuantile, DefaultPeakQuantile)
	o.Step = cmp.Or(o.Step, DefaultStep)
	o.LocalShare = cmp.Or(o.LocalShare, DefaultLocalShare)
	o.MaxRTT = cmp.Or(o.MaxRTT, spec.Autoscale.MaxRTT)
	if o.Solve == nil {
		o.Solve = Solve
	}
	return o
}

// ReviewResult is the result of a review: the solved problem, the proposal, and the load of each model
// and region that it is for.
type ReviewResult struct {
	Service    string
	Problem    *Problem
	Proposal   Proposal
	LoadCurves []LoadCurve
	// Counts are the planned counts by the problem's model, region and GPU; nil when there are none.
	Counts [][][]int
	// Forecasts are the forecasts behind the problem, by model and region in the order of service.yaml.
	// Those without history are omitted.
	Forecasts []EndpointForecast

	review *review
}

// Review proposes the replica counts of a service for the horizon after at. It forecasts the load
// from the history before at (nil = none), subtracts expected prefix cache hits, and solves the
// scaling problem from the current counts. The proposal lists every assumption as text. Review
// fails on an invalid option, on a service without capacity that a model can run on, and on a
// history that ends long before at. Without a feasible plan, it returns a result with StatusInfeasible.
func Review(spec *service.Spec, counts []ReplicaCount, h *forecast.History, at time.Time, o ReviewOptions) (*ReviewResult, error) {
	in, err := ForecastInputs(spec, h, at, o)
	if err != nil {
		return nil, err
	}
	return in.Solve(counts)
}

// NextReviewIn returns the time until the next review, for a service's planning interval and the
// minutes of history of the last review. A short history gives a short interval: its forecast is
// soon outdated, and by then the history has doubled.
func NextReviewIn(every time.Duration, minutes int) time.Duration {
	return min(every, max(time.Minute, time.Duration(minutes)*time.Minute))
}

// FirstMinuteOnly reports whether the plan is based on the first minute of the history alone. Balancers count only a
// part of the minute in which they start, so that the load may be much higher: review again soon.
func (v *ReviewResult) FirstMinuteOnly() bool { return v.review.firstMinuteOnly }

// ReviewInputs are the parts of a review that do not depend on running replicas: the forecast, and the
// problem without its counts.
type ReviewInputs struct{ review }

// ForecastInputs prepares the inputs of a review at a time; it fails like Review.
func ForecastInputs(spec *service.Spec, h *forecast.History, at time.Time, o ReviewOptions) (*ReviewInputs, error) {
	r := review{spec: spec, options: o.WithDefaults(spec), at: at.UTC(), assumptions: slices.Clone(o.Notes)}
	if r.options.Horizon < time.Minute || r.options.Horizon > maxReviewHorizon {
		return nil, fmt.Errorf("planning %s: horizon: must be 1m to %s, got %s", spec.Name, forecast.ShortDuration(maxReviewHorizon), r.options.Horizon)
	}
	if r.options.Step < time.Minute || r.options.Step%time.Minute != 0 || r.options.Horizon%r.options.Step != 0 {
		return nil, fmt.Errorf("planning %s: step: must be whole minutes that divide the horizon of %s, got %s", spec.Name, forecast.ShortDuration(r.options.Horizon), forecast.ShortDuration(r.options.Step))
	}
	if !slices.Contains(forecast.PeakQuantiles, r.options.PeakQuantile) {
		return nil, fmt.Errorf("planning %s: peak quantile: must be one of %s, got %q", spec.Name, strings.Join(forecast.PeakQuantiles, ", "), r.options.PeakQuantile)
	}
	r.findOfferings()
	if len(r.offerings) == 0 {
		return nil, r.noOfferingError()
	}
	r.setPrices()
	r.setBounds()
	r.setLimits()
	err := r.setReach()
	r.fixedAssumptions = slices.Clip(r.assumptions)
	if err == nil {
		err = r.setLoad(h)
	}
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", spec.Name, err)
	}
	r.problem.LocalShare = r.options.LocalShare
	return &ReviewInputs{r}, nil
}

// Solve plans from the running replicas. It does not change the inputs.
func (in *ReviewInputs) Solve(counts []ReplicaCount) (*ReviewResult, error) {
	r := in.review
	r.assumptions = slices.Clone(r.assumptions)
	r.setCounts(counts)
	return r.solveReview()
}

// solveFrom is Solve from counts by the problem's model, region and GPU, without donated replicas; nil = no replica
// runs.
func (in *ReviewInputs) solveFrom(x [][][]int) (*ReviewResult, error) {
	r := in.review
	r.assumptions = slices.Clone(r.assumptions)
	r.setCounts(nil)
	if x != nil {
		r.problem.Current = x
	}
	return r.solveReview()
}

// review is the state of a review.
type review struct {
	spec             *service.Spec
	options          ReviewOptions
	at               time.Time
	offerings        []offering
	gpus             []string // of the offerings, without their capacity types
	problem          Problem
	loadCurves       []LoadCurve
	donated          [][][]int
	billed           [][]float64 // by region and offering: the billed price of a replica
	assumptions      []string
	fixedAssumptions []string           // the assumptions that do not depend on the load
	uncached         map[string]float64 // uncached share of each model's prompt tokens, by name
	// By model and region: how the load is tracked, and the highest value of the mean forecast of the
	// interactive load, in tokens per second.
	trackings [][]Tracking
	means     [][]float64
	forecasts []EndpointForecast
	// unknownPart is the part of the history's last minute that has not passed: the current minute is extrapolated.
	unknownPart     time.Duration
	firstMinuteOnly bool // see ReviewResult.FirstMinuteOnly
	// historyEnd is the minute after the last complete minute of the history. loaded contains the models and regions with
	// interactive load in the history.
	historyEnd int64
	loaded     map[[2]int]bool
	// withoutBacklog is problem.LoadTPS without the backlog of batches; nil if there is none.
	withoutBacklog [][][]float64
}

// startUpTime returns the time a new replica takes to become ready in a cloud.
func (r *review) startUpTime(cloud string) time.Duration {
	return cmp.Or(r.options.StartUp, catalogue.StartUp(cloud))
}

// assume adds an assumption unless it is already listed.
func (r *review) assume(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.assumptions, s) {
		r.assumptions = append(r.assumptions, s)
	}
}

// setBounds sets min and max.
func (r *review) setBounds() {
	for i := range r.spec.Models {
		lower, upper := make([]*int, len(r.spec.Regions)), make([]*int, len(r.spec.Regions))
		for j, region := range r.spec.Regions {
			b := r.spec.BoundsFor(r.spec.Models[i].Name, region.Name)
			lower[j], upper[j] = &b.Min, &b.Max
		}
		r.problem.Min, r.problem.Max = append(r.problem.Min, lower), append(r.problem.Max, upper)
	}
}

// solveReview solves the problem and converts the result to a proposal.
func (r *review) solveReview() (*ReviewResult, error) {
	o := SolveOptions{Gap: r.options.Gap, Effort: r.options.Effort, Interrupt: r.options.Interrupt}
	now := r.options.Now
	if now == nil {
		now = func() time.Time { return r.at }
	}
	start := now()
	res, err := r.options.Solve(&r.problem, o)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", r.spec.Name, err)
	}
	if res.Status == StatusInfeasible && r.withoutBacklog != nil { // interactive load is planned for in any case
		r.dropBacklog()
		if res, err = r.options.Solve(&r.problem, o); err != nil {
			return nil, fmt.Errorf("planning %s: %w", r.spec.Name, err)
		}
	}
	took := now().Sub(start)
	if res.Status == StatusInfeasible {
		res.Infeasible = append(res.Infeasible, r.explainMaxima(o)...)
	}
	context := ProposalContext{
		At: r.at, Horizon: r.options.Horizon, Forecaster: r.options.Forecaster, Donate: r.donatingRegions(),
		Donated: r.donated, GPUNames: r.gpus, Billed: r.billed, Assumed: r.assumptions, Budget: r.spec.BudgetPerHour(),
	}
	if res.Counts != nil {
		res.Counts, context.OverBudget = r.problem.cutToBudget(res.Counts, r.replicaBudget(), func(x [][][]int) float64 { return context.billed(&r.problem, x) })
	}
	out := Propose(&r.problem, res, context)
	out.SolveMillis = float64(took.Microseconds()) / 1000
	return &ReviewResult{Service: r.spec.Name, Problem: &r.problem, Proposal: out, Counts: res.Counts, LoadCurves: r.withCapacities(res.Counts), Forecasts: r.forecasts, review: r}, nil
}

// donatingRegions returns the regions whose excess replicas are donated.
func (r *review) donatingRegions() map[string]bool {
	out := map[string]bool{}
	for _, region := range r.problem.Regions {
		out[region] = r.spec.Autoscale.Donates(service.Region(region))
	}
	return out
}

// withCapacities returns the load curves with their current and planned capacity. It raises PeakHigh to the planned
// peak, to which batches were added after the forecast.
func (r *review) withCapacities(x [][][]int) []LoadCurve {
	out := slices.Clone(r.loadCurves)
	for at := range out {
		c := &out[at]
		peak, _ := c.Peak()
		c.PeakHigh = max(c.PeakHigh, peak)
		i, j := r.modelIndex(c.Model), r.regionIndex(service.Region(c.Region))
		c.CurrentCapacity = r.problem.Throughput(i, r.problem.Current[i][j])
		if x != nil {
			then := r.problem.Throughput(i, x[i][j])
			c.PlannedCapacity = &then
		}
		c.StartUp = r.startUpTime(service.Region(c.Region).Cloud())
	}
	return out
}

// explainMaxima reports which maxima are too low, and the values that would suffice.
func (r *review) explainMaxima(o SolveOptions) []string {
	free := r.problem
	free.Max = nil
	res, err := Solve(&free, o)
	if err != nil || res.Counts == nil {
		return nil
	}
	var out []string
	for i, model := range r.problem.Models {
		for j, region := range r.problem.Regions {
			need := 0
			for _, n := range res.Counts[i][j] {
				need += n
			}
			if limit := r.problem.Max[i][j]; limit != nil && need > *limit {
				out = append(out, fmt.Sprintf("%s in %s: replicas.max is %d; without such limits the cheapest plan has %s there", model, region, *limit, printable.Count(need, "replica")))
			}
		}
	}
	return out
}

// nameGroups groups names by a text, such as regions by the sentence that applies to them. Groups are in the order in
// which their texts were first added.
type nameGroups struct {
	order []string
	names map[string][]string
}

func (g *nameGroups) addName(text, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[text] == nil {
		g.order = append(g.order, text)
	}
	g.names[text] = append(g.names[text], name)
}

// each calls f for every text with its names. all is the number of names that there are: if it is above three and the
// text has all of them, names is "everywhere".
func (g *nameGroups) each(all int, f func(names, text string)) {
	for _, text := range g.order {
		names := strings.Join(g.names[text], ", ")
		if all > 3 && len(g.names[text]) == all {
			names = "everywhere"
		}
		f(names, text)
	}
}
