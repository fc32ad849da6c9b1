package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"skyserve/internal/agent"
	"skyserve/provision"
)

// upObserver observes one run of `up`, and approves its changes in place of a person. A nil observer
// observes nothing.
type upObserver struct {
	// approve is called with the planned changes before anything is created; an error ends the run.
	approve func(*upRun) error
	// release is closed when the approved run may create objects.
	release chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when anything changes
	started  bool
	planned  *upRun
	done     map[string]bool // ids of the objects that were launched
	statuses map[string]agent.Status
	ended    bool
	err      error
}

func newUpObserver(approve func(*upRun) error) *upObserver {
	return &upObserver{approve: approve, release: make(chan struct{}), changed: make(chan struct{}), done: map[string]bool{}, statuses: map[string]agent.Status{}}
}

// update changes the observed state and wakes waiting callers.
func (o *upObserver) update(change func()) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	close(o.changed)
	o.changed = make(chan struct{})
}

// recordChange records that a change is done.
func (o *upObserver) recordChange(c provision.Change, p provision.ChangePhase) {
	if p == provision.PhaseDone {
		o.update(func() { o.done[c.ID()] = true })
	}
}

// recordStatus records the status of a machine.
func (o *upObserver) recordStatus(id string, s agent.Status) {
	o.update(func() { o.statuses[id] = s })
}

// recordEnd records the end of the run.
func (o *upObserver) recordEnd(err error) {
	o.update(func() { o.ended, o.err = true, err })
}

// awaitApproval shows and checks the quotas, as `up` does before its confirmation, reports the planned changes, and
// returns when they are approved and released.
func (o *upObserver) awaitApproval(ctx context.Context, u *upRun) error {
	u.quotas.printQuotas(u.errOut) // the hint of checkFits refers to them
	if err := u.quotas.checkFits(u.in, true); errors.Is(err, errOverQuota) {
		return failed(errOverQuota, "request an increase as shown above") // it cannot be confirmed as for up
	} else if err != nil {
		return err
	}
	if err := o.approve(u); err != nil {
		return err
	}
	o.update(func() { o.planned = u })
	select {
	case <-o.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await waits until a condition on the observed state is true. It returns the error of a run that
// ended before, or the cause of the end of ctx with the state of the machines.
func (o *upObserver) await(ctx context.Context, condition func() bool) error {
	for {
		o.mu.Lock()
		ok, ended, err, changed := condition(), o.ended, o.err, o.changed
		o.mu.Unlock()
		switch {
		case ok:
			return nil
		case ended:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return o.withStatuses(context.Cause(ctx))
		}
	}
}

// withStatuses adds the status of each machine that is not ready to an error.
func (o *upObserver) withStatuses(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(o.statuses)) {
		if s := o.statuses[id]; s.Phase != agent.PhaseReady {
			lines = append(lines, fmt.Sprintf("%s: %s %s", id, s.Phase, s.Reason))
		}
	}
	if len(lines) == 0 {
		return err
	}
	return fmt.Errorf("%w\n%s", err, strings.Join(lines, "\n"))
}

// isCut reports whether the end of a context ended the run: by Ctrl-C, or by the timeout of the rehearsal, which calls
// return as the cause.
func (o *upObserver) isCut() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Is(o.err, context.Canceled) || errors.Is(o.err, errRehearsalTimeout)
}

// hasEnded reports whether the run has ended.
func (o *upObserver) hasEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// awaitEnd waits for the end of the run.
func (o *upObserver) awaitEnd() {
	for {
		o.mu.Lock()
		ended, changed := o.ended, o.changed
		o.mu.Unlock()
		if ended {
			return
		}
		<-changed
	}
}

// hasLaunched reports whether all objects of some kinds exist. The caller holds mu.
func (o *upObserver) hasLaunched(kinds ...provision.ObjectKind) bool {
	return o.planned != nil && !slices.ContainsFunc(o.planned.changes.Changes, func(c provision.Change) bool {
		return slices.Contains(kinds, c.Kind()) && !o.done[c.ID()]
	})
}

// allStatuses reports whether the status of every machine of a kind satisfies a condition. The caller
// holds mu.
func (o *upObserver) allStatuses(kind provision.ObjectKind, ok func(agent.Status) bool) bool {
	return o.planned != nil && !slices.ContainsFunc(o.planned.changes.Desired, func(w provision.Desired) bool {
		s, known := o.statuses[w.ID]
		return w.Kind == kind && (!known || !ok(s))
	})
}

// errRunEnded is the cause of the end of a run of `up` whose rehearsal has failed.
var errRunEnded = errors.New("the rehearsal has failed")
