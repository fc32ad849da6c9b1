package eval

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/forecast"
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/plan"
)

// observedOver is the interval over which strategies observe the load: the paper counts tokens per
// minute (appendix B).
const observedOver = time.Minute

// fleetScaler runs a strategy of package plan on a simulated fleet: it keeps the history of the demand,
// plans the service from past data as a controller does, and converts counts and changes to the
// simulator's types.
type fleetScaler struct {
	scenario *sim.FleetScenario
	strategy plan.Strategy
	// loads returns the load that the strategy observes at an endpoint: the recent one, and that of the last minute.
	loads   func(v *sim.FleetView, i int, now time.Duration) (recent, lastMinute *float64)
	service *service.Spec
	inputs  *sharedInputs

	nextPlan time.Duration    // when the next plan is due
	demand   []endpointDemand // by endpoint
	fleet    plan.StrategyInput
}

// endpointDemand is the observed demand of an endpoint.
type endpointDemand struct {
	interactive, deferred tokenCounts
	recent                []int64 // interactive tokens at the last observations, the newest last
	target                *plan.HourlyTarget
}

// tokenCounts holds prompt tokens per minute, including the past before the run.
type tokenCounts struct {
	minutes []float64
	last    int64 // cumulative tokens of the run at the end of minutes
}

// addTokens appends a minute, given the cumulative tokens of the run at its end.
func (c *tokenCounts) addTokens(tokens int64) {
	c.minutes = append(c.minutes, float64(tokens-c.last))
	c.last = tokens
}

// newFleetScaler returns the scaler of a run. The demand before the start of the run is its history.
func newFleetScaler(s *sim.FleetScenario, strategy plan.Strategy, spec *service.Spec, inputs *sharedInputs) *fleetScaler {
	f := &fleetScaler{scenario: s, strategy: strategy, service: spec, inputs: inputs}
	f.loads = f.lastMinute
	return f
}

// NewFleetScaler returns a scaler that runs a strategy, which uses no plan, on a simulated fleet.
func NewFleetScaler(s *sim.FleetScenario, strategy string, o plan.StrategyOptions) (sim.Scaler, error) {
	if plan.UsesPlan(strategy) {
		return nil, fmt.Errorf("strategy %s: must use no plan", strategy)
	}
	next, err := plan.NewStrategy(strategy, o)
	if err != nil {
		return nil, err
	}
	return newFleetScaler(s, next, nil, nil), nil
}

