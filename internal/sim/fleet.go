package sim

import (
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
)

// FleetScenario is a service whose replicas come and go: several models in
// several regions on VMs, each with one replica or lent to the spot pool (SageServe
// section 7.1); some are there from the start, others can be launched. Engines are
// light ones.
//
// Read fleet.go first (what can be said and what is measured), then
// fleet_demand.go (what is asked), fleet_world.go (what happens when),
// fleet_route.go (where requests go), fleet_scale.go (how replicas come and go)
// and fleet_count.go (what is counted).
type FleetScenario struct {
	Name, Title string
	Models      []FleetModel
	Regions     []string
	// RTT is the round trip between any two regions.
	RTT time.Duration
	// VMs is how many VMs each model has in each region at first, all serving.
	VMs int
	// Silo is how many of them serve deferred requests only, and are all that do;
	// 0 = one pool for all requests, in which deferred ones wait for room.
	Silo int
	// Spare is how many more VMs can be launched in each region, of which nobody has
	// any at first. Once launched they are there to stay, as the others.
	Spare int
	// Min and Max bound the replicas of an endpoint.
	Min, Max int
	// Order is that of the requests waiting at a replica. Under FCFS, the engine's
	// own, deferred requests are behind all others; see fleetRank.
	Order core.Order
	// Targets is when a request of each tier is due; it says what a violation is.
	Targets core.Targets
	// TauN and TauP are those of core.Config, for DPA.
	TauN, TauP time.Duration
	Starts     StartTimes
	// Period is the time between two looks of the Scaler, SignalPeriod between two
	// in which an endpoint tells the deferred queue its utilisation.
	Period, SignalPeriod time.Duration
	// Demand is what is asked; the run begins at its time From and takes Duration.
	Demand         *Demand
	From, Duration time.Duration
	// CoursePeriod is the time between two Moments of the course; 0 = none.
	CoursePeriod time.Duration
}

// FleetModel is a model of a FleetScenario.
type FleetModel struct {
	Name    string
	Profile engine.Profile // of one replica
	GPUs    int            // of one replica
	// Lengths are those of all its requests.
	Lengths Lengths
	// RemoteIn are the regions, by index, whose stores do not have the model's weights,
	// until a VM has fetched them from another one.
	RemoteIn []int
}

// StartTimes is how long it takes until a replica that was asked for serves
// (SageServe section 7.1).
type StartTimes struct {
	// Reclaim is the median of taking back a lent VM with the right weights, log-
	// normal with ReclaimSigma and never above ReclaimMost.
	Reclaim      time.Duration
	ReclaimSigma float64
	ReclaimMost  time.Duration
	// Redeploy is until another model's weights are in place, Fetch where they come
	// from another region's store.
	Redeploy, Fetch time.Duration
	// Launch is what a new VM takes before its weights can be loaded.
	Launch time.Duration
}

// SageStarts is what the paper states, and a spread by which one start in 26 takes
// 3 minutes or more. Of a new VM it says that it takes minutes to have one: three
// are assumed.
func SageStarts() StartTimes {
	return StartTimes{
		Reclaim: time.Minute, ReclaimSigma: 0.6, ReclaimMost: 5 * time.Minute,
		Redeploy: 10 * time.Minute, Fetch: 2 * time.Hour, Launch: 3 * time.Minute,
	}
}

// FleetSetup is what is under test.
type FleetSetup struct {
	Scaler   Scaler
	Deferred core.DeferredRule // of a scenario without silos
	Seed     uint64
	// Watch, when set, is told of every change of a VM.
	Watch func(VMChange)
}

// Scaler decides how many replicas there are. It is called every Period, times
// counting from the run's beginning. The view is valid during the call only. An
// error ends the run.
type Scaler interface {
	Step(now time.Duration, v *FleetView) ([]FleetChange, error)
}

// FleetView is what a Scaler sees: the endpoints by model, region and pool.
type FleetView struct {
	Endpoints []EndpointView
	Spare     []int // VMs that can still be launched, by region
}

// EndpointView is the replicas of a model in a region that serve the same
// requests.
type EndpointView struct {
	Model, Region int  // indices in the scenario
	Deferred      bool // of silos: it serves deferred requests
	Ready         int
	Starting      int
	Draining      int
	Donated       int
	// Utilisation is KV memory in use over KV memory, of the ready replicas.
	Utilisation float64
	// Waiting is how many interactive requests are there without a first token.
	Waiting int
	// FirstTokens is how many IW-F requests that were served here had a first token
	// since the run began, Late for how many of them it came after the tier's target.
	FirstTokens, Late int64
	// Interactive and DeferredTokens are the prompt tokens that clients of the region
	// have asked with since the run began.
	Interactive, DeferredTokens int64
}

// FleetChange is what a Scaler wants of an endpoint.
type FleetChange struct {
	Endpoint int // index in the view
	// Reclaim is how many of its own lent VMs come back, Redeploy takes those of
	// others in the region, Launch starts new ones, Donate is how many replicas drain
	// and are then lent.
	Reclaim  int
	Redeploy []Lent
	Launch   int
	Donate   int
}

