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
	// Notes are assumptions made before the review, in words.
	Notes []string
}

func (o ReviewOptions) withDefaults(spec *service.Spec) ReviewOptions {
	o.Horizon = cmp.Or(o.Horizon, time.Hour)
	o.Forecaster = cmp.Or(o.Forecaster, spec.Autoscale.Forecast, "auto")
	o.Peak = cmp.Or(o.Peak, DefaultPeak)
	o.Epsilon = cmp.Or(o.Epsilon, DefaultEpsilon)
	return o
}

// Reviewed is a review's outcome: the problem that was solved and the proposal.
type Reviewed struct {
	Problem  *plan.Problem
	Proposal plan.Proposal
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
	r := &review{spec: spec, o: o.withDefaults(spec), at: at.UTC(), assumed: slices.Clone(o.Notes)}
	if r.o.Horizon < time.Minute || r.o.Horizon > maxReviewHorizon {
		return nil, fmt.Errorf("planning %s: horizon must be 1m to %s, got %s", spec.Name, maxReviewHorizon, r.o.Horizon)
	}
	if !slices.Contains(forecast.PeakLevels, r.o.Peak) {
		return nil, fmt.Errorf("planning %s: peak must be one of %v, got %q", spec.Name, forecast.PeakLevels, r.o.Peak)
	}
	r.findClasses()
	r.prices()
	r.bounds()
	r.counts(counts)
	if err := r.load(h); err != nil {
		return nil, fmt.Errorf("planning %s: %w", spec.Name, err)
	}
	return r.solve()
}

// review is a Review being made.
type review struct {
	spec     *service.Spec
	o        ReviewOptions
	at       time.Time
	classes  []gpuClass
	p        plan.Problem
	donated  [][][]int
	billed   [][]float64
	assumed  []string
	uncached map[string]float64 // share of each model's prompt tokens, by its name
	loads    []Load
}

// assume notes an assumption once.
func (r *review) assume(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.assumed, s) {
		r.assumed = append(r.assumed, s)
	}
}

// bounds fills in min, max and capacity.
func (r *review) bounds() {
	for i := range r.spec.Models {
		least, most := make([]*int, len(r.spec.Regions)), make([]*int, len(r.spec.Regions))
		for j, region := range r.spec.Regions {
			b := r.spec.BoundsFor(r.spec.Models[i].Name, region.Name)
			least[j], most[j] = &b.Min, &b.Max
		}
		r.p.Min, r.p.Max = append(r.p.Min, least), append(r.p.Max, most)
	}
	for _, region := range r.spec.Regions {
		row := make([]*int, len(r.classes))
		for k, c := range r.classes {
			switch {
			case c.cloud != region.Name.Cloud():
				row[k] = new(int)
			case region.Name.Cloud() == service.CloudStatic:
				n := len(region.Endpoints)
				row[k] = &n
			}
		}
		r.p.Capacity = append(r.p.Capacity, row)
	}
}

// solve solves the problem and puts the result in words.
func (r *review) solve() (*Reviewed, error) {
	r.p.Epsilon = r.o.Epsilon
	o := plan.Options{Gap: r.o.Gap, Effort: r.o.Effort, Interrupt: r.o.Interrupt}
	start := time.Now()
	res, err := plan.Solve(&r.p, o)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", r.spec.Name, err)
	}
	took := time.Since(start)
	if res.Status == plan.StatusInfeasible {
		res.Infeasible = append(res.Infeasible, r.wouldNeed(o)...)
	}
	out := plan.Propose(&r.p, res, plan.Context{
		At: r.at, Horizon: r.o.Horizon, Forecaster: r.o.Forecaster, Donate: r.spec.Autoscale.Donate,
		Donated: r.donated, Capacity: string(service.CapacityOnDemand), Billed: r.billed, Assumed: r.assumed,
	})
	out.SolveMillis = float64(took.Microseconds()) / 1000
	return &Reviewed{Problem: &r.p, Proposal: out, Loads: r.loads, made: r}, nil
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

func (g *group) each(f func(names, sentence string)) {
	for _, s := range g.order {
		f(strings.Join(g.names[s], ", "), s)
	}
}
