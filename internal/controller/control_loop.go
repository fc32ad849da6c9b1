package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// The intervals of the control loop, with their reasons.
const (
	// loopInterval is a third of a strategy's cooldown, at whose end an iteration starts in any case. It is
	// short enough to launch a replacement within seconds of an interruption notice; the shortest notice is
	// 30 s. Each iteration lists the machines of each region and reads a snapshot of each balancer.
	loopInterval = 5 * time.Second
	// busyInterval is the interval while a change of machines is in progress. Half of it is the
	// minimum interval while a review is due.
	busyInterval = time.Second
	// observeTimeout is the timeout for querying the balancers. A later response would be too old to
	// decide on.
	observeTimeout = 3 * time.Second
	// historyTimeout is the timeout for reading the history. Reading two weeks of minutes is much
	// faster.
	historyTimeout = 30 * time.Second
	// minuteDelay is the time after the end of a minute by which all balancers have stored it.
	minuteDelay = 15 * time.Second
)

// Machines observes the machines of a service and reconciles them with the desired state.
type Machines interface {
	// Reconcile observes the machines once and applies the necessary changes. It calls checkLeadership
	// before each change; when that returns an error, no change is allowed any more. Failures are logged
	// and retried by the next call. busy means that a change is in progress, so that the next call should
	// follow soon.
	Reconcile(ctx context.Context, checkLeadership func() error) (busy bool)
	// Wait returns once everything that a Reconcile started has ended. It is called after ctx has
	// ended.
	Wait()
}

// controlLoop is the controller's control loop. An iteration first reconciles the machines, which
// makes its own observation. It then observes the balancers once and runs the planner and the
// scaler on that observation. If replicas were donated or reclaimed, it reconciles the machines
// again. Only the failover of balancers has its own interval (see round.go). The loop runs for a
// term of leadership.
type controlLoop struct {
	machines Machines            // nil = no machines are managed
	planner  *planner            // nil = planning is disabled
	scaler   *scaler             // nil = scaling is disabled
	records  func(lease) Records // the records of a term
	observe  func(ctx context.Context, sinceMinute int64, history bool) (*Observed, error)
	log      *slog.Logger
	wake     chan struct{} // requests the next iteration immediately

	balancers atomic.Pointer[[]*telemetry.Client] // of all balancers

	minute int64 // settledMinute at the last reading of the history, which ends before this minute
}

// observation is the result of one observation of the balancers.
type observation struct {
	*Observed
	// err is why the observation failed; the other fields are then zero.
	err error
	// history is the traffic since from, in minutes since the Unix epoch; nil in most iterations,
	// which do not read it.
	history *forecast.History
	from    int64
}

// newControlLoop returns a loop that observes a service through the admin APIs of the balancers of setBalancers.
func newControlLoop(log *slog.Logger) *controlLoop {
	r := &controlLoop{log: log, wake: make(chan struct{}, 1)}
	r.observe = func(ctx context.Context, since int64, history bool) (*Observed, error) {
		return Observe(ctx, *r.balancers.Load(), since, history)
	}
	return r
}

// setBalancers sets the balancers that the next iteration observes.
func (r *controlLoop) setBalancers(balancers []service.ControlledBalancer, hc *http.Client) {
	var admins []*telemetry.Client
	for _, b := range balancers {
		admins = append(admins, telemetry.NewClient(b.Admin, hc))
	}
	r.balancers.Store(&admins)
}

// trigger requests a review and an immediate iteration, because replicas were changed.
func (r *controlLoop) trigger() {
	if r.planner != nil {
		r.planner.requestReview()
	}
	select {
	case r.wake <- struct{}{}:
	default: // already requested
	}
}

