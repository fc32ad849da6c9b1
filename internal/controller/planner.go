package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// The planner's rhythm. The service's autoscale.every says how often it reviews.
const (
	// firstLook is how often a history is looked for before the first review:
	// balancers store what they counted as often.
	firstLook = 10 * time.Second
	// watchEvery is how often the load is held against its forecast.
	watchEvery = time.Minute
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
	// minuteSettles is how long after a minute's end all balancers have stored it.
	minuteSettles = 15 * time.Second
	// lookTimeout bounds asking the balancers: a day of minutes comes in far less.
	lookTimeout = 30 * time.Second
	// reviewLookback is the history that a review is made from: two weeks, so that
	// each day of the week was seen twice.
	reviewLookback = 14 * 24 * time.Hour
	// publishedSteps is how many steps of a forecast are published: every balancer
	// hands them to everyone who looks.
	publishedSteps = 12
)

// planner reviews the service by the hour, and says by the minute which loads left
// their forecast. It runs within a tenure, and what it knows outlives one.
type planner struct {
	service string
	state   state
	observe func(ctx context.Context, sinceMinute int64) (*Observed, error)
	log     *slog.Logger
	kick    chan struct{} // review soon: what stands has changed
	force   *inForce
	offers  func() map[service.Region]provision.Offerings // nil = nobody knows any

	made  *Reviewed // the newest; nil before the first, and while that of another controller holds
	every time.Duration
	next  time.Time        // when the next is due
	retry time.Duration    // the last wait after a failure to observe; 0 = it did not fail
	began time.Time        // when this term began
	met   bool             // all balancers answered in this term
	shown telemetry.Review // what balancers are to show
	owed  bool             // shown is not in the store yet
	said  string           // the last error logged
}

// newPlanner makes a planner that asks balancers through admins.
func newPlanner(config service.ControllerConfig, admins []*telemetry.Client, st state, force *inForce, log *slog.Logger) *planner {
	return &planner{
		service: config.Service, state: st, log: log, kick: make(chan struct{}, 1), force: force,
		observe: func(ctx context.Context, since int64) (*Observed, error) { return Observe(ctx, admins, since, true) },
	}
}

// again asks for a review soon. A plan that a strategy carries out holds for its
// time: what the strategy changes is no reason for another.
func (p *planner) again() {
	if r := p.force.get(); r == nil || !paced(r.Strategy) {
		nudge(p.kick)
	}
}

// nudge makes whoever waits for kick go on.
func nudge(kick chan struct{}) {
	select {
	case kick <- struct{}{}:
	default: // it is asked for already
	}
}

// paced tells whether a strategy carries plans out by itself.
func paced(strategy string) bool { return strategy != "" && strategy != service.StrategyManual }

// run reviews and watches until ctx ends. Whatever fails is told and tried again.
func (p *planner) run(ctx context.Context, l lease) {
	p.next = time.Time{} // another controller may have planned meanwhile, of other counts
	p.began, p.met, p.retry = time.Now(), false, 0
	p.tell(p.adopt(ctx))
	for {
		p.tell(p.turn(ctx, l))
		wait := min(watchEvery, max(time.Until(p.next), 0))
		if p.next.IsZero() {
			wait = firstLook
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.kick:
			timer.Stop()
			p.next = time.Now().Add(changeSettles)
		case <-timer.C:
		}
	}
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
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != "" && text != p.said {
		p.log.Warn("planning", "err", err)
	}
	p.said = text
}

// turn reviews when that is due, and else watches; what is new is published.
func (p *planner) turn(ctx context.Context, l lease) error {
	now := time.Now()
	if !now.Before(p.next) {
		return p.review(ctx, l, now)
	}
	return p.watch(ctx, l, now)
}

// look asks the balancers for the service and its history since a time.
func (p *planner) look(ctx context.Context, since time.Time) (*Observed, *telemetry.History, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	o, err := p.observe(ctx, since.Unix()/60)
	if err != nil {
		return nil, nil, err
	}
	h, err := telemetry.NewHistory(o.Points)
	return o, h, err
}

