package core

import (
	"math"
	"slices"
	"sort"
	"time"
)

const (
	// shareAge is how long news of a replica's cache stays news: an engine in use
	// has replaced most of what it held ten minutes ago, and a replica of which
	// nobody tells for so long is gone.
	shareAge = 10 * time.Minute
	// maxForeign bounds the neighbours' replicas that are kept track of, as each
	// takes a bit in every node of the tree.
	maxForeign = 512
	// longAgo is before all times, those before this balancer's epoch included.
	longAgo = time.Duration(math.MinInt64)
)

// foreign is a replica of another balancer of this region: what it holds has a
// slot in the tree of replicas, but no request is sent there. When it becomes
// this balancer's own, the target takes the slot over with all that is in it.
type foreign struct {
	id         string
	process    string
	slot       int
	from       string        // the peer that told of it last; empty before any did
	newest     time.Duration // when the newest of what was told was true
	receivedAt time.Duration // when any last came
	// removed is when it stopped being this balancer's own. Nothing that it held
	// before counts, should it come back, until a peer has told of it: a replica
	// that nobody used meanwhile was taken out to be restarted.
	removed  time.Duration
	reported bool
	forgotAt time.Duration // see target
}

// place is where a foreign replica of that id is, or belongs, in the list.
func (s *sharing) place(id string) (at int, found bool) {
	at = sort.Search(len(s.foreign), func(i int) bool { return s.foreign[i].id >= id })
	return at, at < len(s.foreign) && s.foreign[at].id == id
}

// receive takes in what a peer of this region tells.
func (b *Balancer) receive(now time.Duration, from string, entries []Learned) {
	if p := find(b.peers, from); p == nil || !p.sameRegion {
		return
	}
	for i := range entries {
		e, ok := learnedEntry(now, &entries[i])
		if !ok {
			continue
		}
		if t := find(b.replicas, e.Replica); t == nil {
			b.caches.receiveForeign(now, from, &e)
		} else if !t.lost(now, &b.cfg) {
			b.caches.receiveOwn(now, &t.cacheTarget, &e)
		}
	}
}

// learnedEntry is what a peer tells in this balancer's own time; ok is false for what makes
// no sense or is too old.
func learnedEntry(now time.Duration, sent *Learned) (e learnedAt, ok bool) {
	if sent.Replica == "" || sent.Age < 0 || sent.Age >= shareAge || sent.SessionAge < 0 {
		return learnedAt{}, false
	}
	e = learnedAt{Learned: *sent, at: now - sent.Age, began: now - sent.SessionAge}
	e.Age, e.SessionAge = 0, 0
	if len(e.Key) > longestShared {
		e.Key, e.Answered = slices.Clone(e.Key[:longestShared]), false
	}
	return e, true
}

// receiveOwn takes in what a peer tells of a replica of this balancer's own, which it does not
// know yet when it was started again. What it saw itself counts for more: a
// cache that it saw being lost stays lost.
func (c *caches) receiveOwn(now time.Duration, h *cacheTarget, e *learnedAt) {
	switch {
	case e.Process != h.process || e.at <= h.forgotAt:
	case !e.Forgotten:
		c.learnedOf(now, h.slot, e)
	case e.at <= h.added: // later, the peer had nothing to do with it any more
		h.forgotAt = e.at
		c.lostOf(h.slot, e)
	}
}

func (c *caches) receiveForeign(now time.Duration, from string, e *learnedAt) {
	f := c.foreignOf(now, e)
	if f == nil || e.at <= f.forgotAt {
		return
	}
	f.from, f.receivedAt, f.newest = from, now, max(f.newest, e.at)
	f.reported = f.reported || e.at > f.removed
	if e.Forgotten {
		f.forgotAt = e.at
		c.lostOf(f.slot, e)
		return
	}
	c.learnedOf(now, f.slot, e)
}

