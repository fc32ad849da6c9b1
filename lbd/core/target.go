package core

import (
	"time"

	"skyserve/lbd/policy"
)

// target is a replica or a peer with all that is known of it.
type target struct {
	id   string
	slot int // its number in the prefix tree
	peer bool

	model      string // replica only
	limit      int    // replica only: ReplicaInfo.MaxOutstanding
	sameRegion bool   // peer only

	draining bool
	// ready is the last report's word; reported says whether one ever came.
	ready    bool
	reported bool
	reason   string
	// suspect: a connection failed since the last report.
	suspect    bool
	reportedAt time.Duration // when the last report's figures were true
	rtt        time.Duration

	pending policy.Maybe[int]
	running policy.Maybe[int]
	kv      policy.Maybe[float64]
	models  []ModelLoad // peer only

	pausedUntil time.Duration // peer only

	outstanding int
	unconfirmed []*request // sent, and not visible in any report nor by a first token, oldest first
	tokens      int64      // generated, by progress events
	work        work
}

// age is how old the target's figures are.
func (t *target) age(now time.Duration) time.Duration { return now - t.reportedAt }

// live says whether the target answers: it reported ready, lately, and no
// connection to it failed since.
func (t *target) live(now time.Duration, c *Config) bool {
	return t.reported && t.ready && !t.suspect && t.age(now) < time.Duration(c.LostIntervals)*c.ProbeInterval
}

func (t *target) stale(now time.Duration, c *Config) bool {
	return t.age(now) >= time.Duration(c.StaleIntervals)*c.ProbeInterval
}

// replicaAvailable is the push rule of one replica.
func (t *target) replicaAvailable(now time.Duration, c *Config) bool {
	if t.draining || !t.live(now, c) || (t.limit > 0 && t.outstanding >= t.limit) {
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

// load is the peer's last word about a model; nil when it does not serve it.
func (t *target) load(model string) *ModelLoad {
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

// peerAvailable is Algorithm 1's line 12: a peer with an available replica and
// a short queue, no longer than our own (ours counts the request at hand).
func (t *target) peerAvailable(now time.Duration, c *Config, l *ModelLoad, ownQueue int) bool {
	if l == nil || l.Available == 0 || !t.live(now, c) || t.stale(now, c) || now < t.pausedUntil {
		return false
	}
	queued := t.queuedAt(l)
	return queued <= c.Tau && queued <= ownQueue
}

// sent notes that r went to the target.
func (t *target) sent(r *request) {
	t.outstanding++
	t.work.add(r)
	t.unconfirmed = append(t.unconfirmed, r)
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

// seen drops from the unconfirmed what a report of this age must have seen:
// what reached the target before the figures were taken.
func (t *target) seen(now, age time.Duration) {
	n := 0
	for n < len(t.unconfirmed) && t.unconfirmed[n].sentAt <= now-2*age {
		n++
	}
	t.unconfirmed = append(t.unconfirmed[:0], t.unconfirmed[n:]...)
}
