package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// DefaultEpsilon is the share of its own peak that each region must be able to
// carry when nothing else is asked: the rest may travel, as SageServe's
// re-routing below 70 % utilisation lets it.
const DefaultEpsilon = 0.7

// DefaultPeak is the level of the forecast peak that is planned for when nothing
// else is asked. The expected peak would be ruled by bursts that come once a week.
const DefaultPeak = "p50"

// defaultEvery is the time between two plans where a service states none.
const defaultEvery = time.Hour

// DefaultStep is over how long load is averaged before its peak is planned for when
// nothing else is asked.
const DefaultStep = time.Minute

// stepFrom is how long a history must be for steps longer than a minute.
const stepFrom = time.Hour

// maxReviewHorizon bounds how far ahead a plan may look: a forecast by the
// minute for longer says nothing.
const maxReviewHorizon = 7 * 24 * time.Hour

// AnyOneRegion is the word of ReviewOptions.Survive for the loss of any region.
const AnyOneRegion = "region"

// ReviewOptions says how a review is made; a zero field means its default.
type ReviewOptions struct {
	Horizon    time.Duration // default the time between two plans, at least an hour
	Forecaster string        // default what the service states, else auto
	// Peak is the level of the forecast peak that capacity is planned for: one of
	// forecast.PeakLevels; default p50.
	Peak string
	// Step is over how long load is averaged before it is forecast and its peak planned
	// for: whole minutes that divide the horizon; default DefaultStep. A shorter history
	// than stepFrom is forecast by the minute.
	Step    time.Duration
	Epsilon float64 // default DefaultEpsilon
	Gap     float64 // relative gap at which solving stops, default 0
	Effort  int64   // default DefaultEffort
	// Interrupt, unless it is nil, is asked now and then whether to stop solving
	// with what is known.
	Interrupt func() bool
	// Survive asks that all load is carried with a region gone: AnyOneRegion, or the
	// names of those of which any one may be lost; empty = none.
	Survive []string
	// MaxRTT is how far load may travel; 0 = what the service states, else anywhere.
	// RTT holds the round trips that were measured.
	MaxRTT time.Duration
	RTT    map[Pair]time.Duration
	// Prices is what clouds ask for machines; list prices stand in for those that are
	// not known.
	Prices []MachinePrice
	// StartUp is how long a new replica takes to serve; 0 = as the catalogue has it of
	// its cloud.
	StartUp time.Duration
	// Switch lets a model take over machines that another one gives up.
	Switch bool
	// Solve solves the problem; nil = the function of that name.
	Solve func(*Problem, Options) (Result, error)
	// Now is the clock by which solving is measured; nil = it is not.
	Now func() time.Time
	// Notes are assumptions made before the review, in words.
	Notes []string
}

// horizonOf is how far a plan looks ahead where there is one every so often.
func horizonOf(every time.Duration) time.Duration { return max(defaultEvery, every) }

// WithDefaults is the options with all that has a default.
func (o ReviewOptions) WithDefaults(spec *service.Spec) ReviewOptions {
	o.Horizon = cmp.Or(o.Horizon, horizonOf(spec.Autoscale.Every))
	o.Forecaster = cmp.Or(o.Forecaster, spec.Autoscale.Forecast, "auto")
	o.Peak = cmp.Or(o.Peak, DefaultPeak)
	o.Step = cmp.Or(o.Step, DefaultStep)
	o.Epsilon = cmp.Or(o.Epsilon, DefaultEpsilon)
	o.MaxRTT = cmp.Or(o.MaxRTT, spec.Autoscale.MaxRTT)
	if o.Solve == nil {
		o.Solve = Solve
	}
	return o
}

// Reviewed is a review's outcome: the problem that was solved, the proposal, and
// for each model and region the load that it is for.
type Reviewed struct {
	Service  string
	Problem  *Problem
	Proposal Proposal
	Courses  []Course
	// X is the counts by the problem's model, region and GPU; nil when there are none.
	X [][][]int
	// Loads are the forecasts that the problem was made from, by model and region in
	// the order of service.yaml; those without history are left out.
	Loads []Load

	made *review
}

