package sim

import (
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
)

// FleetScenario is a service with scaling: several models in several regions on VMs, each with one
// replica or donated to the spot pool (SageServe section 7.1). Some VMs exist from the start, others
// can be launched. Engines are light.
//
// Read fleet.go first (scenarios and results), then fleet_demand.go (demand), fleet_world.go (the event
// loop), fleet_route.go (routing), fleet_scale.go (scaling) and fleet_count.go (figures).
type FleetScenario struct {
	Name, Title string
	Models      []FleetModel
	Regions     []string
	// RTT is the round-trip time between any two regions.
	RTT time.Duration
	// VMs is the initial number of VMs per model and region, all serving.
	VMs int
	// Silo is the number of these VMs that serve only deferred requests; then no other VM serves them. 0 = one
	// pool for all requests, in which deferred ones wait for capacity.
	Silo int
	// Spare is the number of additional VMs that can be launched in each region. A launched VM stays
	// until the end.
	Spare int
	// Min and Max are the limits of replicas per endpoint.
	Min, Max int
	// Order is the queue order at a replica. With FCFS, the engine's own order, deferred requests come
	// last unless urgent; see signal.
	Order core.QueueOrder
	// Deadlines are those of the tiers. A request that misses its deadline is a violation.
	Deadlines core.TierDeadlines
	// ReclaimDraining: a replica that drains can be reclaimed, as if it were donated already; the controller does
	// that. In the paper a VM drains first.
	ReclaimDraining bool
	// SevereAfter and UrgentBefore are those of core.Config, for DPA.
	SevereAfter, UrgentBefore time.Duration
	Starts                    StartTimes
	// Period is the interval of the Scaler, SignalPeriod the interval at which endpoints report their
	// utilisation to the deferred queue.
	Period, SignalPeriod time.Duration
	// Demand is the load; the run starts at its time From and lasts Duration.
	Demand         *Demand
	From, Duration time.Duration
	// Requests, if set, are the requests of the run in order of time, in place of those drawn from Demand.
	Requests []FleetRequest
	// Balancer, if set, returns the configuration of the balancer between clients and replicas, in a scenario with
	// one region and no silo. nil = the policy sageserve sends each request when it arrives, as in the paper.
	Balancer func() core.Config
	// SampleInterval is the interval between two samples of the time series; 0 = none.
	SampleInterval time.Duration
}

// FleetRequest is a request of a FleetScenario.
type FleetRequest struct {
	At             time.Duration // since the start of the run
	Model, Region  int           // indices in the scenario
	Tier           service.Tier
	Prompt, Output int // tokens
}

// FleetModel is a model of a FleetScenario.
type FleetModel struct {
	Name    string
	Profile engine.Profile // of one replica
	GPUs    int            // of one replica
	// Lengths apply to all its requests.
	Lengths Lengths
	// RemoteIn are the regions, by index, whose storage lacks the model's weights until a VM has fetched
	// them from another region.
	RemoteIn []int
}

// StartTimes are the times from a scaling request until the replica serves (SageServe section 7.1).
type StartTimes struct {
	// Reclaim is the median time to reclaim a donated VM with the right weights, log-normal with
	// ReclaimSigma and at most ReclaimMax.
	Reclaim      time.Duration
	ReclaimSigma float64
	ReclaimMax   time.Duration
	// Redeploy is the time to load another model's weights, Fetch the time if they come from another
	// region's storage.
	Redeploy, Fetch time.Duration
	// Launch is the time to start a new VM, before its weights are loaded.
	Launch time.Duration
}

// SageStarts returns the paper's times, with a spread by which one start in 26 takes 3 minutes or more.
// For a new VM the paper reports minutes: three are assumed.
func SageStarts() StartTimes {
	return StartTimes{
		Reclaim: time.Minute, ReclaimSigma: 0.6, ReclaimMax: 5 * time.Minute,
		Redeploy: 10 * time.Minute, Fetch: 2 * time.Hour, Launch: 3 * time.Minute,
	}
}

