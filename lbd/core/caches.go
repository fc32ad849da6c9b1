package core

import (
	"time"

	"skyserve/lbd/prefix"
)

// caches is what replicas and peers are thought to hold of prompts, and what the balancers of
// a region tell each other of it (gossip.go, foreign.go). It knows targets, tenants and keys,
// and nothing of requests, loads and queues.
type caches struct {
	// Two trees (SkyLB 3.2): what the replicas hold, and a snapshot of the peers
	// made of what was forwarded to them.
	replicas *prefix.Tree
	peers    *prefix.Tree
	slots    [2]slots
	owners   owners
	sharing  sharing
	// neighbours: another balancer of this region is known. Alone, there is nobody to
	// share with.
	neighbours bool
	matches    []int // scratch of match
}

// cacheTarget is a replica or a peer as its cache is concerned. A target embeds it.
type cacheTarget struct {
	id      string
	process string // replica only: ReplicaInfo.Process
	peer    bool
	slot    int           // its number in the tree; -1 once it is gone
	added   time.Duration // replica only
	// cacheLostAt is when its cache was last found to be lost: what is older does not count.
	cacheLostAt time.Duration
}

func newCaches(cfg *Config) caches {
	return caches{
		replicas: prefix.NewTreeInOrder(cfg.TreeBytes, cfg.TreeOrder),
		peers:    prefix.NewTreeInOrder(cfg.TreeBytes, cfg.TreeOrder),
		owners:   newOwners(),
		sharing:  newSharing(cfg.ShareBytes),
	}
}

// slots hands out the small integers that the trees know targets by.
type slots struct {
	free []int
	next int
}

func (s *slots) allocate() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next++
	return s.next - 1
}

func (s *slots) release(slot int) { s.free = append(s.free, slot) }

func (c *caches) tree(h *cacheTarget) *prefix.Tree {
	if h.peer {
		return c.peers
	}
	return c.replicas
}

// addPeer gives a peer a place in its tree.
func (c *caches) addPeer(h *cacheTarget) { h.slot = c.slots[1].allocate() }

// removePeer forgets a peer, and what it told of replicas.
func (c *caches) removePeer(h *cacheTarget) {
	c.peers.RemoveTarget(h.slot)
	c.slots[1].release(h.slot)
	h.slot = -1
	c.dropReportedBy(h.id)
}

// addOutstanding notes that a prompt goes to a target.
func (c *caches) recordSent(now time.Duration, h *cacheTarget, tenant string, prompt prefix.Key) {
	c.tree(h).InsertFor(c.owners.numberFor(now, tenant), prompt, h.slot)
}

// recordFinished notes that a prompt was served there, with the key of the prompt with its answer,
// nil where that is not known, and when its session began.
func (c *caches) recordFinished(now time.Duration, h *cacheTarget, tenant string, prompt, answered prefix.Key, began time.Duration) {
	if h.slot < 0 {
		return
	}
	if answered != nil {
		c.tree(h).InsertAnswerFor(c.owners.numberFor(now, tenant), answered, h.slot, began)
	}
	if !h.peer && c.neighbours {
		c.shareLearned(now, h, tenant, prompt, answered, began)
	}
}

// forgetTarget drops what a target was thought to hold.
func (c *caches) forgetTarget(now time.Duration, h *cacheTarget) {
	if h.slot < 0 {
		return
	}
	if !h.peer {
		c.shareLoss(now, h)
	}
	c.tree(h).RemoveTarget(h.slot)
}

// sessionStart is when the session of a prompt began, if it is one that was answered.
func (c *caches) sessionStart(prompt prefix.Key) (start time.Duration, known bool) {
	if found := c.replicas.Match(prompt, nil); found.Answered {
		return found.Start, true
	}
	found := c.peers.Match(prompt, nil)
	return found.Start, found.Answered
}

// fillMatches finds what replicas, or peers, hold of a prompt: matches is by slot up to the highest
// one asked for, and latest the slot that the prompt's session was at last. It is valid until
// the next call.
func (c *caches) match(tree *prefix.Tree, prompt prefix.Key, highest int) (matches []int, latest int, known bool) {
	for len(c.matches) <= highest {
		c.matches = append(c.matches, 0)
	}
	found := tree.Match(prompt, c.matches[:highest+1])
	latest, known = found.Latest()
	return c.matches, latest, known
}

// tick forgets what nobody tells of any more, and tenants without prompts.
func (c *caches) tick(now time.Duration) {
	c.dropUnreported(now)
	c.releaseOwners(now)
}
