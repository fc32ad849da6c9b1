package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// A replica whose host has vanished, or whose engine stands still, breaks no
// connection: it just says nothing any more. What its requests may wait for a token
// is far too long then. So when neither a probe was answered nor a token of any
// answer came for Limits.Silent, they are given up at once and go elsewhere, as if
// their connections had broken. An engine that is busy says one or the other. Silence
// is counted in ticks: while this process itself stood still nobody was asked.

// stoppableTry is how the try at hand of a request is stopped from outside.
type stoppableTry struct {
	atomic.Pointer[context.CancelCauseFunc]
}

// stop stops the try at hand, which counts as failed.
func (l *stoppableTry) stop() {
	if stop := l.Load(); stop != nil {
		(*stop)(errSilent)
	}
}

// noteSignOfLife notes a sign of life of the replica that an event is about; the lock is
// held. That a probe was refused is one too: so do engines that finish what they have.
func (r *Runtime) noteSignOfLife(ev *core.Event) {
	if k := r.ranks[ev.Target]; k.replica != nil && ev.Kind == core.EventReplicaReport {
		k.count.quiet = 0
	}
}

// giveUpSilent notes that a tick went by, and gives up what is in flight at replicas
// that are silent for too long; the lock is held.
func (r *Runtime) giveUpSilent() {
	silent := func(k rank) bool {
		return k.replica != nil && time.Duration(k.count.quiet)*tickEvery >= r.limits.Silent
	}
	found := false
	for _, rep := range r.replicas {
		rep.count.quiet++
		found = found || silent(rank{replica: rep})
	}
	if !found {
		return
	}
	for _, f := range r.inFlight {
		if f.entry.State == record.StateSent && silent(r.ranks[f.entry.Target]) {
			f.currentTry.stop()
		}
	}
}
