package controller

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// What the controller alerts of, each with its reason.
const (
	// lowDiskBytes is how much room is little: the store and logs take days for it.
	lowDiskBytes = 256 << 20
	// slowWrite is a write to the store that is slow: a durable one takes about 1 ms, and
	// the lease is lost at leaseTTL.
	slowWrite = time.Second
	// slowWindow is how many writes a slow one is remembered for.
	slowWindow = 10
	// storeGrace is how long the store may be away without an alert: it starts again.
	storeGrace = 10 * time.Second
	// alertsEvery is how often balancers are told of alerts that changed.
	alertsEvery = 5 * time.Second
	// alertsRetry is the wait after that failed: on a slow disk the lease holds for moments.
	alertsRetry = 100 * time.Millisecond
)

// storeHealth is what is known of the store that the controller uses.
type storeHealth struct {
	dir string // of an embedded one; empty = it runs elsewhere
	// broken is why an embedded one cannot write; nil where it runs elsewhere.
	broken func() *store.Problem
	// free is how much room its disk has; nil where that is not known.
	free func() (bytes uint64, known bool)
	// client is why the controller's own reads and writes fail.
	client func() *store.Problem
}

// AlertedBy lets something else that the controller runs add to its alerts. f is called
// from several goroutines.
func AlertedBy(f func() []telemetry.Alert) Option {
	return func(o *options) { o.alerts = append(o.alerts, f) }
}

// noteWrite keeps how long a write to the store took, and logs the first slow one.
func (c *Controller) noteWrite(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := slices.Max(append(c.writes, 0))
	c.writes = append(c.writes, took)
	c.writes = c.writes[max(0, len(c.writes)-slowWindow):]
	if took >= slowWrite && before < slowWrite {
		c.log.Warn("writes to the store are slow", "took", took.Round(time.Millisecond), "limit", leaseTTL)
	}
}

// alerts are what somebody has to act on, the worst first.
func (c *Controller) alerts(now time.Time) []telemetry.Alert {
	lists := [][]telemetry.Alert{c.storeAlerts(now)}
	for _, f := range c.options.alerts {
		lists = append(lists, f())
	}
	return telemetry.MergeAlerts(lists...)
}

// storeAlerts are those about the store.
func (c *Controller) storeAlerts(now time.Time) []telemetry.Alert {
	alert := func(severity telemetry.Severity, message, next string) telemetry.Alert {
		return telemetry.Alert{Severity: severity, Kind: telemetry.AlertStore, Object: "store", Message: message, NextStep: next}
	}
	h := c.store
	if h.broken != nil {
		if p := h.broken(); p != nil {
			a := alert(telemetry.SeverityCritical, fmt.Sprintf("it cannot write to %s, and nothing is planned, scaled or replaced: %v", h.dir, p.Err),
				"free disk space there, or repair the disk: the store starts again by itself")
			a.Since = &p.Since
			return []telemetry.Alert{a}
		}
	}
	if h.client != nil {
		if p := h.client(); p != nil && now.Sub(p.Since) >= storeGrace {
			a := alert(telemetry.SeverityCritical, fmt.Sprintf("it does not answer the controller, and nothing is planned, scaled or replaced: %v", p.Err), "look at the store's own log")
			a.Since = &p.Since
			return []telemetry.Alert{a}
		}
	}
	var alerts []telemetry.Alert
	if h.free != nil {
		if free, known := h.free(); known && free < lowDiskBytes {
			alerts = append(alerts, alert(telemetry.SeverityWarning, fmt.Sprintf("the disk of %s has %d MiB left", h.dir, free>>20), "free disk space there"))
		}
	}
	c.mu.Lock()
	slowest := slices.Max(append(c.writes, 0))
	c.mu.Unlock()
	if slowest >= slowWrite {
		alerts = append(alerts, alert(telemetry.SeverityWarning,
			fmt.Sprintf("a write took %s, and the controller loses its lease at %s", slowest.Round(100*time.Millisecond), leaseTTL), "give the store a faster disk"))
	}
	return alerts
}

// tellAlerts keeps the alerts in the store, where balancers hear of them, until ctx ends.
func (c *Controller) tellAlerts(ctx context.Context, l lease) {
	told := []telemetry.Alert(nil) // what an earlier controller told of is to go
	for {
		now, wait := c.alerts(time.Now()), alertsEvery
		if !reflect.DeepEqual(now, told) {
			err := keep(ctx, l, c.state, telemetry.AlertsKey(c.config.Service), telemetry.Alerts{Token: l.Token(), Alerts: now})
			if told = now; err != nil {
				told, wait = nil, alertsRetry
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// serveHealth answers whether the controller can work: 503 with the reason where its store
// does not. Other alerts follow "ok", a line each.
func (c *Controller) serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var broken, lines []string
	for _, a := range c.alerts(time.Now()) {
		if a.Kind == telemetry.AlertStore && a.Severity == telemetry.SeverityCritical {
			broken = append(broken, a.Line())
		}
		lines = append(lines, a.Line())
	}
	if len(broken) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		lines = broken
	} else {
		lines = append([]string{"ok"}, lines...)
	}
	_, _ = w.Write([]byte(strings.Join(lines, "\n") + "\n")) // whoever asked is gone
}
