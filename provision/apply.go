package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// defaultParallel is the maximum number of concurrent changes: enough to launch a service of
// many regions at once, few enough for a small machine or a cloud's rate limit.
const defaultParallel = 16

// ChangePhase is the progress of one change.
type ChangePhase string

// The phases of a change. A change that has not started has no phase.
const (
	PhaseStarted ChangePhase = "started"
	PhaseDone    ChangePhase = "done"
	PhaseFailed  ChangePhase = "failed"
)

// ProgressFunc receives every phase of every change; err is set for PhaseFailed. Calls never overlap.
type ProgressFunc func(c Change, p ChangePhase, err error)

// ApplyOptions configures Apply; the zero value is usable.
type ApplyOptions struct {
	// Parallel is the maximum number of concurrent changes; 0 means 16.
	Parallel int
	// Progress is called for every phase of every change; nil disables progress reports.
	Progress ProgressFunc
	// WaitReady blocks until a replacement is ready; the next stage waits for it. A replacement that was launched
	// before the old object was terminated, and does not become ready, is terminated. nil means that a launched object
	// counts as ready.
	WaitReady func(ctx context.Context, o Object) error
	// Reload makes a running object load the configuration of w, which is already in its file.
	// ErrCannotReload, or a nil Reload, means that the object must be replaced. Any other error means
	// that the object rejected the configuration and keeps running with the previous one.
	Reload func(ctx context.Context, w Desired) error
	// Now is the clock by which entries of Exhausted expire; nil means time.Now.
	Now func() time.Time
	// Exhausted contains the offerings that recently had no capacity. Apply adds to it. nil means that
	// none is known.
	Exhausted *ExhaustedOfferings
	// Gate admits launches within bounds; nil admits all.
	Gate *LaunchGate
	// Drain is called before a running object is terminated or replaced. It returns when the object has no
	// requests in flight. It cannot prevent the termination. nil means that objects are not drained.
	Drain func(ctx context.Context, o Object)
	// Surge returns the replacement to launch before the old object is terminated. The old object is drained and
	// terminated once the replacement is ready. If both cannot run at the same time, or would exceed a limit, Surge
	// returns nil, and the old object is terminated first. Calls never overlap. A nil Surge always terminates the
	// old object first.
	Surge func(ctx context.Context, c Change) (*Replacement, error)
}

// Replacement takes the place of an object that still runs.
type Replacement struct {
	// Desired is the object to launch: with the id of the old one or, if that must be unique, with another id.
	Desired Desired
	// Running is set if an earlier run has launched it; Desired is not launched then.
	Running *Object
}

// ApplyResult reports what Apply did.
type ApplyResult struct {
	Done    Changes
	Failed  Changes
	Skipped Changes // not started, because an earlier change failed or the context ended
}

// Apply executes changes stage by stage; the changes of one stage run concurrently. When a change
// fails, the rest of its stage completes and the following stages are skipped: a rolling change must
// not continue past a failure. The error joins all failures. To continue, call Apply again with a new
// Diff.
func Apply(ctx context.Context, changes Changes, p Provider, o ApplyOptions) (ApplyResult, error) {
	a := &applier{provider: p, opt: o, slots: make(chan struct{}, max(1, cmp.Or(o.Parallel, defaultParallel)))}
	if a.opt.Now == nil {
		a.opt.Now = time.Now
	}
	if a.opt.Exhausted == nil {
		a.opt.Exhausted = &ExhaustedOfferings{}
	}
	for begin := 0; begin < len(changes); {
		end := begin
		for end < len(changes) && changes[end].Stage == changes[begin].Stage {
			end++
		}
		if len(a.errs) > 0 || ctx.Err() != nil {
			a.result.Skipped = append(a.result.Skipped, changes[begin:]...)
			break
		}
		a.applyStage(ctx, changes[begin:end])
		begin = end
	}
	if len(a.errs) == 0 && len(a.result.Skipped) > 0 {
		a.errs = append(a.errs, context.Cause(ctx))
	}
	return a.result, errors.Join(a.errs...)
}

