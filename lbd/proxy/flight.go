package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"skyserve/lbd/core"
)

// errAborted is why an exchange with a target stops when core says so.
var errAborted = errors.New("the balancer stopped the request")

// maxRequestID is the longest request id that is kept.
const maxRequestID = 128

// verdict is an action as the goroutine that waits for it gets it.
type verdict struct {
	kind   core.ActionKind
	target string
	reason string
	hop    core.Hop
	// sessionAge is what to tell the peer of a forward; 0 = nothing.
	sessionAge time.Duration
	wait       time.Duration  // how long it may hold the request; 0 = as it likes
	kills      int            // core.Action.Kills
	decision   *core.Decision // never changes
	rank       rank           // of a dispatch; its replica is nil when its address is gone
	peer       *peer          // of a forward; nil when its address is gone
}

// flight is a request between its arrival and its end. Its fields are fixed
// once it is in Runtime.flights, except entry, which the runtime's lock guards.
type flight struct {
	id      string
	arrived time.Duration
	entry   *DecisionRecord
	// verdicts never fills up: core decides anew about a request only after the
	// goroutine that reads here has told it how the last decision went on.
	verdicts chan verdict
	stop     context.CancelCauseFunc // of what goes on with a target
	try      lastTry
	visit    *visit // nil where its client has no key
}

func (f *flight) deliver(v verdict) {
	select {
	case f.verdicts <- v:
	default:
		f.stop(errAborted)
	}
}

func (f *flight) abort() { f.stop(errAborted) }

// note writes an action into the request's record.
func (f *flight) note(now time.Duration, a *core.Action) {
	e := f.entry
	e.Kind, e.Target, e.Reason, e.Decision = a.Kind, a.Target, a.Reason, a.Decision
	switch a.Kind {
	case core.ActionDispatch, core.ActionForward:
		e.State = stateSent
	case core.ActionReject:
		e.State = stateRejected
	case core.ActionBounce:
		e.State = stateBounced
	case core.ActionAbort:
		return // how it ended is noted by the event that caused it
	}
	e.Tries = append(e.Tries, Try{
		AtMillis: millis(now - f.arrived), Kind: a.Kind, Target: a.Target, Reason: a.Reason, Decision: a.Decision, KeptFor: e.KeptFor,
		Engines: slices.Clone(a.Engines),
	})
	e.KeptFor = ""
}

// millis is a duration in milliseconds.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// arrive registers a flight under an id of its own, near the one wanted, and
// lets core place it. It reports false when the balancer is draining.
func (r *Runtime) arrive(f *flight, req *core.Request, entry *DecisionRecord) bool {
	taken := false
	r.subs.publish(r.locked(func() {
		if taken = !r.draining.Load(); !taken {
			return
		}
		f.id = r.freeID(f.id)
		f.arrived, f.entry = r.Elapsed(), entry
		req.ID, entry.Request = f.id, f.id
		r.flights[f.id] = f
		r.ring.add(entry)
		r.step(core.Event{Kind: core.EventArrived, Request: req})
	}))
	return taken
}

// freeID is want, or want with a suffix when a request of that id is in flight.
func (r *Runtime) freeID(want string) string {
	id := want
	for r.flights[id] != nil {
		suffix := "-" + strconv.FormatUint(rand.Uint64(), 36)
		id = want[:min(len(want), maxRequestID-len(suffix))] + suffix
	}
	return id
}

// stepFlight is Step for an event of a flight; change edits the flight's record
// under the same lock, before the step.
func (r *Runtime) stepFlight(f *flight, ev core.Event, change func(*DecisionRecord)) {
	ev.ID = f.id
	r.subs.publish(r.locked(func() {
		if change != nil {
			change(f.entry)
		}
		r.step(ev)
	}))
}

// leave ends a flight that core has done with; change edits its record.
func (r *Runtime) leave(f *flight, change func(*DecisionRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(f.entry)
	delete(r.flights, f.id)
	if len(r.flights) == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}