// Review proposes the counts of a service for the time after at: it forecasts
// the load from the history before at (nil = none), less what prefix caches are
// expected to spare, and solves the scaling problem from the counts that run.
// Whatever it had to assume is in the proposal, in words. It fails on a
// horizon, forecaster or peak that cannot be, and on a history that ends long before
// at; no plan within the bounds is no failure but the status infeasible.
func Review(spec *service.Spec, counts []Count, h *forecast.History, at time.Time, o ReviewOptions) (*Reviewed, error) {
	in, err := ForecastInputs(spec, h, at, o)
	if err != nil {
		return nil, err
	}
	return in.Review(counts)
}

// NextReview is how long after a review of a history of so many minutes the next is due,
// where a service asks for one every so often: what is learned from a short history is soon
// outdated, and there is twice as much of it by then.
func NextReview(every time.Duration, minutes int) time.Duration {
	return min(every, max(time.Minute, time.Duration(minutes)*time.Minute))
}

// Inputs is all of a review that does not depend on the replicas that run: the forecast
// and the problem, but for its counts.
type Inputs struct{ review }

// ForecastInputs makes the inputs of a review at a time; it fails where Review does.
func ForecastInputs(spec *service.Spec, h *forecast.History, at time.Time, o ReviewOptions) (*Inputs, error) {
	r := review{spec: spec, o: o.WithDefaults(spec), at: at.UTC(), assumed: slices.Clone(o.Notes)}
	if r.o.Horizon < time.Minute || r.o.Horizon > maxReviewHorizon {
		return nil, fmt.Errorf("planning %s: horizon must be 1m to %s, got %s", spec.Name, maxReviewHorizon, r.o.Horizon)
	}
	if r.o.Step < time.Minute || r.o.Step%time.Minute != 0 || r.o.Horizon%r.o.Step != 0 {
		return nil, fmt.Errorf("planning %s: step must be whole minutes that divide the horizon of %s, got %s", spec.Name, r.o.Horizon, r.o.Step)
	}
	if !slices.Contains(forecast.PeakLevels, r.o.Peak) {
		return nil, fmt.Errorf("planning %s: peak must be one of %v, got %q", spec.Name, forecast.PeakLevels, r.o.Peak)
	}
	r.findOffers()
	if len(r.offers) == 0 {
		return nil, fmt.Errorf("planning %s: no region has anything to run a model on: its capacity names only reserved, and nothing usable is (regions[].capacity, regions[].reserved)", spec.Name)
	}
	r.prices()
	r.bounds()
	r.limits()
	err := r.reach()
	r.lasting = slices.Clip(r.assumed)
	if err == nil {
		err = r.load(h)
	}
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", spec.Name, err)
	}
	r.p.Epsilon = r.o.Epsilon
	return &Inputs{r}, nil
}

// Review reviews the counts that run. The inputs are not changed.
func (in *Inputs) Review(counts []Count) (*Reviewed, error) {
	r := in.review
	r.assumed = slices.Clone(r.assumed)
	r.counts(counts)
	return r.solve()
}

// reviewFrom reviews counts by the problem's model, region and GPU, none of them
// donated; nil = none.
func (in *Inputs) reviewFrom(x [][][]int) (*Reviewed, error) {
	r := in.review
	r.assumed = slices.Clone(r.assumed)
	r.counts(nil)
	if x != nil {
		r.p.N = x
	}
	return r.solve()
}

// review is a Review being made.
type review struct {
	spec     *service.Spec
	o        ReviewOptions
	at       time.Time
	offers   []offer
	gpus     []string // of the offers, without their capacity types
	p        Problem
	courses  []Course
	donated  [][][]int
	billed   [][]float64
	assumed  []string
	lasting  []string           // of assumed, what does not depend on the load of the time
	uncached map[string]float64 // share of each model's prompt tokens, by its name
	loads    []Load
}

