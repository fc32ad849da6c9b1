package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Severity is how soon somebody has to act on an alert.
type Severity string

// The severities.
const (
	SeverityWarning  Severity = "warning"  // it works still
	SeverityCritical Severity = "critical" // something does not work
)

// The kinds of alerts.
const (
	AlertStore       = "store"
	AlertController  = "controller"
	AlertCertificate = "certificate"
)

// Alert is something that does not work, or will not for long, unless somebody acts.
type Alert struct {
	Severity Severity `json:"severity"`
	// Kind is what it is about: store, controller or certificate. Kind, Region and Object
	// together tell alerts apart.
	Kind string `json:"kind"`
	// Region is empty where it is about the whole service.
	Region service.Region `json:"region"`
	// Object is the id of what it is about, such as a balancer's.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Since is when it began; nil where that is not known.
	Since *time.Time `json:"since"`
	// NextStep is what to do, and by when.
	NextStep string `json:"next_step"`
}

// Subject is what it is about in words: its kind, and its object where that is another word.
func (a Alert) Subject() string {
	if a.Object == a.Kind || a.Object == "" {
		return a.Kind
	}
	return a.Kind + " " + a.Object
}

// Line is the alert in a line, such as "warning: certificate lb-us-0: ends 2027-01-02;
// run 'skyserve up'".
func (a Alert) Line() string {
	text := fmt.Sprintf("%s: %s: %s", a.Severity, a.Subject(), a.Message)
	if a.NextStep != "" {
		text += "; " + a.NextStep
	}
	return strings.Join(strings.Fields(text), " ")
}

// MergeAlerts joins alerts that several parties of a service know of: one of each that is
// about the same, the worst first. It is never nil.
func MergeAlerts(lists ...[]Alert) []Alert {
	type about struct {
		kind, object string
		region       service.Region
	}
	best := map[about]Alert{}
	order := []about{}
	for _, a := range slices.Concat(lists...) {
		key := about{a.Kind, a.Object, a.Region}
		old, known := best[key]
		if !known {
			order = append(order, key)
		}
		if !known || a.Severity == SeverityCritical && old.Severity != SeverityCritical {
			best[key] = a
		}
	}
	merged := make([]Alert, 0, len(order))
	for _, key := range order {
		merged = append(merged, best[key])
	}
	slices.SortStableFunc(merged, func(a, b Alert) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Object, b.Object))
	})
	return merged
}

// Alerts is what the controller knows of: it keeps them in the store, and every balancer
// shows them in its snapshot.
type Alerts struct {
	// Token is the fencing token of the controller that wrote them.
	Token  uint64  `json:"token"`
	Alerts []Alert `json:"alerts"`
}

// AlertsPrefix begins the keys of Alerts in the store.
const AlertsPrefix = "alerts."

// AlertsKey is where a service's Alerts are kept in the store.
func AlertsKey(service string) string { return AlertsPrefix + service }

// ControllerLease is the name of the lease that the acting controller of a service holds.
func ControllerLease(service string) string { return "controller." + service }
