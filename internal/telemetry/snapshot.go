package telemetry

import (
	"encoding/json"
	"time"

	"skyserve/internal/service"
)

// Snapshot is the state of a service at one instant, as one balancer has it: its own region
// completely, the others as last reported by their balancers. It is the response of
// GET /v1/snapshot, and `skyserve top` shows it. Pointers are nil (JSON null) for unknown values;
// unknown is never zero.
type Snapshot struct {
	At        time.Time        `json:"at"`
	Service   string           `json:"service"`
	Regions   []RegionSnapshot `json:"regions"`
	Forecast  []LoadForecast   `json:"forecast"`
	Donations []Donation       `json:"donations"`
	Plan      *PlanSummary     `json:"plan"`
	// Targets are the targets of the current plan; empty if there is none.
	Targets []PlannedCapacity `json:"targets"`
	// Prices are the prices of replicas; empty before the first review.
	Prices []Price `json:"prices"`
	// Strategy is the scaling strategy, as in service.yaml; empty until the controller
	// reported it.
	Strategy string `json:"strategy"`
	// Events are the last SnapshotEvents of the service, oldest first.
	Events []Event `json:"events"`
	// Launches is what the controller may launch now and what failed before; nil = unknown.
	Launches *Launches `json:"launches"`
	// Alerts are the active alerts, most severe first.
	Alerts []Alert `json:"alerts"`
	// Controller is which controller leads, Store the state of the store; nil = unknown.
	Controller *ControllerState `json:"controller"`
	Store      *StoreState      `json:"store"`
	// BalancerLaunches are the launches of balancers by controllers; nil = none.
	BalancerLaunches *BalancerLaunches `json:"balancer_launches"`
	// Batches are the batches that have not ended, the earliest deadline first.
	Batches []BatchState `json:"batches"`
}

// Balancer returns the balancer of that id; nil if there is none.
func (s *Snapshot) Balancer(id string) *BalancerSnapshot {
	for _, r := range s.Regions {
		for i := range r.Balancers {
			if r.Balancers[i].ID == id {
				return &r.Balancers[i]
			}
		}
	}
	return nil
}

// RegionSnapshot is one region: its balancers, its replicas and its recent traffic.
type RegionSnapshot struct {
	Name      service.Region     `json:"name"`
	Balancers []BalancerSnapshot `json:"balancers"`
	Replicas  []ReplicaSnapshot  `json:"replicas"`
	// Queued is the number of requests queued at the region's balancers.
	Queued int `json:"queued"`
	// Models are the models with replicas or requests in the region, sorted; nil if a balancer
	// does not report them.
	Models []ModelSnapshot `json:"models"`
	// Keys are the API keys and users whose requests ended within the last minute, sorted; nil if a balancer
	// does not report them. After the first proxy.maxTraffic of a balancer, the others are summed as "other".
	Keys []KeyTraffic `json:"keys"`
	// RequestsPerSecond counts arrivals from clients over the last 10 s.
	RequestsPerSecond *float64 `json:"requests_per_second"`
	// OutputTokensPerSecond counts tokens streamed over the last 10 s.
	OutputTokensPerSecond *float64 `json:"output_tokens_per_second"`
	// PrefixHitRate is cached over prompt tokens of requests finished in the last 60 s.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// TTFT is the distribution for requests that arrived at this region's balancers in the last
	// 60 s.
	TTFT *Percentiles `json:"ttft_ms"`
	// QueueOldestMillis is how long the oldest queued request has waited, without the time for which a model that
	// scales to zero had no replica, and without deferred ones that wait for spare memory; nil if none waits or a
	// balancer does not report it.
	QueueOldestMillis *int64 `json:"queue_oldest_ms"`
	// Outcomes counts requests of the balancers' clients since they started.
	Outcomes Outcomes `json:"outcomes"`
	// ForwardedIn and ForwardedOut count requests since the balancer started.
	ForwardedIn  int64 `json:"forwarded_in"`
	ForwardedOut int64 `json:"forwarded_out"`
	// ForwardedTo is ForwardedOut by target region, sorted.
	ForwardedTo []Flow `json:"forwarded_to"`
}

