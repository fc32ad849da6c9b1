package telemetry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// Scaling is the scaling state of the controller. The controller writes it to the store, and every
// balancer includes it in its snapshot.
type Scaling struct {
	// Token is the fencing token of the controller that wrote it.
	Token uint64 `json:"token"`
	// Strategy is the value of autoscale.strategy.
	Strategy  string     `json:"strategy"`
	Donations []Donation `json:"donations"`
	// Events are the last MaxScalingEvents actions of the strategy, oldest first. A new leader applies
	// the strategy's cooldown to them; readers get the events of the service from the store.
	Events []Event `json:"events"`
	// Launches is what the controller may launch now; nil = unknown.
	Launches *Launches `json:"launches,omitempty"`
	// Starts are the starts of replicas in progress, and those that ended within StartShownFor, at most
	// MaxStarts.
	Starts []ReplicaStart `json:"starts,omitempty"`
	// Machines are the machines of replicas whose agents respond, at most MaxMachines, sorted by Replica.
	Machines []ReplicaMachine `json:"machines,omitempty"`
	// States are the replicas and balancers that are not ready, drained and donated replicas, and replicas that no
	// balancer has yet: at most MaxStates, sorted by ID.
	States []MachineState `json:"states,omitempty"`
}

// Limits of Scaling.Starts: a start has about 1 KB, and a value of the store at most 1 MB.
const (
	MaxStarts     = 200
	StartShownFor = 10 * time.Minute
)

// MaxScalingEvents is the maximum number of stored events: more than a busy service has in an hour,
// and few enough for a value of the store.
const MaxScalingEvents = 50

// ScalingPrefix is the prefix of the store keys of Scaling.
const ScalingPrefix = "scaling."

// ScalingKey returns the store key of a service's Scaling.
func ScalingKey(service string) string { return ScalingPrefix + service }

// Donation is one replica donated to other work.
type Donation struct {
	Replica string         `json:"replica"`
	Model   string         `json:"model"`
	GPU     string         `json:"gpu"`
	URL     string         `json:"url"`
	Region  service.Region `json:"region"`
	Since   time.Time      `json:"since"`
	// Until is the time at which the replica is removed unless it is reclaimed; nil = never.
	Until *time.Time `json:"until"`
	// RevenuePerHour is its revenue in USD per hour.
	RevenuePerHour float64 `json:"revenue_per_hour"`
}

// MarshalJSON adds the former key of RevenuePerHour.
func (d Donation) MarshalJSON() ([]byte, error) {
	type plain Donation
	return json.Marshal(struct {
		plain
		OldRevenuePerHour float64 `json:"earns_per_hour"`
	}{plain(d), d.RevenuePerHour})
}

// UnmarshalJSON also reads the former key of RevenuePerHour, which older controllers store.
func (d *Donation) UnmarshalJSON(data []byte) error {
	type plain Donation
	var read struct {
		plain
		OldRevenuePerHour float64 `json:"earns_per_hour"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*d = Donation(read.plain)
	d.RevenuePerHour = max(d.RevenuePerHour, read.OldRevenuePerHour)
	return nil
}

// DonationLine returns the donated replicas and their earnings in one line, such as "2
// replicas donated (us-1, us-2), revenue $0.60/h"; empty if there are none.
func (s *Snapshot) DonationLine() string {
	if len(s.Donations) == 0 {
		return ""
	}
	var ids []string
	for _, d := range s.Donations {
		ids = append(ids, d.Replica)
	}
	text := fmt.Sprintf("%s donated (%s)", printable.Count(len(ids), "replica"), strings.Join(ids, ", "))
	if earns := s.RevenuePerHour(); earns > 0 {
		text += fmt.Sprintf(", revenue $%.2f/h", earns)
	}
	return text
}

// RevenuePerHour returns the earnings of all donated replicas in USD per hour.
func (s *Snapshot) RevenuePerHour() float64 {
	sum := 0.0
	for _, d := range s.Donations {
		sum += d.RevenuePerHour
	}
	return sum
}

// AddScaling adds the scaling state to the snapshot. Replicas that no balancer reports are listed in their region,
// such as donated ones. nil changes nothing.
func (s *Snapshot) AddScaling(c *Scaling) {
	if c == nil {
		return
	}
	s.Strategy, s.Launches = c.Strategy, c.Launches
	s.Donations = append(s.Donations, c.Donations...)
	s.addStates(c.States, c.Donations)
	for i := range s.Regions {
		r := &s.Regions[i]
		for k := range r.Replicas {
			r.Replicas[k].addMachine(c.Machines)
			if n := slices.IndexFunc(c.Starts, func(s ReplicaStart) bool { return s.Replica == r.Replicas[k].ID }); n >= 0 {
				r.Replicas[k].Start = c.Starts[n].Start
			}
		}
	}
}

// donation returns the period of the donation.
func (d Donation) donation() *service.Donation {
	donation := &service.Donation{Since: d.Since}
	if d.Until != nil {
		donation.Until = *d.Until
	}
	return donation
}
