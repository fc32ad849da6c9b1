package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// defaultParallel bounds the changes carried out at once: enough for a service
// of many regions to come up together, few enough for a small machine or a
// cloud's rate limit.
const defaultParallel = 16

// Phase is how far one change is.
type Phase string

// The phases of a change. One that was not begun has none.
const (
	PhaseBegun  Phase = "begun"
	PhaseDone   Phase = "done"
	PhaseFailed Phase = "failed"
)

// Progress is told of a change as it proceeds; err is set for PhaseFailed.
// Calls never overlap.
type Progress func(c Change, p Phase, err error)

// Options tune Apply; the zero value is usable.
type Options struct {
	// Parallel bounds the changes carried out at once; 0 means 16.
	Parallel int
	// Progress is told of every change; nil means nobody listens.
	Progress Progress
	// Settle returns when a replaced object does its work again; the next stage
	// waits for it. nil means that being launched is enough.
	Settle func(ctx context.Context, o Object) error
	// Reload makes a running object take up the configuration of w, which its
	// file has by now. ErrCannotReload, or nil here, means that it has to be
	// replaced; any other error, that it refuses the configuration and goes on with
	// what it had.
	Reload func(ctx context.Context, w Want) error
	// Now is the clock by which refused offerings are remembered; nil means time.Now.
	Now func() time.Time
	// Exhausted is what was refused before, and is added to; nil means nothing was.
	Exhausted *Exhausted
	// Drain is called before a running object is terminated for good, or after another
	// took its place, and returns when it has nothing left to finish. It cannot refuse:
	// nil and an empty function mean the same.
	Drain func(ctx context.Context, o Object)
	// Surge says whether a replacement is launched, and has settled, before the old
	// object goes; nil means that none is: the two cannot stand side by side, or
	// would be more than is allowed.
	Surge func(c Change) bool
}

// Result is what Apply did.
type Result struct {
	Done    Changes
	Failed  Changes
	Skipped Changes // not begun, because something before them failed or the context ended
}

// Apply carries changes out, stage by stage, those of one stage at once. When
// one fails, its stage is finished and the following stages are left alone: a
// rolling change must not go on over a failure. The error joins all failures;
// calling Apply again with a fresh difference takes up where it ended.
func Apply(ctx context.Context, changes Changes, p Provider, o Options) (Result, error) {
	a := &applier{provider: p, opt: o, tokens: make(chan struct{}, max(1, cmp.Or(o.Parallel, defaultParallel)))}
	if a.opt.Now == nil {
		a.opt.Now = time.Now
	}
	if a.opt.Exhausted == nil {
		a.opt.Exhausted = &Exhausted{}
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
		a.stage(ctx, changes[begin:end])
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
	opt      Options
	tokens   chan struct{}

	mu     sync.Mutex // guards what follows and opt.Exhausted, and keeps calls of Progress apart
	result Result
	errs   []error
}

// stage carries changes out at once and returns when all have ended.
func (a *applier) stage(ctx context.Context, changes Changes) {
	failures := make([]error, len(changes))
	skipped := make([]bool, len(changes))
	var wg sync.WaitGroup
	for i, c := range changes {
		wg.Go(func() {
			select {
			case a.tokens <- struct{}{}:
			case <-ctx.Done():
				skipped[i] = true
				return
			}
			defer func() { <-a.tokens }()
			a.tell(c, PhaseBegun, nil)
			failures[i] = a.carryOut(ctx, &c)
			if failures[i] != nil {
				a.tell(c, PhaseFailed, failures[i])
				return
			}
			a.tell(c, PhaseDone, nil)
		})
	}
	wg.Wait()
	a.record(changes, failures, skipped)
}

// record books the outcome of a stage in the order of its changes.
func (a *applier) record(changes Changes, failures []error, skipped []bool) {
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

func (a *applier) tell(c Change, p Phase, err error) {
	if a.opt.Progress == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opt.Progress(c, p, err)
}

// carryOut does one change. A replacement that is cut short leaves a missing
// object, which the next difference launches, or two of one id, of which it keeps
// the better. A reload that cannot be becomes a replacement.
func (a *applier) carryOut(ctx context.Context, c *Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch c.Action {
	case ActionReload:
		err := a.reload(ctx, c.Want)
		if !errors.Is(err, ErrCannotReload) {
			return err
		}
		c.Action = ActionReplace
	case ActionTerminate:
		return a.retire(ctx, c.Have)
	}
	if c.Action == ActionReplace {
		return a.replace(ctx, *c)
	}
	_, err := a.launch(ctx, c.Want)
	return err
}

// replace puts another object in the place of one.
func (a *applier) replace(ctx context.Context, c Change) error {
	surge := a.opt.Surge != nil && a.opt.Surge(c)
	if !surge {
		if err := a.terminate(ctx, c.Have); err != nil {
			return err
		}
	}
	o, err := a.launch(ctx, c.Want)
	if err != nil {
		return err
	}
	if a.opt.Settle != nil {
		if err := a.opt.Settle(ctx, o); err != nil {
			return fmt.Errorf("waiting for %s after replacing it: %w", o.ID, err)
		}
	}
	if surge {
		return a.retire(ctx, c.Have)
	}
	return nil
}

// retire terminates an object once it has finished what it has.
func (a *applier) retire(ctx context.Context, o Object) error {
	if a.opt.Drain != nil && o.Gone == "" {
		a.opt.Drain(ctx, o)
	}
	return a.terminate(ctx, o)
}

// launch makes w on the first of its offerings that has capacity, passing over
// those that were refused a while ago. When none has, the error is a
// *NoCapacityError.
func (a *applier) launch(ctx context.Context, w Want) (Object, error) {
	if len(w.Offers) == 0 {
		return a.provider.Launch(ctx, w)
	}
	none := &NoCapacityError{ID: w.ID, Region: w.Region}
	for _, offer := range w.Offers {
		if a.exhausted(offer) {
			none.Passed = append(none.Passed, offer)
			continue
		}
		w.Offers, w.CostPerHour = Offerings{offer}, offer.PricePerHour
		o, err := a.provider.Launch(ctx, w)
		var refused *CapacityError
		if !errors.As(err, &refused) {
			return o, err
		}
		a.refuse(refused)
		none.Tried = append(none.Tried, refused)
	}
	return Object{}, none
}

func (a *applier) exhausted(o Offering) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opt.Exhausted.Has(o, a.opt.Now())
}

func (a *applier) refuse(e *CapacityError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opt.Exhausted.Add(e, a.opt.Now())
}

// reload makes an object take up its configuration.
func (a *applier) reload(ctx context.Context, w Want) error {
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
		return fmt.Errorf("stopping %s: %w", o.ID, err)
	}
	return nil
}