// Outcomes counts requests by the response that their clients received.
type Outcomes struct {
	// Served are complete responses, 4xx included, Limited those with status 429, Failed those with 5xx or an
	// error within the stream.
	Served  int64 `json:"served"`
	Limited int64 `json:"limited"`
	Failed  int64 `json:"failed"`
	// Retries are attempts after the first of requests that were served or failed.
	Retries int64 `json:"retries"`
}

// Add returns the sum of two counts.
func (o Outcomes) Add(b Outcomes) Outcomes {
	return Outcomes{o.Served + b.Served, o.Limited + b.Limited, o.Failed + b.Failed, o.Retries + b.Retries}
}

// Flow counts requests that were forwarded to a region since the balancer started.
type Flow struct {
	Region   service.Region `json:"region"`
	Requests int64          `json:"requests"`
}

// ModelSnapshot is a model's counts at the balancers of a region.
type ModelSnapshot struct {
	Model string `json:"model"`
	// Queued is the number of queued interactive requests (IW-F and IW-N). Deferred is the number
	// of queued deferred requests (NIW), including those that wait for spare KV memory.
	Queued   int `json:"queued"`
	Deferred int `json:"deferred"`
	// FirstTokens is the number of streamed IW-F requests of their clients with a first token
	// since they started; SLOMisses is the number of those that missed the tier's TTFT target.
	FirstTokens int64 `json:"first_tokens"`
	SLOMisses   int64 `json:"slo_misses"`
	// IdleMillis is the time since the model was last in use: since it had a request, or since a
	// replica of it was added or became ready; 0 while it has a request. nil = not reported.
	IdleMillis *int64 `json:"idle_ms"`
	// Traffic is the traffic of the last minute; nil = not reported.
	Traffic *Traffic `json:"traffic"`
	// Cold means that the model has no ready replica in any region, and that the controller launches
	// one when a request waits: see service.Spec.ScalesToZero.
	Cold bool `json:"cold"`
}

// MarshalJSON adds the former key of SLOMisses.
func (m ModelSnapshot) MarshalJSON() ([]byte, error) {
	type plain ModelSnapshot
	return json.Marshal(struct {
		plain
		OldSLOMisses int64 `json:"late"`
	}{plain(m), m.SLOMisses})
}

