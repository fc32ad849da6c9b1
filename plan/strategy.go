package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// StrategyInput is the input of a Strategy: every endpoint, and the VMs that are free. Counts are replicas,
// one per VM.
type StrategyInput struct {
	// Endpoints in a fixed order, which also breaks ties.
	Endpoints []ScaledEndpoint
	// FreeVMs is the number of VMs that can be launched beyond those in use and donated, by region; 0
	// for a region that is missing.
	FreeVMs map[string]int
}

// ScaledEndpoint is the replicas of one model in one region that serve the same
// requests (SageServe section 2.1).
type ScaledEndpoint struct {
	Model, Region string
	// Silo distinguishes endpoints of a model and region that share no traffic, such as interactive
	// and deferred work in silos; empty where there is only one.
	Silo string
	// Ready replicas serve, Starting ones do not yet, Draining ones finish their requests and
	// receive no new ones, Donated ones run other work and have the model's weights (SageServe's spot pool).
	Ready, Starting, Draining, Donated int
	// Min and Max bound Ready + Starting.
	Min, Max int
	// Utilisation is the effective memory utilisation of the ready replicas, 0..1: used KV memory
	// divided by total KV memory, excluding weights. Nil = unknown.
	Utilisation *float64
	// ObservedTPS is the current interactive load in uncached prompt tokens per second, the mean of the
	// last few minutes. Nil = unknown.
	ObservedTPS *float64
	// LastMinuteTPS is that load in the last complete minute. Nil = unknown.
	LastMinuteTPS *float64
	// Waiting is the number of interactive requests that wait for their first token, queued or at a
	// replica. Nil = unknown.
	Waiting *int
	// FastFirstTokens counts the first tokens of requests of the tier fast (IW-F: interactive work whose first token
	// is due within a second) so far. Nil = unknown.
	FastFirstTokens *FirstTokens
	// Target is the plan in force; nil = none.
	Target *HourlyTarget
}

// FirstTokens counts first tokens since some time in the past. A count lower than before means that
// it was reset.
type FirstTokens struct {
	// Total first tokens, and Late: those after the tier's target.
	Total, Late int64
}

// HourlyTarget is the plan for an endpoint, and its forecast.
type HourlyTarget struct {
	Count int
	// Replicas is the count by GPU and capacity type; nil = any.
	Replicas []ReplicaTarget
	// From and Until are the planned period, on the clock of Strategy.Step. A strategy applies the target as
	// long as its input contains it, also after Until.
	From, Until time.Duration
	// ReplicaTPS is the throughput of one replica, in uncached prompt tokens per second; 0 = unknown.
	ReplicaTPS float64
	// PeakTPS is the peak of the planned load, in uncached prompt tokens per second, including batch load.
	PeakTPS float64
	// ForecastTPS is the forecast of the interactive load in steps of ForecastStep from From on, in uncached
	// prompt tokens per second; empty = unknown.
	ForecastTPS  []float64
	ForecastStep time.Duration
	// Tracking is how predictive follows the load.
	Tracking
}

// forecastAt returns the forecast for a time, the last value after its end; ok is false where there is
// none.
func (t *HourlyTarget) forecastAt(now time.Duration) (tps float64, ok bool) {
	if t == nil || len(t.ForecastTPS) == 0 || t.ForecastStep <= 0 {
		return 0, false
	}
	i := int((now - t.From) / t.ForecastStep)
	return t.ForecastTPS[min(max(i, 0), len(t.ForecastTPS)-1)], true
}

// endpointKey identifies an endpoint.
type endpointKey struct{ model, region, silo string }

func (e *ScaledEndpoint) endpointKey() endpointKey { return endpointKey{e.Model, e.Region, e.Silo} }

// count returns the number of replicas that bounds and targets refer to.
func (e *ScaledEndpoint) count() int { return e.Ready + e.Starting }

// Scaling is a change of one endpoint. It either adds replicas (Reclaim, Redeploy and Launch) or reduces
// them (Donate or Remove).
type Scaling struct {
	// Endpoint is an index in StrategyInput.Endpoints.
	Endpoint int
	// Reclaim is the number of donated replicas that serve again, with their weights in place:
	// about a minute (SageServe section 7.1).
	Reclaim int
	// Redeploy loads this model on donated VMs of other endpoints: about ten minutes.
	Redeploy []RedeployedVMs
	// Launch is the number of new VMs.
	Launch int
	// Donate is the number of replicas that drain and are then donated to other work, Remove the
	// number that drain and whose VMs are then deleted.
	Donate, Remove int
	// Reason explains the change.
	Reason string
}

// RedeployedVMs is a number of donated VMs that switch to another endpoint, normally to another model.
type RedeployedVMs struct {
	From  int // the endpoint that donated the VMs, an index in StrategyInput.Endpoints
	Count int
}

// AddedReplicas returns the number of replicas that are started.
func (s *Scaling) AddedReplicas() int {
	n := s.Reclaim + s.Launch
	for _, r := range s.Redeploy {
		n += r.Count
	}
	return n
}

// DrainedReplicas returns the number of replicas that are drained.
func (s *Scaling) DrainedReplicas() int { return s.Donate + s.Remove }

// Strategy decides on replica counts over time (SageServe sections 4 and 6.4). It is a state
// machine: the same inputs at the same times yield the same changes, and time must not go
// backwards. It never reduces an endpoint below its Min or raises it above its Max.
type Strategy interface {
	// Name is the value that selects it in service.yaml.
	Name() string
	// Step returns the changes to make now; none when nothing has to change. Call it every few
	// seconds.
	Step(now time.Duration, in *StrategyInput) []Scaling
}

