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

// The planner's intervals. The service's autoscale.every is the interval between reviews.
const (
	// firstReviewRetry is the interval between reviews while the history is empty or has only one minute.
	// Balancers store their counts at the same interval.
	firstReviewRetry = 10 * time.Second
	// reviewRetry is the interval after a failed review. It is long because a review is expensive to compute.
	reviewRetry = 5 * time.Minute
	// observeRetry is the interval after the first failure to observe the service; it doubles up to
	// reviewRetry.
	observeRetry = time.Second
	// startGrace is the time after the start of a term in which balancers that do not respond count
	// as starting. A machine boots in much less than this time.
	startGrace = 2 * time.Minute
	// changeDelay is how long balancers take to report added or removed replicas.
	changeDelay = 10 * time.Second
	// reviewLookback is the history of a review: two weeks, so that it contains each weekday twice.
	reviewLookback = 14 * 24 * time.Hour
)

// planner reviews the service at the interval autoscale.every, and compares each load with its
// forecast every minute. A review (plan.Review) forecasts the loads and makes a plan for them. Balancers and the scaler
// receive its published form, telemetry.Review. The newest review is kept when a term of leadership ends; the time of the
// next one and a running review are not.
type planner struct {
	service     string
	kv          kvStore
	log         *slog.Logger
	logged      errorOnce
	source      OfferingSource        // nil = offerings and reservations are unknown
	recordEvent func(telemetry.Event) // records an event of the service
	replan      atomic.Bool           // review soon, because the running replicas have changed

	// inForce, computed, published and recorded contain the newest review, each for another use. They differ after a
	// failure and at the start of a term. inForce is the review that the strategy follows; it is shared with the scaler.
	inForce *reviewInForce
	// computed is the result of the newest review that this controller computed, with which it checks the forecasts; nil
	// before the first, and while inForce is a stored review.
	computed *plan.ReviewResult
	// published is what balancers display: the review with deviations from its forecasts, and with the reason why planning
	// waits or fails.
	published telemetry.Review
	pending   bool // published has not been written to the store
	// recorded is the review with which the next one is compared: if both plan the same capacity, no new event is
	// recorded. If it is nil, the next review has an event in any case: at first, and after planning has failed.
	recorded *telemetry.Review

	every      time.Duration        // autoscale.every at the last review
	backlog    map[string]bool      // the batches in the last review
	next       time.Time            // when the next review is due
	retry      time.Duration        // the last interval after a failure to observe; 0 = no failure
	termStart  time.Time            // start of this term
	graceEnded bool                 // all balancers have responded in this term, or startGrace is over
	ended      func() bool          // reports whether the term has ended
	ready      func()               // called when a running review completes
	running    chan completedReview // nil = no review is running
}

// completedReview is a completed or failed review.
type completedReview struct {
	at       time.Time // start
	observed *Observed
	minutes  int // of history
	review   *plan.ReviewResult
	err      error
}

// newPlanner returns the planner of a service.
func newPlanner(config service.ControllerConfig, st kvStore, review *reviewInForce, log *slog.Logger) *planner {
	return &planner{service: config.Service, kv: st, log: log, inForce: review, recordEvent: func(telemetry.Event) {}}
}

// requestReview requests a review soon, unless a strategy scales the service. With
// such a strategy, the plan in force stays valid until its end: the strategy's own changes do not require another plan.
func (p *planner) requestReview() {
	if r := p.inForce.get(); r == nil || !scalesAutomatically(r.Strategy) {
		p.replan.Store(true)
	}
}

// scalesAutomatically reports whether a strategy changes the number of replicas, with the plan or, as reactive does,
// without it: see plan.UsesPlan.
func scalesAutomatically(strategy string) bool {
	return strategy != "" && strategy != service.StrategyManual
}

// startTerm starts a term of leadership; ready is called from another goroutine when a review
// completes. It logs errors of reading the stored review.
func (p *planner) startTerm(ctx context.Context, ready func()) {
	p.ended, p.recorded = func() bool { return ctx.Err() != nil }, nil
	p.next = time.Time{} // due now: meanwhile another controller may have planned from other counts
	p.termStart, p.graceEnded, p.retry, p.running, p.ready = time.Now(), false, 0, nil, ready
	p.logError(p.loadStoredReview(ctx))
	p.replan.Store(false) // a review is due now, or a strategy scales the service: see requestReview
}

// untilNextReview returns the time until the next review; reviewRetry while a review is running.
func (p *planner) untilNextReview(now time.Time) time.Duration {
	if p.running != nil {
		return reviewRetry
	}
	return p.next.Sub(now)
}

