package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"skyserve/internal/identity"
)

const (
	// drainBefore is how long before its interruption a machine starts to drain: most responses
	// complete within it. Until then the machine serves requests, since its replacement may not be
	// ready yet. The controller requests the drain once a replacement is ready.
	drainBefore = time.Minute
	// withdrawnAfter is the number of consecutive polls without a notice after which a notice is
	// considered withdrawn: a restarted metadata server may omit it once.
	withdrawnAfter = 7

	fileInterruptionAt = "gone-at" // time of the interruption; missing without one
	reasonInterrupted  = "interruption imminent"
)

// watchNotices polls for interruptions and drains the machine before them, until ctx ends. A
// restarted agent loads the stored time: Google's notices contain none, so their time is computed once,
// when they arrive.
func (a *Agent) watchNotices(ctx context.Context) {
	a.loadNotice()
	withoutNotice, lastError := 0, ""
	a.repeat(ctx, noticeInterval, func() (done bool) {
		at, announced, err := a.opts.PollInterruption(ctx)
		switch {
		case ctx.Err() != nil:
			return true
		case err != nil:
			if text := err.Error(); text != lastError { // once until it changes
				a.log.Warn("polling for an interruption of this machine failed", "err", err)
				lastError = text
			}
			return false
		case announced:
			withoutNotice = 0
			a.recordInterruption(at)
		default:
			if withoutNotice++; withoutNotice >= withdrawnAfter {
				a.clearInterruption()
			}
		}
		lastError = ""
		return false
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopTimer()
}

// loadNotice loads the notice that was stored before a restart.
func (a *Agent) loadNotice() {
	text, err := os.ReadFile(a.path(fileInterruptionAt))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	at, err := parseTime(text, err)
	if err != nil {
		a.log.Warn("reading the stored interruption notice failed", "err", err)
		return
	}
	a.recordInterruption(at)
}

func parseTime(text []byte, err error) (at time.Time, _ error) {
	if err == nil {
		err = at.UnmarshalText(text)
	}
	return at, err
}

// recordInterruption records an interruption at a time; the earliest announced time applies.
func (a *Agent) recordInterruption(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.interruptionAt.IsZero() && !at.Before(a.interruptionAt) {
		return
	}
	a.interruptionAt = at
	a.stopTimer()
	a.drainTimer = time.AfterFunc(time.Until(at.Add(-drainBefore)), func() { a.drain(reasonInterrupted) })
	a.log.Warn("interruption of this machine announced by its cloud", "interruption_at", at)
	if err := identity.WriteFile(a.path(fileInterruptionAt), []byte(at.Format(time.RFC3339))); err != nil {
		a.log.Warn("storing the interruption notice failed", "err", err)
	}
}

// clearInterruption records that no interruption is announced any more: the notice was withdrawn, or
// the maintenance has ended.
func (a *Agent) clearInterruption() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.interruptionAt.IsZero() {
		return
	}
	a.interruptionAt = time.Time{}
	a.stopTimer()
	if a.draining == reasonInterrupted {
		a.setDraining("")
	}
	a.log.Warn("interruption notice withdrawn, or maintenance ended")
	if err := os.Remove(a.path(fileInterruptionAt)); err != nil {
		a.log.Warn("removing the stored interruption notice failed", "err", err)
	}
}

// stopTimer stops the drain timer; a.mu must be held.
func (a *Agent) stopTimer() {
	if a.drainTimer != nil {
		a.drainTimer.Stop()
	}
}

// drain makes the proxy reject new requests; why is the reason in the status.
func (a *Agent) drain(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == reasonInterrupted && (a.interruptionAt.IsZero() || a.draining != "") {
		return // withdrawn at the last moment, or already draining
	}
	a.setDraining(why)
	a.log.Warn("drain started", "reason", why)
}

// setDraining sets the reason for draining; empty = not draining. a.mu must be held.
func (a *Agent) setDraining(why string) {
	a.draining = why
	if a.proxy != nil {
		a.proxy.draining.Store(why != "")
	}
}

// interruptionReason returns the reason of an interrupted machine's status; a.mu must be held.
func (a *Agent) interruptionReason() string {
	reason := fmt.Sprintf("interruption at %s UTC", a.interruptionAt.UTC().Format(time.TimeOnly))
	if a.draining != "" {
		reason += ", draining: " + a.draining
	}
	return reason
}
