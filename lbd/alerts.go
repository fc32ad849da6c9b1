package lbd

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
	"skyserve/lbd/health"
	"skyserve/lbd/peer"
)

// Conditions for alerts of a balancer, each with its reason.
const (
	// storeGrace is the time for which the store may be unavailable without an alert, for example
	// during a restart.
	storeGrace = 10 * time.Second
	// leaseGrace is the maximum time without a renewal of the controller's lease. The lease is
	// renewed every second, and another controller takes over within a few seconds.
	leaseGrace = 15 * time.Second
	// issuerGrace is the time for which the issuer of identity tokens may be unavailable without an alert.
	issuerGrace = time.Minute
)

// leaseWatch tracks the last change of the lease of the service's controller.
type leaseWatch struct {
	lastChange atomic.Pointer[time.Time] // nil = never changed, as without a controller
}

// watchLease records every change of the lease until the channel is closed.
func (w *leaseWatch) watchLease(key string, changes <-chan store.KeyChange) {
	for c := range changes {
		if c.Key == key {
			now := time.Now()
			w.lastChange.Store(&now)
		}
	}
}

// silentSince returns the time of the last renewal if it is longer ago than leaseGrace, otherwise nil.
func (w *leaseWatch) silentSince(now time.Time) *time.Time {
	if lastChange := w.lastChange.Load(); lastChange != nil && now.Sub(*lastChange) > leaseGrace {
		return lastChange
	}
	return nil
}

// alerts returns the conditions at this balancer that require action.
func (b *balancer) alerts(now time.Time) []telemetry.Alert {
	var alerts []telemetry.Alert
	alert := telemetry.Alert{
		Severity: telemetry.SeverityWarning,
		NextStep: fmt.Sprintf("run 'skyserve status'; if no controller is running, start it: run 'skyserve up' with the service.yaml of %s", b.cfg.Service),
	}
	if p := b.storeProblem(); p != nil && now.Sub(p.Since) >= storeGrace {
		alert.Kind, alert.Object, alert.Since = telemetry.AlertStore, "store", &p.Since
		alert.Message = fmt.Sprintf("the store is unavailable: %s; balancers keep history and usage in memory; planning, scaling, replacement and adoption are suspended", outageCause(p.Err))
		if b.cfg.Identity == nil { // no service that status could find
			alert.NextStep = "check the NATS server at " + telemetry.HideCredentials(b.cfg.StoreURL)
		}
		alerts = append(alerts, alert)
	} else if since := b.lease.silentSince(now); since != nil {
		alert.Kind, alert.Object, alert.Since = telemetry.AlertController, "controller", since
		alert.Message = fmt.Sprintf("no controller has renewed its lease for more than %s: planning, scaling, replacement and adoption are suspended", leaseGrace)
		alerts = append(alerts, alert)
	}
	alerts = append(alerts, b.issuerAlerts(now)...)
	if b.runtime != nil {
		alerts = append(alerts, fallbackAlerts(b.cfg.Region, b.cfg.Identity == nil, b.runtime.Fallbacks(now))...)
	}
	alerts = append(append(append(alerts, b.adapterAlerts()...), b.discoveryAlerts()...), b.watch.Alerts()...)
	return append(alerts, b.identity.alerts(b.cfg, now)...)
}

// observeInterval is the interval of the observations for alerts about replicas, peers and traffic.
const observeInterval = time.Second

// observeHealth adds an observation for the alerts about replicas, peers, traffic and plans.
func (b *balancer) observeHealth() {
	snapshot := b.api.Snapshot()
	o := health.Observation{
		At: time.Now(), Service: b.cfg.Service, Balancer: b.cfg.ID, Version: b.opts.Version, Standalone: b.cfg.Identity == nil,
		Own: b.api.Region(), Misconfigured: b.fleet.misconfigured(), Review: b.review.newest(), Unmet: snapshot.Unmet(),
	}
	peers := b.peers.Status()
	for _, p := range peers {
		h := health.Peer{ID: p.Peer.ID, Region: p.Peer.Region, LostFor: p.Silence, Reason: p.Reason, Seen: p.Reported, Lost: !p.Reported || p.Silence >= time.Second}
		if p.Region != nil && len(p.Region.Balancers) == 1 {
			h.Version = p.Region.Balancers[0].Version
		}
		o.Peers = append(o.Peers, h)
	}
	b.watch.Observe(o)
	before := b.shared
	b.shared = sharedReplicas(b.cfg.Region, o.Own.Replicas, peers)
	for id, urls := range b.shared {
		if before[id] == nil {
			b.log.Warn("a peer lists engines of this balancer too: list each engine at one balancer, others reach it through --peer", "peer", id, "engines", len(urls), "first", urls[0])
		}
	}
}

