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
	// loopInterval is the time between iterations: a third of a strategy's cooldown. Another iteration
	// starts when a cooldown ends. The interval is short enough to launch a replacement within seconds of
	// an interruption notice; the shortest notice is 30 s. Each iteration lists the machines of each region
	// and reads a snapshot of each balancer.
	loopInterval = 5 * time.Second
	// busyInterval is the interval while a change of machines is in progress. When a minute or a cooldown ends or a review
	// is due, the next iteration starts earlier, but not before half of busyInterval has passed.
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

// MachineReconciler observes the machines of a service and reconciles them with the desired state.
type MachineReconciler interface {
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
// scaler on that observation. If replicas were drained, donated or reclaimed, it reconciles the machines
// again. The failover of balancers (runRounds), the alerts and the backups do not belong to it and have their own
// intervals. The loop runs for a term of leadership.
type controlLoop struct {
	machines MachineReconciler   // nil = no machines are managed
	planner  *planner            // nil = planning is disabled
	scaler   *scaler             // nil = scaling is disabled
	records  func(lease) Records // the records of a term
	observe  func(ctx context.Context, sinceMinute int64, history bool) (*Observed, error)
	log      *slog.Logger
	wake     chan struct{} // requests the next iteration immediately

	balancers atomic.Pointer[[]*telemetry.Client] // of all balancers

	historyEnd int64 // settledMinute when the history was last read; 0 = not read in this term
}

// observation is the result of one observation of the balancers.
type observation struct {
	*Observed
	// err is why the observation failed; the other fields are then zero.
	err error
	// history is the traffic from the minute from on; nil in most iterations, which do not read it.
	history *forecast.History
	from    int64 // in minutes since the Unix epoch
}

// newControlLoop returns a loop that observes a service through the admin APIs of balancers. setBalancers sets them.
func newControlLoop(log *slog.Logger) *controlLoop {
	loop := &controlLoop{log: log, wake: make(chan struct{}, 1)}
	loop.observe = func(ctx context.Context, since int64, history bool) (*Observed, error) {
		return Observe(ctx, *loop.balancers.Load(), since, history)
	}
	return loop
}

// setBalancers sets the balancers that the next iteration observes.
func (loop *controlLoop) setBalancers(balancers []service.ControlledBalancer, hc *http.Client) {
	var admins []*telemetry.Client
	for _, b := range balancers {
		admins = append(admins, telemetry.NewClient(b.Admin, hc))
	}
	loop.balancers.Store(&admins)
}

// trigger requests an immediate iteration and a review (see requestReview). It is called when a reloaded configuration is
// applied, because its replicas may have changed.
func (loop *controlLoop) trigger() {
	if loop.planner != nil {
		loop.planner.requestReview()
	}
	select {
	case loop.wake <- struct{}{}:
	default: // already requested
	}
}

// runLoop runs iterations until ctx ends, which happens when this controller's leadership ends.
// Failures are logged and retried.
func (loop *controlLoop) runLoop(ctx context.Context, l lease) {
	loop.historyEnd = 0
	if loop.planner != nil {
		loop.planner.startTerm(ctx, func() { // the next iteration starts now, and publishes the completed plan
			select {
			case loop.wake <- struct{}{}:
			default:
			}
		})
	}
	if loop.scaler != nil {
		loop.scaler.startTerm()
	}
	if loop.machines != nil {
		defer loop.machines.Wait()
	}
	if m, ok := loop.machines.(RecordsConsumer); ok {
		m.UseRecords(loop.records(l))
	}
	contexts := leaseContexts{term: ctx, l: l}
	defer contexts.stop()
	for ctx.Err() == nil {
		next := busyInterval
		if held := contexts.next(); held.Err() == nil {
			next = loop.runOnce(held, l)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-loop.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// runOnce runs one iteration and returns the time until the next. Changes in progress are cancelled when ctx
// ends.
func (loop *controlLoop) runOnce(ctx context.Context, l lease) (next time.Duration) {
	next = loopInterval
	if loop.machines != nil && loop.machines.Reconcile(ctx, leadershipCheck(ctx, l)) {
		next = busyInterval
	}
	if loop.planner == nil && loop.scaler == nil {
		return next
	}
	now := time.Now()
	o := loop.observeService(ctx, now)
	if ctx.Err() != nil {
		return next
	}
	next = min(next, max(untilSettled(now), busyInterval/2))
	if loop.planner != nil {
		loop.planner.logError(loop.planner.stepPlanner(ctx, l, now, o))
		next = min(next, max(loop.planner.untilNextReview(now), busyInterval/2))
	}
	if loop.scaler != nil {
		loop.scaler.logError(loop.scaler.stepScaler(ctx, l, now, o))
		next = min(next, max(loop.scaler.untilCooldownEnds(now), busyInterval/2))
		if loop.scaler.servingChanged && loop.machines != nil { // balancers receive the change now, not after the next observation
			if loop.machines.Reconcile(ctx, leadershipCheck(ctx, l)) {
				next = min(next, busyInterval)
			}
		}
		if loop.scaler.startedFromZero { // requests wait, and the next iteration delivers the replica's configuration
			next = min(next, busyInterval)
		}
	}
	return next
}

// observeService reads the replicas from the balancers, and the traffic when the planner or the
// scaler needs it.
func (loop *controlLoop) observeService(ctx context.Context, now time.Time) observation {
	since, wanted := loop.historySince(now)
	observed, err := loop.observe(ctx, since, wanted)
	if err != nil {
		return observation{err: err}
	}
	o := observation{Observed: observed}
	if wanted {
		if o.history, err = observed.History(now); err != nil {
			return observation{err: err}
		}
		o.from, loop.historyEnd = since, settledMinute(now)
	}
	return o
}

// historySince returns the first minute of the history that planner or scaler need now; false where
// neither does.
func (loop *controlLoop) historySince(now time.Time) (minute int64, wanted bool) {
	if loop.scaler != nil && loop.scaler.strategy != nil && settledMinute(now) != loop.historyEnd {
		minute, wanted = settledMinute(now)-plan.ObservedMinutes, true
	}
	if loop.planner != nil {
		if from, needs := loop.planner.historySince(now, settledMinute(now) != loop.historyEnd); needs && (!wanted || from < minute) {
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

// shouldLog reports whether an error should be logged: it differs from the last one and is neither a
// cancellation nor ErrBusy.
func (e *errorOnce) shouldLog(err error) bool {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrBusy) {
		text = err.Error()
	}
	differs := text != "" && text != e.last
	e.last = text
	return differs
}
