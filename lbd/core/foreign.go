package core

import (
	"math"
	"slices"
	"sort"
	"time"
)

const (
	// maxSharedAge is the time for which cache updates of a replica are valid: within ten minutes,
	// a busy engine has replaced most of its cache. A foreign replica without updates for that long
	// is removed.
	maxSharedAge = 10 * time.Minute
	// maxForeign is the maximum number of tracked replicas of neighbours, because each needs a bit
	// in every node of the tree.
	maxForeign = 512
	// distantPast is before all times, including those before this balancer's epoch.
	distantPast = time.Duration(math.MinInt64)
)

// foreignReplica is a replica of another balancer of this region. Its cache contents have a slot in
// the tree of replicas, but no request is sent to it. When this balancer becomes its owner, the
// target takes over the slot with its contents.
type foreignReplica struct {
	id         string
	process    string
	treeSlot   int
	reportedBy string        // the peer that sent the last update; empty before the first
	newestAt   time.Duration // the time of the newest update
	receivedAt time.Duration // when an update was last received
	// removedAt is the time when this balancer stopped being its owner. If it returns, its earlier
	// cache contents count only after a peer has sent an update: a replica without updates in
	// between was probably restarted.
	removedAt   time.Duration
	reported    bool          // an update from after removedAt was received
	cacheLostAt time.Duration // see cacheTarget
}

// searchForeign returns the index of the foreign replica with an id, or the index at which to
// insert it.
func (s *sharing) searchForeign(id string) (at int, found bool) {
	at = sort.Search(len(s.foreign), func(i int) bool { return s.foreign[i].id >= id })
	return at, at < len(s.foreign) && s.foreign[at].id == id
}

// receiveCacheUpdates processes cache updates from a peer. Those from another region are about replicas that only
// that peer can use, so they are recorded for the peer.
func (b *Balancer) receiveCacheUpdates(now time.Duration, from string, entries []CacheUpdate) {
	p := findTarget(b.peers, from)
	if p == nil {
		return
	}
	if !p.sameRegion {
		b.caches.receiveDistantUpdates(now, &p.cacheTarget, entries)
		return
	}
	for i := range entries {
		e, ok := localizeUpdate(now, &entries[i])
		if !ok {
			continue
		}
		if t := findTarget(b.replicas, e.Replica); t == nil {
			b.caches.receiveForeignUpdate(now, from, &e)
		} else if !t.cacheLost(now, &b.cfg) {
			b.caches.receiveOwnUpdate(now, &t.cacheTarget, &e)
		}
	}
}

// receiveDistantUpdates records what a peer of another region has sent to its replicas. The peer does not report
// which of its replicas lost its cache: the oldest prefixes are evicted, as for requests forwarded to it.
func (c *caches) receiveDistantUpdates(now time.Duration, peer *cacheTarget, entries []CacheUpdate) {
	for i := range entries {
		if e, ok := localizeUpdate(now, &entries[i]); ok && !e.CacheLost {
			c.peers.InsertFor(c.tenants.numberFor(now, e.Tenant), e.Key, peer.treeSlot)
		}
	}
}

// localizeUpdate converts a peer's update to this balancer's clock. ok is false if the update is
// invalid or too old.
func localizeUpdate(now time.Duration, sent *CacheUpdate) (e localCacheUpdate, ok bool) {
	if sent.Replica == "" || sent.Age < 0 || sent.Age >= maxSharedAge || sent.SessionAge < 0 {
		return localCacheUpdate{}, false
	}
	e = localCacheUpdate{CacheUpdate: *sent, updatedAt: now - sent.Age, sessionStart: now - sent.SessionAge}
	e.Age, e.SessionAge = 0, 0
	if len(e.Key) > maxSharedHashes {
		e.Key, e.IncludesResponse = slices.Clone(e.Key[:maxSharedHashes]), false
	}
	return e, true
}

// receiveOwnUpdate processes an update about a replica of this balancer. After a restart, such updates
// restore the state. The balancer's own observations take precedence: a cache that it has recorded
// as lost stays lost.
func (c *caches) receiveOwnUpdate(now time.Duration, ct *cacheTarget, e *localCacheUpdate) {
	switch {
	case e.Process != ct.process || e.updatedAt <= ct.cacheLostAt:
	case !e.CacheLost:
		c.applyCacheUpdate(now, ct.treeSlot, e)
	case e.updatedAt <= ct.added: // after that, the peer no longer owned the replica
		ct.cacheLostAt = e.updatedAt
		c.applyCacheLoss(ct.treeSlot, e)
	}
}

func (c *caches) receiveForeignUpdate(now time.Duration, from string, e *localCacheUpdate) {
	f := c.findOrAddForeign(now, e)
	if f == nil || e.updatedAt <= f.cacheLostAt {
		return
	}
	f.reportedBy, f.receivedAt, f.newestAt = from, now, max(f.newestAt, e.updatedAt)
	f.reported = f.reported || e.updatedAt > f.removedAt
	if e.CacheLost {
		f.cacheLostAt = e.updatedAt
		c.applyCacheLoss(f.treeSlot, e)
		return
	}
	c.applyCacheUpdate(now, f.treeSlot, e)
}

