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

// ReplayRow is the result of one run of a replay, as a row of `sim run`. For the recorded
// run it covers all requests that the balancer handled, including those of peers, from the
// first event of the record to the last. Its times begin at the arrival at the balancer. A
// simulated run has the same length, and its times are measured at the clients.
type ReplayRow struct {
	Source string `json:"source"` // recorded or simulated
	Policy string `json:"policy"`
	Push   string `json:"push"`
	// Seed is nil for the recorded run.
	Seed *uint64 `json:"seed"`
	sim.RunFigures
	// Requests counts completed requests.
	Requests int `json:"requests"`
}

// MarshalJSON adds the former key of Source.
func (r ReplayRow) MarshalJSON() ([]byte, error) {
	type plain ReplayRow
	return json.Marshal(struct {
		plain
		OldSource string `json:"of"`
	}{plain(r), r.Source})
}

// recordedRun accumulates the figures of a recorded run, event by event.
type recordedRun struct {
	begun       bool
	first, last time.Duration

	inFlight map[string]*inFlightRequest
	replicas map[string]*recordedReplica

	finished, rejected, forwarded int
	prompt, cached, output        int64
	longest                       time.Duration
	ttft, tpot, e2e               []float64
}

// inFlightRequest is a request in flight.
type inFlightRequest struct {
	arrived, first time.Duration
	begun          bool   // received its first token
	target         string // its current replica; empty if none
}

// recordedReplica integrates the outstanding requests of a replica over time.
type recordedReplica struct {
	since       time.Duration
	removed     bool
	outstanding int
	area, life  time.Duration
}

// advance advances the integral to now.
func (r *recordedReplica) advance(now time.Duration) {
	if !r.removed {
		r.area += time.Duration(r.outstanding) * (now - r.since)
		r.life += now - r.since
	}
	r.since = now
}

func (r *recordedRun) span() time.Duration { return r.last - r.first }

// applyStep applies one step.
func (r *recordedRun) applyStep(s *recordedStep) {
	if !r.begun {
		r.begun, r.first = true, s.T
		r.inFlight, r.replicas = map[string]*inFlightRequest{}, map[string]*recordedReplica{}
	}
	r.last = s.T
	if s.Event != nil {
		r.applyEvent(s.T, s.Event)
	}
	if len(s.Actions) > 0 {
		var actions []core.Action
		if json.Unmarshal(s.Actions, &actions) == nil { // always valid: the replay just compared them
			for i := range actions {
				r.applyAction(s.T, &actions[i])
			}
		}
	}
}

func (r *recordedRun) applyEvent(now time.Duration, e *core.Event) {
	switch e.Kind {
	case core.EventArrived:
		if r.inFlight[e.Request.ID] == nil {
			r.inFlight[e.Request.ID] = &inFlightRequest{arrived: now}
		}
	case core.EventFirstToken:
		if f := r.inFlight[e.ID]; f != nil && !f.begun {
			f.begun, f.first = true, now
		}
	case core.EventFinished:
		r.finish(now, e)
	case core.EventFailed, core.EventBounced:
		if f := r.inFlight[e.ID]; f != nil {
			r.detach(now, f)
		}
	case core.EventCancelled:
		if f := r.inFlight[e.ID]; f != nil {
			r.detach(now, f)
			delete(r.inFlight, e.ID)
		}
	case core.EventReplicaAdded:
		r.replica(now, e.Replica.ID).removed = false
	case core.EventReplicaRemoved:
		if rep := r.replicas[e.Target]; rep != nil {
			rep.advance(now)
			rep.removed = true
		}
	}
}

// replica returns the integral of a replica, and starts it on first use.
func (r *recordedRun) replica(now time.Duration, id string) *recordedReplica {
	rep := r.replicas[id]
	if rep == nil {
		rep = &recordedReplica{since: now}
		r.replicas[id] = rep
	}
	rep.advance(now)
	return rep
}

// detach removes a request from its replica.
func (r *recordedRun) detach(now time.Duration, f *inFlightRequest) {
	if f.target != "" {
		r.replica(now, f.target).outstanding--
		f.target = ""
	}
}

// finish records a completed request.
func (r *recordedRun) finish(now time.Duration, e *core.Event) {
	f := r.inFlight[e.ID]
	if f == nil {
		return
	}
	r.detach(now, f)
	delete(r.inFlight, e.ID)
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

// applyAction applies an action of the balancer.
func (r *recordedRun) applyAction(now time.Duration, a *core.Action) {
	f := r.inFlight[a.ID]
	if a.Decision != nil {
		r.longest = max(r.longest, a.Decision.Waited)
	}
	switch a.Kind {
	case core.ActionDispatch:
		if f != nil {
			r.detach(now, f)
			f.target = a.Target
			r.replica(now, a.Target).outstanding++
		}
	case core.ActionForward:
		r.forwarded++
	case core.ActionReject:
		r.rejected++
		if f != nil && a.Reason == core.RejectWaitExceeded {
			r.longest = max(r.longest, now-f.arrived)
		}
		if f != nil && a.Reason != core.RejectDuplicate {
			r.detach(now, f)
			delete(r.inFlight, a.ID)
		}
	case core.ActionBounce:
		delete(r.inFlight, a.ID)
	}
}

// figures returns the figures of the run.
func (r *recordedRun) figures() sim.RunFigures {
	f := sim.RunFigures{
		Completed: float64(r.finished), Rejected: float64(r.rejected), Forwarded: float64(r.forwarded), MaxWaitMillis: inMillis(r.longest),
		TTFT: sim.PercentilesOf(r.ttft), TPOT: sim.PercentilesOf(r.tpot), E2E: sim.PercentilesOf(r.e2e), OutstandingMaxOverMin: r.imbalance(),
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

// imbalance returns the ratio of the highest to the lowest mean load of a replica.
func (r *recordedRun) imbalance() *float64 {
	lowest, highest := math.Inf(1), 0.0
	for _, id := range slices.Sorted(maps.Keys(r.replicas)) {
		rep := r.replicas[id]
		rep.advance(r.last)
		if rep.life > 0 {
			load := float64(rep.area) / float64(rep.life)
			lowest, highest = min(lowest, load), max(highest, load)
		}
	}
	if lowest == 0 || math.IsInf(lowest, 1) {
		return nil
	}
	ratio := highest / lowest
	return &ratio
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