// runLoop runs iterations until ctx ends, which happens when this controller's leadership ends.
// Failures are logged and retried.
func (r *controlLoop) runLoop(ctx context.Context, l lease) {
	r.minute = 0
	if r.planner != nil {
		r.planner.startTerm(ctx, func() { // publishes a completed plan immediately
			select {
			case r.wake <- struct{}{}:
			default:
			}
		})
	}
	if r.scaler != nil {
		r.scaler.startTerm()
	}
	if r.machines != nil {
		defer r.machines.Wait()
	}
	if m, ok := r.machines.(RecordUser); ok {
		m.UseRecords(r.records(l))
	}
	changes := changeContexts{term: ctx, l: l}
	defer changes.stop()
	for ctx.Err() == nil {
		next := busyInterval
		if held := changes.next(); held.Err() == nil {
			next = r.runOnce(held, l)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// runOnce runs one iteration and returns the time until the next. Its changes end with ctx.
func (r *controlLoop) runOnce(ctx context.Context, l lease) (next time.Duration) {
	next = loopInterval
	if r.machines != nil && r.machines.Reconcile(ctx, mayAct(ctx, l)) {
		next = busyInterval
	}
	if r.planner == nil && r.scaler == nil {
		return next
	}
	now := time.Now()
	o := r.observeService(ctx, now)
	if ctx.Err() != nil {
		return next
	}
	next = min(next, max(untilSettled(now), busyInterval/2))
	if r.planner != nil {
		r.planner.logError(r.planner.stepPlanner(ctx, l, now, o))
		next = min(next, max(r.planner.untilNextReview(now), busyInterval/2))
	}
	if r.scaler != nil {
		r.scaler.logError(r.scaler.stepScaler(ctx, l, now, o))
		next = min(next, max(r.scaler.untilCooldownEnds(now), busyInterval/2))
		if r.scaler.attached && r.machines != nil { // balancers receive the change now, not after the next observation
			if r.machines.Reconcile(ctx, mayAct(ctx, l)) {
				next = min(next, busyInterval)
			}
		}
		if r.scaler.started { // requests wait, and the next iteration delivers the replica's configuration
			next = min(next, busyInterval)
		}
	}
	return next
}

// observeService reads the replicas from the balancers, and the traffic when the planner or the
// scaler needs it.
func (r *controlLoop) observeService(ctx context.Context, now time.Time) observation {
	since, wanted := r.historySince(now)
	observed, err := r.observe(ctx, since, wanted)
	if err != nil {
		return observation{err: err}
	}
	o := observation{Observed: observed}
	if wanted {
		if o.history, err = observed.Traffic(now); err != nil {
			return observation{err: err}
		}
		o.from, r.minute = since, settledMinute(now)
	}
	return o
}

// historySince returns the first minute of the history that planner or scaler need now; false where
// neither does.
func (r *controlLoop) historySince(now time.Time) (minute int64, wanted bool) {
	if r.scaler != nil && r.scaler.strategy != nil && settledMinute(now) != r.minute {
		minute, wanted = settledMinute(now)-plan.ObservedMinutes, true
	}
	if r.planner != nil {
		if from, needs := r.planner.historySince(now, settledMinute(now) != r.minute); needs && (!wanted || from < minute) {
			minute, wanted = from, true
		}
	}
	return minute, wanted
}

// settledMinute returns the minute before which all minutes are stored.
func settledMinute(now time.Time) int64 { return now.Add(-minuteDelay).Unix() / 60 }

// untilSettled returns the time until settledMinute changes.
func untilSettled(now time.Time) time.Duration {
	return time.Unix(60*(settledMinute(now)+1), 0).Add(minuteDelay).Sub(now)
}

// errorOnce stores the last logged error, so that an unchanged error is logged once.
type errorOnce struct{ last string }

// changed reports whether an error should be logged: it differs from the last one and is neither a
// cancellation nor ErrBusy.
func (e *errorOnce) changed(err error) bool {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrBusy) {
		text = err.Error()
	}
	differs := text != "" && text != e.last
	e.last = text
	return differs
}
