package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// DefaultEpsilon is the share of its own peak that each region must be able to
// carry when nothing else is asked: the rest may travel, as SageServe's
// re-routing below 70 % utilisation lets it.
const DefaultEpsilon = 0.7

// DefaultPeak is the level of the forecast peak that is planned for when nothing
// else is asked. The expected peak would be ruled by bursts that come once a week.
const DefaultPeak = "p50"

// maxReviewHorizon bounds how far ahead a plan may look: a forecast by the
// minute for longer says nothing.
const maxReviewHorizon = 7 * 24 * time.Hour

// AnyOneRegion is the word of ReviewOptions.Survive for the loss of any region.
const AnyOneRegion = "region"

// ReviewOptions says how a review is made; a zero field means its default.
type ReviewOptions struct {
	Horizon    time.Duration // default an hour
	Forecaster string        // default what the service states, else auto
	// Peak is the level of the forecast peak that capacity is planned for: one of
	// forecast.PeakLevels; default p50.
	Peak    string
	Epsilon float64 // default DefaultEpsilon
	Gap     float64 // relative gap at which solving stops, default 0
	Effort  int64   // default plan.DefaultEffort
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
	// Offers is what rented regions have, with prices; list prices stand in for those
	// that are not known.
	Offers map[service.Region]provision.Offerings
	// Switch lets a model take over machines that another one gives up.
	Switch bool
	// Solve solves the problem; nil = plan.Solve.
	Solve func(*plan.Problem, plan.Options) (plan.Result, error)
	// Notes are assumptions made before the review, in words.
	Notes []string
}

func (o ReviewOptions) withDefaults(spec *service.Spec) ReviewOptions {
	o.Horizon = cmp.Or(o.Horizon, time.Hour)
	o.Forecaster = cmp.Or(o.Forecaster, spec.Autoscale.Forecast, "auto")
	o.Peak = cmp.Or(o.Peak, DefaultPeak)
	o.Epsilon = cmp.Or(o.Epsilon, DefaultEpsilon)
	o.MaxRTT = cmp.Or(o.MaxRTT, spec.Autoscale.MaxRTT)
	if o.Solve == nil {
		o.Solve = plan.Solve
	}
	return o
}

// Reviewed is a review's outcome: the problem that was solved, the proposal, and
// for each model and region the load that it is for.
type Reviewed struct {
	Service  string
	Problem  *plan.Problem
	Proposal plan.Proposal
	Courses  []plan.Course
	// X is the counts by the problem's model, region and GPU; nil when there are none.
	X [][][]int
	// Loads are the forecasts that the problem was made from, by model and region in
	// the order of service.yaml; those without history are left out.
	Loads []Load

	made *review
}

// Review proposes the counts of a service for the time after at: it forecasts
// the load from the history before at (nil = none), less what prefix caches are
// expected to spare, and solves the scaling problem from the counts that stand.
// Whatever it had to assume stands in the proposal in words. It fails on a
// horizon, forecaster or peak that cannot be, and on a history that ends long before
// at; no plan within the bounds is no failure but the status infeasible.
func Review(spec *service.Spec, counts []Count, h *telemetry.History, at time.Time, o ReviewOptions) (*Reviewed, error) {
	outlook, err := Foresee(spec, h, at, o)
	if err != nil {
		return nil, err
	}
	return outlook.Review(counts)
}

// Outlook is all of a review that does not depend on the counts that stand.
type Outlook struct{ review }

// Foresee makes the outlook of a service at a time; it fails where Review does.
func Foresee(spec *service.Spec, h *telemetry.History, at time.Time, o ReviewOptions) (*Outlook, error) {
	r := review{spec: spec, o: o.withDefaults(spec), at: at.UTC(), assumed: slices.Clone(o.Notes)}
	if r.o.Horizon < time.Minute || r.o.Horizon > maxReviewHorizon {
		return nil, fmt.Errorf("planning %s: horizon must be 1m to %s, got %s", spec.Name, maxReviewHorizon, r.o.Horizon)
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
	return &Outlook{r}, nil
}

// Review reviews the counts that stand. The outlook stays as it is, for others.
func (o *Outlook) Review(counts []Count) (*Reviewed, error) {
	r := o.review
	r.assumed = slices.Clone(r.assumed)
	r.counts(counts)
	return r.solve()
}

// reviewFrom reviews counts by the problem's model, region and GPU, none of them
// lent; nil = none.
func (o *Outlook) reviewFrom(x [][][]int) (*Reviewed, error) {
	r := o.review
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
	gpus     []string // of the offers, without how they are had
	p        plan.Problem
	courses  []plan.Course
	donated  [][][]int
	billed   [][]float64
	assumed  []string
	lasting  []string           // of assumed, what does not rest on the load of the time
	uncached map[string]float64 // share of each model's prompt tokens, by its name
	loads    []Load
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
		least, most := make([]*int, len(r.spec.Regions)), make([]*int, len(r.spec.Regions))
		for j, region := range r.spec.Regions {
			b := r.spec.BoundsFor(r.spec.Models[i].Name, region.Name)
			least[j], most[j] = &b.Min, &b.Max
		}
		r.p.Min, r.p.Max = append(r.p.Min, least), append(r.p.Max, most)
	}
}

// solve solves the problem and puts the result in words.
func (r *review) solve() (*Reviewed, error) {
	o := plan.Options{Gap: r.o.Gap, Effort: r.o.Effort, Interrupt: r.o.Interrupt}
	start := time.Now()
	res, err := r.o.Solve(&r.p, o)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", r.spec.Name, err)
	}
	took := time.Since(start)
	if res.Status == plan.StatusInfeasible {
		res.Infeasible = append(res.Infeasible, r.wouldNeed(o)...)
	}
	out := plan.Propose(&r.p, res, plan.Context{
		At: r.at, Horizon: r.o.Horizon, Forecaster: r.o.Forecaster, Donate: r.spec.Autoscale.Donate,
		Donated: r.donated, Columns: r.gpus, Billed: r.billed, Assumed: r.assumed,
	})
	out.SolveMillis = float64(took.Microseconds()) / 1000
	return &Reviewed{Service: r.spec.Name, Problem: &r.p, Proposal: out, X: res.X, Courses: r.capacities(res.X), Loads: r.loads, made: r}, nil
}

// capacities completes the courses with what the counts carry now and then.
func (r *review) capacities(x [][][]int) []plan.Course {
	out := slices.Clone(r.courses)
	for at := range out {
		c := &out[at]
		i, j := r.modelIndex(c.Model), r.regionIndex(service.Region(c.Region))
		c.CapacityNow = r.p.Carried(i, r.p.N[i][j])
		if x != nil {
			then := r.p.Carried(i, x[i][j])
			c.CapacityThen = &then
		}
		c.StartUp = startUp[service.Region(c.Region).Cloud()]
	}
	return out
}

// wouldNeed says which maxima are too low, and how high they would have to be.
func (r *review) wouldNeed(o plan.Options) []string {
	free := r.p
	free.Max = nil
	res, err := plan.Solve(&free, o)
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
			if most := r.p.Max[i][j]; most != nil && need > *most {
				out = append(out, fmt.Sprintf("%s in %s: without its max of %d the cheapest plan has %d replicas there", model, region, *most, need))
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
