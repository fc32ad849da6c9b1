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
	// complete within it. Until then it serves, since its replacement may have to be launched
	// first; a client that knows of a replacement drains it immediately.
	drainBefore = time.Minute
	// withdrawnAfter is the number of consecutive polls without a notice after which a notice is
	// considered withdrawn: a single one may be caused by a moved server.
	withdrawnAfter = 3

	fileInterruptionAt = "gone-at" // time of the interruption; missing without one
	reasonInterrupted  = "interruption imminent"
)

// watchNotices reports interruptions and drains the machine in time, until ctx ends. A restarted
// agent uses the first notice of its predecessor: some notices contain no time and count from their
// arrival.
func (a *Agent) watchNotices(ctx context.Context) {
	a.loadNotice()
	quiet, lastError := 0, ""
	a.repeat(ctx, noticeInterval, func() (done bool) {
		at, announced, err := a.opts.Notice(ctx)
		switch {
		case ctx.Err() != nil:
			return true
		case err != nil:
			if text := err.Error(); text != lastError { // once until it changes
				a.log.Warn("polling for an interruption of this machine", "err", err)
				lastError = text
			}
			return false
		case announced:
			quiet = 0
			a.recordInterruption(at)
		default:
			if quiet++; quiet >= withdrawnAfter {
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

// loadNotice loads the notice of an earlier agent.
func (a *Agent) loadNotice() {
	text, err := os.ReadFile(a.path(fileInterruptionAt))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	at, err := parseTime(text, err)
	if err != nil {
		a.log.Warn("reading the stored interruption notice", "err", err)
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
	a.log.Warn("the cloud interrupts this machine", "gone_at", at)
	if err := identity.WriteFile(a.path(fileInterruptionAt), []byte(at.Format(time.RFC3339))); err != nil {
		a.log.Warn("storing the interruption notice", "err", err)
	}
}

// clearInterruption records that no interruption is announced any more: it was withdrawn, or the maintenance
// has ended.
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
	a.log.Warn("the interruption of this machine was withdrawn")
	if err := os.Remove(a.path(fileInterruptionAt)); err != nil {
		a.log.Warn("removing the stored interruption notice", "err", err)
	}
}

// stopTimer stops the drain timer; a.mu must be held.
func (a *Agent) stopTimer() {
	if a.drainTimer != nil {
		a.drainTimer.Stop()
	}
}

// drain makes the proxy reject new requests.
func (a *Agent) drain(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == reasonInterrupted && (a.interruptionAt.IsZero() || a.draining != "") {
		return // withdrawn at the last moment, or already draining
	}
	a.setDraining(why)
	a.log.Warn("draining", "reason", why)
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
	reason := fmt.Sprintf("preemption at %s", a.interruptionAt.UTC().Format(time.TimeOnly))
	if a.draining != "" {
		reason += ", draining: " + a.draining
	}
	return reason
}
