package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// Snapshot is a service at one instant as one balancer knows it: its own
// region in full, the others as their balancers last reported. It is what
// GET /v1/snapshot answers and what top draws. Pointers are nil (JSON null)
// where a figure is unknown; unknown is never zero.
type Snapshot struct {
	At        time.Time        `json:"at"`
	Service   string           `json:"service"`
	Regions   []RegionSnapshot `json:"regions"`
	Forecast  []LoadForecast   `json:"forecast"`
	Donations []Donation       `json:"donations"`
	Plan      *PlanSummary     `json:"plan"`
	// Targets is what the plan in force wants; empty where there is none.
	Targets []Target `json:"targets"`
	// Prices is what replicas are billed; empty until a review told.
	Prices []Price `json:"prices"`
	// Strategy is what changes the number of replicas between plans, by its word in
	// service.yaml; empty until the controller told. Events are what it did.
	Strategy string         `json:"strategy"`
	Events   []ScalingEvent `json:"events"`
	// Alerts are what somebody has to act on, the worst first.
	Alerts []Alert `json:"alerts"`
}

// Balancer finds a balancer by its id; nil when it is not there.
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

// RegionSnapshot is one region: its balancers, its replicas and the traffic of
// the last ten seconds.
type RegionSnapshot struct {
	Name      service.Region     `json:"name"`
	Balancers []BalancerSnapshot `json:"balancers"`
	Replicas  []ReplicaSnapshot  `json:"replicas"`
	// Queued is the number of requests that the region's balancers hold.
	Queued int `json:"queued"`
	// Models are those that have replicas or requests there, sorted; nil where a balancer
	// does not tell them.
	Models []ModelSnapshot `json:"models"`
	// RequestsPerSecond counts arrivals from clients over the last 10 s.
	RequestsPerSecond *float64 `json:"requests_per_second"`
	// OutputTokensPerSecond counts tokens streamed over the last 10 s.
	OutputTokensPerSecond *float64 `json:"output_tokens_per_second"`
	// PrefixHitRate is cached over prompt tokens of requests finished in the last 60 s.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// TTFT is over the requests of the last 60 s that arrived at this region's balancers.
	TTFT *Percentiles `json:"ttft_ms"`
	// ForwardedIn and ForwardedOut count requests since the balancer started.
	ForwardedIn  int64 `json:"forwarded_in"`
	ForwardedOut int64 `json:"forwarded_out"`
	// ForwardedTo says where ForwardedOut went, sorted by region.
	ForwardedTo []Flow `json:"forwarded_to"`
}

// Flow counts requests that were forwarded to a region since the balancer started.
type Flow struct {
	Region   service.Region `json:"region"`
	Requests int64          `json:"requests"`
}

// ModelSnapshot is what the balancers of a region count of a model.
type ModelSnapshot struct {
	Model string `json:"model"`
	// Queued are the interactive requests (IW-F and IW-N) that they hold, Deferred the
	// others (NIW), those included that wait apart for spare memory.
	Queued   int `json:"queued"`
	Deferred int `json:"deferred"`
	// FirstTokens is how many streamed IW-F requests of their clients had a first token
	// since they started; Late, for how many of those it came after the tier's target.
	FirstTokens int64 `json:"first_tokens"`
	Late        int64 `json:"late"`
}

// BalancerUnreachable is the state of a balancer that does not answer.
const BalancerUnreachable = "UNREACHABLE"

// BalancerSnapshot is one balancer process.
type BalancerSnapshot struct {
	ID       string `json:"id"`
	Endpoint string `json:"endpoint"` // public URL
	Admin    string `json:"admin"`    // admin URL
	State    string `json:"state"`    // READY, STARTING (no replica yet), DRAINING or BalancerUnreachable
	Reason   string `json:"reason"`
	// RTTMillis is the measured round trip from the answering balancer; nil for itself.
	RTTMillis *float64 `json:"rtt_ms"`
	// AgeMillis is how old the figures are; 0 for the answering balancer itself.
	AgeMillis int64 `json:"age_ms"`
	// Certificate is its public listener's; nil without TLS.
	Certificate *Certificate `json:"certificate"`
	// Alerts are its own, as balancers tell each other; Snapshot.Alerts has all.
	Alerts []Alert `json:"alerts,omitempty"`
}

// Certificate is the TLS certificate that a listener uses.
type Certificate struct {
	// ExpiresAt is when the one in use ends; nil while there is none.
	ExpiresAt *time.Time `json:"expires_at"`
	// Waiting is why there is none yet, so that the listener refuses TLS; empty when there is.
	Waiting string `json:"waiting"`
	// Problem is why what is in its files now cannot be used, or why it could not be
	// renewed, so that this older one stays in use; empty when nothing went wrong.
	Problem string `json:"problem"`
}

// ReplicaSnapshot is one replica.
type ReplicaSnapshot struct {
	ID    string `json:"id"`
	URL   string `json:"url"`
	Model string `json:"model"`
	GPU   string `json:"gpu"`
	// Region is where it runs: another one than that of the balancer which lists it where that
	// one has adopted it. Empty = the balancer's own, or not known.
	Region service.Region `json:"region"`
	// Capacity is how its machine is paid for; empty = not known, or not rented.
	Capacity service.CapacityType `json:"capacity"`
	State    service.ReplicaState `json:"state"`
	Reason   string               `json:"reason"`
	// Pending and Running are the engine's own figures, nil when it exports none.
	Pending *int `json:"pending"`
	Running *int `json:"running"`
	// Outstanding is what the balancer counts: sent and not yet finished.
	Outstanding int `json:"outstanding"`
	// KV is the used share of KV memory, 0..1.
	KV                    *float64 `json:"kv"`
	PrefixHitRate         *float64 `json:"prefix_hit_rate"`
	OutputTokensPerSecond *float64 `json:"output_tokens_per_second"`
	// AgeMillis is the age of the last report, nil when none ever came.
	AgeMillis *int64 `json:"age_ms"`
	Donated   bool   `json:"donated"`
	// USDPerHour is what its machine costs, nil where that is not known.
	USDPerHour *float64 `json:"usd_per_hour"`
}

// Percentiles is the percentile set that every JSON output shares: every figure in the unit that
// the key holding it names.
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