// findOrAddForeign returns the foreign replica of an update and adds it if needed. It returns nil
// if the update is about a process that has since been replaced.
func (c *caches) findOrAddForeign(now time.Duration, e *localCacheUpdate) *foreignReplica {
	at, found := c.sharing.searchForeign(e.Replica)
	if !found {
		if e.CacheLost {
			return nil
		}
		return c.addForeign(&foreignReplica{
			id: e.Replica, process: e.Process, treeSlot: c.treeSlots[0].allocate(), newestAt: e.updatedAt, receivedAt: now, removedAt: distantPast, cacheLostAt: distantPast,
		})
	}
	f := c.sharing.foreign[at]
	if f.process != e.Process {
		if e.updatedAt <= f.newestAt {
			return nil
		}
		c.replicas.RemoveTarget(f.treeSlot)
		c.sharing.received.removeReplica(f.id, e.updatedAt)
		f.process, f.cacheLostAt = e.Process, distantPast
	}
	return f
}

// addForeign adds a foreign replica. When there are too many, it removes the one with the oldest
// update.
func (c *caches) addForeign(f *foreignReplica) *foreignReplica {
	s := &c.sharing
	if len(s.foreign) >= maxForeign {
		oldest := s.foreign[0]
		for _, o := range s.foreign[1:] {
			if o.receivedAt < oldest.receivedAt {
				oldest = o
			}
		}
		c.dropForeign(func(o *foreignReplica) bool { return o == oldest })
	}
	at, _ := s.searchForeign(f.id)
	s.foreign = slices.Insert(s.foreign, at, f)
	return f
}

// applyCacheUpdate inserts an entry into the tree, and into the log for neighbours that restart with
// empty state.
func (c *caches) applyCacheUpdate(now time.Duration, slot int, e *localCacheUpdate) {
	tenant := c.tenants.numberFor(now, e.Tenant)
	if e.IncludesResponse {
		c.replicas.InsertResponseFor(tenant, e.Key, slot, e.sessionStart)
	} else {
		c.replicas.InsertFor(tenant, e.Key, slot)
	}
	c.sharing.addUpdate(&c.sharing.received, *e)
}

// applyCacheLoss removes all cache contents of a replica from the tree, and its updates up to the loss
// in e from the logs.
func (c *caches) applyCacheLoss(slot int, e *localCacheUpdate) {
	c.replicas.RemoveTarget(slot)
	c.sharing.removeReplica(e.Replica, e.updatedAt)
	c.sharing.addUpdate(&c.sharing.received, *e)
}

// dropForeign removes the foreign replicas for which match returns true.
func (c *caches) dropForeign(match func(*foreignReplica) bool) {
	c.sharing.foreign = slices.DeleteFunc(c.sharing.foreign, func(f *foreignReplica) bool {
		if !match(f) {
			return false
		}
		c.replicas.RemoveTarget(f.treeSlot)
		c.treeSlots[0].release(f.treeSlot)
		c.sharing.received.removeReplica(f.id, f.newestAt)
		return true
	})
}

// dropUnreported removes the foreign replicas without recent updates.
func (c *caches) dropUnreported(now time.Duration) {
	if len(c.sharing.foreign) > 0 {
		c.dropForeign(func(f *foreignReplica) bool { return now-f.receivedAt >= maxSharedAge })
	}
}

// dropReportedBy removes the foreign replicas whose last update came from a removed peer.
func (c *caches) dropReportedBy(peer string) {
	c.dropForeign(func(f *foreignReplica) bool { return !c.neighbours || f.reportedBy == peer })
}

// attachReplica makes this balancer the owner of a replica. It keeps the replica's cache contents
// from its time as a foreign replica.
func (c *caches) attachReplica(now time.Duration, ct *cacheTarget) {
	ct.added, ct.cacheLostAt = now, distantPast
	at, found := c.sharing.searchForeign(ct.id)
	if !found {
		ct.treeSlot = c.treeSlots[0].allocate()
		return
	}
	f := c.sharing.foreign[at]
	c.sharing.foreign = slices.Delete(c.sharing.foreign, at, at+1)
	ct.treeSlot, ct.cacheLostAt = f.treeSlot, f.cacheLostAt
	if f.process != ct.process || !f.reported {
		c.forgetCache(now, ct)
	}
}

// detachReplica is the inverse of attachReplica. If there are neighbours and the cache is not lost,
// the replica is assumed to move to one of them and becomes a foreign replica.
func (c *caches) detachReplica(now time.Duration, ct *cacheTarget, lost bool) {
	if !c.neighbours || lost {
		c.replicas.RemoveTarget(ct.treeSlot)
		c.treeSlots[0].release(ct.treeSlot)
	} else {
		c.addForeign(&foreignReplica{id: ct.id, process: ct.process, treeSlot: ct.treeSlot, newestAt: now, receivedAt: now, removedAt: now, cacheLostAt: ct.cacheLostAt})
	}
	ct.treeSlot = -1
}