// review makes a review and publishes it. One that fails leaves the last one
// standing, with the reason why there is no newer.
func (p *planner) review(ctx context.Context, l lease, now time.Time) error {
	o, h, err := p.look(ctx, now.Add(-reviewLookback))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	starting := !p.met && now.Before(p.began.Add(startGrace))
	if starting && (errors.Is(err, ErrNoBalancerAnswers) || err == nil && o.Silent > 0) {
		p.observeAgain(now)
		return p.showWaiting(ctx, l, now)
	}
	if err != nil {
		p.observeAgain(now)
		return p.fail(ctx, l, now, err)
	}
	p.met, p.retry = true, 0
	if h.Minutes == 0 && p.made == nil { // there is nothing to plan from yet
		p.next = time.Time{}
		return p.clearWaiting(ctx, l)
	}
	p.every = cmp.Or(o.Spec.Autoscale.Every, time.Hour)
	made, err := p.compute(ctx, o, h, now)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		p.next = now.Add(retryAfter)
		return p.fail(ctx, l, now, err)
	}
	// What is learned from a short history is soon outdated: the next look comes when
	// there is twice as much of it.
	p.made, p.next = made, now.Add(min(p.every, max(watchEvery, time.Duration(h.Minutes)*time.Minute)))
	p.log.Info("reviewed", "status", made.Proposal.Status, "changes", made.Proposal.Changed(), "solve_ms", made.Proposal.SolveMillis)
	summary := made.summary()
	summary.Strategy, summary.From, summary.Until = o.Spec.Autoscale.Strategy, now.UTC(), p.next.UTC()
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

// compute makes a review apart from ctx: a forecast cannot be cut short, so when ctx
// ends it is left to end by itself, and its outcome is dropped.
func (p *planner) compute(ctx context.Context, o *Observed, h *telemetry.History, now time.Time) (*Reviewed, error) {
	type outcome struct {
		made *Reviewed
		err  error
	}
	options := ReviewOptions{
		Horizon: max(time.Hour, p.every), Notes: o.Notes, RTT: o.RTT, Interrupt: func() bool { return ctx.Err() != nil },
	}
	if p.offers != nil {
		options.Offers = p.offers()
	}
	done := make(chan outcome, 1)
	go func() {
		made, err := Review(o.Spec, o.Counts, h, now, options)
		done <- outcome{made, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case out := <-done:
		return out.made, out.err
	}
}

// watch holds the load since the review against its forecast, and publishes what
// that changes.
func (p *planner) watch(ctx context.Context, l lease, now time.Time) error {
	if p.owed {
		return p.publish(ctx, l, p.shown)
	}
	if p.made == nil || len(p.made.Loads) == 0 {
		return nil
	}
	_, h, err := p.look(ctx, p.made.Proposal.At.Add(-time.Minute))
	if err != nil {
		return err
	}
	next := p.shown
	next.Forecast = append([]telemetry.LoadForecast{}, p.shown.Forecast...)
	changed := false
	for i, d := range p.made.Watch(h, now.Add(-minuteSettles)) {
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

// summary is a review as it is published.
func (v *Reviewed) summary() telemetry.Review {
	out := telemetry.Review{Forecast: []telemetry.LoadForecast{}, Plan: emptyPlan(*v.Proposal.At), Targets: v.targets(), Prices: v.made.shownPrices()}
	for _, l := range v.Loads {
		out.Forecast = append(out.Forecast, l.summary())
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
	return telemetry.PlanChange{Model: c.Model, Region: service.Region(c.Region), GPU: c.GPU, Now: c.Now, Delta: c.Delta, Then: c.Then, Reason: c.Reason}
}

// summary is a forecast in a few steps, in tokens a second.
func (l Load) summary() telemetry.LoadForecast {
	f := l.Forecast
	minutes := (len(f.Mean) + publishedSteps - 1) / publishedSteps
	return telemetry.LoadForecast{
		Model: l.Model, Region: l.Region, Forecaster: f.Model,
		At: time.Unix(l.first*60, 0).UTC(), StepSeconds: 60 * float64(minutes),
		MeanTPS: coarse(f.Mean, minutes), Lo90TPS: coarse(f.Lo90, minutes), Hi90TPS: coarse(f.Hi90, minutes),
		Peak: telemetry.Peak{
			Mean: f.Peaks.Mean / 60, P05: f.Peaks.P05 / 60, P50: f.Peaks.P50 / 60, P90: f.Peaks.P90 / 60, P95: f.Peaks.P95 / 60, P99: f.Peaks.P99 / 60,
		},
		Left: l.Left.Words,
	}
}

// coarse is the means of each n values, which are a minute's, a second.
func coarse(values []float64, n int) []float64 {
	out := []float64{}
	for len(values) > 0 {
		k := min(n, len(values))
		var sum float64
		for _, v := range values[:k] {
			sum += v
		}
		out = append(out, sum/float64(k)/60)
		values = values[k:]
	}
	return out
}
