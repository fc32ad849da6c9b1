package core

import (
	"slices"
	"sort"
	"time"

	"skyserve/lbd/prefix"
)

// Balancers share the expected contents of their replicas' caches. A neighbour (another balancer of the same
// region) that adopts the replicas can thus route conversations to the caches that contain them. A balancer of
// another region can forward a request to the region that has its prefix, instead of computing the prefix a
// second time. Each balancer keeps two bounded logs that CacheUpdates reads: updates of its own replicas, and
// updates received from neighbours, for one that restarted with empty state. Updates from others arrive as
// EventPeerCacheUpdates (foreign.go).

const (
	// maxSharedHashes bounds the hashes of one entry: a context of 128k tokens. Further hashes are
	// omitted, which makes a match shorter but never wrong.
	maxSharedHashes = 8 << 10
	// cacheUpdateOverhead is the memory of an entry besides its hashes and names: the entry itself, and
	// its slot in a log that may be half empty.
	cacheUpdateOverhead = 256
)

// CacheUpdate is an update about a replica's cache that one balancer sends to another. It contains ages
// instead of times, because clocks of two hosts are never compared.
type CacheUpdate struct {
	Replica string `json:"replica"`
	Process string `json:"process,omitempty"` // see ReplicaInfo
	Tenant  string `json:"tenant,omitempty"`  // the tenant of Key
	// Key is a prompt that the replica has cached, including its response if IncludesResponse. It must not be
	// changed.
	Key              prefix.Key `json:"key,omitempty"`
	IncludesResponse bool       `json:"answered,omitempty"`
	// CacheLost: the replica's cache was lost, with all earlier contents. Key is empty.
	CacheLost bool `json:"forgotten,omitempty"`
	// Age is the age of the update; SessionAge is the age of the prompt's session.
	Age        time.Duration `json:"age_ns"`
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
}

// updateBytes returns the approximate memory of an entry in a log.
func (e *CacheUpdate) updateBytes() int {
	return cacheUpdateOverhead + len(e.Replica) + len(e.Process) + len(e.Tenant) + 8*len(e.Key)
}

// localCacheUpdate is an entry with times of this balancer's clock.
type localCacheUpdate struct {
	CacheUpdate             // without its ages
	seq                     uint64
	updatedAt, sessionStart time.Duration
}

// cacheUpdateLog contains the newest entries, oldest first, bounded in bytes.
type cacheUpdateLog struct {
	limit   int
	bytes   int
	entries []localCacheUpdate
	dropped int // leading entries that are already dropped
}

// addUpdate appends an entry and drops the oldest entries that exceed the bound.
func (l *cacheUpdateLog) addUpdate(e localCacheUpdate) {
	if e.updateBytes() > l.limit {
		return
	}
	l.entries = append(l.entries, e)
	for l.bytes += e.updateBytes(); l.bytes > l.limit; l.dropped++ {
		l.bytes -= l.entries[l.dropped].updateBytes()
		l.entries[l.dropped] = localCacheUpdate{}
	}
	if 2*l.dropped > len(l.entries) {
		l.entries, l.dropped = slices.Delete(l.entries, 0, l.dropped), 0
	}
}

// all returns the entries.
func (l *cacheUpdateLog) all() []localCacheUpdate { return l.entries[l.dropped:] }

// after returns the entries after seq.
func (l *cacheUpdateLog) after(seq uint64) []localCacheUpdate {
	all := l.all()
	return all[sort.Search(len(all), func(i int) bool { return all[i].seq > seq }):]
}

// removeReplica removes the entries of a replica up to a time.
func (l *cacheUpdateLog) removeReplica(replica string, until time.Duration) {
	l.entries = slices.DeleteFunc(l.all(), func(e localCacheUpdate) bool {
		remove := e.Replica == replica && e.updatedAt <= until
		if remove {
			l.bytes -= e.updateBytes()
		}
		return remove
	})
	l.dropped = 0
}

