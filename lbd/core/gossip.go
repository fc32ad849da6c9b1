package core

import (
	"slices"
	"sort"
	"time"

	"skyserve/lbd/prefix"
)

// Balancers of one region share what they learn of their replicas' caches, so
// that one that adopts another's replicas finds the conversations there. Each
// keeps what happened at its own replicas, and what it received from the others for
// one of them that lost it all, in two bounded logs that Learned reads; what
// they answer comes in by EventPeerLearned (foreign.go).

const (
	// maxSharedHashes bounds the hashes of one entry: a context of 128k tokens. What
	// follows is left out, which makes a match shorter and never wrong.
	maxSharedHashes = 8 << 10
	// learnedOverhead is what an entry costs beside its hashes and names: itself, and
	// its place in a log that may be half empty.
	learnedOverhead = 256
)

// Learned is what one balancer tells another of a replica's cache. It has ages
// instead of times, as no two clocks are compared.
type Learned struct {
	Replica string `json:"replica"`
	Process string `json:"process,omitempty"` // see ReplicaInfo
	Tenant  string `json:"tenant,omitempty"`  // whose the Key is
	// Key is a prompt that the replica holds, with its answer if Answered. It must
	// not be changed.
	Key      prefix.Key `json:"key,omitempty"`
	Answered bool       `json:"answered,omitempty"`
	// Forgotten: the replica's cache was lost, and with it all that was learned
	// before. There is no Key.
	Forgotten bool `json:"forgotten,omitempty"`
	// Age is how long ago it was learned, SessionAge how long ago the prompt's
	// session began.
	Age        time.Duration `json:"age_ns"`
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
}

// cost is the memory that an entry takes, more or less, in a log.
func (e *Learned) cost() int {
	return learnedOverhead + len(e.Replica) + len(e.Process) + len(e.Tenant) + 8*len(e.Key)
}

// localLearned is an entry in this balancer's own time.
type localLearned struct {
	Learned   // without its ages
	seq       uint64
	learnedAt, sessionStart time.Duration
}

// learnedLog is the newest entries, oldest first, within a bound in bytes.
type learnedLog struct {
	limit   int
	bytes   int
	entries []localLearned
	dropped int // leading entries that are dropped already
}

// add appends an entry and drops the oldest as far as the bound asks for it.
func (l *learnedLog) add(e localLearned) {
	if e.cost() > l.limit {
		return
	}
	l.entries = append(l.entries, e)
	for l.bytes += e.cost(); l.bytes > l.limit; l.dropped++ {
		l.bytes -= l.entries[l.dropped].cost()
		l.entries[l.dropped] = localLearned{}
	}
	if 2*l.dropped > len(l.entries) {
		l.entries, l.dropped = slices.Delete(l.entries, 0, l.dropped), 0
	}
}

// all is the entries that are kept.
func (l *learnedLog) all() []localLearned { return l.entries[l.dropped:] }

// after is the entries behind seq.
func (l *learnedLog) after(seq uint64) []localLearned {
	all := l.all()
	return all[sort.Search(len(all), func(i int) bool { return all[i].seq > seq }):]
}

// forgetRequest takes out what was learned of a replica until then.
func (l *learnedLog) remove(replica string, until time.Duration) {
	l.entries = slices.DeleteFunc(l.all(), func(e localLearned) bool {
		lost := e.Replica == replica && e.learnedAt <= until
		if lost {
			l.bytes -= e.cost()
		}
		return lost
	})
	l.dropped = 0
}

// sharing is what a balancer keeps for the others of its region.
type sharing struct {
	own, received learnedLog
	seq           uint64     // of the last entry of either
	foreign       []*foreignReplica // replicas of others, sorted by id
}

func newSharing(limit int) sharing {
	return sharing{own: learnedLog{limit: limit}, received: learnedLog{limit: limit}}
}

// add numbers an entry and puts it into a log.
func (s *sharing) add(to *learnedLog, e localLearned) {
	s.seq++
	e.seq = s.seq
	to.add(e)
}

// forgetRequest takes what was learned of a replica until then out of both logs.
func (s *sharing) remove(replica string, until time.Duration) {
	s.own.remove(replica, until)
	s.received.remove(replica, until)
}

// shareLearned keeps for the neighbours what the end of a request says of a replica's cache.
func (c *caches) shareLearned(now time.Duration, h *cacheTarget, tenant string, prompt, answered prefix.Key, began time.Duration) {
	key, whole := prompt, false
	if answered != nil {
		key, whole = answered, true
	}
	if len(key) > maxSharedHashes {
		key, whole = key[:maxSharedHashes], false
	}
	if len(key) == 0 {
		return
	}
	// A copy, so that the log keeps no more memory than it counts.
	e := Learned{Replica: h.id, Process: h.process, Tenant: tenant, Key: slices.Clone(key), Answered: whole}
	c.sharing.add(&c.sharing.own, localLearned{Learned: e, learnedAt: now, sessionStart: began})
}

// shareLoss keeps for the neighbours that a replica's cache is lost.
func (c *caches) shareLoss(now time.Duration, h *cacheTarget) {
	h.cacheLostAt = now
	if c.replicas.Held(h.slot) == 0 || !c.neighbours {
		return
	}
	c.sharing.remove(h.id, now)
	e := Learned{Replica: h.id, Process: h.process, Forgotten: true}
	c.sharing.add(&c.sharing.own, localLearned{Learned: e, learnedAt: now, sessionStart: now})
}

// Learned is what happened to the caches of this balancer's own replicas after
// entry since, oldest first; with all, also what it received from its neighbours,
// which is for a neighbour that begins with nothing: one that runs would get
// back what it sent. It stops at about maxBytes of memory, after one entry at
// the least; next is what to ask from then, and more says that there is more
// by now. Numbers hold for this Balancer's life.
func (b *Balancer) Learned(now time.Duration, since uint64, all bool, maxBytes int) (entries []Learned, next uint64, more bool) {
	return b.caches.learned(now, since, all, maxBytes)
}

func (c *caches) learned(now time.Duration, since uint64, all bool, maxBytes int) (entries []Learned, next uint64, more bool) {
	s := &c.sharing
	own, received := s.own.after(since), []localLearned(nil)
	if all {
		received = s.received.after(since)
	}
	for size := 0; len(own)+len(received) > 0; {
		from := &own
		if len(own) == 0 || (len(received) > 0 && received[0].seq < own[0].seq) {
			from = &received
		}
		e := &(*from)[0]
		if now-e.learnedAt < maxSharedAge {
			if size += e.cost(); size > maxBytes && len(entries) > 0 {
				return entries, next, true
			}
			sent := e.Learned
			sent.Age, sent.SessionAge = now-e.learnedAt, now-e.sessionStart
			entries = append(entries, sent)
		}
		next = e.seq
		*from = (*from)[1:]
	}
	return entries, s.seq, false
}