// Step implements sim.Scaler.
func (f *fleetScaler) Step(now time.Duration, v *sim.FleetView) ([]sim.FleetChange, error) {
	if f.demand == nil {
		f.loadHistory(v)
	}
	for i := range v.Endpoints {
		f.observe(i, &v.Endpoints[i])
	}
	if now >= f.nextPlan && plan.UsesPlan(f.strategy.Name()) {
		if err := f.plan(now, v); err != nil {
			return nil, err
		}
	}
	for i := range v.Endpoints {
		f.convertEndpoint(i, v, now)
	}
	f.fleet.FreeVMs = make(map[string]int, len(v.Spare))
	for r, n := range v.Spare {
		f.fleet.FreeVMs[f.scenario.Regions[r]] = n
	}
	var changes []sim.FleetChange
	for _, s := range f.strategy.Step(now, &f.fleet) {
		c := sim.FleetChange{Endpoint: s.Endpoint, Reclaim: s.Reclaim, Launch: s.Launch, Donate: s.Donate}
		for _, r := range s.Redeploy {
			c.Redeploy = append(c.Redeploy, sim.DonatedVMs{Endpoint: r.From, Count: r.Count})
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// loadHistory loads the history.
func (f *fleetScaler) loadHistory(v *sim.FleetView) {
	f.demand = make([]endpointDemand, len(v.Endpoints))
	f.fleet.Endpoints = make([]plan.ScaledEndpoint, len(v.Endpoints))
	for i := range v.Endpoints {
		e, w := &v.Endpoints[i], &f.demand[i]
		for minute := range int(f.scenario.From / time.Minute) {
			w.interactive.minutes = append(w.interactive.minutes, f.scenario.Demand.Interactive(e.Model, e.Region, minute))
			w.deferred.minutes = append(w.deferred.minutes, f.scenario.Demand.Deferred(e.Model, e.Region, minute))
		}
	}
}

// observe adds an endpoint's latest demand.
func (f *fleetScaler) observe(i int, e *sim.EndpointView) {
	w := &f.demand[i]
	for _, m := range e.Minutes[len(w.interactive.minutes)-int(f.scenario.From/time.Minute):] {
		w.interactive.addTokens(m.Interactive)
		w.deferred.addTokens(m.Deferred)
	}
	w.recent = append(w.recent, e.Interactive)
	if limit := int(observedOver/f.scenario.Period) + 1; len(w.recent) > limit {
		w.recent = w.recent[1:]
	}
}

// lastMinute returns the load of the last minute in tokens per second, for both periods; nil at first.
func (f *fleetScaler) lastMinute(_ *sim.FleetView, i int, _ time.Duration) (recent, lastMinute *float64) {
	w := &f.demand[i]
	n := len(w.recent)
	if n < 2 {
		return nil, nil
	}
	tps := float64(w.recent[n-1]-w.recent[0]) / (time.Duration(n-1) * f.scenario.Period).Seconds()
	return &tps, &tps
}

// weekStartMinute is the first minute of the simulated week since the Unix epoch: a Monday.
const weekStartMinute = 4 * 24 * 60

// learningPeriod is the period during which a forecaster may fail for lack of history and no plan is made;
// after it a failed forecast ends the run. retryPlan is the retry interval, as in the controller.
const (
	learningPeriod = 3 * 24 * time.Hour
	retryPlan      = 5 * time.Minute
)

// plan plans the service and stores the targets of the endpoints, except silos for deferred work, which
// the paper does not plan.
func (f *fleetScaler) plan(now time.Duration, v *sim.FleetView) error {
	h, complete := f.history(v), len(f.demand[0].interactive.minutes)
	if complete == 0 { // no history yet: strategies run without targets
		f.nextPlan = now + time.Minute
		return nil
	}
	in, err := f.inputs.get(now, func() (*plan.ReviewInputs, error) {
		at := time.Unix(60*weekStartMinute, 0).Add(f.scenario.From + now)
		return plan.ForecastInputs(f.service, h, at, f.inputs.options)
	})
	if err != nil && f.scenario.From+now < learningPeriod {
		f.nextPlan = now + retryPlan
		return nil
	}
	if err != nil {
		return err
	}
	made, err := in.Solve(f.counts(v))
	if err != nil {
		return err
	}
	f.nextPlan = now + plan.NextReviewIn(f.service.Autoscale.Every, complete)
	for _, t := range made.Targets() {
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			if !e.Deferred && f.service.Models[e.Model].Name == t.Model && f.service.Regions[e.Region].Name == t.Region {
				target := t.HourlyTarget
				target.From, target.Until = now, f.nextPlan
				f.demand[i].target = &target
			}
		}
	}
	return nil
}

// history returns the demand so far, with the current minute.
func (f *fleetScaler) history(v *sim.FleetView) *forecast.History {
	h := &forecast.History{First: weekStartMinute, Minutes: len(f.demand[0].interactive.minutes) + 1}
	none := make([]float64, h.Minutes) // tokens served from caches
	for i := range v.Endpoints {
		e, w := &v.Endpoints[i], &f.demand[i]
		if e.Deferred {
			continue
		}
		for _, t := range []struct {
			tier   service.Tier
			counts tokenCounts
			now    int64
		}{{service.TierNormal, w.interactive, e.Interactive}, {service.TierDeferred, w.deferred, e.DeferredTokens}} {
			key := forecast.SeriesKey{Region: f.service.Regions[e.Region].Name, Model: f.service.Models[e.Model].Name, Tier: t.tier}
			h.Series = append(h.Series, forecast.TokenSeries{KeyedSeries: forecast.KeyedSeries{SeriesKey: key, Series: forecast.Series{
				Name: key.String(), Unit: forecast.PromptTokens, Start: weekStartMinute, Step: time.Minute, Values: append(slices.Clip(t.counts.minutes), float64(t.now-t.counts.last)),
			}}, Cached: none})
		}
	}
	return h
}

// counts returns the running replicas.
func (f *fleetScaler) counts(v *sim.FleetView) []plan.ReplicaCount {
	var out []plan.ReplicaCount
	for i := range v.Endpoints {
		if e := &v.Endpoints[i]; !e.Deferred {
			m := &f.service.Models[e.Model]
			out = append(out, plan.ReplicaCount{Model: m.Name, Region: f.service.Regions[e.Region].Name, GPU: m.GPUs[0].Type, Replicas: e.Ready + e.Starting, Donated: e.Donated})
		}
	}
	return out
}

// fleetService returns the service spec of a simulated fleet, with the measured capacity of its
// replicas.
func fleetService(s *sim.FleetScenario, tps []float64) *service.Spec {
	spec := &service.Spec{Name: s.Name, Autoscale: service.Autoscale{Every: time.Hour, Donate: true}}
	for i := range s.Models {
		m := &s.Models[i]
		spec.Models = append(spec.Models, service.Model{Name: m.Name, GPUs: []service.GPU{{Type: gpuOf(m), Count: m.GPUs, TPS: tps[i]}}})
	}
	for _, r := range s.Regions {
		spec.Regions = append(spec.Regions, service.RegionSpec{Name: service.Region(service.CloudLocal + "/" + r), Replicas: service.Bounds{Min: s.Min, Max: s.Max}})
	}
	return spec
}

// gpuOf returns the GPU of a model's profile, from the prefix of its name: h100x4-...
func gpuOf(m *sim.FleetModel) string {
	for _, g := range catalogue.GPUs() {
		if strings.HasPrefix(m.Profile.Name, strings.ToLower(g.Name)) {
			return g.Name
		}
	}
	return "H100"
}

// sharedInputs caches the planning inputs of one seed by time. Demand does not depend on scaling, so
// every strategy has the same history, and each forecast is computed once.
type sharedInputs struct {
	options plan.ReviewOptions
	mu      sync.Mutex
	cache   map[time.Duration]func() (*plan.ReviewInputs, error)
}

func newSharedInputs(o plan.ReviewOptions) *sharedInputs {
	return &sharedInputs{options: o, cache: map[time.Duration]func() (*plan.ReviewInputs, error){}}
}

// get returns the inputs at a time; it is safe for concurrent use.
func (s *sharedInputs) get(now time.Duration, forecastInputs func() (*plan.ReviewInputs, error)) (*plan.ReviewInputs, error) {
	s.mu.Lock()
	made := s.cache[now]
	if made == nil {
		made = sync.OnceValues(forecastInputs)
		s.cache[now] = made
	}
	s.mu.Unlock()
	in, err := made()
	if err != nil {
		return nil, fmt.Errorf("planning at %s: %w", now, err)
	}
	return in, nil
}

// convertEndpoint converts an endpoint to the strategy's type.
func (f *fleetScaler) convertEndpoint(i int, v *sim.FleetView, now time.Duration) {
	s, w, e := f.scenario, &f.demand[i], &v.Endpoints[i]
	recent, lastMinute := f.loads(v, i, now)
	out := &f.fleet.Endpoints[i]
	*out = plan.ScaledEndpoint{
		Model: s.Models[e.Model].Name, Region: s.Regions[e.Region],
		Ready: e.Ready, Starting: e.Starting, Draining: e.Draining, Donated: e.Donated, Min: s.Min, Max: s.Max,
		ObservedTPS: recent, LastMinuteTPS: lastMinute, Target: w.target,
	}
	if e.Deferred {
		out.Silo, out.ObservedTPS, out.LastMinuteTPS = "NIW", nil, nil
	} else {
		out.FastFirstTokens = &plan.FirstTokens{Total: e.FirstTokens, Late: e.Late}
	}
	used, waiting := e.Utilisation, e.Waiting
	out.Utilisation, out.Waiting = &used, &waiting
}