// StrategyOptions are the options of all strategies.
type StrategyOptions struct {
	// NoDonation disables donation: freed VMs are deleted instead of donated to other work.
	NoDonation bool
	// MaxLateShare is the share, 0..1, of IW-F requests whose first token may come after the tier's target
	// under auto; 0 = DefaultMaxLateShare.
	MaxLateShare float64
}

// strategies are the constructors by name.
var strategies = map[string]func(StrategyOptions) Strategy{
	"reactive":   func(o StrategyOptions) Strategy { return newReactive(o) },
	"lt-i":       func(o StrategyOptions) Strategy { return newPlanFollower("lt-i", o) },
	"lt-u":       func(o StrategyOptions) Strategy { return newPlanFollower("lt-u", o) },
	"lt-ua":      func(o StrategyOptions) Strategy { return newPlanFollower("lt-ua", o) },
	"predictive": func(o StrategyOptions) Strategy { return newPredictive(o) },
	"auto":       func(o StrategyOptions) Strategy { return newAuto(o) },
}

// StrategyNames lists the strategies: the paper's, simplest first, then ours.
func StrategyNames() []string {
	return []string{"reactive", "lt-i", "lt-u", "lt-ua", "predictive", "auto"}
}

// UsesPlan reports whether a strategy uses the plan.
func UsesPlan(strategy string) bool { return strategy != "reactive" }

// NewStrategy returns a new strategy by name. For an unknown name the error lists the valid names.
func NewStrategy(name string, o StrategyOptions) (Strategy, error) {
	if m, ok := strategies[name]; ok {
		return m(o), nil
	}
	return nil, fmt.Errorf("unknown strategy %q: must be one of %s", name, strings.Join(StrategyNames(), ", "))
}

// The constants of SageServe sections 4 and 6.4.
const (
	// scaleOutAbove and scaleInBelow are effective memory utilisations.
	scaleOutAbove = 0.70
	scaleInBelow  = 0.30
	// scaleCooldown is the minimum time between two scalings of an endpoint.
	scaleCooldown = 15 * time.Second
)

// cooldown maps each endpoint to the time of its last scaling.
type cooldown map[endpointKey]time.Duration

// elapsed reports whether an endpoint may be scaled again.
func (c cooldown) elapsed(e *ScaledEndpoint, now time.Duration) bool {
	last, ok := c[e.endpointKey()]
	return !ok || now-last >= scaleCooldown
}

// allocator allocates VMs to requested changes. When two endpoints need the same donated VM, the first
// in the order of the input gets it.
type allocator struct {
	input      *StrategyInput
	noDonation bool
	donated    []int          // by endpoint, not allocated yet
	freeVMs    map[string]int // by region, not allocated yet
	out        []Scaling
}

func newAllocator(in *StrategyInput, o StrategyOptions) *allocator {
	al := &allocator{input: in, noDonation: o.NoDonation, donated: make([]int, len(in.Endpoints)), freeVMs: make(map[string]int, len(in.FreeVMs))}
	for i := range in.Endpoints {
		al.donated[i] = in.Endpoints[i].Donated
		region := in.Endpoints[i].Region
		al.freeVMs[region] = in.FreeVMs[region]
	}
	return al
}

// request requests n more replicas of an endpoint, or -n fewer, and reports whether any can be
// changed.
func (al *allocator) request(i, n int, reason string) bool {
	e := &al.input.Endpoints[i]
	s := Scaling{Endpoint: i, Reason: reason}
	if n > 0 {
		al.allocate(&s, e, min(n, e.Max-e.count()))
	} else if give := min(-n, e.Ready-e.Min); give > 0 {
		if al.noDonation {
			s.Remove = give
		} else {
			s.Donate = give
		}
	}
	if s.AddedReplicas() == 0 && s.DrainedReplicas() == 0 {
		return false
	}
	al.out = append(al.out, s)
	return true
}

// allocate allocates VMs to n replicas, the fastest first: donated ones with the model's weights, then
// those of other models, then new ones (SageServe section 6.4).
func (al *allocator) allocate(s *Scaling, e *ScaledEndpoint, n int) {
	for _, i := range al.donors(s.Endpoint, e) {
		if n <= 0 {
			return
		}
		take := min(n, al.donated[i])
		n -= take
		al.donated[i] -= take
		if i == s.Endpoint {
			s.Reclaim = take
		} else {
			s.Redeploy = append(s.Redeploy, RedeployedVMs{i, take})
		}
	}
	if take := min(n, al.freeVMs[e.Region]); take > 0 {
		al.freeVMs[e.Region] -= take
		s.Launch = take
	}
}

// donors lists the endpoints of a region with donated VMs: the endpoint itself, those of its
// model, then the others. Those of equal rank are in the order of their donated VMs, most first.
func (al *allocator) donors(self int, e *ScaledEndpoint) []int {
	var all []int
	for i := range al.input.Endpoints {
		if al.donated[i] > 0 && al.input.Endpoints[i].Region == e.Region {
			all = append(all, i)
		}
	}
	rank := func(i int) int {
		switch {
		case i == self:
			return 0
		case al.input.Endpoints[i].Model == e.Model:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b int) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return al.donated[b] - al.donated[a]
	})
	return all
}