// startUp is how long a new replica takes to serve in a cloud.
func (r *review) startUp(cloud string) time.Duration {
	return cmp.Or(r.o.StartUp, catalogue.StartUp(cloud))
}

// assume notes an assumption once.
func (r *review) assume(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.assumed, s) {
		r.assumed = append(r.assumed, s)
	}
}

// bounds fills in min and max.
func (r *review) bounds() {
	for i := range r.spec.Models {
		lower, upper := make([]*int, len(r.spec.Regions)), make([]*int, len(r.spec.Regions))
		for j, region := range r.spec.Regions {
			b := r.spec.BoundsFor(r.spec.Models[i].Name, region.Name)
			lower[j], upper[j] = &b.Min, &b.Max
		}
		r.p.Min, r.p.Max = append(r.p.Min, lower), append(r.p.Max, upper)
	}
}

// solve solves the problem and puts the result in words.
func (r *review) solve() (*Reviewed, error) {
	o := Options{Gap: r.o.Gap, Effort: r.o.Effort, Interrupt: r.o.Interrupt}
	now := r.o.Now
	if now == nil {
		now = func() time.Time { return r.at }
	}
	start := now()
	res, err := r.o.Solve(&r.p, o)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", r.spec.Name, err)
	}
	took := now().Sub(start)
	if res.Status == StatusInfeasible {
		res.Infeasible = append(res.Infeasible, r.wouldNeed(o)...)
	}
	out := Propose(&r.p, res, Context{
		At: r.at, Horizon: r.o.Horizon, Forecaster: r.o.Forecaster, Donate: r.spec.Autoscale.Donate,
		Donated: r.donated, Columns: r.gpus, Billed: r.billed, Assumed: r.assumed,
	})
	out.SolveMillis = float64(took.Microseconds()) / 1000
	return &Reviewed{Service: r.spec.Name, Problem: &r.p, Proposal: out, X: res.X, Courses: r.capacities(res.X), Loads: r.loads, made: r}, nil
}

// capacities completes the courses with what the counts carry now and then.
func (r *review) capacities(x [][][]int) []Course {
	out := slices.Clone(r.courses)
	for at := range out {
		c := &out[at]
		i, j := r.modelIndex(c.Model), r.regionIndex(service.Region(c.Region))
		c.CapacityNow = r.p.Carried(i, r.p.N[i][j])
		if x != nil {
			then := r.p.Carried(i, x[i][j])
			c.CapacityThen = &then
		}
		c.StartUp = r.startUp(service.Region(c.Region).Cloud())
	}
	return out
}

// wouldNeed says which maxima are too low, and how high they would have to be.
func (r *review) wouldNeed(o Options) []string {
	free := r.p
	free.Max = nil
	res, err := Solve(&free, o)
	if err != nil || res.X == nil {
		return nil
	}
	var out []string
	for i, model := range r.p.Models {
		for j, region := range r.p.Regions {
			need := 0
			for _, n := range res.X[i][j] {
				need += n
			}
			if limit := r.p.Max[i][j]; limit != nil && need > *limit {
				out = append(out, fmt.Sprintf("%s in %s: without its max of %d the cheapest plan has %d replicas there", model, region, *limit, need))
			}
		}
	}
	return out
}

// group says the same thing of several regions at once: sentences in the order
// in which they first came, each after the names it holds for.
type group struct {
	order []string
	names map[string][]string
}

func (g *group) add(sentence, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[sentence] == nil {
		g.order = append(g.order, sentence)
	}
	g.names[sentence] = append(g.names[sentence], name)
}

// each gives every sentence with its names; those that hold for all of them, when
// these are many, hold everywhere.
func (g *group) each(all int, f func(names, sentence string)) {
	for _, s := range g.order {
		names := strings.Join(g.names[s], ", ")
		if all > 3 && len(g.names[s]) == all {
			names = "everywhere"
		}
		f(names, s)
	}
}
