package core

import (
	"time"

	"skyserve/lbd/core/breaker"
	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
)

// target is a replica or a peer with all that is known of it.
type target struct {
	cacheTarget

	model      string // replica only
	limit      int    // replica only: ReplicaInfo.MaxOutstanding
	sameRegion bool   // peer only

	draining bool
	// ready is the last report's word; reported says whether one ever came.
	ready    bool
	reported bool
	reason   string
	// suspect: a connection failed since the last report.
	unreachable    bool
	reportedAt time.Duration // when the last report's figures were true
	rtt        time.Duration

	pending policy.Maybe[int]
	// pendingSince is when its reports began to tell of something pending; 0 = the
	// last one did not.
	pendingSince time.Duration
	running      policy.Maybe[int]
	kv           policy.Maybe[float64]
	models       []ModelLoad // peer only

	pausedUntil time.Duration // peer only

	heldRequests        int           // waiting requests that are kept for it
	residence   time.Duration // running mean of the time from a send to its end; 0 = none has ended
	pace        pace.Estimate
	breaker     breaker.Breaker // replica only
	outstanding int
	forwarded   int64      // requests sent to it, of a peer
	unconfirmed []*request // sent, and not visible in any report nor by a first token, oldest first
	tokens      int64      // generated, by progress events
	work        work
	failedLoad  failedLoad // replica only
	rankState

	// Of a replica, for kill.go: the failures that are not decided yet, oldest first; the
	// isolated request of its engine; when it was last alive after a failure.
	openFailures []openFailure
	isolation    *isolation
	survivedAt   time.Duration
}

// age is how old the target's figures are.
func (t *target) age(now time.Duration) time.Duration { return now - t.reportedAt }

// live says whether the target answers: it reported ready, lately, no connection
// to it failed since, and it is not ejected.
func (t *target) live(now time.Duration, c *Config) bool {
	return t.reported && t.ready && !t.unreachable && !t.breaker.Ejected(now) && t.age(now) < time.Duration(c.LostIntervals)*c.ProbeInterval
}

func (t *target) stale(now time.Duration, c *Config) bool {
	return t.age(now) >= time.Duration(c.StaleIntervals)*c.ProbeInterval
}

// replicaAvailable is the push rule of one replica.
func (t *target) replicaAvailable(now time.Duration, c *Config) bool {
	if t.draining || !t.live(now, c) || t.breaker.TrialRunning() || (t.limit > 0 && t.outstanding >= t.limit) {
		return false
	}
	switch c.Push.Mode {
	case PushBlind:
		return true
	case PushOutstanding:
		return t.outstanding < c.Push.N
	}
	if !t.pending.Known || t.stale(now, c) {
		return t.outstanding < c.OutstandingLimit
	}
	return t.pending.Value == 0 && len(t.unconfirmed) < c.UnconfirmedLimit
}

// modelLoad is the peer's last word about a model; nil when it does not serve it.
func (t *target) modelLoad(model string) *ModelLoad {
	for i := range t.models {
		if t.models[i].Model == model {
			return &t.models[i]
		}
	}
	return nil
}

// queuedAt is the peer's queue for a model, what was sent there since its last
// report included as far as its available replicas cannot have taken it.
func (t *target) queuedAt(l *ModelLoad) int {
	return l.Queued + max(0, len(t.unconfirmed)-l.Available)
}

// peerUsable says whether a peer's last word still counts.
func (t *target) peerUsable(now time.Duration, c *Config) bool {
	return t.live(now, c) && !t.stale(now, c) && now >= t.pausedUntil
}

// peerAvailable is Algorithm 1's line 12: a peer with an available replica and
// a short queue, no longer than our own (ours counts the request at hand).
func (t *target) peerAvailable(now time.Duration, c *Config, l *ModelLoad, ownQueue int) bool {
	if l == nil || l.Available == 0 || !t.peerUsable(now, c) {
		return false
	}
	queued := t.queuedAt(l)
	return queued <= c.Tau && queued <= ownQueue
}

// addOutstanding notes that r went to the target.
func (t *target) addOutstanding(r *request) {
	t.outstanding++
	t.breaker.Sent(r.Seq)
	t.work.add(r)
	t.unconfirmed = append(t.unconfirmed, r)
}

// residenceWeight is the weight of each new stay in the running mean.
const residenceWeight = 0.05

// recordResidence notes how long a request took from its send to its end.
func (t *target) recordResidence(d time.Duration) {
	if t.residence == 0 {
		t.residence = d
		return
	}
	t.residence += time.Duration(residenceWeight * float64(d-t.residence))
}

// confirm takes r off the unconfirmed, if it is there.
func (t *target) confirm(r *request) {
	for i, u := range t.unconfirmed {
		if u == r {
			t.unconfirmed = append(t.unconfirmed[:i], t.unconfirmed[i+1:]...)
			return
		}
	}
}

// confirmByReport drops from the unconfirmed what a report of this age must have seen:
// what reached the target before the figures were taken.
func (t *target) confirmByReport(now, age time.Duration) {
	n := 0
	for n < len(t.unconfirmed) && t.unconfirmed[n].sentAt <= now-2*age {
		n++
	}
	t.unconfirmed = append(t.unconfirmed[:0], t.unconfirmed[n:]...)
}

// cacheLost says whether a replica's cache must be taken for empty: it does not
// answer, or not in time after it was added.
func (t *target) cacheLost(now time.Duration, c *Config) bool {
	if t.reported {
		return !t.ready || t.unreachable
	}
	return now-t.added >= time.Duration(c.LostIntervals)*c.ProbeInterval
}
