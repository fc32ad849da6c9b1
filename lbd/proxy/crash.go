package proxy

import (
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"skyserve/internal/printable"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

const (
	// exitCrash is the exit code after a panic in a decision. Go's own exit code, 2, means an
	// invalid configuration in this program.
	exitCrash = 1
	// crashTimeout bounds the time for writing the cause: a disk or a terminal may block.
	crashTimeout = 2 * time.Second
)

// crash ends the process after a panic under the lock. The state may be inconsistent, and the lock
// remains held: net/http recovers panics of handlers, and then every other goroutine would wait for
// the lock forever. ev is the event that caused the panic, or nil.
func (r *Runtime) crash(cause any, ev *core.Event) {
	time.AfterFunc(crashTimeout, func() { os.Exit(exitCrash) })
	where := "no event; the runtime's lock was held"
	if ev != nil {
		where = fmt.Sprintf("event %s of request %q, target %q", ev.Kind, eventRequest(ev), ev.Target)
	}
	fmt.Fprintf(printable.NewWriter(os.Stderr), "panic: %v\n\nin a decision of balancer %s: %s\n\n%s\n", cause, r.self.ID, where, debug.Stack())
	if ev != nil {
		r.record.recordCrash(r.Elapsed(), *ev, fmt.Sprint(cause))
	}
	os.Exit(exitCrash)
}

// eventRequest returns the id of the request of an event.
func eventRequest(ev *core.Event) string {
	if ev.Request != nil {
		return ev.Request.ID
	}
	return ev.ID
}

// withLock calls do under the lock and returns the request records that it changed. A panic in do ends the
// process.
func (r *Runtime) withLock(do func()) (records []record.RequestRecord) {
	r.mu.Lock()
	defer func() {
		if cause := recover(); cause != nil {
			r.crash(cause, nil)
		}
	}()
	do()
	records = r.takeRecords()
	r.mu.Unlock()
	return records
}

// recoverPanic ends a request whose handler panicked outside of the lock: core receives a
// cancellation, and the client's connection is closed. Other requests are not affected.
func (x *exchange) recoverPanic() {
	cause := recover()
	if cause == nil {
		return
	}
	if cause != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
		x.rt.log.Error("request handler panicked", "request", x.inFlight.id, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		x.rt.abandonInFlight(&x.inFlight)
	}
	panic(http.ErrAbortHandler)
}

// abandonInFlight ends a request in flight that has not ended.
func (r *Runtime) abandonInFlight(f *inFlight) {
	r.mu.Lock()
	open := r.inFlight[f.id] == f
	r.mu.Unlock()
	if !open {
		return
	}
	r.stepFor(f, core.Event{Kind: core.EventCancelled}, nil)
	r.endInFlight(f, func(d *record.RequestRecord) { d.State = record.StateFailed })
}