// sharing contains the cache updates that a balancer shares with others, and the replicas of its neighbours.
type sharing struct {
	own, received cacheUpdateLog
	seq           uint64            // of the last entry of either
	foreign       []*foreignReplica // replicas of neighbours, sorted by id
}

func newSharing(limit int) sharing {
	return sharing{own: cacheUpdateLog{limit: limit}, received: cacheUpdateLog{limit: limit}}
}

// addUpdate numbers an entry and appends it to a log.
func (s *sharing) addUpdate(to *cacheUpdateLog, e localCacheUpdate) {
	s.seq++
	e.seq = s.seq
	to.addUpdate(e)
}

// removeReplica removes the entries of a replica up to a time from both logs.
func (s *sharing) removeReplica(replica string, until time.Duration) {
	s.own.removeReplica(replica, until)
	s.received.removeReplica(replica, until)
}

// shareCacheUpdate logs, for other balancers, the cache contents of a replica after a request was sent or
// finished.
func (c *caches) shareCacheUpdate(now time.Duration, ct *cacheTarget, tenant string, prompt, withResponse prefix.Key, sessionStart time.Duration) {
	key, whole := prompt, false
	if withResponse != nil {
		key, whole = withResponse, true
	}
	if len(key) > maxSharedHashes {
		key, whole = key[:maxSharedHashes], false
	}
	if len(key) == 0 {
		return
	}
	// A copy, so that the log keeps only the memory that it counts.
	e := CacheUpdate{Replica: ct.id, Process: ct.process, Tenant: tenant, Key: slices.Clone(key), IncludesResponse: whole}
	c.sharing.addUpdate(&c.sharing.own, localCacheUpdate{CacheUpdate: e, updatedAt: now, sessionStart: sessionStart})
}

// shareCacheLoss logs, for other balancers, the loss of a replica's cache.
func (c *caches) shareCacheLoss(now time.Duration, ct *cacheTarget) {
	ct.cacheLostAt = now
	if c.replicas.CachedBytes(ct.treeSlot) == 0 || (!c.neighbours && !c.distant) {
		return
	}
	c.sharing.removeReplica(ct.id, now)
	e := CacheUpdate{Replica: ct.id, Process: ct.process, CacheLost: true}
	c.sharing.addUpdate(&c.sharing.own, localCacheUpdate{CacheUpdate: e, updatedAt: now, sessionStart: now})
}

// CacheUpdates returns the updates about the caches of this balancer's own replicas, oldest first.
// It starts after the entry with the number since; 0 = from the first entry. With all, it also returns
// the updates received from neighbours (the other balancers of this region). A neighbour that has just started requests
// all, because its state is empty; any other one would receive its own updates again. It stops at about maxBytes of
// memory, but returns at least one entry. next is the value of since for the following call; more reports whether there are more
// entries now. Entry numbers are valid for the life of this Balancer.
func (b *Balancer) CacheUpdates(now time.Duration, since uint64, all bool, maxBytes int) (entries []CacheUpdate, next uint64, more bool) {
	return b.caches.updatesSince(now, since, all, maxBytes)
}

func (c *caches) updatesSince(now time.Duration, since uint64, all bool, maxBytes int) (entries []CacheUpdate, next uint64, more bool) {
	s := &c.sharing
	own, received := s.own.after(since), []localCacheUpdate(nil)
	if all {
		received = s.received.after(since)
	}
	for size := 0; len(own)+len(received) > 0; {
		from := &own
		if len(own) == 0 || (len(received) > 0 && received[0].seq < own[0].seq) {
			from = &received
		}
		e := &(*from)[0]
		if now-e.updatedAt < maxSharedAge {
			if size += e.updateBytes(); size > maxBytes && len(entries) > 0 {
				return entries, next, true
			}
			sent := e.CacheUpdate
			sent.Age, sent.SessionAge = now-e.updatedAt, now-e.sessionStart
			entries = append(entries, sent)
		}
		next = e.seq
		*from = (*from)[1:]
	}
	return entries, s.seq, false
}