// FleetSetup is the configuration under test.
type FleetSetup struct {
	Scaler   Scaler
	Deferred core.DeferredRule // for a scenario without silos
	Seed     uint64
	// OnVMChange, if set, receives every change of a VM.
	OnVMChange func(VMChange)
}

// Scaler decides the number of replicas. It is called every Period, with times since the start of the
// run. The view is valid only during the call. An error ends the run.
type Scaler interface {
	Step(now time.Duration, v *FleetView) ([]FleetChange, error)
}

// FleetView is the input of a Scaler: the endpoints by model, region and pool.
type FleetView struct {
	Endpoints []EndpointView
	Spare     []int // VMs that can still be launched, by region
}

// EndpointView describes the replicas of a model in a region that serve the same requests.
type EndpointView struct {
	Model, Region int  // indices in the scenario
	Deferred      bool // in a silo for deferred requests
	Ready         int
	Starting      int
	Draining      int
	Donated       int // with ReclaimDraining, draining ones included
	// Utilisation is the share of KV memory in use, of the ready replicas.
	Utilisation float64
	// Waiting is the number of interactive requests without a first token.
	Waiting int
	// FirstTokens counts the IW-F requests served here that received a first token since the start of
	// the run, Late those that received it after the tier's deadline.
	FirstTokens, Late int64
	// Interactive and DeferredTokens are the prompt tokens requested by clients of the region since the
	// start of the run.
	Interactive, DeferredTokens int64
	// Minutes are these counts at the end of each complete minute of the run.
	Minutes []MinuteTokens
}

// MinuteTokens are the prompt tokens requested until the end of a minute.
type MinuteTokens struct{ Interactive, Deferred int64 }

// FleetChange is a scaling decision for an endpoint.
type FleetChange struct {
	Endpoint int // index in the view
	// Reclaim is the number of its own donated VMs to reclaim, the last donated first. Redeploy switches donated
	// VMs of other endpoints in the region to it. Launch is the number of new VMs. Donate
	// is the number of replicas to drain and donate.
	Reclaim  int
	Redeploy []DonatedVMs
	Launch   int
	Donate   int
}

// DonatedVMs is a number of donated VMs of an endpoint.
type DonatedVMs struct{ Endpoint, Count int }

// VMState is the state of a VM.
type VMState uint8

// The states of a VM.
const (
	VMReady VMState = iota
	VMStarting
	VMDraining
	VMDonated
	vmStates
)

func (s VMState) String() string {
	return [vmStates]string{"ready", "starting", "draining", "donated"}[s]
}

// VMChange is a state change of a VM.
type VMChange struct {
	At       time.Duration
	VM       int
	Endpoint int
	State    VMState
}

// FleetResult holds the measurements of a whole run.
type FleetResult struct {
	Endpoints []EndpointResult // as in the view
	// Tiers is by model, then IW-F, IW-N, NIW.
	Tiers   []TierResult
	Samples []FleetSample
	// Issued counts all requests and is the sum of the others. Rejected are those that a balancer rejected.
	Issued, Completed, Waiting, InFlight, Rejected int
	Events                                         int64
}

// EndpointResult is the use of VMs by an endpoint.
type EndpointResult struct {
	Model, Region int
	Deferred      bool
	// Hours is by state, in VM-hours.
	Hours [vmStates]float64
	// Starts counts started replicas; Redeployed of them replaced other weights, Launched of them are on
	// new VMs.
	Starts, Redeployed, Launched int
	// WaitingTokens is the prompt tokens of the region's deferred requests that still wait at the end.
	WaitingTokens int64
	// Tiers is by IW-F, IW-N, NIW, over the requests of the region's clients.
	Tiers [tiers]TierResult
}

// InstanceHours returns all VM-hours that were not donated.
func (r *EndpointResult) InstanceHours() float64 {
	return r.Hours[VMReady] + r.Hours[VMStarting] + r.Hours[VMDraining]
}

// TierResult is the result of a tier's requests.
type TierResult struct {
	Model     int
	Tier      service.Tier
	Issued    int
	Completed int
	// Violations counts the requests that missed the tier's deadline, including overdue unfinished ones.
	Violations int
	// Reroutes counts the requests served by another region.
	Reroutes int
	// TTFT and E2E are measured at the clients, in ms; nil without requests.
	TTFT, E2E *Percentiles
}

