package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// A replica whose host has disappeared, or whose engine hangs, closes no connection: it sends nothing. The
// usual timeout for a token is far too long in this case. If a replica does not respond to probes and sends
// no token of any response for Limits.SilenceTimeout, its requests are stopped immediately and retried at
// other replicas, as if their connections had failed. Even a busy engine does one of the two. The time is
// counted in ticks, because no probes are sent while this process itself is paused.

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

// recordReport records that the replica of an event responded to a probe; the lock must be held. A failed
// probe counts too, unless the host did not respond: engines that complete their last requests reject probes.
func (r *Runtime) recordReport(ev *core.Event) {
	if k := r.ranks[ev.Target]; k.replica != nil && ev.Kind == core.EventReplicaReport && !ev.Report.NoResponse {
		k.count.proof.recordReport(ev.Report.Ready, k.count.silentTicks >= restartTicks)
		k.count.silentTicks = 0
	}
}

// stopSilent counts a tick, and stops the requests in flight at replicas that have not responded
// for too long; the lock must be held.
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
