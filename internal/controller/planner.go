package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// The planner's intervals. The service's autoscale.every says how often it reviews.
const (
	// firstLook is how often a history is looked for before the first review:
	// balancers store what they counted as often.
	firstLook = 10 * time.Second
	// retryAfter is the wait after a review that failed, which took long to make.
	retryAfter = 5 * time.Minute
	// observeRetry is the wait after the first failure to observe the service, which
	// takes no time; it doubles up to retryAfter.
	observeRetry = time.Second
	// startGrace is how long after the controller began to lead balancers that do not
	// answer count as starting: a machine's boot is over long before.
	startGrace = 2 * time.Minute
	// changeSettles is how long after replicas were added or removed balancers tell
	// of them.
	changeSettles = 10 * time.Second
	// reviewLookback is the history that a review is made from: two weeks, so that
	// each day of the week was seen twice.
	reviewLookback = 14 * 24 * time.Hour
)

// planner reviews the service by the hour, and says by the minute which loads left
// their forecast. What it knows outlives a term of leadership.
type planner struct {
	service string
	state   state
	log     *slog.Logger
	logged  errorOnce
	force   *inForce
	offers  func() map[service.Region]provision.Offerings // nil = nobody knows any
	replan  atomic.Bool                                   // review soon: what runs has changed

	made   *plan.Reviewed // the newest; nil before the first, and while that of another controller holds
	every  time.Duration
	next   time.Time        // when the next is due
	retry  time.Duration    // the last wait after a failure to observe; 0 = it did not fail
	began  time.Time        // when this term began
	met    bool             // all balancers answered in this term
	shown  telemetry.Review // what balancers are to show
	owed   bool             // shown is not in the store yet
	ready  func()           // is called when a review that is being made is done
	making chan outcome     // nil = none is being made
}

// outcome is a review that was made.
type outcome struct {
	at      time.Time // it was begun
	from    *Observed
	minutes int // of history
	made    *plan.Reviewed
	err     error
}

// newPlanner makes a planner of a service.
func newPlanner(config service.ControllerConfig, st state, force *inForce, log *slog.Logger) *planner {
	return &planner{service: config.Service, state: st, log: log, force: force}
}

// again asks for a review soon. A plan that a strategy carries out holds for its
// time: what the strategy changes is no reason for another.
func (p *planner) again() {
	if r := p.force.get(); r == nil || !paced(r.Strategy) {
		p.replan.Store(true)
	}
}

// paced tells whether a strategy carries plans out by itself.
func paced(strategy string) bool { return strategy != "" && strategy != service.StrategyManual }

// begin begins a term of leadership; ready is called, from another goroutine, when a review
// is done that a step has begun. What cannot be read is logged.
func (p *planner) begin(ctx context.Context, ready func()) {
	p.next = time.Time{} // another controller may have planned meanwhile, of other counts
	p.began, p.met, p.retry, p.making, p.ready = time.Now(), false, 0, nil, ready
	p.tell(p.adopt(ctx))
}

// due is how long it is until a review is due; a long time while one is being made.
func (p *planner) due(now time.Time) time.Duration {
	if p.making != nil {
		return retryAfter
	}
	return p.next.Sub(now)
}

// since is the first minute of the history that is needed now, at the beginning of a minute or
// later in it; false where none is.
func (p *planner) since(now time.Time, newMinute bool) (minute int64, needed bool) {
	switch {
	case p.making != nil:
		return 0, false
	case !now.Before(p.next):
		return now.Add(-reviewLookback).Unix() / 60, true
	case newMinute && p.made != nil && len(p.made.Loads) > 0:
		return p.made.Proposal.At.Add(-time.Minute).Unix() / 60, true
	}
	return 0, false
}

// step reviews when that is due, and else holds the load against its forecast.
func (p *planner) step(ctx context.Context, l lease, now time.Time, o observation) error {
	if p.replan.Swap(false) {
		p.next = now.Add(changeSettles)
	}
	if p.making != nil {
		select {
		case out := <-p.making:
			p.making = nil
			return p.finish(ctx, l, now, out)
		default:
			return nil
		}
	}
	if !now.Before(p.next) && (o.err != nil || o.history != nil) {
		return p.review(ctx, l, now, o)
	}
	return p.watch(ctx, l, now, o)
}

// adopt goes on with a plan in the store that a strategy is carrying out and whose
// time is not over, whichever controller made it.
func (p *planner) adopt(ctx context.Context) error {
	data, _, err := p.state.Get(ctx, telemetry.ReviewKey(p.service))
	if isGone(err) {
		return nil
	}
	var r telemetry.Review
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return fmt.Errorf("reading the plan in force: %w", err)
	}
	if !paced(r.Strategy) || !time.Now().Before(r.Until) {
		return nil
	}
	p.shown, p.owed, p.made, p.next = r, false, nil, r.Until
	p.force.set(r)
	return nil
}