// historySince returns the first minute of the history that the planner needs now; false where it needs
// none. newMinute is true until the history has been read in the current minute.
func (p *planner) historySince(now time.Time, newMinute bool) (minute int64, needed bool) {
	switch {
	case p.running != nil:
		return 0, false
	case !now.Before(p.next):
		return now.Add(-reviewLookback).Unix() / 60, true
	case newMinute && p.computed != nil:
		return p.computed.Proposal.At.Add(-time.Minute).Unix() / 60, true
	}
	return 0, false
}

// stepPlanner reviews the service when a review is due, and otherwise compares the load with its forecast.
func (p *planner) stepPlanner(ctx context.Context, l lease, now time.Time, o observation) error {
	if p.replan.Swap(false) {
		p.next = now.Add(changeDelay)
	}
	if soon := now.Add(changeDelay); p.running == nil && p.next.After(soon) && p.hasNewBacklog(o) {
		p.next = soon
	}
	if p.running != nil {
		select {
		case out := <-p.running:
			p.running = nil
			return p.finishReview(ctx, l, now, out)
		default:
			return nil
		}
	}
	if !now.Before(p.next) && (o.err != nil || o.history != nil) {
		return p.startReview(ctx, l, now, o)
	}
	return p.checkForecasts(ctx, l, now, o)
}

// hasNewBacklog reports whether a batch that is due before the end of the next plan is missing in the last review.
func (p *planner) hasNewBacklog(o observation) bool {
	return o.err == nil && o.Observed != nil && slices.ContainsFunc(o.Backlog, func(b plan.Backlog) bool {
		return !p.backlog[b.Batch] && b.Deadline.Before(p.next.Add(p.every))
	})
}

// loadStoredReview makes the stored review, which another controller may have made, the one in force if a strategy
// scales the service and the review's Until has not passed. In any case the next review is compared with it
// (p.recorded).
func (p *planner) loadStoredReview(ctx context.Context) error {
	data, _, err := p.kv.Get(ctx, telemetry.ReviewKey(p.service))
	if isNotFound(err) {
		return nil
	}
	var r telemetry.Review
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return fmt.Errorf("reading the stored review: %w", err)
	}
	p.recorded = recordedReview(r)
	if !scalesAutomatically(r.Strategy) || !time.Now().Before(r.Until) {
		return nil
	}
	p.published, p.pending, p.computed, p.next = r, false, nil, r.Until
	p.inForce.set(r)
	return nil
}

// logError logs an error once until it changes.
func (p *planner) logError(err error) {
	if p.logged.shouldLog(err) {
		p.log.Warn("planning failed", "err", err)
	}
}

// startReview starts a review of an observation. If balancers do not respond or return errors before startGrace is over, it
// postpones the review and, while there is no plan, publishes that planning waits for balancers. If the observation
// failed otherwise, it publishes the failure, and the last review stays in force.
func (p *planner) startReview(ctx context.Context, l lease, now time.Time, o observation) error {
	failed := errors.Is(o.err, ErrNoBalancerResponds) || o.err == nil && o.Failed > 0
	if failed && !p.graceEnded && now.Before(p.termStart.Add(startGrace)) {
		p.scheduleObserve(now)
		return p.publishWaiting(ctx, l, now)
	}
	if o.err != nil {
		p.scheduleObserve(now)
		return p.publishFailure(ctx, l, now, o.err)
	}
	p.graceEnded, p.retry = true, 0
	if o.history.Minutes == 0 && len(o.Backlog) == 0 && p.computed == nil { // there is nothing to plan from yet
		p.next = now.Add(firstReviewRetry)
		return p.clearWaiting(ctx, l)
	}
	p.every = cmp.Or(o.Spec.Autoscale.Every, time.Hour)
	p.computeReview(o, now)
	return nil
}

// finishReview publishes a completed review, or why it failed, and schedules the next one.
func (p *planner) finishReview(ctx context.Context, l lease, now time.Time, out completedReview) error {
	if out.err != nil {
		p.next = now.Add(reviewRetry)
		return p.publishFailure(ctx, l, now, out.err)
	}
	review := out.review
	p.computed, p.next = review, out.at.Add(plan.NextReviewIn(p.every, out.minutes))
	if review.FirstMinuteOnly() {
		p.next = out.at.Add(min(p.every, firstReviewRetry))
	}
	p.log.Info("plan computed", "status", review.Proposal.Status, "changes", review.Proposal.Changed(), "solve_ms", review.Proposal.SolveMillis)
	published := publishedReview(review)
	continueForecasts(published.Forecast, p.published.Forecast)
	published.Strategy, published.From, published.Until = out.observed.Spec.Autoscale.Strategy, out.at.UTC(), p.next.UTC()
	if published.PlanEvent = published.Plan.At; sameCapacity(p.recorded, &published) {
		published.PlanEvent = p.recorded.PlanEvent
	} else {
		p.recordEvent(planEvent(published.Plan, out.minutes))
	}
	p.recorded = &published
	p.inForce.set(published)
	return p.publishReview(ctx, l, published)
}

