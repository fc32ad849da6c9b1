package eval

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"skyserve/internal/sim"
	"skyserve/lbd/core"
)

// ReplayRow is what one side of a replay measured, as a row of `sim run`. Of the
// recorded run it counts all that the balancer handled, requests of peers
// included, from the first event of the record to the last; times are since the
// arrival at the balancer. A simulated run is as long, and its times are what
// clients see.
type ReplayRow struct {
	Of     string `json:"of"` // recorded or simulated
	Policy string `json:"policy"`
	Push   string `json:"push"`
	// Seed is nil: what was recorded happened once.
	Seed *uint64 `json:"seed"`
	sim.Figures
	// Requests counts those that were answered.
	Requests int `json:"requests"`
}

// recordedRun gathers the figures of a recorded run, event by event.
type recordedRun struct {
	begun       bool
	first, last time.Duration

	flights  map[string]*recordedFlight
	replicas map[string]*recordedReplica

	finished, rejected, forwarded int
	prompt, cached, output        int64
	longest                       time.Duration
	ttft, tpot, e2e               []float64
}

// recordedFlight is a request in flight.
type recordedFlight struct {
	arrived, first time.Duration
	begun          bool   // a first token came
	target         string // the replica it is at, empty elsewhere
}

// recordedReplica integrates what is outstanding at a replica over time.
type recordedReplica struct {
	since       time.Duration
	gone        bool
	outstanding int
	area, life  time.Duration
}

// settle brings the integral up to now.
func (r *recordedReplica) settle(now time.Duration) {
	if !r.gone {
		r.area += time.Duration(r.outstanding) * (now - r.since)
		r.life += now - r.since
	}
	r.since = now
}

func (r *recordedRun) span() time.Duration { return r.last - r.first }

// step takes in one step.
func (r *recordedRun) step(s *recordedStep) {
	if !r.begun {
		r.begun, r.first = true, s.T
		r.flights, r.replicas = map[string]*recordedFlight{}, map[string]*recordedReplica{}
	}
	r.last = s.T
	if s.Event != nil {
		r.event(s.T, s.Event)
	}
	if len(s.Actions) > 0 {
		var actions []core.Action
		if json.Unmarshal(s.Actions, &actions) == nil { // they are what a balancer just did again
			for i := range actions {
				r.action(s.T, &actions[i])
			}
		}
	}
}

func (r *recordedRun) event(now time.Duration, e *core.Event) {
	switch e.Kind {
	case core.EventArrived:
		if r.flights[e.Request.ID] == nil {
			r.flights[e.Request.ID] = &recordedFlight{arrived: now}
		}
	case core.EventFirstToken:
		if f := r.flights[e.ID]; f != nil && !f.begun {
			f.begun, f.first = true, now
		}
	case core.EventFinished:
		r.end(now, e)
	case core.EventFailed, core.EventBounced:
		if f := r.flights[e.ID]; f != nil {
			r.leave(now, f)
		}
	case core.EventCancelled:
		if f := r.flights[e.ID]; f != nil {
			r.leave(now, f)
			delete(r.flights, e.ID)
		}
	case core.EventReplicaAdded:
		r.replica(now, e.Replica.ID).gone = false
	case core.EventReplicaRemoved:
		if rep := r.replicas[e.Target]; rep != nil {
			rep.settle(now)
			rep.gone = true
		}
	}
}

// replica is the integral of a replica, begun when it is first heard of.
func (r *recordedRun) replica(now time.Duration, id string) *recordedReplica {
	rep := r.replicas[id]
	if rep == nil {
		rep = &recordedReplica{since: now}
		r.replicas[id] = rep
	}
	rep.settle(now)
	return rep
}

// leave takes a request off its replica.
func (r *recordedRun) leave(now time.Duration, f *recordedFlight) {
	if f.target != "" {
		r.replica(now, f.target).outstanding--
		f.target = ""
	}
}

// end notes a request that was served.
func (r *recordedRun) end(now time.Duration, e *core.Event) {
	f := r.flights[e.ID]
	if f == nil {
		return
	}
	r.leave(now, f)
	delete(r.flights, e.ID)
	r.finished++
	r.e2e = append(r.e2e, inMillis(now-f.arrived))
	if f.begun {
		r.ttft = append(r.ttft, inMillis(f.first-f.arrived))
	}
	o := e.Outcome
	if o == nil {
		return
	}
	if n := o.OutputTokens.Value; o.OutputTokens.Known {
		r.output += int64(n)
		if n > 1 && f.begun {
			r.tpot = append(r.tpot, inMillis(now-f.first)/float64(n-1))
		}
	}
	if o.PromptTokens.Known && o.CachedTokens.Known {
		r.prompt += int64(o.PromptTokens.Value)
		r.cached += int64(o.CachedTokens.Value)
	}
}

// action notes what the balancer did.
func (r *recordedRun) action(now time.Duration, a *core.Action) {
	f := r.flights[a.ID]
	if a.Decision != nil {
		r.longest = max(r.longest, a.Decision.Queued)
	}
	switch a.Kind {
	case core.ActionDispatch:
		if f != nil {
			r.leave(now, f)
			f.target = a.Target
			r.replica(now, a.Target).outstanding++
		}
	case core.ActionForward:
		r.forwarded++
	case core.ActionReject:
		r.rejected++
		if f != nil && a.Reason == core.RejectWait {
			r.longest = max(r.longest, now-f.arrived)
		}
		if f != nil && a.Reason != core.RejectDuplicate {
			r.leave(now, f)
			delete(r.flights, a.ID)
		}
	case core.ActionBounce:
		delete(r.flights, a.ID)
	}
}

// figures reads the run off.
func (r *recordedRun) figures() sim.Figures {
	f := sim.Figures{
		Completed: float64(r.finished), Rejected: float64(r.rejected), Forwarded: float64(r.forwarded), MaxWaitMillis: inMillis(r.longest),
		TTFT: percentileSet(r.ttft), TPOT: percentileSet(r.tpot), E2E: percentileSet(r.e2e), OutstandingMaxOverMin: r.imbalance(),
	}
	if span := r.span().Seconds(); span > 0 {
		f.OutputTokensPerSecond = float64(r.output) / span
	}
	if r.prompt > 0 {
		rate := float64(r.cached) / float64(r.prompt)
		f.PrefixHitRate = &rate
	}
	return f
}

// imbalance is the ratio of the greatest to the least mean load of a replica.
func (r *recordedRun) imbalance() *float64 {
	least, most := math.Inf(1), 0.0
	for _, id := range slices.Sorted(maps.Keys(r.replicas)) {
		rep := r.replicas[id]
		rep.settle(r.last)
		if rep.life > 0 {
			load := float64(rep.area) / float64(rep.life)
			least, most = min(least, load), max(most, load)
		}
	}
	if least == 0 || math.IsInf(least, 1) {
		return nil
	}
	ratio := most / least
	return &ratio
}

// percentileSet is percentilesOf, nil where nothing was measured.
func percentileSet(values []float64) *sim.Percentiles {
	if len(values) == 0 {
		return nil
	}
	set := percentilesOf(values)
	return &set
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
