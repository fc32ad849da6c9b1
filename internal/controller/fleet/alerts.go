package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
)

// namedMachines is how many machines an alert names.
const namedMachines = 3

// Ends are when the certificates of a service end; a zero time is not known.
type Ends struct {
	// Controller is when the controller's own certificate ends, or, where that is earlier,
	// the authority with which it renews those of machines.
	Controller time.Time
	// Machines are the ends of machines' certificates by their ids.
	Machines map[string]time.Time
	// Operator is when the certificate ends of whoever asks; Signs says that the service's
	// authority is on that machine, which then renews it by itself.
	Operator time.Time
	Signs    bool
}

// CertificateAlerts tells of certificates of which less than half is left. command is what
// renews them, such as 'skyserve up chat.yaml'.
func CertificateAlerts(ends Ends, now time.Time, command string) []telemetry.Alert {
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
	where := "run " + command + " on the machine that has the service's authority,"
	if isDue(ends.Controller, identity.ControllerAlertBefore) {
		add("controller", "what it was handed ends %s: no machine's certificate is renewed beyond that day, and from then on machines refuse each other", where, ends.Controller)
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
		add("machines", named(due)+" from %s on, and nobody has renewed them", where, first)
	}
	if isDue(ends.Operator, identity.AlertBefore) && !ends.Signs {
		add("operator", "yours ends %s", "ask an operator for an invitation, and run 'skyserve connect'", ends.Operator)
	}
	return alerts
}

// named is a list of machines whose certificates end.
func named(ids []string) string {
	slices.Sort(ids)
	names := strings.Join(ids[:min(len(ids), namedMachines)], ", ")
	if more := len(ids) - namedMachines; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if len(ids) == 1 {
		return "that of " + names + " ends"
	}
	return "those of " + names + " end"
}

// Alerts are those about certificates, as of the reconciler's last look.
func (k *Reconciler) Alerts() []telemetry.Alert {
	k.mu.Lock()
	ends, name := k.ends, k.service
	k.mu.Unlock()
	return CertificateAlerts(ends, k.now(), fmt.Sprintf("'skyserve up' with the service.yaml of %s", name))
}

// now is the time by which certificates are judged.
func (k *Reconciler) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// noteEnds keeps when certificates end. Machines that did not answer keep what is known of
// them.
func (k *Reconciler) noteEnds(h *Handover, seen map[string]Seen) {
	ends := Ends{Controller: h.Authority.Ends(), Machines: map[string]time.Time{}}
	if own, err := h.Party.Certificate(); err == nil && own.Leaf.NotAfter.Before(ends.Controller) {
		ends.Controller = own.Leaf.NotAfter
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, s := range seen {
		at := s.Expires
		if s.Err != nil {
			at = k.ends.Machines[id]
		}
		if !at.IsZero() {
			ends.Machines[id] = at
		}
	}
	k.ends, k.service = ends, h.Service
}