// continueForecasts sets EarlierTPS of new forecasts (LoadForecast.After) from the earlier forecasts of the same model and
// region; empty where there is none.
func continueForecasts(next, earlier []telemetry.LoadForecast) {
	for i := range next {
		f := &next[i]
		at := slices.IndexFunc(earlier, func(e telemetry.LoadForecast) bool { return e.Model == f.Model && e.Region == f.Region })
		if at < 0 {
			f.After(nil)
			continue
		}
		f.After(&earlier[at])
	}
}

// scheduleObserve schedules the next observation with exponential backoff.
func (p *planner) scheduleObserve(now time.Time) {
	p.retry = min(max(2*p.retry, observeRetry), reviewRetry)
	p.next = now.Add(p.retry)
}

// publishWaiting publishes that the first plan waits for balancers. It does not replace a published plan.
func (p *planner) publishWaiting(ctx context.Context, l lease, now time.Time) error {
	if p.published.Plan != nil && !p.pending {
		return nil
	}
	if p.published.Plan == nil {
		p.log.Info("planning postponed until balancers respond")
		p.published.Plan = emptyPlan(now)
		p.published.Plan.Waiting = "waiting for balancers"
	}
	return p.publishReview(ctx, l, p.published)
}

// clearWaiting removes the published state of publishWaiting.
func (p *planner) clearWaiting(ctx context.Context, l lease) error {
	if p.published.Plan == nil || p.published.Plan.Waiting == "" {
		return nil
	}
	p.published.Plan = nil
	return p.publishReview(ctx, l, p.published)
}

// publishFailure publishes why there is no newer plan, beside the last plan.
func (p *planner) publishFailure(ctx context.Context, l lease, now time.Time, err error) error {
	next := p.published
	if next.Plan == nil {
		next.Plan = emptyPlan(now)
	} else {
		old := *next.Plan
		next.Plan = &old
	}
	if next.Plan.Waiting == "" && next.Plan.Error == err.Error() && !p.pending {
		return err
	}
	if next.Plan.Error != err.Error() {
		p.recordEvent(telemetry.Event{At: now, Actor: telemetry.ActorController, Kind: telemetry.EventFailure, Object: "plan", Message: "planning failed", Reason: err.Error()})
		p.recorded = nil
	}
	next.Plan.Error, next.Plan.Waiting = err.Error(), ""
	return errors.Join(err, p.publishReview(ctx, l, next))
}

// computeReview runs a review in the background. A forecast cannot be cancelled: when the term ends it runs
// to completion and its result is discarded.
func (p *planner) computeReview(o observation, now time.Time) {
	options := plan.ReviewOptions{Notes: o.Notes, RTT: o.RTT, Backlog: o.Backlog, Interrupt: p.ended, Now: time.Now}
	if p.source != nil {
		options.Prices, options.Reservations = MachinePrices(p.source.Offerings()), ReservationStates(p.source.Reservations())
	}
	p.backlog = map[string]bool{}
	for _, b := range o.Backlog {
		p.backlog[b.Batch] = true
	}
	result, ready := make(chan completedReview, 1), p.ready
	p.running = result
	go func() {
		review, err := plan.Review(o.Spec, o.Counts, o.history, now, options)
		result <- completedReview{now, o.Observed, o.history.Minutes, review, err}
		ready()
	}()
}

// checkForecasts compares the load since the review with its forecast and publishes deviations. The first load of a region
// requires a new review.
func (p *planner) checkForecasts(ctx context.Context, l lease, now time.Time, o observation) error {
	if p.pending {
		return p.publishReview(ctx, l, p.published)
	}
	if p.computed == nil || o.history == nil || o.from > p.computed.Proposal.At.Unix()/60 {
		return o.err
	}
	if p.computed.HasNewLoad(o.history, now.Add(-minuteDelay)) {
		p.next = now
	}
	next := p.published
	next.Forecast = append([]telemetry.LoadForecast{}, p.published.Forecast...)
	changed := false
	for i, d := range p.computed.Deviations(o.history, now.Add(-minuteDelay)) {
		if next.Forecast[i].Deviation == d.Message {
			continue
		}
		if d.Kind != forecast.NoDeviation && next.Forecast[i].Deviation == "" {
			p.log.Warn("load deviates from its forecast", "model", next.Forecast[i].Model, "region", next.Forecast[i].Region, "deviation", d.Message)
		}
		next.Forecast[i].Deviation, changed = d.Message, true
	}
	if !changed {
		return nil
	}
	return p.publishReview(ctx, l, next)
}

