package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// The thresholds and intervals of the controller's alerts, with their reasons.
const (
	// lowDiskBytes is the free disk space below which a warning is raised: the store and logs need
	// days to fill it.
	lowDiskBytes = 256 << 20
	// slowWrite is the duration from which a write to the store is slow: a durable write usually
	// lasts about 1 ms, and the limit is maxRenewal. Only lease renewals are measured.
	slowWrite = time.Second
	// slowWindow is the number of most recent lease renewals; the alert is active while one of them
	// is slow.
	slowWindow = 10
	// storeGrace is how long the store may be unavailable without an alert, for a restart.
	storeGrace = 10 * time.Second
	// alertsInterval is the interval at which changed alerts are published to balancers. A change of the control
	// plane (the leader, the standbys and the members of the store) is published after controlPlaneInterval.
	alertsInterval       = 5 * time.Second
	controlPlaneInterval = time.Second
	// alertsRetry is the interval after a failure. It is short because publishing requires a valid lease,
	// which on a slow disk is valid for short periods only.
	alertsRetry = 100 * time.Millisecond
)

// storeHealth is how the controller observes its store, and changes the store's members.
type storeHealth struct {
	dir string // of an embedded store; empty = external
	// writeOutage is store.Server.Outage; nil for an external store.
	writeOutage func() *store.Outage
	// free returns the free space of the store's disk; nil for an external store.
	free func() (bytes uint64, known bool)
	// clientOutage is store.Store.Outage of the controller's own client.
	clientOutage func() *store.Outage
	// setMembers changes the members to those of a reloaded configuration.
	setMembers func(service.ControllerConfig) error
	// cluster returns the state of an embedded cluster; nil without one.
	cluster func() telemetry.StoreState
	// newMember is true if the store was no member of a cluster before this process: it may wait for members that start
	// later. started is when the member started.
	newMember bool
	started   time.Time
}

// WithAlerts adds the alerts of another component to those of the controller. f is called from
// several goroutines.
func WithAlerts(f func() []telemetry.Alert) Option {
	return func(o *options) { o.alerts = append(o.alerts, f) }
}

// recordWrite records the duration of a lease renewal, the regular write to the store. It logs a slow
// one unless another of the last slowWindow renewals was slow.
func (c *Controller) recordWrite(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := slices.Max(append(c.writes, 0))
	c.writes = append(c.writes, took)
	c.writes = c.writes[max(0, len(c.writes)-slowWindow):]
	if took >= slowWrite && before < slowWrite {
		c.log.Warn("writes to the store are slow", "took", took.Round(time.Millisecond), "limit", maxRenewal)
	}
}

// alerts returns the current alerts, the most severe first.
func (c *Controller) alerts(now time.Time) []telemetry.Alert {
	lists := [][]telemetry.Alert{c.storeAlerts(now), c.controlPlaneAlerts(now), c.backupAlerts(now)}
	for _, f := range c.options.alerts {
		lists = append(lists, f())
	}
	return telemetry.MergeAlerts(lists...)
}

// storeAlerts returns the alerts about the store.
func (c *Controller) storeAlerts(now time.Time) []telemetry.Alert {
	alert := func(severity telemetry.Severity, message, next string) telemetry.Alert {
		return telemetry.Alert{Severity: severity, Kind: telemetry.AlertStore, Object: "store", Message: message, NextStep: next}
	}
	h := c.health
	if h.writeOutage != nil {
		outage := h.writeOutage()
		switch {
		case outage == nil:
		case errors.Is(outage, store.ErrNoQuorum):
			return nil // controlPlaneAlerts reports it
		case h.cluster != nil && h.cluster().Leader != "":
			a := alert(telemetry.SeverityWarning, fmt.Sprintf("the store in %s on the controller's machine cannot write, or its disk is nearly full: %v; the other members continue; if another one fails, the store stops", h.dir, outage.Err),
				"free disk space there, or repair the disk; the member then returns automatically")
			a.Since = &outage.Since
			return []telemetry.Alert{a}
		default:
			a := alert(telemetry.SeverityCritical, fmt.Sprintf("the store in %s on the controller's machine cannot write, or its disk is nearly full: %v; while writes fail, planning, scaling, replacement and adoption are suspended", h.dir, outage.Err),
				"free disk space there, or repair the disk; the store then recovers automatically")
			a.Since = &outage.Since
			return []telemetry.Alert{a}
		}
	}
	if h.clientOutage != nil {
		if outage := h.clientOutage(); outage != nil && now.Sub(outage.Since) >= storeGrace {
			a := alert(telemetry.SeverityCritical, fmt.Sprintf("the store does not respond to the controller: %v; planning, scaling, replacement and adoption are suspended", outage.Err),
				fmt.Sprintf("check the logs of the store: 'skyserve logs %s controller', or those of the external NATS server", c.immutable.Service))
			a.Since = &outage.Since
			return []telemetry.Alert{a}
		}
	}
	var alerts []telemetry.Alert
	if h.free != nil {
		if free, known := h.free(); known && free < lowDiskBytes {
			alerts = append(alerts, alert(telemetry.SeverityWarning, fmt.Sprintf("the disk of %s on the controller's machine has %d MiB free", h.dir, free>>20), "free disk space there"))
		}
	}
	c.mu.Lock()
	slowest := slices.Max(append(c.writes, 0))
	c.mu.Unlock()
	if slowest >= slowWrite {
		alerts = append(alerts, alert(telemetry.SeverityWarning,
			fmt.Sprintf("a write to the store took %s; when a write takes longer than %s, the controller's lease expires and another controller may take over", slowest.Round(100*time.Millisecond), maxRenewal), "move the store to a faster disk"))
	}
	return alerts
}

