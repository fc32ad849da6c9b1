package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// A replica whose host has vanished, or whose engine hangs, closes no connection: it just sends
// nothing. The usual timeout for a token is far too long then. So when neither a probe was answered
// nor a token of any response arrived for Limits.SilenceTimeout, its requests are stopped at once and retried
// at other replicas, as if their connections had failed. A busy engine does one or the other. Silence
// is counted in ticks: while this process itself was paused, no probes were sent.

// stoppableAttempt lets another goroutine stop the current attempt of a request.
type stoppableAttempt struct {
	atomic.Pointer[context.CancelCauseFunc]
}

// stop stops the current attempt, which counts as failed.
func (l *stoppableAttempt) stop() {
	if stop := l.Load(); stop != nil {
		(*stop)(errSilent)
	}
}

// resetSilence records that the replica of an event responded; the lock must be held. A rejected
// probe counts too: engines that finish their requests reject them.
func (r *Runtime) resetSilence(ev *core.Event) {
	if k := r.ranks[ev.Target]; k.replica != nil && ev.Kind == core.EventReplicaReport {
		k.count.silentTicks = 0
	}
}

// stopSilent counts a tick, and stops the requests in flight at replicas that have been silent for
// too long; the lock must be held.
func (r *Runtime) stopSilent() {
	silent := func(k rank) bool {
		return k.replica != nil && time.Duration(k.count.silentTicks)*tickInterval >= r.limits.SilenceTimeout
	}
	found := false
	for _, rep := range r.replicas {
		rep.count.silentTicks++
		found = found || silent(rank{replica: rep})
	}
	if !found {
		return
	}
	for _, f := range r.inFlight {
		if f.entry.State == record.StateSent && silent(r.ranks[f.entry.Target]) {
			f.currentAttempt.stop()
		}
	}
}
