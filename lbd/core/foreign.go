package core

import (
	"math"
	"slices"
	"sort"
	"time"
)

const (
	// maxSharedAge is how long news of a replica's cache stays news: an engine in use
	// has replaced most of what it held ten minutes ago, and a replica of which
	// nobody tells for so long is gone.
	maxSharedAge = 10 * time.Minute
	// maxForeign bounds the neighbours' replicas that are kept track of, as each
	// takes a bit in every node of the tree.
	maxForeign = 512
	// distantPast is before all times, those before this balancer's epoch included.
	distantPast = time.Duration(math.MinInt64)
)

// foreignReplica is a replica of another balancer of this region: what it holds has a
// slot in the tree of replicas, but no request is sent there. When it becomes
// this balancer's own, the target takes the slot over with all that is in it.
type foreignReplica struct {
	id         string
	process    string
	slot       int
	reportedBy       string        // the peer that told of it last; empty before any did
	newestAt     time.Duration // when the newest of what was told was true
	receivedAt time.Duration // when any last came
	// removedAt is when it stopped being this balancer's own. Nothing that it held
	// before counts, should it come back, until a peer has told of it: a replica
	// that nobody used meanwhile was taken out to be restarted.
	removedAt  time.Duration
	reported bool
	cacheLostAt time.Duration // see target
}

// placeRequest is where a foreign replica of that id is, or belongs, in the list.
func (s *sharing) searchForeign(id string) (at int, found bool) {
	at = sort.Search(len(s.foreign), func(i int) bool { return s.foreign[i].id >= id })
	return at, at < len(s.foreign) && s.foreign[at].id == id
}

// receiveLearned takes in what a peer of this region tells.
func (b *Balancer) receiveLearned(now time.Duration, from string, entries []Learned) {
	if p := findTarget(b.peers, from); p == nil || !p.sameRegion {
		return
	}
	for i := range entries {
		e, ok := toLocalTime(now, &entries[i])
		if !ok {
			continue
		}
		if t := findTarget(b.replicas, e.Replica); t == nil {
			b.caches.receiveForeign(now, from, &e)
		} else if !t.cacheLost(now, &b.cfg) {
			b.caches.receiveOwn(now, &t.cacheTarget, &e)
		}
	}
}

// toLocalTime is what a peer tells in this balancer's own time; ok is false for what makes
// no sense or is too old.
func toLocalTime(now time.Duration, sent *Learned) (e localLearned, ok bool) {
	if sent.Replica == "" || sent.Age < 0 || sent.Age >= maxSharedAge || sent.SessionAge < 0 {
		return localLearned{}, false
	}
	e = localLearned{Learned: *sent, learnedAt: now - sent.Age, sessionStart: now - sent.SessionAge}
	e.Age, e.SessionAge = 0, 0
	if len(e.Key) > maxSharedHashes {
		e.Key, e.Answered = slices.Clone(e.Key[:maxSharedHashes]), false
	}
	return e, true
}

// receiveOwn takes in what a peer tells of a replica of this balancer's own, which it does not
// know yet when it was started again. What it saw itself counts for more: a
// cache that it saw being lost stays lost.
func (c *caches) receiveOwn(now time.Duration, h *cacheTarget, e *localLearned) {
	switch {
	case e.Process != h.process || e.learnedAt <= h.cacheLostAt:
	case !e.Forgotten:
		c.applyLearned(now, h.slot, e)
	case e.learnedAt <= h.added: // later, the peer had nothing to do with it any more
		h.cacheLostAt = e.learnedAt
		c.applyLoss(h.slot, e)
	}
}

func (c *caches) receiveForeign(now time.Duration, from string, e *localLearned) {
	f := c.findOrAddForeign(now, e)
	if f == nil || e.learnedAt <= f.cacheLostAt {
		return
	}
	f.reportedBy, f.receivedAt, f.newestAt = from, now, max(f.newestAt, e.learnedAt)
	f.reported = f.reported || e.learnedAt > f.removedAt
	if e.Forgotten {
		f.cacheLostAt = e.learnedAt
		c.applyLoss(f.slot, e)
		return
	}
	c.applyLearned(now, f.slot, e)
}