// tell logs an error once for as long as it stays the same.
func (p *planner) tell(err error) {
	if p.logged.changed(err) {
		p.log.Warn("planning", "err", err)
	}
}

// review begins to make a review of what was observed. Where that is not enough the last one
// stays in force, with the reason why there is no newer.
func (p *planner) review(ctx context.Context, l lease, now time.Time, o observation) error {
	silent := errors.Is(o.err, ErrNoBalancerAnswers) || o.err == nil && o.Silent > 0
	if silent && !p.met && now.Before(p.began.Add(startGrace)) {
		p.observeAgain(now)
		return p.showWaiting(ctx, l, now)
	}
	if o.err != nil {
		p.observeAgain(now)
		return p.fail(ctx, l, now, o.err)
	}
	p.met, p.retry = true, 0
	if o.history.Minutes == 0 && p.made == nil { // there is nothing to plan from yet
		p.next = now.Add(firstLook)
		return p.clearWaiting(ctx, l)
	}
	p.every = cmp.Or(o.Spec.Autoscale.Every, time.Hour)
	p.compute(ctx, o, now)
	return nil
}

// finish publishes a review that was made.
func (p *planner) finish(ctx context.Context, l lease, now time.Time, out outcome) error {
	if out.err != nil {
		p.next = now.Add(retryAfter)
		return p.fail(ctx, l, now, out.err)
	}
	made := out.made
	p.made, p.next = made, out.at.Add(plan.NextReview(p.every, out.minutes))
	p.log.Info("reviewed", "status", made.Proposal.Status, "changes", made.Proposal.Changed(), "solve_ms", made.Proposal.SolveMillis)
	summary := summaryOfReview(made)
	summary.Strategy, summary.From, summary.Until = out.from.Spec.Autoscale.Strategy, out.at.UTC(), p.next.UTC()
	p.force.set(summary)
	return p.publish(ctx, l, summary)
}

// observeAgain has the service observed again soon, later with each failure in a row.
func (p *planner) observeAgain(now time.Time) {
	p.retry = min(max(2*p.retry, observeRetry), retryAfter)
	p.next = now.Add(p.retry)
}

// showWaiting publishes what the first plan waits for. A plan that is shown stays.
func (p *planner) showWaiting(ctx context.Context, l lease, now time.Time) error {
	if p.shown.Plan != nil && !p.owed {
		return nil
	}
	if p.shown.Plan == nil {
		p.log.Info("planning waits for balancers")
		p.shown.Plan = emptyPlan(now)
		p.shown.Plan.Waiting = "waiting for balancers"
	}
	return p.publish(ctx, l, p.shown)
}

// clearWaiting takes back what showWaiting published.
func (p *planner) clearWaiting(ctx context.Context, l lease) error {
	if p.shown.Plan == nil || p.shown.Plan.Waiting == "" {
		return nil
	}
	p.shown.Plan = nil
	return p.publish(ctx, l, p.shown)
}

// fail publishes why there is no newer plan.
func (p *planner) fail(ctx context.Context, l lease, now time.Time, err error) error {
	shown := p.shown
	if shown.Plan == nil {
		shown.Plan = emptyPlan(now)
	} else {
		old := *shown.Plan
		shown.Plan = &old
	}
	if shown.Plan.Waiting == "" && shown.Plan.Error == err.Error() && !p.owed {
		return err
	}
	shown.Plan.Error, shown.Plan.Waiting = err.Error(), ""
	return errors.Join(err, p.publish(ctx, l, shown))
}

// compute begins a review beside the loop, which goes on meanwhile. A forecast cannot be cut
// short: when ctx ends it is left to end by itself, and what comes of it is dropped.
func (p *planner) compute(ctx context.Context, o observation, now time.Time) {
	options := plan.ReviewOptions{Notes: o.Notes, RTT: o.RTT, Interrupt: func() bool { return ctx.Err() != nil }, Now: time.Now}
	if p.offers != nil {
		options.Prices = MachinePrices(p.offers())
	}
	making, ready := make(chan outcome, 1), p.ready
	p.making = making
	go func() {
		made, err := plan.Review(o.Spec, o.Counts, o.history, now, options)
		making <- outcome{now, o.Observed, o.history.Minutes, made, err}
		ready()
	}()
}

