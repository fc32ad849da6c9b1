package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"skyserve/forecast"
	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand"
)

// The reconcile loop's intervals, each with its reason.
const (
	// reconcileEvery is a third of a strategy's cooldown, and lets a replacement be asked for
	// within seconds of a notice, of which the shortest leaves 30 s. It costs a list of machines
	// in each region, and a snapshot of each balancer.
	reconcileEvery = 5 * time.Second
	// busyEvery is the interval while something is on its way, or no balancer has answered yet.
	busyEvery = time.Second
	// observeTimeout bounds asking a balancer for its snapshot, so that what it says is of now.
	observeTimeout = 3 * time.Second
	// historyTimeout bounds asking for a history: weeks of minutes come in far less.
	historyTimeout = 30 * time.Second
	// minuteSettles is how long after a minute's end all balancers have stored it.
	minuteSettles = 15 * time.Second
)

// Machines are those of a service, which are observed and kept as they are wanted.
type Machines interface {
	// Reconcile looks at machines once, and changes what may says may be changed: its error,
	// asked last before each change, means that nothing may be. What fails is logged and tried
	// again by the next call; busy says that something is on its way, so that the next one
	// should come soon.
	Reconcile(ctx context.Context, may func() error) (busy bool)
	// Wait returns once nothing runs any more that a Reconcile began. Its ctx has ended.
	Wait()
}

// reconciler is the controller's loop: it observes the service once, and lets machines, the
// plan and the strategy follow from that, one after the other. Only failover of balancers has
// an interval of its own (see round). It runs for a term of leadership.
type reconciler struct {
	machines Machines // nil = there are none to keep
	planner  *planner // nil = nothing is planned
	scaler   *scaler  // nil = nothing is scaled
	observe  func(ctx context.Context, sinceMinute int64, history bool) (*Observed, error)
	log      *slog.Logger
	kick     chan struct{} // observe soon: what runs was changed

	minute int64 // the last of which a history was asked for
}

// observation is what one look at the balancers gave.
type observation struct {
	*Observed
	// err is why there is none; the others are then zero.
	err error
	// history is what they carried since from, in minutes since the Unix epoch; nil where it was
	// not asked for this time, which is most of the time.
	history *forecast.History
	from    int64
}

// newReconciler observes a service through its balancers' admin APIs.
func newReconciler(admins []*telemetry.Client, log *slog.Logger) *reconciler {
	return &reconciler{log: log, kick: make(chan struct{}, 1), observe: func(ctx context.Context, since int64, history bool) (*Observed, error) {
		return Observe(ctx, admins, since, history)
	}}
}

// soon asks for a turn at once, since what runs was changed.
func (r *reconciler) soon() {
	if r.planner != nil {
		r.planner.again()
	}
	select {
	case r.kick <- struct{}{}:
	default: // it is asked for already
	}
}

// run reconciles until ctx ends, which is when this controller leads no more. Whatever fails is
// logged and tried again.
func (r *reconciler) run(ctx context.Context, l lease) {
	r.minute = 0
	if r.planner != nil {
		r.planner.begin(ctx, func() { // a plan that was made is published at once
			select {
			case r.kick <- struct{}{}:
			default:
			}
		})
	}
	if r.scaler != nil {
		r.scaler.begin()
	}
	if r.machines != nil {
		defer r.machines.Wait()
	}
	for ctx.Err() == nil {
		timer := time.NewTimer(r.reconcile(ctx, l))
		select {
		case <-ctx.Done():
		case <-r.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// reconcile is one turn; it returns when the next one should come.
func (r *reconciler) reconcile(ctx context.Context, l lease) (next time.Duration) {
	next = reconcileEvery
	if r.machines != nil && r.machines.Reconcile(ctx, mayAct(ctx, l)) {
		next = busyEvery
	}
	if r.planner == nil && r.scaler == nil {
		return next
	}
	now := time.Now()
	o := r.look(ctx, now)
	if ctx.Err() != nil {
		return next
	}
	if r.planner != nil {
		r.planner.tell(r.planner.step(ctx, l, now, o))
		next = min(next, max(r.planner.due(now), busyEvery/2))
	}
	if r.scaler != nil {
		r.scaler.tell(r.scaler.step(ctx, l, now, o))
	}
	return next
}

// look asks the balancers for their replicas, and once a minute for what they carried.
func (r *reconciler) look(ctx context.Context, now time.Time) observation {
	since, wanted := r.since(now)
	observed, err := r.observe(ctx, since, wanted)
	if err != nil {
		return observation{err: err}
	}
	o := observation{Observed: observed}
	if wanted {
		if o.history, err = demand.Traffic(observed.Points); err != nil {
			return observation{err: err}
		}
		o.from, r.minute = since, settled(now)
	}
	return o
}

// since is the first minute of the history that somebody needs now; false where nobody does.
func (r *reconciler) since(now time.Time) (minute int64, wanted bool) {
	if r.scaler != nil && r.scaler.strategy != nil && settled(now) != r.minute {
		minute, wanted = settled(now)-observedMinutes, true
	}
	if r.planner != nil {
		if from, needs := r.planner.since(now, settled(now) != r.minute); needs && (!wanted || from < minute) {
			minute, wanted = from, true
		}
	}
	return minute, wanted
}

// settled is the minute before which all minutes are stored.
func settled(now time.Time) int64 { return now.Add(-minuteSettles).Unix() / 60 }

// errorOnce remembers the last error that was logged, so that one is logged once for as long as
// it stays the same.
type errorOnce struct{ last string }

// changed says whether an error is to be logged: another than the last, and none of ending.
func (e *errorOnce) changed(err error) bool {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrBusy) {
		text = err.Error()
	}
	differs := text != "" && text != e.last
	e.last = text
	return differs
}
