package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// errAborted is the cause if the balancer aborts a request: see inFlight.abort and inFlight.deliver.
var errAborted = errors.New("the balancer aborted the request")

// maxRequestID is the maximum length of a request id.
const maxRequestID = 128

// action is a core.Action in the form delivered to the request's goroutine.
type action struct {
	kind   core.ActionKind
	target string
	reason string
	hop    core.Hop
	// sessionAge is sent to the peer of a forward; 0 = not sent.
	sessionAge time.Duration
	wait       time.Duration  // maximum time in the peer's queue; 0 = no limit
	kills      int            // core.Action.Kills
	decision   *core.Decision // read-only
	rank       rank           // of a dispatch; its replica is nil if it was removed
	peer       *peer          // of a forward; nil if it was removed
}

// inFlight is a request between its arrival and its end. Once it is in Runtime.inFlight, only these change:
// the record in entry, model and retries, under the runtime's lock, and currentAttempt, which is atomic.
type inFlight struct {
	id      string
	arrived time.Duration
	entry   *record.RequestRecord
	model   string // the fallback that core places it for; empty = the requested model
	retries int64  // attempts after the first
	// actions never becomes full: core makes a new decision about a request only after the request's
	// goroutine has reported the outcome of the previous one.
	actions        chan action
	cancel         context.CancelCauseFunc // cancels the request and its current attempt
	currentAttempt stoppableAttempt
	reservation    *quota.Reservation // nil if its client has no key
}

func (f *inFlight) deliver(v action) {
	select {
	case f.actions <- v:
	default:
		f.cancel(errAborted)
	}
}

func (f *inFlight) abort() { f.cancel(errAborted) }

// recordAction writes an action to the request record.
func (f *inFlight) recordAction(now time.Duration, a *core.Action) {
	e := f.entry
	queued, reason := e.State == record.StateQueued, e.Reason
	e.Kind, e.Target, e.Reason, e.Decision = a.Kind, a.Target, a.Reason, a.Decision
	switch a.Kind {
	case core.ActionDispatch, core.ActionForward:
		e.State = record.StateSent
	case core.ActionReject:
		e.State = record.StateRejected
	case core.ActionBounce:
		e.State = record.StateBounced
	case core.ActionAbort:
		return // finalize or abandonInFlight records the end
	}
	e.Attempts = append(e.Attempts, record.Attempt{
		AtMillis: millis(now - f.arrived), Kind: a.Kind, Target: a.Target, Reason: a.Reason, Decision: a.Decision, HeldFor: e.HeldFor,
		Cold: queued && reason == core.QueuedForStart, SharedPrefill: queued && reason == core.QueuedForPrefill,
		Engines: slices.Clone(a.DeadReplicas), Model: f.model,
	})
	e.HeldFor = ""
}

// millis returns a duration in milliseconds.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// submitRequest registers a request in flight under a unique id, close to the requested one, and submits
// it to core for placement. It returns false when the balancer is draining.
func (r *Runtime) submitRequest(f *inFlight, req *core.Request, entry *record.RequestRecord) bool {
	accepted := false
	r.subs.publish(r.withLock(func() {
		if accepted = !r.draining.Load(); !accepted {
			return
		}
		f.id = r.uniqueID(f.id)
		f.arrived, f.entry = r.Elapsed(), entry
		req.ID, entry.Request = f.id, f.id
		r.inFlight[f.id] = f
		r.ring.addRecord(entry)
		r.stepCore(core.Event{Kind: core.EventArrived, Request: req})
	}))
	return accepted
}

// uniqueID returns want, or want with a suffix if a request with that id is in flight.
func (r *Runtime) uniqueID(want string) string {
	id := want
	for r.inFlight[id] != nil {
		suffix := "-" + strconv.FormatUint(rand.Uint64(), 36)
		id = want[:min(len(want), maxRequestID-len(suffix))] + suffix
	}
	return id
}

// stepFor is Step for an event of a request in flight. change edits the request record under the same lock,
// before the step.
func (r *Runtime) stepFor(f *inFlight, ev core.Event, change func(*record.RequestRecord)) {
	ev.ID = f.id
	r.subs.publish(r.withLock(func() {
		if change != nil {
			change(f.entry)
		}
		r.stepCore(ev)
	}))
}

// endInFlight removes a request that has ended in core. change edits the request record.
func (r *Runtime) endInFlight(f *inFlight, change func(*record.RequestRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(f.entry)
	delete(r.inFlight, f.id)
	if len(r.inFlight) == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}