// applier is one run of Apply.
type applier struct {
	provider Provider
	opt      ApplyOptions
	slots    chan struct{}
	result   ApplyResult // result and errs are used only by the goroutine that runs Apply
	errs     []error

	mu sync.Mutex // guards opt.Exhausted, and serializes calls of Progress and Surge
}

// applyStage executes changes concurrently and returns when all have ended.
func (a *applier) applyStage(ctx context.Context, changes Changes) {
	failures := make([]error, len(changes))
	skipped := make([]bool, len(changes))
	var wg sync.WaitGroup
	for i, c := range changes {
		wg.Go(func() {
			select {
			case a.slots <- struct{}{}:
			case <-ctx.Done():
				skipped[i] = true
				return
			}
			defer func() { <-a.slots }()
			a.reportProgress(c, PhaseStarted, nil)
			failures[i] = a.applyChange(ctx, &c)
			if failures[i] != nil {
				a.reportProgress(c, PhaseFailed, failures[i])
				return
			}
			a.reportProgress(c, PhaseDone, nil)
		})
	}
	wg.Wait()
	a.recordOutcomes(changes, failures, skipped)
}

// recordOutcomes stores the outcome of a stage in the order of its changes.
func (a *applier) recordOutcomes(changes Changes, failures []error, skipped []bool) {
	for i, c := range changes {
		switch {
		case skipped[i]:
			a.result.Skipped = append(a.result.Skipped, c)
		case failures[i] != nil:
			a.result.Failed = append(a.result.Failed, c)
			a.errs = append(a.errs, failures[i])
		default:
			a.result.Done = append(a.result.Done, c)
		}
	}
}

func (a *applier) reportProgress(c Change, p ChangePhase, err error) {
	if a.opt.Progress == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opt.Progress(c, p, err)
}

// applyChange executes one change. A reload that is not possible becomes a replacement. An interrupted
// replacement may leave no object, or two. If there is none, the next Diff plans a launch. If two have the
// same id, it plans to terminate one of them. If they have different ids, the next Apply continues the
// replacement (Replacement.Running).
func (a *applier) applyChange(ctx context.Context, c *Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch c.Action {
	case ActionReload:
		err := a.reload(ctx, c.Desired)
		if !errors.Is(err, ErrCannotReload) {
			return err
		}
		c.Action = ActionReplace
	case ActionTerminate:
		return a.drainAndTerminate(ctx, c.Observed)
	}
	if c.Action == ActionReplace {
		return a.replace(ctx, *c)
	}
	_, err := a.launch(ctx, c.Desired, a.opt.Gate) // also repairs a prerequisite: see Provider.Launch
	return err
}

// replace launches a replacement and terminates the old object, in the order that Surge determines.
func (a *applier) replace(ctx context.Context, c Change) error {
	surge, err := a.surge(ctx, c)
	if err != nil {
		return fmt.Errorf("planning the replacement of %s: %w", c.ID(), err)
	}
	if surge != nil {
		return a.replaceWithSurge(ctx, c.Observed, *surge)
	}
	if err := a.drainAndTerminate(ctx, c.Observed); err != nil {
		return err
	}
	o, err := a.launch(ctx, c.Desired, nil) // it takes the place of the terminated object
	if err != nil {
		return err
	}
	return a.waitReady(ctx, c.Observed, o)
}

// surge calls Surge.
func (a *applier) surge(ctx context.Context, c Change) (*Replacement, error) {
	if a.opt.Surge == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opt.Surge(ctx, c)
}