// foreignOf is the foreign replica that news is about, made when it is the
// first; nil when the news is of a process that was replaced since.
func (c *caches) foreignOf(now time.Duration, e *learnedAt) *foreign {
	at, found := c.sharing.place(e.Replica)
	if !found {
		if e.Forgotten {
			return nil
		}
		return c.addForeign(&foreign{
			id: e.Replica, process: e.Process, slot: c.slots[0].take(), newest: e.at, receivedAt: now, removed: longAgo, forgotAt: longAgo,
		})
	}
	f := c.sharing.foreign[at]
	if f.process != e.Process {
		if e.at <= f.newest {
			return nil
		}
		c.replicas.RemoveTarget(f.slot)
		c.sharing.received.drop(f.id, e.at)
		f.process, f.forgotAt = e.Process, longAgo
	}
	return f
}

// addForeign keeps track of a foreign replica; of too many the one goes of which
// there was no news for longest.
func (c *caches) addForeign(f *foreign) *foreign {
	s := &c.sharing
	if len(s.foreign) >= maxForeign {
		oldest := s.foreign[0]
		for _, o := range s.foreign[1:] {
			if o.receivedAt < oldest.receivedAt {
				oldest = o
			}
		}
		c.dropForeign(func(o *foreign) bool { return o == oldest })
	}
	at, _ := s.place(f.id)
	s.foreign = slices.Insert(s.foreign, at, f)
	return f
}

// learnedOf puts an entry into the tree, and into the log for a neighbour that
// loses all it knows.
func (c *caches) learnedOf(now time.Duration, slot int, e *learnedAt) {
	owner := c.owners.of(now, e.Tenant)
	if e.Answered {
		c.replicas.InsertAnswerFor(owner, e.Key, slot, e.began)
	} else {
		c.replicas.InsertFor(owner, e.Key, slot)
	}
	c.sharing.add(&c.sharing.received, *e)
}

// lostOf drops what was learned of a replica before the loss that e tells of.
func (c *caches) lostOf(slot int, e *learnedAt) {
	c.replicas.RemoveTarget(slot)
	c.sharing.drop(e.Replica, e.at)
	c.sharing.add(&c.sharing.received, *e)
}

// dropForeign forgets the foreign replicas that which names.
func (c *caches) dropForeign(which func(*foreign) bool) {
	c.sharing.foreign = slices.DeleteFunc(c.sharing.foreign, func(f *foreign) bool {
		if !which(f) {
			return false
		}
		c.replicas.RemoveTarget(f.slot)
		c.slots[0].give(f.slot)
		c.sharing.received.drop(f.id, f.newest)
		return true
	})
}

// dropUnreported forgets the foreign replicas that nobody tells of any more.
func (c *caches) dropUnreported(now time.Duration) {
	if len(c.sharing.foreign) > 0 {
		c.dropForeign(func(f *foreign) bool { return now-f.receivedAt >= shareAge })
	}
}

// dropReportedBy forgets what a removed peer told last.
func (c *caches) dropReportedBy(peer string) {
	c.dropForeign(func(f *foreign) bool { return !c.neighbours || f.from == peer })
}

// attach makes a replica this balancer's: with what is known of it as a foreign
// one, or with nothing.
func (c *caches) attach(now time.Duration, h *cacheTarget) {
	h.added, h.forgotAt = now, longAgo
	at, found := c.sharing.place(h.id)
	if !found {
		h.slot = c.slots[0].take()
		return
	}
	f := c.sharing.foreign[at]
	c.sharing.foreign = slices.Delete(c.sharing.foreign, at, at+1)
	h.slot, h.forgotAt = f.slot, f.forgotAt
	if f.process != h.process || !f.reported {
		c.forget(now, h)
	}
}

// detach ends that. Where there are neighbours, and unless the cache is lost, the replica goes
// home to one of them, as far as this balancer can know, and stays known as a foreign one.
func (c *caches) detach(now time.Duration, h *cacheTarget, lost bool) {
	if !c.neighbours || lost {
		c.replicas.RemoveTarget(h.slot)
		c.slots[0].give(h.slot)
	} else {
		c.addForeign(&foreign{id: h.id, process: h.process, slot: h.slot, newest: now, receivedAt: now, removed: now, forgotAt: h.forgotAt})
	}
	h.slot = -1
}
