package sim

import (
	"time"

	"skyserve/internal/service"
)

// fleetTally counts the requests of a tier.
type fleetTally struct {
	issued, completed, violations, reroutes int
	ttft, e2e                               sample
}

// tallies returns the tallies of a request: of its model, and of its client's endpoint.
func (f *fleet) tallies(q *arrival) [2]*fleetTally {
	return [2]*fleetTally{&f.tally[q.model][q.tier], &f.endpoint(int(q.model), int(q.region), false).tally[q.tier]}
}

func (f *fleet) issued(q *arrival) {
	for _, t := range f.tallies(q) {
		t.issued++
	}
}

func (f *fleet) rerouted(c *call) {
	for _, t := range f.tallies(&c.arrival) {
		t.reroutes++
	}
}

// completed counts a request whose last token left the engine at a time.
func (f *fleet) completed(c *call, at time.Duration) {
	way := time.Duration(0)
	if c.away {
		way = f.s.RTT / 2
	}
	ttft, e2e := c.first+way-c.at, at+way-c.at
	missed := f.misses(int(c.tier), ttft, e2e)
	for _, t := range f.tallies(&c.arrival) {
		t.completed++
		t.ttft.addLatency(milliseconds(ttft))
		t.e2e.addLatency(milliseconds(e2e))
		if missed {
			t.violations++
		}
	}
}

// firstToken counts a first token for the scaler.
func (f *fleet) firstToken(c *call) {
	if tierOrder[c.tier] != service.TierFast {
		return
	}
	e := c.vm.endpoint
	e.firsts++
	if f.misses(int(c.tier), c.first-c.at, 0) {
		e.late++
	}
}

// misses reports whether a request misses its tier's deadline: TTFT for interactive tiers, E2E for
// deferred work.
func (f *fleet) misses(tier int, ttft, e2e time.Duration) bool {
	if tier == deferredTier {
		return e2e > f.s.Deadlines.For(tierOrder[tier])
	}
	return ttft > f.s.Deadlines.For(tierOrder[tier])
}

// takeSample samples the fleet.
func (f *fleet) takeSample() {
	m := FleetSample{At: f.now, Endpoints: make([]EndpointSample, len(f.endpoints))}
	for i, e := range f.endpoints {
		arrived := e.interactive + e.deferredTokens
		m.Endpoints[i] = EndpointSample{
			Instances:   e.counts[VMReady] + e.counts[VMStarting] + e.counts[VMDraining],
			Utilisation: e.utilisation(), Deferred: e.backlog.len(),
			Arrived: float64(arrived-e.arrived) / f.s.SampleInterval.Seconds(),
		}
		e.arrived = arrived
	}
	f.samples = append(f.samples, m)
}

// fleetResult returns the figures of a finished run.
func (f *fleet) fleetResult() *FleetResult {
	r := &FleetResult{Samples: f.samples, Events: f.events, Rejected: f.rejected}
	for _, v := range f.vms {
		v.endpoint.hours[v.state] += f.now - v.since
	}
	for i := range f.calls {
		f.unfinished(&f.calls[i], r)
	}
	for _, e := range f.endpoints {
		out := EndpointResult{Model: e.model, Region: e.region, Deferred: e.deferred, Starts: e.starts, Redeployed: e.redeployed, Launched: e.launched, WaitingTokens: e.waitingTokens}
		for s := range vmStates {
			out.Hours[s] = e.hours[s].Hours()
		}
		for t := range tiers {
			out.Tiers[t] = e.tally[t].tierResult(e.model, t)
		}
		r.Endpoints = append(r.Endpoints, out)
	}
	for m := range f.tally {
		for t := range tiers {
			out := f.tally[m][t].tierResult(m, t)
			r.Tiers = append(r.Tiers, out)
			r.Issued, r.Completed = r.Issued+out.Issued, r.Completed+out.Completed
		}
	}
	return r
}

// countUnserved counts a request that is never served: it misses its deadline.
func (f *fleet) countUnserved(c *call) {
	for _, t := range f.tallies(&c.arrival) {
		t.violations++
	}
}

// unfinished counts an unfinished request: waiting for capacity, or at a replica.
func (f *fleet) unfinished(c *call, r *FleetResult) {
	if !c.live {
		return
	}
	if c.vm == nil {
		r.Waiting++
		if c.tier == deferredTier {
			f.endpoint(int(c.model), int(c.region), f.s.Silo > 0).waitingTokens += int64(c.prompt)
		}
	} else {
		r.InFlight++
	}
	ttft := f.now - c.at
	if c.first > 0 {
		ttft = c.first - c.at
	}
	if f.misses(int(c.tier), ttft, f.now-c.at) {
		f.countUnserved(c)
	}
}

func (t *fleetTally) tierResult(model, tier int) TierResult {
	return TierResult{
		Model: model, Tier: tierOrder[tier], Issued: t.issued, Completed: t.completed, Violations: t.violations, Reroutes: t.reroutes,
		TTFT: t.ttft.percentiles(), E2E: t.e2e.percentiles(),
	}
}
