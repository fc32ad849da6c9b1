package whatif

import (
	"fmt"
	"time"

	"skyserve/forecast"
	"skyserve/lbd/sim"
	"skyserve/plan"
)

// observedOver is the time over which the load that strategies see is taken: the
// paper counts tokens a minute (appendix B).
const observedOver = time.Minute

// fleetScaler lets a strategy of package plan scale a simulated fleet: it keeps the
// history of the demand, makes the plan of every hour from what is past, and puts
// counts and changes into the other room's words.
type fleetScaler struct {
	scenario *sim.FleetScenario
	strategy plan.Strategy
	hourly   plan.Hourly
	tps      []float64 // of a replica, by model

	next    time.Duration // when the next plan is due
	watched []watched     // by endpoint
	fleet   plan.Fleet
}

// watched is what is known of an endpoint's demand.
type watched struct {
	minutes      []float64 // interactive prompt tokens by the minute, the past before the run included
	last         int64     // tokens as of the end of minutes
	recent       []int64   // tokens as of the last looks, the newest last
	deferredThen int64     // tokens as of the plan before
	target       *plan.Target
}

// newFleetScaler makes the scaler of a run: the demand before the run's beginning
// is its history.
func newFleetScaler(s *sim.FleetScenario, strategy plan.Strategy, hourly plan.Hourly, tps []float64) *fleetScaler {
	return &fleetScaler{scenario: s, strategy: strategy, hourly: hourly, tps: tps}
}

// Step implements sim.Scaler.
func (f *fleetScaler) Step(now time.Duration, v *sim.FleetView) ([]sim.FleetChange, error) {
	if f.watched == nil {
		f.begin(v)
	}
	for i := range v.Endpoints {
		f.observe(i, &v.Endpoints[i], now)
	}
	if now >= f.next {
		if err := f.plan(now, v); err != nil {
			return nil, err
		}
		f.next += time.Hour
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
		e := &v.Endpoints[i]
		if e.Deferred {
			continue
		}
		for minute := range int(f.scenario.From / time.Minute) {
			f.watched[i].minutes = append(f.watched[i].minutes, f.scenario.Demand.Interactive(e.Model, e.Region, minute))
		}
	}
}

// observe takes in what an endpoint was asked.
func (f *fleetScaler) observe(i int, e *sim.EndpointView, now time.Duration) {
	w := &f.watched[i]
	if now > 0 && now%time.Minute == 0 {
		w.minutes = append(w.minutes, float64(e.Interactive-w.last))
		w.last = e.Interactive
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

// plan makes the targets of the next hour for all endpoints but silos of deferred
// work, which the paper does not plan for.
func (f *fleetScaler) plan(now time.Duration, v *sim.FleetView) error {
	s := f.scenario
	var demands []plan.Demand
	var of []int
	for i := range v.Endpoints {
		e, w := &v.Endpoints[i], &f.watched[i]
		if e.Deferred {
			continue
		}
		d := plan.Demand{
			Model: s.Models[e.Model].Name, Region: s.Regions[e.Region], Count: e.Ready + e.Starting, Min: s.Min, Max: s.Max, ReplicaTPS: f.tps[e.Model],
			DeferredTPS: float64(e.DeferredTokens-w.deferredThen) / time.Hour.Seconds(),
			Interactive: forecast.Series{
				Name: s.Models[e.Model].Name + " in " + s.Regions[e.Region], Unit: forecast.PromptTokens, Step: time.Minute, Values: w.minutes,
			},
		}
		w.deferredThen = e.DeferredTokens
		demands, of = append(demands, d), append(of, i)
	}
	if len(demands) == 0 || len(demands[0].Interactive.Values) < int(time.Hour/time.Minute) {
		return nil // nothing is known yet: strategies do without
	}
	targets, err := f.hourly.Targets(now, demands)
	if err != nil {
		return fmt.Errorf("planning the hour from %s: %w", now, err)
	}
	for k, i := range of {
		f.watched[i].target = &targets[k]
	}
	return nil
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
