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
	// lastCall is how long before its end a machine that its cloud takes lets nothing new
	// in: most answers end within it. Until then it serves, since another may have to be
	// launched first; who knows that others serve already asks it to drain at once.
	lastCall = time.Minute
	// quietAfter is how often in a row the cloud must say that it does not take the machine
	// before what it said earlier is taken back: once may be a server that was moved.
	quietAfter = 3

	fileGoneAt = "gone-at" // when the cloud takes the machine; missing while it does not
	whyGoing   = "its end is near"
)

// watchNotices has the machine say when the cloud takes it, and drains it in time, until
// ctx ends. An agent that starts again goes by what an earlier one heard first: some
// notices say no time, and count from when they came.
func (a *Agent) watchNotices(ctx context.Context) {
	a.recallGoing()
	quiet, said := 0, ""
	a.every(ctx, noticeEvery, func() (done bool) {
		at, coming, err := a.opts.Notice(ctx)
		switch {
		case ctx.Err() != nil:
			return true
		case err != nil:
			if text := err.Error(); text != said { // once for as long as it stays the same
				a.log.Warn("asking whether the cloud takes this machine", "err", err)
				said = text
			}
			return false
		case coming:
			quiet = 0
			a.goes(at)
		default:
			if quiet++; quiet >= quietAfter {
				a.stays()
			}
		}
		said = ""
		return false
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopTimer()
}

// recallGoing takes up what an earlier agent heard.
func (a *Agent) recallGoing() {
	text, err := os.ReadFile(a.path(fileGoneAt))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	at, err := parseTime(text, err)
	if err != nil {
		a.log.Warn("reading when the cloud takes this machine", "err", err)
		return
	}
	a.goes(at)
}

func parseTime(text []byte, err error) (at time.Time, _ error) {
	if err == nil {
		err = at.UnmarshalText(text)
	}
	return at, err
}

// goes notes that the cloud takes the machine at a time; the earliest that was told counts.
func (a *Agent) goes(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.goneAt.IsZero() && !at.Before(a.goneAt) {
		return
	}
	a.goneAt = at
	a.stopTimer()
	a.lastCall = time.AfterFunc(time.Until(at.Add(-lastCall)), func() { a.drain(whyGoing) })
	a.log.Warn("the cloud takes this machine", "gone_at", at)
	if err := identity.WriteFile(a.path(fileGoneAt), []byte(at.Format(time.RFC3339))); err != nil {
		a.log.Warn("keeping when the cloud takes this machine", "err", err)
	}
}

// stays notes that the cloud does not take the machine: it never meant to, thought better
// of it, or the maintenance is over.
func (a *Agent) stays() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.goneAt.IsZero() {
		return
	}
	a.goneAt = time.Time{}
	a.stopTimer()
	if a.draining == whyGoing {
		a.setDraining("")
	}
	a.log.Warn("the cloud does not take this machine any more")
	if err := os.Remove(a.path(fileGoneAt)); err != nil {
		a.log.Warn("forgetting when the cloud takes this machine", "err", err)
	}
}

// stopTimer calls off the last call; a.mu is held.
func (a *Agent) stopTimer() {
	if a.lastCall != nil {
		a.lastCall.Stop()
	}
}

// drain lets nothing new in by the front.
func (a *Agent) drain(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == whyGoing && (a.goneAt.IsZero() || a.draining != "") {
		return // it was taken back as the time came, or it drains already, for longer
	}
	a.setDraining(why)
	a.log.Warn("draining", "why", why)
}

// setDraining says why the machine takes nothing new; empty = it does. a.mu is held.
func (a *Agent) setDraining(why string) {
	a.draining = why
	if a.front != nil {
		a.front.draining.Store(why != "")
	}
}

// going says why a machine that its cloud takes is interrupted; a.mu is held.
func (a *Agent) going() string {
	reason := fmt.Sprintf("the cloud takes it at %s", a.goneAt.UTC().Format(time.TimeOnly))
	if a.draining != "" {
		reason += ", it drains: " + a.draining
	}
	return reason
}