// findOrAddForeign is the foreign replica that news is about, made when it is the
// first; nil when the news is of a process that was replaced since.
func (c *caches) findOrAddForeign(now time.Duration, e *localLearned) *foreignReplica {
	at, found := c.sharing.searchForeign(e.Replica)
	if !found {
		if e.Forgotten {
			return nil
		}
		return c.addForeign(&foreignReplica{
			id: e.Replica, process: e.Process, slot: c.slots[0].allocate(), newestAt: e.learnedAt, receivedAt: now, removedAt: distantPast, cacheLostAt: distantPast,
		})
	}
	f := c.sharing.foreign[at]
	if f.process != e.Process {
		if e.learnedAt <= f.newestAt {
			return nil
		}
		c.replicas.RemoveTarget(f.slot)
		c.sharing.received.remove(f.id, e.learnedAt)
		f.process, f.cacheLostAt = e.Process, distantPast
	}
	return f
}

// addForeign keeps track of a foreign replica; of too many the one goes of which
// there was no news for longest.
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

// applyLearned puts an entry into the tree, and into the log for a neighbour that
// loses all it knows.
func (c *caches) applyLearned(now time.Duration, slot int, e *localLearned) {
	owner := c.owners.numberFor(now, e.Tenant)
	if e.Answered {
		c.replicas.InsertAnswerFor(owner, e.Key, slot, e.sessionStart)
	} else {
		c.replicas.InsertFor(owner, e.Key, slot)
	}
	c.sharing.add(&c.sharing.received, *e)
}

// applyLoss drops what was learned of a replica before the loss that e tells of.
func (c *caches) applyLoss(slot int, e *localLearned) {
	c.replicas.RemoveTarget(slot)
	c.sharing.remove(e.Replica, e.learnedAt)
	c.sharing.add(&c.sharing.received, *e)
}

// dropForeign forgets the foreign replicas that which names.
func (c *caches) dropForeign(which func(*foreignReplica) bool) {
	c.sharing.foreign = slices.DeleteFunc(c.sharing.foreign, func(f *foreignReplica) bool {
		if !which(f) {
			return false
		}
		c.replicas.RemoveTarget(f.slot)
		c.slots[0].release(f.slot)
		c.sharing.received.remove(f.id, f.newestAt)
		return true
	})
}

// dropUnreported forgets the foreign replicas that nobody tells of any more.
func (c *caches) dropUnreported(now time.Duration) {
	if len(c.sharing.foreign) > 0 {
		c.dropForeign(func(f *foreignReplica) bool { return now-f.receivedAt >= maxSharedAge })
	}
}

// dropReportedBy forgets what a removed peer told last.
func (c *caches) dropReportedBy(peer string) {
	c.dropForeign(func(f *foreignReplica) bool { return !c.neighbours || f.reportedBy == peer })
}

// attachReplica makes a replica this balancer's: with what is known of it as a foreign
// one, or with nothing.
func (c *caches) attachReplica(now time.Duration, h *cacheTarget) {
	h.added, h.cacheLostAt = now, distantPast
	at, found := c.sharing.searchForeign(h.id)
	if !found {
		h.slot = c.slots[0].allocate()
		return
	}
	f := c.sharing.foreign[at]
	c.sharing.foreign = slices.Delete(c.sharing.foreign, at, at+1)
	h.slot, h.cacheLostAt = f.slot, f.cacheLostAt
	if f.process != h.process || !f.reported {
		c.forgetTarget(now, h)
	}
}

// detachReplica ends that. Where there are neighbours, and unless the cache is lost, the replica goes
// home to one of them, as far as this balancer can know, and stays known as a foreign one.
func (c *caches) detachReplica(now time.Duration, h *cacheTarget, lost bool) {
	if !c.neighbours || lost {
		c.replicas.RemoveTarget(h.slot)
		c.slots[0].release(h.slot)
	} else {
		c.addForeign(&foreignReplica{id: h.id, process: h.process, slot: h.slot, newestAt: now, receivedAt: now, removedAt: now, cacheLostAt: h.cacheLostAt})
	}
	h.slot = -1
}
