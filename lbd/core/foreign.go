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
	id      string
	process string
	slot    int
	from    string        // the peer that told of it last; empty before any did
	news    time.Duration // when the newest news was true
	heardAt time.Duration // when any last came
	// removed is when it stopped being this balancer's own. Nothing that it held
	// before counts, should it come back, until a peer has told of it: a replica
	// that nobody used meanwhile was taken out to be restarted.
	removed  time.Duration
	told     bool
	forgotAt time.Duration // see target
}

// place is where a foreign replica of that id is, or belongs, in the list.
func (s *sharing) place(id string) (at int, found bool) {
	at = sort.Search(len(s.foreign), func(i int) bool { return s.foreign[i].id >= id })
	return at, at < len(s.foreign) && s.foreign[at].id == id
}

// hear takes in what a peer of this region tells.
func (b *Balancer) hear(now time.Duration, from string, entries []Learned) {
	if p := find(b.peers, from); p == nil || !p.sameRegion {
		return
	}
	for i := range entries {
		b.hearOne(now, from, &entries[i])
	}
}

func (b *Balancer) hearOne(now time.Duration, from string, told *Learned) {
	if told.Replica == "" || told.Age < 0 || told.Age >= shareAge || told.SessionAge < 0 {
		return
	}
	e := learnedAt{Learned: *told, at: now - told.Age, began: now - told.SessionAge}
	e.Age, e.SessionAge = 0, 0
	if len(e.Key) > longestShared {
		e.Key, e.Answered = slices.Clone(e.Key[:longestShared]), false
	}
	if t := find(b.replicas, e.Replica); t != nil {
		b.hearOwn(now, t, &e)
		return
	}
	b.hearForeign(now, from, &e)
}

// hearOwn takes in news of a replica of this balancer's own, which it does not
// know yet when it was started again. What it saw itself counts for more: a
// cache that it saw being lost stays lost.
func (b *Balancer) hearOwn(now time.Duration, t *target, e *learnedAt) {
	switch {
	case e.Process != t.process || e.at <= t.forgotAt || t.lost(now, &b.cfg):
	case !e.Forgotten:
		b.learnedOf(now, t.slot, e)
	case e.at <= t.added: // later, the peer had nothing to do with it any more
		t.forgotAt = e.at
		b.lostOf(t.slot, e)
	}
}

// lost says whether a replica's cache must be taken for empty: it does not
// answer, or not in time after it was added.
func (t *target) lost(now time.Duration, c *Config) bool {
	if t.reported {
		return !t.ready || t.suspect
	}
	return now-t.added >= time.Duration(c.LostIntervals)*c.ProbeInterval
}

func (b *Balancer) hearForeign(now time.Duration, from string, e *learnedAt) {
	f := b.foreignOf(now, e)
	if f == nil || e.at <= f.forgotAt {
		return
	}
	f.from, f.heardAt, f.news = from, now, max(f.news, e.at)
	f.told = f.told || e.at > f.removed
	if e.Forgotten {
		f.forgotAt = e.at
		b.lostOf(f.slot, e)
		return
	}
	b.learnedOf(now, f.slot, e)
}

// foreignOf is the foreign replica that news is about, made when it is the
// first; nil when the news is of a process that was replaced since.
func (b *Balancer) foreignOf(now time.Duration, e *learnedAt) *foreign {
	at, found := b.sharing.place(e.Replica)
	if !found {
		if e.Forgotten {
			return nil
		}
		return b.addForeign(&foreign{
			id: e.Replica, process: e.Process, slot: b.slots[0].take(), news: e.at, heardAt: now, removed: longAgo, forgotAt: longAgo,
		})
	}
	f := b.sharing.foreign[at]
	if f.process != e.Process {
		if e.at <= f.news {
			return nil
		}
		b.replicaTree.RemoveTarget(f.slot)
		b.sharing.heard.drop(f.id, e.at)
		f.process, f.forgotAt = e.Process, longAgo
	}
	return f
}

// addForeign keeps track of a foreign replica; of too many the one goes of which
// there was no news for longest.
func (b *Balancer) addForeign(f *foreign) *foreign {
	s := &b.sharing
	if len(s.foreign) >= maxForeign {
		oldest := s.foreign[0]
		for _, o := range s.foreign[1:] {
			if o.heardAt < oldest.heardAt {
				oldest = o
			}
		}
		b.dropForeign(func(o *foreign) bool { return o == oldest })
	}
	at, _ := s.place(f.id)
	s.foreign = slices.Insert(s.foreign, at, f)
	return f
}

// learnedOf puts an entry into the tree, and into the log for a neighbour that
// loses all it knows.
func (b *Balancer) learnedOf(now time.Duration, slot int, e *learnedAt) {
	owner := b.owners.of(now, e.Tenant)
	if e.Answered {
		b.replicaTree.InsertAnswerFor(owner, e.Key, slot, e.began)
	} else {
		b.replicaTree.InsertFor(owner, e.Key, slot)
	}
	b.sharing.add(&b.sharing.heard, *e)
}

// lostOf drops what was learned of a replica before the loss that e tells of.
func (b *Balancer) lostOf(slot int, e *learnedAt) {
	b.replicaTree.RemoveTarget(slot)
	b.sharing.drop(e.Replica, e.at)
	b.sharing.add(&b.sharing.heard, *e)
}

// dropForeign forgets the foreign replicas that which names.
func (b *Balancer) dropForeign(which func(*foreign) bool) {
	b.sharing.foreign = slices.DeleteFunc(b.sharing.foreign, func(f *foreign) bool {
		if !which(f) {
			return false
		}
		b.replicaTree.RemoveTarget(f.slot)
		b.slots[0].give(f.slot)
		b.sharing.heard.drop(f.id, f.news)
		return true
	})
}

// dropOldNews forgets the foreign replicas that nobody tells of any more.
func (b *Balancer) dropOldNews(now time.Duration) {
	if len(b.sharing.foreign) > 0 {
		b.dropForeign(func(f *foreign) bool { return now-f.heardAt >= shareAge })
	}
}

// dropNewsFrom forgets what a removed peer told last.
func (b *Balancer) dropNewsFrom(peer string) {
	alone := !b.hasNeighbours()
	b.dropForeign(func(f *foreign) bool { return alone || f.from == peer })
}

// own makes a replica this balancer's: with what is known of it as a foreign
// one, or with nothing.
func (b *Balancer) own(now time.Duration, t *target) {
	t.added, t.forgotAt = now, longAgo
	at, found := b.sharing.place(t.id)
	if !found {
		t.slot = b.slots[0].take()
		return
	}
	f := b.sharing.foreign[at]
	b.sharing.foreign = slices.Delete(b.sharing.foreign, at, at+1)
	t.slot, t.forgotAt = f.slot, f.forgotAt
	if f.process != t.process || !f.told {
		b.forget(now, t)
	}
}

// disown ends that. Where there are neighbours the replica goes home to one of
// them, as far as this balancer can know, and stays known as a foreign one.
func (b *Balancer) disown(now time.Duration, t *target) {
	if !b.hasNeighbours() || t.lost(now, &b.cfg) {
		b.replicaTree.RemoveTarget(t.slot)
		b.slots[0].give(t.slot)
	} else {
		b.addForeign(&foreign{id: t.id, process: t.process, slot: t.slot, news: now, heardAt: now, removed: now, forgotAt: t.forgotAt})
	}
	t.slot = -1
}