// watch holds the load since the review against its forecast, and publishes what
// that changes.
func (p *planner) watch(ctx context.Context, l lease, now time.Time, o observation) error {
	if p.owed {
		return p.publish(ctx, l, p.shown)
	}
	if p.made == nil || len(p.made.Loads) == 0 || o.history == nil || o.from > p.made.Proposal.At.Unix()/60 {
		return o.err
	}
	next := p.shown
	next.Forecast = append([]telemetry.LoadForecast{}, p.shown.Forecast...)
	changed := false
	for i, d := range p.made.Watch(o.history, now.Add(-minuteSettles)) {
		if next.Forecast[i].Left == d.Words {
			continue
		}
		if d.Kind != forecast.NoDeparture && next.Forecast[i].Left == "" {
			p.log.Warn("load left its forecast", "model", next.Forecast[i].Model, "region", next.Forecast[i].Region, "how", d.Words)
		}
		next.Forecast[i].Left, changed = d.Words, true
	}
	if !changed {
		return nil
	}
	return p.publish(ctx, l, next)
}

// publish keeps a review in the store, where balancers hear of it.
func (p *planner) publish(ctx context.Context, l lease, r telemetry.Review) error {
	r.Token = l.Token()
	p.shown, p.owed = r, true
	if err := keep(ctx, l, p.state, telemetry.ReviewKey(p.service), r); err != nil {
		return fmt.Errorf("publishing the review: %w", err)
	}
	p.owed = false
	return nil
}

// emptyPlan says nothing, of the time at.
func emptyPlan(at time.Time) *telemetry.PlanSummary {
	return &telemetry.PlanSummary{At: at.UTC(), Changes: []telemetry.PlanChange{}, Assumed: []string{}, Infeasible: []string{}}
}

// summaryOfReview is a review as it is published.
func summaryOfReview(v *plan.Reviewed) telemetry.Review {
	out := telemetry.Review{Forecast: []telemetry.LoadForecast{}, Plan: emptyPlan(*v.Proposal.At), Targets: publishedTargets(v), Prices: []telemetry.Price{}}
	for _, p := range v.Prices() {
		out.Prices = append(out.Prices, telemetry.Price(p))
	}
	for i := range v.Loads {
		out.Forecast = append(out.Forecast, forecastOf(&v.Loads[i]))
	}
	out.Plan.Status = string(v.Proposal.Status)
	out.Plan.CostPerHour = telemetry.PlanCost(v.Proposal.CostPerHour)
	out.Plan.Assumed, out.Plan.Infeasible = v.Proposal.Assumed, v.Proposal.Infeasible
	for _, c := range v.Proposal.Changes {
		if c.Delta != 0 {
			out.Plan.Changes = append(out.Plan.Changes, summaryOf(c))
		}
	}
	return out
}

func summaryOf(c plan.Change) telemetry.PlanChange {
	out := telemetry.PlanChange{Model: c.Model, Region: service.Region(c.Region), GPU: c.GPU, Now: c.Now, Delta: c.Delta, Then: c.Then, Reason: c.Reason}
	if c.Capacity != nil {
		out.Capacity = service.CapacityType(*c.Capacity)
	}
	return out
}

// forecastOf is a forecast in a few steps, in tokens a second.
func forecastOf(l *plan.Load) telemetry.LoadForecast {
	f := l.Forecast
	return telemetry.LoadForecast{
		Model: l.Model, Region: l.Region, Forecaster: f.Model, At: l.From(), StepSeconds: l.Step().Seconds(),
		MeanTPS: l.PerStep(f.Mean), Lo90TPS: l.PerStep(f.Lo90), Hi90TPS: l.PerStep(f.Hi90),
		Peak: telemetry.Peak{
			Mean: l.PerSecond(f.Peaks.Mean), P05: l.PerSecond(f.Peaks.P05), P50: l.PerSecond(f.Peaks.P50),
			P90: l.PerSecond(f.Peaks.P90), P95: l.PerSecond(f.Peaks.P95), P99: l.PerSecond(f.Peaks.P99),
		},
		Left: l.Left.Words,
	}
}

// MachinePrices is the prices of what regions offer, as far as they are known.
func MachinePrices(offers map[service.Region]provision.Offerings) []plan.MachinePrice {
	var out []plan.MachinePrice
	for _, region := range slices.Sorted(maps.Keys(offers)) {
		for _, o := range offers[region] {
			if o.PricePerHour > 0 {
				out = append(out, plan.MachinePrice{Region: region, GPU: o.GPU, GPUs: o.GPUs, Capacity: o.Capacity, USDPerHour: o.PricePerHour, From: o.PriceFrom})
			}
		}
	}
	return out
}
