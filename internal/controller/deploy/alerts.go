package deploy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
)

// maxListedMachines is the maximum number of machines that an alert lists.
const maxListedMachines = 3

// CertificateExpiries are the expiry times of a service's certificates; a zero time is unknown.
type CertificateExpiries struct {
	// Controller is the expiry of the controller's own certificate, or of the CA with which it
	// renews machines' certificates, whichever is earlier.
	Controller time.Time
	// Machines are the expiry times of machines' certificates by ID.
	Machines map[string]time.Time
	// Operator is the expiry of the calling operator's certificate. HasCAKey is true where the
	// service's CA is on the operator's machine, which then renews it automatically.
	Operator time.Time
	HasCAKey bool
}

// CertificateAlerts returns alerts for certificates with less than half of their lifetime remaining.
// command is the command that renews them, for example 'skyserve up chat.yaml'.
func CertificateAlerts(ends CertificateExpiries, now time.Time, command string) []telemetry.Alert {
	alerts := []telemetry.Alert{}
	add := func(object, message, next string, at time.Time) {
		a := telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Object: object, Message: message}
		day := at.UTC().Format(time.DateOnly)
		a.NextStep = fmt.Sprintf("%s before %s", next, day)
		if now.After(at) {
			a.Severity, a.NextStep = telemetry.SeverityCritical, next+" now"
		}
		a.Message = fmt.Sprintf(message, day)
		alerts = append(alerts, a)
	}
	isDue := func(at time.Time, before time.Duration) bool { return !at.IsZero() && now.Add(before).After(at) }
	where := "run " + command + " on the machine that has the service's CA key,"
	if isDue(ends.Controller, identity.ControllerAlertBefore) {
		add("controller", "its certificates are valid until %s; it cannot renew machines' certificates beyond that day, and machines then reject each other", where, ends.Controller)
	}
	var due []string
	first := time.Time{}
	for id, at := range ends.Machines {
		if !isDue(at, identity.AlertBefore) {
			continue
		}
		if due = append(due, id); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if len(due) > 0 {
		add("machines", listMachines(due), where, first)
	}
	if isDue(ends.Operator, identity.AlertBefore) && !ends.HasCAKey {
		add("operator", "your certificate is valid until %s", "request an invitation from the operator with the service's CA key and run 'skyserve connect URL --code CODE'", ends.Operator)
	}
	return alerts
}

// listMachines returns the message about machines whose certificates expire, with the format verb %s for
// the first day.
func listMachines(ids []string) string {
	slices.Sort(ids)
	names := strings.Join(ids[:min(len(ids), maxListedMachines)], ", ")
	if more := len(ids) - maxListedMachines; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if len(ids) == 1 {
		return "the certificate of " + names + " is valid until %s and has not been renewed"
	}
	return "the certificates of " + names + " have not been renewed; the first is valid until %s"
}

// Alerts returns the alerts about certificates, launches, failed replicas and lost balancers at the last observation.
func (rc *Reconciler) Alerts() []telemetry.Alert {
	rc.mu.Lock()
	ends, name, launches, failures := rc.expiries, rc.serviceName, slices.Concat(rc.launchAlerts, rc.balancerAlerts), rc.failures
	rc.mu.Unlock()
	certificates := CertificateAlerts(ends, rc.now(), fmt.Sprintf("'skyserve up' with the service.yaml of %s", name))
	return slices.Concat(launches, certificates, failures)
}

// now returns the time of the reconciler's clock.
func (rc *Reconciler) now() time.Time {
	if rc.Now == nil {
		return time.Now()
	}
	return rc.Now()
}

// storeExpiries stores the expiry times. Machines that did not respond keep their last known one.
func (rc *Reconciler) storeExpiries(dl *Delivery, seen map[string]AgentReport) {
	ends := CertificateExpiries{Controller: dl.Authority.Expires(), Machines: map[string]time.Time{}}
	if own, err := dl.Party.Certificate(); err == nil && own.Leaf.NotAfter.Before(ends.Controller) {
		ends.Controller = own.Leaf.NotAfter
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for id, s := range seen {
		at := s.Expires
		if s.Err != nil {
			at = rc.expiries.Machines[id]
		}
		if !at.IsZero() {
			ends.Machines[id] = at
		}
	}
	rc.expiries, rc.serviceName = ends, dl.Service
}