// publishAlerts writes the alerts and the state of the control plane to the store until ctx ends. Balancers
// read them from there.
func (c *Controller) publishAlerts(ctx context.Context, l lease) {
	var published *telemetry.Alerts // nil at first: the first iteration replaces the alerts of an earlier leader
	var last time.Time
	var term uint64 // 0 until it is published
	for {
		now, wait := time.Now(), controlPlaneInterval
		controllers, storeState := c.controlPlaneState(now)
		controllers.Term = term
		current := &telemetry.Alerts{Token: l.Token(), Alerts: c.alerts(now), Controller: &controllers, Store: &storeState}
		due := now.Sub(last) >= alertsInterval && !reflect.DeepEqual(current, published)
		if due || published == nil || !sameControlPlane(current, published) {
			err := c.storeControlPlane(ctx, l, current)
			if published, last = current, now; err != nil {
				published, wait = nil, alertsRetry
			} else {
				term = controllers.Term
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

// storeControlPlane writes alerts and the state of the control plane. It sets the term: that of the current value, or one
// more if another leader wrote that value.
func (c *Controller) storeControlPlane(ctx context.Context, l lease, next *telemetry.Alerts) error {
	key := telemetry.AlertsKey(c.immutable.Service)
	old, revision, err := c.kv.Get(ctx, key)
	if err != nil && !isNotFound(err) {
		return err
	}
	var before telemetry.Alerts
	if json.Unmarshal(old, &before) != nil || before.Controller == nil {
		before = telemetry.Alerts{Controller: &telemetry.ControllerState{}} // there is none, or it is damaged
	}
	if next.Controller.Term = before.Controller.Term; before.Token != l.Token() {
		next.Controller.Term++
	}
	return swapStoreValue(ctx, l, c.kv, key, next, old, revision)
}

// sameControlPlane reports whether a and b have the same controllers and members. It ignores telemetry.StoreState.Problem,
// which changes every second because it contains times.
func sameControlPlane(a, b *telemetry.Alerts) bool {
	return reflect.DeepEqual(a.Controller, b.Controller) && a.Store.Replicated == b.Store.Replicated && a.Store.Leader == b.Store.Leader && reflect.DeepEqual(a.Store.Members, b.Store.Members)
}

// serveHealth serves GET /healthz: 503 with the critical alerts about the store; without one, "ok", followed by the other
// alerts. Each alert has a line. A request that accepts JSON gets telemetry.HealthAlerts instead of lines.
func (c *Controller) serveHealth(w http.ResponseWriter, r *http.Request) {
	alerts, status, lines := c.alerts(time.Now()), http.StatusOK, []string{"ok"}
	if broken := slices.DeleteFunc(slices.Clone(alerts), func(a telemetry.Alert) bool {
		return a.Kind != telemetry.AlertStore || a.Severity != telemetry.SeverityCritical
	}); len(broken) > 0 {
		alerts, status, lines = broken, http.StatusServiceUnavailable, nil
	}
	w.Header().Set("Vary", "Accept")
	if strings.HasPrefix(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(telemetry.HealthAlerts{Alerts: alerts}) // fails only when the client has disconnected
		return
	}
	for _, a := range alerts {
		lines = append(lines, a.Line())
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(strings.Join(lines, "\n") + "\n")) // fails only when the client has disconnected
}
