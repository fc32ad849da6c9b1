package eval

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"skyserve/forecast"
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/plan"
)

// observedOver is the time over which the load that strategies see is taken: the
// paper counts tokens a minute (appendix B).
const observedOver = time.Minute

// fleetScaler lets a strategy of package plan scale a simulated fleet: it keeps the
// history of the demand, has the service planned from what is past as a controller does,
// and puts counts and changes into the simulator's types.
type fleetScaler struct {
	scenario *sim.FleetScenario
	strategy plan.Strategy
	service  *service.Spec
	inputs   *sharedInputs

	next    time.Duration // when the next plan is due
	watched []watched     // by endpoint
	fleet   plan.Fleet
}

// watched is what is known of an endpoint's demand.
type watched struct {
	interactive, deferred counted
	recent                []int64 // interactive tokens as of the last looks, the newest last
	target                *plan.Target
}

// counted is prompt tokens by the minute, the past before the run included.
type counted struct {
	minutes []float64
	last    int64 // tokens of the run as of the end of minutes
}

// add takes in the tokens of the run as of the end of a minute.
func (c *counted) add(tokens int64) {
	c.minutes = append(c.minutes, float64(tokens-c.last))
	c.last = tokens
}

// newFleetScaler makes the scaler of a run: the demand before the run's beginning
// is its history.
func newFleetScaler(s *sim.FleetScenario, strategy plan.Strategy, spec *service.Spec, inputs *sharedInputs) *fleetScaler {
	return &fleetScaler{scenario: s, strategy: strategy, service: spec, inputs: inputs}
}

