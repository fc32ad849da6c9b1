package lbd

import (
	"fmt"
	"sync/atomic"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// What a balancer alerts of, each with its reason.
const (
	// storeGrace is how long the store may be away without an alert: it starts again.
	storeGrace = 10 * time.Second
	// leaseGrace is how long the lease of the controller may stand still: it is renewed
	// every second, and another controller takes over within a few.
	leaseGrace = 15 * time.Second
)

// leaseWatch is when the lease of the service's controller was last seen to change.
type leaseWatch struct {
	heard atomic.Pointer[time.Time] // nil = never, as where there is no controller
}

// follow notes every change of the lease until there are no more.
func (w *leaseWatch) follow(key string, changes <-chan store.Change) {
	for c := range changes {
		if c.Key == key {
			now := time.Now()
			w.heard.Store(&now)
		}
	}
}

// silence is since when no controller has renewed its lease, where that is longer than
// leaseGrace.
func (w *leaseWatch) silence(now time.Time) *time.Time {
	if heard := w.heard.Load(); heard != nil && now.Sub(*heard) > leaseGrace {
		return heard
	}
	return nil
}

// alerts are what this balancer knows of that somebody has to act on.
func (b *balancer) alerts(now time.Time) []telemetry.Alert {
	var alerts []telemetry.Alert
	alert := telemetry.Alert{Severity: telemetry.SeverityWarning, NextStep: "'skyserve status' tells more"}
	if p := b.storeProblem(); p != nil && now.Sub(p.Since) >= storeGrace {
		alert.Kind, alert.Object, alert.Since = telemetry.AlertStore, "store", &p.Since
		alert.Message = fmt.Sprintf("it does not work for balancers, which keep history and usage in memory: %v", p.Err)
		alerts = append(alerts, alert)
	} else if since := b.lease.silence(now); since != nil {
		alert.Kind, alert.Object, alert.Since = telemetry.AlertController, "controller", since
		alert.Message = "none is at work: nothing is planned, scaled, replaced or adopted"
		alerts = append(alerts, alert)
	}
	return append(alerts, b.member.alerts(b.cfg, now)...)
}

// alerts tell that the certificate in the service was to be renewed for a while.
func (m *member) alerts(cfg service.BalancerConfig, now time.Time) []telemetry.Alert {
	if m == nil || now.Add(identity.AlertBefore).Before(m.cert.expires()) {
		return nil
	}
	day := m.cert.expires().UTC().Format(time.DateOnly)
	a := telemetry.Alert{
		Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Region: cfg.Region, Object: cfg.ID,
		Message:  fmt.Sprintf("its certificate in the service ends %s, and nobody has renewed it", day),
		NextStep: fmt.Sprintf("run 'skyserve up' with the service.yaml of %s before that day, on the machine that has the service's authority", cfg.Service),
	}
	if now.After(m.cert.expires()) {
		a.Severity = telemetry.SeverityCritical
	}
	return []telemetry.Alert{a}
}

// storeProblem is why the store does not work; nil where it does, or there is none.
func (b *balancer) storeProblem() *store.Problem {
	if b.store == nil {
		return nil
	}
	return b.store.Problem()
}

// serviceAlerts are what the controller knows of; none where it has not told.
func (b *balancer) serviceAlerts() []telemetry.Alert {
	if told := b.told.newest(); told != nil {
		return told.Alerts
	}
	return nil
}
