package sim

import (
	"time"

	"skyserve/lbd/core"
)

// How balancers exchange the observed contents of their replicas' caches, as in lbd/peer.
const (
	prefixInterval      = time.Second
	prefixRetryInterval = 100 * time.Millisecond // if the previous response was incomplete
	pageBytes           = 128 << 10
	prefixBatch         = 32 // entries applied between two decisions
)

// prefixProgress is the position of a balancer in a peer's log.
type prefixProgress struct {
	life int    // life of the peer to which next refers
	next uint64 // next entry to request
	some bool   // received some entries before
}

// page is a response in transit.
type page struct {
	entries []core.CacheUpdate
	life    int // life of the requesting balancer
}

// requestPrefixes requests the entries of all other balancers. A response has the other's state at the time of the
// request: the two one-way delays are simulated as one.
func (w *world) requestPrefixes(n *node) {
	again := prefixInterval
	if !n.dead {
		for _, from := range w.nodes {
			if from != n && !from.dead && !w.isCut(n, from) && w.requestPrefixesFrom(n, from) {
				again = prefixRetryInterval
			}
		}
	}
	w.pushEvent(again, event{kind: evRequestPrefixes, index: n.index})
}

// requestPrefixesFrom requests one balancer's entries and reports whether there are more. A balancer without
// entries also gets those that a peer in its region received from others.
func (w *world) requestPrefixesFrom(n, from *node) (more bool) {
	at := n.prefixes[from.index]
	if at.life != from.lives {
		at = prefixProgress{life: from.lives, some: at.some}
	}
	entries, next, more := from.core.CacheUpdates(w.now, at.next, !at.some && n.region == from.region, pageBytes)
	n.prefixes[from.index] = prefixProgress{life: at.life, next: next, some: !more || at.some}
	way := 2 * w.delay[n.region][from.region]
	for i := range entries {
		entries[i].Age += way
		entries[i].SessionAge += way
	}
	for len(entries) > 0 {
		some := entries[:min(prefixBatch, len(entries))]
		entries = entries[len(some):]
		w.pushEvent(way, event{kind: evPrefixes, index: n.index, arg: from.index, learned: &page{some, n.lives}})
	}
	return more
}

// receivePrefixes applies a response, unless it is for an earlier life.
func (w *world) receivePrefixes(n, from *node, p *page) {
	if !n.dead && n.lives == p.life {
		w.sendEvent(n, core.Event{Kind: core.EventPeerCacheUpdates, Target: from.id, CacheUpdates: p.entries})
	}
}