// Step implements sim.Scaler.
func (f *fleetScaler) Step(now time.Duration, v *sim.FleetView) ([]sim.FleetChange, error) {
	if f.watched == nil {
		f.begin(v)
	}
	for i := range v.Endpoints {
		f.observe(i, &v.Endpoints[i], now)
	}
	if now >= f.next && plan.FollowsPlan(f.strategy.Name()) {
		if err := f.plan(now, v); err != nil {
			return nil, err
		}
	}
	for i := range v.Endpoints {
		f.show(i, &v.Endpoints[i])
	}
	f.fleet.Spare = make(map[string]int, len(v.Spare))
	for r, n := range v.Spare {
		f.fleet.Spare[f.scenario.Regions[r]] = n
	}
	var changes []sim.FleetChange
	for _, s := range f.strategy.Step(now, &f.fleet) {
		c := sim.FleetChange{Endpoint: s.Endpoint, Reclaim: s.Reclaim, Launch: s.Launch, Donate: s.Donate}
		for _, r := range s.Redeploy {
			c.Redeploy = append(c.Redeploy, sim.Lent{Endpoint: r.From, Count: r.Count})
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// begin takes in the history.
func (f *fleetScaler) begin(v *sim.FleetView) {
	f.watched = make([]watched, len(v.Endpoints))
	f.fleet.Endpoints = make([]plan.Endpoint, len(v.Endpoints))
	for i := range v.Endpoints {
		e, w := &v.Endpoints[i], &f.watched[i]
		for minute := range int(f.scenario.From / time.Minute) {
			w.interactive.minutes = append(w.interactive.minutes, f.scenario.Demand.Interactive(e.Model, e.Region, minute))
			w.deferred.minutes = append(w.deferred.minutes, f.scenario.Demand.Deferred(e.Model, e.Region, minute))
		}
	}
}

// observe takes in what an endpoint was asked.
func (f *fleetScaler) observe(i int, e *sim.EndpointView, now time.Duration) {
	w := &f.watched[i]
	if now > 0 && now%time.Minute == 0 {
		w.interactive.add(e.Interactive)
		w.deferred.add(e.DeferredTokens)
	}
	w.recent = append(w.recent, e.Interactive)
	if most := int(observedOver/f.scenario.Period) + 1; len(w.recent) > most {
		w.recent = w.recent[1:]
	}
}

// observed is the recent load in tokens a second, nil at first.
func (f *fleetScaler) observed(w *watched) *float64 {
	n := len(w.recent)
	if n < 2 {
		return nil
	}
	tps := float64(w.recent[n-1]-w.recent[0]) / (time.Duration(n-1) * f.scenario.Period).Seconds()
	return &tps
}

// weekBegins is the first minute of the simulated week since the Unix epoch: a Monday.
const weekBegins = 4 * 24 * 60

// learning is for how long a history may be too short for a forecaster, which then gives
// no plan yet; after it a forecast that fails ends the run. retryPlan is the wait before
// another try, as the controller's.
const (
	learning  = 3 * 24 * time.Hour
	retryPlan = 5 * time.Minute
)

// plan has the service planned, and keeps the targets for the endpoints but silos of
// deferred work, which the paper does not plan for.
func (f *fleetScaler) plan(now time.Duration, v *sim.FleetView) error {
	h := f.history(v)
	if h.Minutes == 0 { // nothing is known yet: strategies do without
		f.next = now + time.Minute
		return nil
	}
	in, err := f.inputs.of(now, func() (*plan.Inputs, error) {
		at := time.Unix(60*weekBegins, 0).Add(f.scenario.From + now)
		return plan.ForecastInputs(f.service, h, at, f.inputs.options)
	})
	if err != nil && f.scenario.From+now < learning {
		f.next = now + retryPlan
		return nil
	}
	if err != nil {
		return err
	}
	made, err := in.Review(f.counts(v))
	if err != nil {
		return err
	}
	f.next = now + plan.NextReview(f.service.Autoscale.Every, h.Minutes)
	for _, t := range made.Targets() {
		for i := range v.Endpoints {
			e := &v.Endpoints[i]
			if !e.Deferred && f.service.Models[e.Model].Name == t.Model && f.service.Regions[e.Region].Name == t.Region {
				target := t.Target
				target.From, target.Until = now, f.next
				f.watched[i].target = &target
			}
		}
	}
	return nil
}

// history is what was asked so far.
func (f *fleetScaler) history(v *sim.FleetView) *forecast.History {
	h := &forecast.History{First: weekBegins, Minutes: len(f.watched[0].interactive.minutes)}
	none := make([]float64, h.Minutes) // that caches spared
	for i := range v.Endpoints {
		e, w := &v.Endpoints[i], &f.watched[i]
		if e.Deferred {
			continue
		}
		for _, t := range []struct {
			tier   service.Tier
			counts counted
		}{{service.TierNormal, w.interactive}, {service.TierDeferred, w.deferred}} {
			key := forecast.Key{Region: f.service.Regions[e.Region].Name, Model: f.service.Models[e.Model].Name, Tier: t.tier}
			h.Series = append(h.Series, forecast.Traffic{Keyed: forecast.Keyed{Key: key, Series: forecast.Series{
				Name: key.String(), Unit: forecast.PromptTokens, Start: weekBegins, Step: time.Minute, Values: t.counts.minutes,
			}}, Cached: none})
		}
	}
	return h
}

// counts is the replicas that run.
func (f *fleetScaler) counts(v *sim.FleetView) []plan.Count {
	var out []plan.Count
	for i := range v.Endpoints {
		if e := &v.Endpoints[i]; !e.Deferred {
			m := &f.service.Models[e.Model]
			out = append(out, plan.Count{Model: m.Name, Region: f.service.Regions[e.Region].Name, GPU: m.GPUs[0].Type, Replicas: e.Ready + e.Starting, Donated: e.Donated})
		}
	}
	return out
}

// fleetService is a simulated fleet as the service that it stands for, whose replicas
// carry what was measured of them.
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

// gpuOf is the GPU that a model's profile is of, by the beginning of its name: h100x4-...
func gpuOf(m *sim.FleetModel) string {
	for _, g := range catalogue.GPUs() {
		if strings.HasPrefix(m.Profile.Name, strings.ToLower(g.Name)) {
			return g.Name
		}
	}
	return "H100"
}

// sharedInputs is the inputs of the plans of one seed, by their time. What is asked does
// not depend on how replicas are scaled, so that every strategy sees the same past, and
// what is expected of it has to be computed once.
type sharedInputs struct {
	options plan.ReviewOptions
	mu      sync.Mutex
	known   map[time.Duration]func() (*plan.Inputs, error)
}

func newSharedInputs(o plan.ReviewOptions) *sharedInputs {
	return &sharedInputs{options: o, known: map[time.Duration]func() (*plan.Inputs, error){}}
}

// of is the inputs of a time; several runs may ask at once.
func (s *sharedInputs) of(now time.Duration, forecastInputs func() (*plan.Inputs, error)) (*plan.Inputs, error) {
	s.mu.Lock()
	made := s.known[now]
	if made == nil {
		made = sync.OnceValues(forecastInputs)
		s.known[now] = made
	}
	s.mu.Unlock()
	in, err := made()
	if err != nil {
		return nil, fmt.Errorf("planning at %s: %w", now, err)
	}
	return in, nil
}

// show puts an endpoint into the strategy's words.
func (f *fleetScaler) show(i int, e *sim.EndpointView) {
	s, w := f.scenario, &f.watched[i]
	out := &f.fleet.Endpoints[i]
	*out = plan.Endpoint{
		Model: s.Models[e.Model].Name, Region: s.Regions[e.Region],
		Ready: e.Ready, Starting: e.Starting, Draining: e.Draining, Donated: e.Donated, Min: s.Min, Max: s.Max,
		Observed: f.observed(w), Target: w.target,
	}
	if e.Deferred {
		out.Pool, out.Observed = "NIW", nil
	} else {
		out.Fast = &plan.FirstTokens{All: e.FirstTokens, Late: e.Late}
	}
	used, waiting := e.Utilisation, e.Waiting
	out.Utilisation, out.Waiting = &used, &waiting
}