// publishReview writes a review to the store, from which balancers read it.
func (p *planner) publishReview(ctx context.Context, l lease, r telemetry.Review) error {
	r.Token = l.Token()
	p.published, p.pending = r, true
	if err := storeValue(ctx, l, p.kv, telemetry.ReviewKey(p.service), r); err != nil {
		return fmt.Errorf("publishing the plan: %w", err)
	}
	p.pending = false
	return nil
}

// emptyPlan returns a plan without content, made at a time.
func emptyPlan(at time.Time) *telemetry.PlanSummary {
	return &telemetry.PlanSummary{At: at.UTC(), Changes: []telemetry.PlanChange{}, Assumed: []string{}, Infeasible: []string{}, OverBudget: []string{}}
}

// publishedReview returns a review in its published form.
func publishedReview(v *plan.ReviewResult) telemetry.Review {
	out := telemetry.Review{Forecast: []telemetry.LoadForecast{}, Plan: emptyPlan(*v.Proposal.At), Targets: plannedCapacity(v), Prices: []telemetry.Price{}}
	for _, p := range v.Prices() {
		out.Prices = append(out.Prices, telemetry.Price(p))
	}
	for i := range v.Forecasts {
		out.Forecast = append(out.Forecast, publishedForecast(&v.Forecasts[i]))
	}
	out.Plan.Status = string(v.Proposal.Status)
	out.Plan.CostPerHour = telemetry.PlanCost(v.Proposal.CostPerHour)
	out.Plan.Assumed, out.Plan.Infeasible = v.Proposal.Assumed, v.Proposal.Infeasible
	out.Plan.BudgetPerHour, out.Plan.OverBudget = v.Proposal.BudgetPerHour, v.Proposal.OverBudget
	for _, c := range v.Proposal.Changes {
		if c.Delta != 0 {
			out.Plan.Changes = append(out.Plan.Changes, publishedChange(c))
		}
	}
	return out
}

func publishedChange(c plan.ReplicaChange) telemetry.PlanChange {
	out := telemetry.PlanChange{Model: c.Model, Region: service.Region(c.Region), GPU: c.GPU, Current: c.Current, Delta: c.Delta, Planned: c.Planned, Reason: c.Reason}
	if c.CapacityType != nil {
		out.Capacity = service.CapacityType(*c.CapacityType)
	}
	return out
}

// publishedForecast returns a forecast in its published form, in tokens per second.
func publishedForecast(l *plan.EndpointForecast) telemetry.LoadForecast {
	f := l.Forecast
	return telemetry.LoadForecast{
		Model: l.Model, Region: l.Region, Forecaster: f.Forecaster, At: l.Start(), StepSeconds: l.TargetStep().Seconds(),
		MeanTPS: l.MeanRates(f.Mean), Lo90TPS: l.MeanRates(f.Lo90), Hi90TPS: l.MeanRates(f.Hi90),
		Peak: telemetry.Peak{
			Mean: l.PerSecond(f.Peaks.Mean), P05: l.PerSecond(f.Peaks.P05), P50: l.PerSecond(f.Peaks.P50),
			P90: l.PerSecond(f.Peaks.P90), P95: l.PerSecond(f.Peaks.P95), P99: l.PerSecond(f.Peaks.P99),
		},
		Deviation: l.Deviation.Message,
	}
}

// MachinePrices returns the known prices of the regions' offerings.
func MachinePrices(offerings map[service.Region]provision.Offerings) []plan.MachinePrice {
	var out []plan.MachinePrice
	for _, region := range slices.Sorted(maps.Keys(offerings)) {
		for _, o := range offerings[region] {
			if o.PricePerHour > 0 {
				out = append(out, plan.MachinePrice{Region: region, GPU: o.GPU, GPUs: o.GPUs, CapacityType: o.Capacity, USDPerHour: o.PricePerHour, Source: o.PriceSource})
			}
		}
	}
	return out
}

// ReservationStates returns the states of the regions' reservations, as plans need them.
func ReservationStates(reported map[service.Region][]provision.Reservation) []plan.ReservationState {
	var out []plan.ReservationState
	for _, region := range slices.Sorted(maps.Keys(reported)) {
		for _, v := range reported[region] {
			out = append(out, plan.ReservationState{Region: region, ID: v.ID, State: v.State, Active: v.Active, Ends: v.Ends, MachinesEnd: v.MachinesEnd()})
		}
	}
	return out
}
