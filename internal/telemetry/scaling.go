package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Scaling is what the controller did about the number of replicas: it keeps the
// newest in the store, and every balancer shows it in its snapshot.
type Scaling struct {
	// Token is the fencing token of the controller that acts.
	Token uint64 `json:"token"`
	// Strategy is the word of autoscale.strategy that it acts by.
	Strategy  string     `json:"strategy"`
	Donations []Donation `json:"donations"`
	// Events are the last MaxScalingEvents, the oldest first.
	Events []ScalingEvent `json:"events"`
}

// MaxScalingEvents bounds the events that are kept: every balancer hands them to
// everyone who looks, and an hour of a busy service has fewer.
const MaxScalingEvents = 50

// ScalingPrefix begins the keys of Scaling in the store.
const ScalingPrefix = "scaling."

// ScalingKey is where a service's Scaling is kept in the store.
func ScalingKey(service string) string { return ScalingPrefix + service }

// Donation is one replica lent to the spot pool.
type Donation struct {
	Replica string         `json:"replica"`
	Model   string         `json:"model"`
	GPU     string         `json:"gpu"`
	URL     string         `json:"url"`
	Region  service.Region `json:"region"`
	Since   time.Time      `json:"since"`
	// Until is when it is removed unless it was taken back; nil = it stays.
	Until *time.Time `json:"until"`
	// EarnsPerHour is what it earns meanwhile, in USD.
	EarnsPerHour float64 `json:"earns_per_hour"`
}

// ScalingAction is what was done to replicas.
type ScalingAction string

// What a ScalingEvent tells of.
const (
	ScalingLaunched   ScalingAction = "launched"   // new ones were started
	ScalingReclaimed  ScalingAction = "reclaimed"  // donated ones serve again
	ScalingRedeployed ScalingAction = "redeployed" // another model's donated ones were started again with this model
	ScalingReplaced   ScalingAction = "replaced"   // another was launched in the place of one that runs on something else than the plan wants
	ScalingDonated    ScalingAction = "donated"    // they finish what they have and are lent
	ScalingRemoved    ScalingAction = "removed"    // they finish what they have and are stopped
	ScalingFailed     ScalingAction = "failed"     // what was decided could not be done
)

// ScalingEvent is one change of the number of replicas of a model in a region.
type ScalingEvent struct {
	At       time.Time      `json:"at"`
	Strategy string         `json:"strategy"`
	Action   ScalingAction  `json:"action"`
	Model    string         `json:"model"`
	Region   service.Region `json:"region"`
	// Replicas are the ids that it is about.
	Replicas []string `json:"replicas"`
	// Serving is how many replicas served, or were starting to, before.
	Serving int `json:"serving"`
	// Reason says in words why.
	Reason string `json:"reason"`
}

// Line is the event in a line, such as "14:02:05 lt-ua: us: launched us-3: memory 71
// % used, above 70 %, 5 planned; replicas before: 3", its time in zone.
func (e ScalingEvent) Line(zone *time.Location) string {
	what := strings.TrimSpace(fmt.Sprintf("%s %s", e.Action, strings.Join(e.Replicas, ", ")))
	return fmt.Sprintf("%s %s: %s: %s: %s; replicas before: %d", e.At.In(zone).Format(time.TimeOnly), e.Strategy, e.Region.Place(), what, e.Reason, e.Serving)
}

// EventLines are the last n events, the newest last.
func (s *Snapshot) EventLines(zone *time.Location, n int) []string {
	var lines []string
	for _, e := range s.Events[max(0, len(s.Events)-n):] {
		lines = append(lines, e.Line(zone))
	}
	return lines
}

// DonationLine says in a line what is lent and what that earns, such as "2 replicas
// donated (us-1, us-2), $0.60/h"; empty where nothing is.
func (s *Snapshot) DonationLine() string {
	if len(s.Donations) == 0 {
		return ""
	}
	var ids []string
	for _, d := range s.Donations {
		ids = append(ids, d.Replica)
	}
	text := fmt.Sprintf("%d replicas donated (%s)", len(ids), strings.Join(ids, ", "))
	if len(ids) == 1 {
		text = "1 replica donated (" + ids[0] + ")"
	}
	if earns := s.EarnsPerHour(); earns > 0 {
		text += fmt.Sprintf(", $%.2f/h", earns)
	}
	return text
}

// EarnsPerHour is what all that is lent earns, in USD an hour.
func (s *Snapshot) EarnsPerHour() float64 {
	sum := 0.0
	for _, d := range s.Donations {
		sum += d.EarnsPerHour
	}
	return sum
}

// Show takes what the controller did into the snapshot: who is donated is a replica
// of its region, whether a balancer still knows it or not. nil changes nothing.
func (s *Snapshot) Show(c *Scaling) {
	if c == nil {
		return
	}
	s.Strategy = c.Strategy
	s.Donations, s.Events = append(s.Donations, c.Donations...), append(s.Events, c.Events...)
	for i := range s.Regions {
		r := &s.Regions[i]
		for _, d := range c.Donations {
			if d.Region == r.Name {
				r.Replicas = withDonated(r.Replicas, d)
			}
		}
		slices.SortStableFunc(r.Replicas, func(a, b ReplicaSnapshot) int { return strings.Compare(a.ID, b.ID) })
	}
}

// withDonated is replicas with one that is lent.
func withDonated(replicas []ReplicaSnapshot, d Donation) []ReplicaSnapshot {
	for i := range replicas {
		if replicas[i].ID == d.Replica {
			replicas[i].Donated = replicas[i].State != service.StateReady // it finishes what it has, or is back
			return replicas
		}
	}
	return append(replicas, ReplicaSnapshot{
		ID: d.Replica, URL: d.URL, Model: d.Model, GPU: d.GPU, State: service.StateDonated, Reason: d.reason(), Donated: true,
	})
}

// reason says for how long a replica is lent.
func (d Donation) reason() string {
	lent := service.Donation{Since: d.Since}
	if d.Until != nil {
		lent.Until = *d.Until
	}
	return lent.String()
}