// replaceWithSurge drains and terminates an object once its replacement is ready. A replacement that does not become
// ready is terminated. If ctx ends, both stay, and the next Apply continues.
func (a *applier) replaceWithSurge(ctx context.Context, old Object, by Replacement) error {
	var o Object
	if by.Running != nil {
		o = *by.Running
	} else {
		var err error
		if o, err = a.launch(ctx, by.Desired, a.opt.Gate); err != nil {
			return fmt.Errorf("launching the replacement of %s, which keeps running: %w", old.ID, err)
		}
	}
	err := a.waitReady(ctx, old, o)
	switch {
	case err == nil:
		return a.drainAndTerminate(ctx, old)
	case ctx.Err() != nil:
		return err
	}
	err = fmt.Errorf("%w; %s keeps running", err, old.ID)
	return errors.Join(err, a.terminate(ctx, o))
}

// waitReady waits until a replacement is ready.
func (a *applier) waitReady(ctx context.Context, old, o Object) error {
	if a.opt.WaitReady == nil {
		return nil
	}
	if err := a.opt.WaitReady(ctx, o); err != nil {
		return fmt.Errorf("waiting for %s, the replacement of %s, to become ready: %w", o.ID, old.ID, err)
	}
	return nil
}

// drainAndTerminate drains an object and terminates it.
func (a *applier) drainAndTerminate(ctx context.Context, o Object) error {
	if a.opt.Drain != nil && o.TerminatedReason == "" {
		a.opt.Drain(ctx, o)
	}
	return a.terminate(ctx, o)
}

// launch creates w on the first of its offerings that has capacity and that the gate admits. It skips
// offerings that recently had no capacity. When none has capacity, the error is a *AllOfferingsExhaustedError; when the gate
// held the launch on one of them, a *HeldError.
func (a *applier) launch(ctx context.Context, w Desired, gate *LaunchGate) (Object, error) {
	if len(w.Offerings) == 0 {
		return a.launchAdmitted(ctx, w, gate)
	}
	var held *HeldError
	none := &AllOfferingsExhaustedError{ID: w.ID, Region: w.Region}
	for _, offer := range w.Offerings {
		if a.isExhausted(offer) {
			none.Skipped = append(none.Skipped, offer)
			continue
		}
		w.Offerings, w.CostPerHour = Offerings{offer}, offer.PricePerHour
		o, err := a.launchAdmitted(ctx, w, gate)
		if is := new(HeldError); errors.As(err, &is) { // another offering may be cheaper, or have no backoff
			held = cmp.Or(held, is)
			continue
		}
		var noCapacity *CapacityError
		if !errors.As(err, &noCapacity) {
			return o, err
		}
		a.recordRefusal(noCapacity)
		none.Attempted = append(none.Attempted, noCapacity)
	}
	if held != nil {
		return Object{}, held
	}
	return Object{}, none
}

// launchAdmitted launches w on its single offering, if the gate admits it.
func (a *applier) launchAdmitted(ctx context.Context, w Desired, gate *LaunchGate) (Object, error) {
	if gate == nil {
		return a.provider.Launch(ctx, w)
	}
	if err := gate.Admit(w); err != nil {
		return Object{}, err
	}
	o, err := a.provider.Launch(ctx, w)
	gate.Launched(w, o, err)
	return o, err
}

func (a *applier) isExhausted(o Offering) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opt.Exhausted.Covers(o, a.opt.Now())
}

func (a *applier) recordRefusal(e *CapacityError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opt.Exhausted.Add(e, a.opt.Now())
}

// reload makes an object load its configuration.
func (a *applier) reload(ctx context.Context, w Desired) error {
	if a.opt.Reload == nil {
		return ErrCannotReload
	}
	if err := a.opt.Reload(ctx, w); err != nil {
		return fmt.Errorf("reloading %s: %w", w.ID, err)
	}
	return nil
}

func (a *applier) terminate(ctx context.Context, o Object) error {
	if err := a.provider.Terminate(ctx, o); err != nil {
		return fmt.Errorf("terminating %s: %w", o.ID, err)
	}
	return nil
}