// Lent is so many lent VMs of an endpoint.
type Lent struct{ Endpoint, Count int }

// VMState is what a VM does.
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

// VMChange is a VM that begins to do something for an endpoint.
type VMChange struct {
	At       time.Duration
	VM       int
	Endpoint int
	State    VMState
}

// FleetResult is what a run measured from its beginning to its end.
type FleetResult struct {
	Endpoints []EndpointResult // as in the view
	// Tiers is by model, then IW-F, IW-N, NIW.
	Tiers  []TierResult
	Course []FleetMoment
	// Issued is every request; the others sum up to it.
	Issued, Completed, Waiting, InFlight int
	Events                               int64
}

// EndpointResult is an endpoint's use of VMs.
type EndpointResult struct {
	Model, Region int
	Deferred      bool
	// Hours is by state, in VM-hours.
	Hours [vmStates]float64
	// Starts counts the replicas that were asked for; Redeployed are those of them
	// that had other weights before, Launched those on new VMs.
	Starts, Redeployed, Launched int
	// Tiers is by IW-F, IW-N, NIW, over the requests of the region's clients.
	Tiers [tiers]TierResult
}

// InstanceHours is all VM-hours that are not lent.
func (r *EndpointResult) InstanceHours() float64 {
	return r.Hours[VMReady] + r.Hours[VMStarting] + r.Hours[VMDraining]
}

// TierResult is what became of the requests of a tier.
type TierResult struct {
	Model     int
	Tier      service.Tier
	Issued    int
	Completed int
	// Violations counts the requests that missed the tier's target, those included
	// that have not ended and are overdue.
	Violations int
	// Reroutes counts the requests that another region served.
	Reroutes int
	// TTFT and E2E are what clients saw, in ms; nil when there were none.
	TTFT, E2E *Percentiles
}

// FleetMoment is the fleet at a time.
type FleetMoment struct {
	At        time.Duration
	Endpoints []EndpointMoment // as in the view
}

// EndpointMoment is an endpoint at a time.
type EndpointMoment struct {
	// Instances is ready, starting and draining.
	Instances int
	// Utilisation is that of the ready replicas' KV memory.
	Utilisation float64
	// Arrived is prompt tokens a second since the moment before, Deferred how many
	// requests wait in the deferred queue.
	Arrived  float64
	Deferred int
}

// tiers is how many there are: IW-F, IW-N, NIW.
const tiers = 3

// tierOrder is that of everything counted by tier.
var tierOrder = [tiers]service.Tier{service.TierFast, service.TierNormal, service.TierDeferred}

const deferredTier = 2 // of tierOrder

// pools is how many endpoints a model has in a region.
func (s *FleetScenario) pools() int {
	if s.Silo > 0 {
		return 2
	}
	return 1
}

// Validate says what is wrong, or nil.
func (s *FleetScenario) Validate() error {
	switch {
	case len(s.Models) == 0 || len(s.Regions) == 0:
		return fmt.Errorf("scenario %s: want models and regions, got %d and %d", s.Name, len(s.Models), len(s.Regions))
	case s.Min < 1:
		return fmt.Errorf("scenario %s: min: must be at least 1, got %d", s.Name, s.Min)
	case s.Max < s.Min:
		return fmt.Errorf("scenario %s: max: must be at least min, %d, got %d", s.Name, s.Min, s.Max)
	case s.Silo > 0 && (s.Silo < s.Min || s.VMs-s.Silo < s.Min), s.VMs < s.Min:
		return fmt.Errorf("scenario %s: vms: want at least %d in each pool, got %d of which %d are a silo", s.Name, s.Min, s.VMs, s.Silo)
	case s.Spare < 0:
		return fmt.Errorf("scenario %s: spare: must be at least 0, got %d", s.Name, s.Spare)
	case s.Duration <= 0 || s.Period <= 0 || s.SignalPeriod <= 0:
		return fmt.Errorf("scenario %s: duration, period and signal period must be above 0, got %s, %s and %s", s.Name, s.Duration, s.Period, s.SignalPeriod)
	case s.From < 0 || s.From%time.Minute != 0:
		return fmt.Errorf("scenario %s: from: want whole minutes from 0 on, got %s", s.Name, s.From)
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
		if err := m.Lengths.check(m.Profile.KVTokens); err != nil {
			return fmt.Errorf("scenario %s: model %s: %w", s.Name, m.Name, err)
		}
		for _, r := range m.RemoteIn {
			if r < 0 || r >= len(s.Regions) {
				return fmt.Errorf("scenario %s: model %s: remote in: want regions 0 to %d, got %d", s.Name, m.Name, len(s.Regions)-1, r)
			}
		}
	}
	return s.Demand.check(len(s.Models), len(s.Regions), s.From+s.Duration)
}
