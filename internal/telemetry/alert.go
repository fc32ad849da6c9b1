package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Severity is how urgent an alert is.
type Severity string

// The severities.
const (
	SeverityWarning  Severity = "warning"  // any alert that is not critical
	SeverityCritical Severity = "critical" // clients are affected, or soon will be; docs/alerts.md has the condition of each kind
)

// The kinds of alerts.
const (
	AlertStore       = "store"
	AlertController  = "controller"
	AlertCertificate = "certificate"
	AlertIssuer      = "issuer"
	AlertFallback    = "fallback" // requests for a model are served by its fallback
	AlertAdapter     = "adapter"
	AlertDiscovery   = "discovery"
	AlertReplica     = "replica" // a replica fails its health checks, or cannot become ready until an operator changes something
	AlertLaunch      = "launch"  // replicas that never become ready, or too many launches
	AlertBudget      = "budget"  // the budget blocks launches
	AlertGPU         = "gpu"     // a machine has a fatal GPU error

	AlertErrors       = "errors"       // a replica fails many of its requests
	AlertSlow         = "slow"         // a replica generates tokens slower than the others
	AlertEjection     = "ejection"     // a replica is ejected because its requests fail
	AlertInterruption = "interruption" // the cloud interrupts the machine of a replica
	AlertKV           = "kv"           // the KV memory of a replica stays full
	AlertBalancer     = "balancer"     // a balancer does not respond
	AlertVersion      = "version"      // balancers run different versions
	AlertFailed       = "failed"       // clients receive 5xx
	AlertLimited      = "limited"      // clients receive 429
	AlertRetries      = "retries"      // many requests need several attempts
	AlertSLO          = "slo"          // first tokens miss their target
	AlertQueue        = "queue"        // requests wait long in the queue
	AlertPlan         = "plan"         // planning fails, or no plan satisfies the bounds, or its replicas are missing
	AlertForecast     = "forecast"     // the load deviates from its forecast
)

// AlertKinds returns the kinds of alerts that balancers and the controller raise, sorted.
func AlertKinds() []string {
	return []string{
		AlertAdapter, AlertBalancer, AlertBudget, AlertCertificate, AlertController, AlertDiscovery, AlertEjection, AlertErrors, AlertFailed, AlertFallback,
		AlertForecast, AlertGPU, AlertInterruption, AlertIssuer, AlertKV, AlertLaunch, AlertLimited, AlertPlan, AlertQueue, AlertReplica, AlertRetries, AlertSLO,
		AlertSlow, AlertStore, AlertVersion,
	}
}

// Alert is a fault that an operator should know about.
type Alert struct {
	Severity Severity `json:"severity"`
	// Kind is one of the constants above. Kind, Region and Object together identify an
	// alert.
	Kind string `json:"kind"`
	// Region is empty if the alert is about the whole service.
	Region service.Region `json:"region"`
	// Object is the id of the affected object, such as a balancer.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Since is when the failure started; nil if unknown.
	Since *time.Time `json:"since"`
	// NextStep is what an operator can do; empty = nothing.
	NextStep string `json:"next_step"`
}

// Subject returns what the alert is about: its kind and, if it differs, its object. "failed lb-us-0" would
// read as if the balancer had failed: the requests of clients do.
func (a Alert) Subject() string {
	kind := a.Kind
	switch kind {
	case AlertFailed:
		kind = "failed requests"
	case AlertLimited:
		kind = "rejected requests"
	}
	if a.Object == a.Kind || a.Object == "" {
		return kind
	}
	return kind + " " + a.Object
}

// Line returns the alert in one line, such as "warning: certificate lb-us-0: expires
// on 2027-01-02; run 'skyserve up'".
func (a Alert) Line() string {
	text := fmt.Sprintf("%s: %s: %s", a.Severity, a.Subject(), a.Message)
	if a.NextStep != "" {
		text += "; " + a.NextStep
	}
	return strings.Join(strings.Fields(text), " ")
}

// MergeAlerts merges alerts of several sources. Of alerts with the same kind, region and object it
// returns the most severe one. The result is sorted, most severe first, and never nil.
func MergeAlerts(lists ...[]Alert) []Alert {
	type identity struct {
		kind, object string
		region       service.Region
	}
	best := map[identity]Alert{}
	order := []identity{}
	for _, a := range slices.Concat(lists...) {
		key := identity{a.Kind, a.Object, a.Region}
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

// Alerts are the alerts of the leading controller, with the state of the controllers and of the store. The
// leader writes them to the store, and every balancer includes them in its snapshot.
type Alerts struct {
	// Token is the fencing token of the controller that wrote them.
	Token  uint64  `json:"token"`
	Alerts []Alert `json:"alerts"`
	// Controller and Store are nil where an older controller wrote them.
	Controller *ControllerState `json:"controller"`
	Store      *StoreState      `json:"store"`
}

// HealthAlerts is the response of a controller's health endpoint to a request that accepts JSON.
type HealthAlerts struct {
	Alerts []Alert `json:"alerts"`
}

// AlertsPrefix is the prefix of the store keys of Alerts.
const AlertsPrefix = "alerts."

// AlertsKey returns the store key of a service's Alerts.
func AlertsKey(service string) string { return AlertsPrefix + service }

// BalancerLaunches is the record of the balancers' machines that controllers launched, signed by a controller: an
// identity.Signed, whose text only its readers understand. The leader writes it to the store, and every balancer
// includes it in its snapshot.
type BalancerLaunches struct {
	Text      []byte `json:"text"`
	Chain     string `json:"chain"`
	Signature []byte `json:"signature"`
}

// BalancerLaunchesPrefix is the prefix of the store keys of BalancerLaunches.
const BalancerLaunchesPrefix = BalancerLaunchesRecord + "."

// BalancerLaunchesRecord is the name of the record of BalancerLaunches.
const BalancerLaunchesRecord = "balancers"

// BalancerLaunchesKey returns the store key of a service's BalancerLaunches.
func BalancerLaunchesKey(service string) string { return BalancerLaunchesPrefix + service }

// ControllerLease returns the name of the lease that a service's controller holds while it
// leads.
func ControllerLease(service string) string { return "controller." + service }
