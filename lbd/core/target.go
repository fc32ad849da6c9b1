package core

import (
	"time"

	"skyserve/lbd/core/breaker"
	"skyserve/lbd/core/concurrency"
	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// target is the state of a replica or a peer.
type target struct {
	cacheTarget

	model          string // replica only
	maxOutstanding int    // replica only: ReplicaInfo.MaxOutstanding
	served         servedNames
	sameRegion     bool // peer only

	draining bool
	// ready is the result of the last report; reported is set once a report was received.
	ready    bool
	reported bool
	reason   string
	// unreachable: a connection failed since the last report.
	unreachable   bool
	reportedAt    time.Duration // when the last report was made
	reportLatency time.Duration // the age of the last report when it arrived
	measuredAt    time.Duration // replica only: when its figures were measured
	rtt           time.Duration

	pending policy.Maybe[int]
	// othersRequests is the number of requests in a replica's last report that this balancer had not sent.
	othersRequests int
	// pendingSince is the time since which its reports have contained pending requests; 0 = the
	// last report had none.
	pendingSince time.Duration
	running      policy.Maybe[int]
	kv           policy.Maybe[float64]
	models       []ModelLoad // peer only
	formerModels []ModelLoad // models of the report before, kept to reuse its memory

	pausedUntil time.Duration // peer only

	heldRequests int           // waiting requests held for it
	residence    time.Duration // running mean of the time from send to end; 0 = no request has ended
	pace         pace.Estimate
	breaker      breaker.Breaker // replica only
	outstanding  int
	forwarded    int64      // requests sent to it; peer only
	unconfirmed  []*request // sent, but not yet confirmed by a report or a first token, oldest first
	unstarted    []*request // sent, without a first token, oldest first; includes the unconfirmed ones
	starts       starts     // replica only
	tokens       int64      // generated, from progress events
	work         work
	prefillTotal prefillCount // replica only
	streams      streams      // replica only
	recentPace   pace.Streams
	failedLoad   failedLoad // replica only
	rankState

	// Replica only, for kill.go: its open failures, oldest first; the isolated request of its
	// engine; the last time it was alive after a failure.
	openFailures []openFailure
	isolation    *isolation
	survivedAt   time.Duration

	// Replica only, for outstandingLimit: ProbeReport.Slots, and what was learned.
	slots policy.Maybe[int]
	limit concurrency.Limit
}

// age returns the age of the target's last report.
func (t *target) age(now time.Duration) time.Duration { return now - t.reportedAt }

// silence returns the time since the target's last report arrived. Unlike age, it does not depend on
// the distance to the target.
func (t *target) silence(now time.Duration) time.Duration { return t.age(now) - t.reportLatency }

// metricsAge returns the age of a replica's figures, or of a peer's report.
func (t *target) metricsAge(now time.Duration) time.Duration {
	if t.peer {
		return t.age(now)
	}
	return now - t.measuredAt
}

// What a target may do, from the weakest condition to the strongest:
//
//   - ready: its last report says that it serves. (ReplicaView.Ready means live.)
//   - live: it is ready, reported recently, no connection has failed since, and it is not ejected.
//   - usable (peers only): it is live, its report is not stale, and no bounce has paused it.
//   - available: another request may be sent to it now, by the push mode or by the peer's report.
//
// A peer is eligible for a request if it is available or, for a policy that weighs peers itself, usable (peerEligible).

// live reports whether the target reported ready recently, no connection has failed since, and it is not ejected.
func (t *target) live(now time.Duration, c *Config) bool {
	return t.reported && t.ready && !t.unreachable && !t.breaker.Ejected(now) && t.silence(now) < time.Duration(c.LostIntervals)*c.ProbeInterval
}

// stale reports whether the figures of the target are too old for decisions.
func (t *target) stale(now time.Duration, c *Config) bool {
	return t.metricsAge(now)-t.reportLatency >= time.Duration(c.StaleIntervals)*c.ProbeInterval
}

// replicaAvailable applies the push mode to one replica.
func (t *target) replicaAvailable(now time.Duration, c *Config) bool {
	if t.draining || !t.live(now, c) || t.breaker.TrialRunning() || (t.maxOutstanding > 0 && t.outstanding >= t.maxOutstanding) {
		return false
	}
	switch c.Push.Kind {
	case PushBlind:
		return true
	case PushOutstanding:
		return t.outstanding < c.Push.N
	}
	if t.usesOutstandingLimit(now, c) {
		return t.outstanding < t.outstandingLimit(c)
	}
	return t.stillPending().Value == 0 && t.unconfirmedSlots(c) > 0
}

// usesOutstandingLimit reports whether the push mode uses outstandingLimit: PushPending does, if the pending count
// of the replica is unknown or stale.
func (t *target) usesOutstandingLimit(now time.Duration, c *Config) bool {
	return c.Push.Kind == PushPending && (!t.pending.Known || t.stale(now, c))
}

// outstandingLimit returns the limit of the outstanding requests at a replica for which
// usesOutstandingLimit is true: the number that its engine reports to run at once, or else the learned one.
func (t *target) outstandingLimit(c *Config) int {
	if t.slots.Known {
		return t.slots.Value
	}
	return t.limit.Value(c.OutstandingLimit)
}

// modelLoad returns the peer's last report for a model; nil if it does not serve it.
func (t *target) modelLoad(model string) *ModelLoad {
	for i := range t.models {
		if t.models[i].Model == model {
			return &t.models[i]
		}
	}
	return nil
}

// removeReported lowers a peer's last report by r, which the peer has served, if the report includes r. Otherwise the
// peer would seem to be as loaded as before until its next report, although this balancer knows that r has ended. The
// peer's memory is assumed to be evenly divided among the requests there. A report and the end of a response travel equally long, so the next
// report includes everything that ended before it arrived.
func (t *target) removeReported(r *request) {
	l := t.modelLoad(r.Model)
	if l == nil || l.Outstanding <= 0 || r.sentAt > t.reportedAt-t.reportLatency {
		return
	}
	remaining := float64(l.Outstanding-1) / float64(l.Outstanding)
	l.Outstanding--
	l.ContextTokens = int(remaining * float64(l.ContextTokens))
	l.KV.Value *= remaining
}

// queuedAt returns the length of the peer's queue for a model, including requests sent since its
// last report that exceed the capacity of its available replicas.
func (t *target) queuedAt(l *ModelLoad) int {
	sent, _ := t.unconfirmedFor(l.Model)
	return l.Queued + max(0, sent-l.Available)
}

// unconfirmedFor returns the number of unconfirmed requests for a model, and the number of uncached tokens of their
// prompts. Those for other models of a peer say nothing about its replicas of this one.
func (t *target) unconfirmedFor(model string) (n, uncached int) {
	for _, r := range t.unconfirmed {
		if r.Model == model {
			n, uncached = n+1, uncached+r.uncached
		}
	}
	return n, uncached
}

// peerUsable reports whether a peer's last report is still valid and no bounce has paused it.
func (t *target) peerUsable(now time.Duration, c *Config) bool {
	return t.live(now, c) && !t.stale(now, c) && now >= t.pausedUntil
}

// peerAvailable is line 12 of SkyLB's Algorithm 1: a peer with an available replica and a short
// queue, no longer than this balancer's (which includes the current request).
func (t *target) peerAvailable(now time.Duration, c *Config, l *ModelLoad, ownQueue int) bool {
	if l == nil || l.Available == 0 || !t.peerUsable(now, c) {
		return false
	}
	queued := t.queuedAt(l)
	return queued <= c.PeerQueueLimit && queued <= ownQueue
}

// addOutstanding records that r was sent to the target.
func (t *target) addOutstanding(r *request) {
	t.outstanding++
	t.breaker.Sent(r.Seq)
	t.work.addRequest(r)
	t.unconfirmed, t.unstarted = append(t.unconfirmed, r), append(t.unstarted, r)
	r.unconfirmedAtSend, r.outstandingAtSend = len(t.unconfirmed), t.outstanding
}

// inUse returns how many of the first blocks of a prompt, at most limit, are those of an outstanding request.
func (t *target) inUse(prompt prefix.Key, limit int) int {
	longest := 0
	for _, r := range t.requests {
		// Most requests share less than the longest so far: one comparison shows that.
		if longest < min(limit, len(r.Prompt)) && r.Prompt[longest] == prompt[longest] {
			longest += r.Prompt[longest:].CommonBlocks(prompt[longest:limit])
		}
	}
	return longest
}

// residenceWeight is the weight of each new value in the running mean.
const residenceWeight = 0.05

// recordResidence records the time of a request from its send to its end.
func (t *target) recordResidence(d time.Duration) {
	if t.residence == 0 {
		t.residence = d
		return
	}
	t.residence += time.Duration(residenceWeight * float64(d-t.residence))
}

// confirm removes r from the unconfirmed requests, if it is one.
func (t *target) confirm(r *request) {
	for i, u := range t.unconfirmed {
		if u == r {
			t.unconfirmed = append(t.unconfirmed[:i], t.unconfirmed[i+1:]...)
			return
		}
	}
}

// confirmByReport removes the unconfirmed requests that a report of this age includes: those that
// reached the target before the figures were measured. lag is the time from that to the report.
func (t *target) confirmByReport(now, age, lag time.Duration) {
	n := 0
	for n < len(t.unconfirmed) && t.unconfirmed[n].sentAt <= now-2*age-lag {
		n++
	}
	t.unconfirmed = append(t.unconfirmed[:0], t.unconfirmed[n:]...)
}

// cacheLost reports whether a replica's cache must be assumed empty: the replica is not ready, or
// did not report in time after it was added.
func (t *target) cacheLost(now time.Duration, c *Config) bool {
	if t.reported {
		return !t.ready || t.unreachable
	}
	return now-t.added >= time.Duration(c.LostIntervals)*c.ProbeInterval
}