// sharedReplicas returns the URLs of a balancer's replicas that a peer of its region lists too, by peer. Replicas that a
// controller assigns are at two balancers while they move. A loopback address names another engine on each machine.
func sharedReplicas(region service.Region, own []telemetry.ReplicaSnapshot, peers []peer.Health) map[string][]string {
	shared := map[string][]string{}
	listed := map[string]bool{} // by URL: replicas that no controller has assigned
	for _, r := range own {
		if r.Origin != originController {
			listed[service.BaseURL(r.URL)] = true
		}
	}
	for _, p := range peers {
		if p.Region == nil || p.Peer.Region != region {
			continue
		}
		for _, r := range p.Region.Replicas {
			at := service.BaseURL(r.URL)
			if listed[at] && r.Origin != originController && (!namesLoopback(at) || namesLoopback(p.Peer.URL)) {
				shared[p.Peer.ID] = append(shared[p.Peer.ID], at)
			}
		}
	}
	return shared
}

// namesLoopback reports whether a URL is one of this machine.
func namesLoopback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && admin.NamesLoopback(u.Host)
}

// issuerAlerts returns an alert for each issuer of identity tokens that does not respond.
func (b *balancer) issuerAlerts(now time.Time) (alerts []telemetry.Alert) {
	for _, p := range b.tokens.Problems() {
		if now.Sub(p.Since) < issuerGrace {
			continue
		}
		a := telemetry.Alert{
			Severity: telemetry.SeverityWarning, Kind: telemetry.AlertIssuer, Region: b.cfg.Region, Object: p.Issuer, Since: &p.Since,
			Message:  fmt.Sprintf("the signing keys of the issuer cannot be read: %v; known keys are accepted until %s", p.Err, p.KeysUntil.UTC().Format(time.RFC3339)),
			NextStep: "check from this balancer's machine: curl " + strings.TrimSuffix(p.Issuer, "/") + "/.well-known/openid-configuration",
		}
		if p.KeysUntil.IsZero() {
			a.Severity = telemetry.SeverityCritical
			a.Message = fmt.Sprintf("the signing keys of the issuer cannot be read: %v; its identity tokens are rejected with 503", p.Err)
		}
		alerts = append(alerts, a)
	}
	return alerts
}

// alerts returns an alert if the balancer's identity certificate was not renewed in time.
func (m *serviceIdentity) alerts(cfg service.BalancerConfig, now time.Time) []telemetry.Alert {
	if m == nil || now.Add(identity.AlertBefore).Before(m.cert.expires()) {
		return nil
	}
	day := m.cert.expires().UTC().Format(time.DateOnly)
	a := telemetry.Alert{
		Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Region: cfg.Region, Object: cfg.ID,
		Message:  fmt.Sprintf("the identity certificate of this balancer expires on %s and was not renewed", day),
		NextStep: fmt.Sprintf("run 'skyserve up' with the service.yaml of %s before that day, on the machine that has the service's CA key", cfg.Service),
	}
	if now.After(m.cert.expires()) {
		a.Severity = telemetry.SeverityCritical
		a.Message = fmt.Sprintf("the identity certificate of this balancer expired on %s and was not renewed", day)
		a.NextStep = strings.Replace(a.NextStep, " before that day", " now", 1)
	}
	return []telemetry.Alert{a}
}

// storeProblem returns the problem of an unavailable store; nil if the store is available or there
// is none.
func (b *balancer) storeProblem() *store.Outage {
	if b.store == nil {
		return nil
	}
	return b.store.Outage()
}

// outageCause returns why the store is unavailable, without the fact itself.
func outageCause(err error) string {
	return strings.NewReplacer(store.ErrUnavailable.Error()+": ", "", context.DeadlineExceeded.Error(), "no response in time").Replace(err.Error())
}

// control returns the reported state of the controllers and of the store; nil where it is unknown. If the leader
// does not renew its lease, the state has no leader.
func (b *balancer) control() (*telemetry.ControllerState, *telemetry.StoreState) {
	reported := b.controllerAlerts.newest()
	if reported == nil {
		return nil, nil
	}
	c := reported.Controller
	if c != nil && b.lease.silentSince(time.Now()) != nil {
		c = &telemetry.ControllerState{Term: c.Term, Standbys: []string{}}
	}
	return c, reported.Store
}

// balancerLaunches returns the signed record of the balancers that controllers launched; nil before the first.
func (b *balancer) balancerLaunches() *telemetry.BalancerLaunches {
	if l := b.launches.newest(); l != nil && len(l.Text) > 0 {
		return l
	}
	return nil
}

// serviceAlerts returns the alerts reported by the controller, none without a report.
func (b *balancer) serviceAlerts() []telemetry.Alert {
	if reported := b.controllerAlerts.newest(); reported != nil {
		return reported.Alerts
	}
	return nil
}