// UnmarshalJSON also reads the former key of SLOMisses, which older balancers send.
func (m *ModelSnapshot) UnmarshalJSON(data []byte) error {
	type plain ModelSnapshot
	var read struct {
		plain
		OldSLOMisses int64 `json:"late"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*m = ModelSnapshot(read.plain)
	m.SLOMisses = max(m.SLOMisses, read.OldSLOMisses)
	return nil
}

// ReasonNoReport is the reason of a balancer that responds, and whose region is not known yet.
const ReasonNoReport = "no region snapshot received yet"

// BalancerSnapshot is one balancer process.
type BalancerSnapshot struct {
	ID       string `json:"id"`
	Endpoint string `json:"endpoint"` // public URL
	Admin    string `json:"admin"`    // admin URL
	Version  string `json:"version"`  // of its binary; empty if not reported
	// State is as in service.BalancerFacts.
	State  service.ReplicaState `json:"state"`
	Reason string               `json:"reason"`
	// Unresponsive is true for a balancer that does not respond in another state than StateUnreachable.
	Unresponsive bool `json:"unresponsive"`
	// RTTMillis is the round-trip time from the responding balancer; nil for itself, and for one that has never reported.
	RTTMillis *float64 `json:"rtt_ms"`
	// AgeMillis is the age of the data; 0 for the responding balancer itself.
	AgeMillis int64 `json:"age_ms"`
	// Certificate is the certificate of its public listener; nil without TLS.
	Certificate *Certificate `json:"certificate"`
	// Alerts are its own alerts, as exchanged between balancers; Snapshot.Alerts contains all alerts.
	Alerts []Alert `json:"alerts,omitempty"`
}

// Certificate is the TLS certificate that a listener uses.
type Certificate struct {
	// ExpiresAt is when the certificate in use expires; nil while there is none.
	ExpiresAt *time.Time `json:"expires_at"`
	// Waiting is the reason that there is no certificate yet; the listener then rejects TLS
	// connections. Empty otherwise.
	Waiting string `json:"waiting"`
	// Problem is the reason that the current files cannot be used or the renewal failed; an older
	// certificate then stays in use. Empty otherwise.
	Problem string `json:"problem"`
}

// ReplicaSnapshot is one replica.
type ReplicaSnapshot struct {
	ID    string `json:"id"`
	URL   string `json:"url"`
	Model string `json:"model"`
	GPU   string `json:"gpu"`
	// Region is where it runs. It differs from the region of the balancer that lists it if
	// that balancer has adopted it. Empty = the balancer's own, or unknown.
	Region service.Region `json:"region"`
	// Capacity is the capacity type of its VM; empty = unknown, or not rented.
	Capacity service.CapacityType `json:"capacity"`
	// State is as in service.ReplicaFacts.
	State  service.ReplicaState `json:"state"`
	Reason string               `json:"reason"`
	// Origin is as in Worker; empty if the balancer does not report it.
	Origin string `json:"origin"`
	// Pending and Running are reported by the engine; nil if it does not report them.
	Pending *int `json:"pending"`
	Running *int `json:"running"`
	// Outstanding is the balancer's count of requests sent and not yet finished.
	Outstanding int `json:"outstanding"`
	// OutstandingLimit is the limit of Outstanding that the balancer uses while Pending is unknown or
	// old: the engine's number of slots, or learned. nil = it does not apply.
	OutstandingLimit *int `json:"outstanding_limit"`
	// Sent counts the attempts at the replica since it was attached, Failed those that failed.
	Sent   int64 `json:"sent"`
	Failed int64 `json:"failed"`
	// Attachment is another number whenever Sent and Failed begin at 0 again, also after a restart of the balancer.
	Attachment uint64 `json:"attachment"`
	// Epoch is the number of the assignment with which the controller attached it; 0 = not attached by the controller, or
	// not reported.
	Epoch uint64 `json:"epoch"`
	// Pace is the time between two tokens relative to the nominal replica; nil until enough were seen.
	Pace *float64 `json:"pace"`
	// KV is the KV utilisation, 0..1.
	KV                    *float64 `json:"kv"`
	PrefixHitRate         *float64 `json:"prefix_hit_rate"`
	OutputTokensPerSecond *float64 `json:"output_tokens_per_second"`
	// AgeMillis is the age of the last report, nil if there was none.
	AgeMillis *int64 `json:"age_ms"`
	// Continuation is whether its engine can continue a stream of another replica: proven, unproven, or
	// unknown (not checked yet, or not reported).
	Continuation string `json:"continuation"`
	Donated      bool   `json:"donated"`
	// Unattached is true for a replica that no balancer has: see IsAttached.
	Unattached bool `json:"unattached"`
	// Terminated is as in MachineState; false also if unknown.
	Terminated bool `json:"terminated"`
	// Start is its start in progress, or one that ended within StartShownFor; nil = none, or unknown.
	Start *Start `json:"start"`
	// USDPerHour is the price of its VM, nil if unknown.
	USDPerHour *float64 `json:"usd_per_hour"`
	// Version, ReadySince and GPUs are as in ReplicaMachine.
	Version    string       `json:"version"`
	ReadySince *time.Time   `json:"ready_since"`
	GPUs       []GPUFigures `json:"gpus"`
}

// Percentiles is the set of percentiles in every JSON output, in the unit that the key of
// the set names.
type Percentiles struct {
	Mean float64 `json:"mean"`
	P10  float64 `json:"p10"`
	P25  float64 `json:"p25"`
	P50  float64 `json:"p50"`
	P75  float64 `json:"p75"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}
