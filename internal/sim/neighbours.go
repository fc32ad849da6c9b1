package sim

import (
	"time"

	"skyserve/lbd/core"
)

// How balancers of one region tell each other what they learned of their
// replicas' caches, as lbd/peer does it.
const (
	askEvery  = time.Second
	moreAfter = 100 * time.Millisecond // where an answer was not all
	pageBytes = 128 << 10
	atOnce    = 32 // entries that a balancer takes in between two decisions
)

// progress is how far a balancer is with what a neighbour learned.
type progress struct {
	life int    // of the neighbour: its numbers are of that
	next uint64 // what to ask from
	some bool   // something came already
}

// page is an answer on its way.
type page struct {
	entries []core.Learned
	life    int // of who asked
}

// askPrefixes lets a balancer ask all its neighbours. An answer is as its
// neighbour is when it is asked: both ways inside a region are one here.
func (w *world) askPrefixes(n *node) {
	again := askEvery
	if !n.dead {
		for _, from := range w.homes[n.region] {
			if from != n && !from.dead && w.askOne(n, from) {
				again = moreAfter
			}
		}
	}
	w.push(again, event{kind: evAskPrefixes, index: n.index})
}

// askOne asks one neighbour, and says whether there is more. Who begins with
// nothing is told also what the neighbour heard from others.
func (w *world) askOne(n, from *node) (more bool) {
	at := n.asked[from.index]
	if at.life != from.lives {
		at = progress{life: from.lives, some: at.some}
	}
	entries, next, more := from.core.Learned(w.now, at.next, !at.some, pageBytes)
	n.asked[from.index] = progress{life: at.life, next: next, some: !more || at.some}
	way := 2 * w.delay[n.region][n.region]
	for i := range entries {
		entries[i].Age += way
		entries[i].SessionAge += way
	}
	for len(entries) > 0 {
		some := entries[:min(atOnce, len(entries))]
		entries = entries[len(some):]
		w.push(way, event{kind: evPrefixes, index: n.index, from: from.index, learned: &page{some, n.lives}})
	}
	return more
}

// hearPrefixes takes an answer in, unless it is for an earlier life.
func (w *world) hearPrefixes(n, from *node, p *page) {
	if !n.dead && n.lives == p.life {
		w.tell(n, core.Event{Kind: core.EventPeerLearned, Target: from.id, Learned: p.entries})
	}
}