// FleetSample is a sample of the fleet.
type FleetSample struct {
	At        time.Duration
	Endpoints []EndpointSample // as in the view
}

// EndpointSample is a sample of an endpoint.
type EndpointSample struct {
	// Instances counts ready, starting and draining VMs.
	Instances int
	// Utilisation is the KV utilisation of the ready replicas.
	Utilisation float64
	// Arrived is the prompt tokens per second since the previous sample, Deferred the length of the
	// deferred queue.
	Arrived  float64
	Deferred int
}

// tiers is the number of tiers: IW-F, IW-N, NIW.
const tiers = 3

// tierOrder is the order of arrays indexed by tier.
var tierOrder = [tiers]service.Tier{service.TierFast, service.TierNormal, service.TierDeferred}

const deferredTier = 2 // index in tierOrder

// pools returns the number of endpoints of a model in a region.
func (s *FleetScenario) pools() int {
	if s.Silo > 0 {
		return 2
	}
	return 1
}

// Validate returns an error for an invalid scenario.
func (s *FleetScenario) Validate() error {
	switch {
	case len(s.Models) == 0 || len(s.Regions) == 0:
		return fmt.Errorf("scenario %s: must have models and regions, got %d and %d", s.Name, len(s.Models), len(s.Regions))
	case s.Min < 1:
		return fmt.Errorf("scenario %s: min: must be at least 1, got %d", s.Name, s.Min)
	case s.Max < s.Min:
		return fmt.Errorf("scenario %s: max: must be at least min, %d, got %d", s.Name, s.Min, s.Max)
	case s.Silo > 0 && (s.Silo < s.Min || s.VMs-s.Silo < s.Min), s.VMs < s.Min:
		return fmt.Errorf("scenario %s: vms: must be at least %d in each pool, got %d, %d of them in a silo", s.Name, s.Min, s.VMs, s.Silo)
	case s.Spare < 0:
		return fmt.Errorf("scenario %s: spare: must be at least 0, got %d", s.Name, s.Spare)
	case s.Duration <= 0 || s.Period <= 0 || s.SignalPeriod <= 0:
		return fmt.Errorf("scenario %s: duration, period and signal period must be greater than 0, got %s, %s and %s", s.Name, s.Duration, s.Period, s.SignalPeriod)
	case s.Balancer != nil && (len(s.Regions) != 1 || s.Silo > 0):
		return fmt.Errorf("scenario %s: a balancer requires one region and no silo, got %d regions and %d VMs in a silo", s.Name, len(s.Regions), s.Silo)
	case s.ReclaimDraining && len(s.Models) != 1:
		return fmt.Errorf("scenario %s: reclaim draining: requires one model, got %d", s.Name, len(s.Models))
	case s.From < 0 || s.From%time.Minute != 0:
		return fmt.Errorf("scenario %s: from: must be whole minutes, at least 0, got %s", s.Name, s.From)
	case s.Demand == nil:
		return fmt.Errorf("scenario %s: no demand", s.Name)
	}
	if _, err := core.ParseOrder(string(s.Order)); err != nil {
		return fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	for i := range s.Models {
		m := &s.Models[i]
		if err := m.Profile.Validate(); err != nil {
			return fmt.Errorf("scenario %s: model %s: %w", s.Name, m.Name, err)
		}
		if err := m.Lengths.checkLengths(m.Profile.KVTokens); err != nil {
			return fmt.Errorf("scenario %s: model %s: %w", s.Name, m.Name, err)
		}
		for _, r := range m.RemoteIn {
			if r < 0 || r >= len(s.Regions) {
				return fmt.Errorf("scenario %s: model %s: remote in: must be regions 0 to %d, got %d", s.Name, m.Name, len(s.Regions)-1, r)
			}
		}
	}
	return s.Demand.checkDemand(len(s.Models), len(s.Regions), s.From+s.Duration)
}
