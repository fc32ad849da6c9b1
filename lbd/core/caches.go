package core

import (
	"time"

	"skyserve/lbd/prefix"
)

// caches contains the expected cache contents of replicas and peers, and the state about them that
// balancers share (gossip.go, foreign.go). It deals with targets, tenants and keys, not with
// requests, loads or queues.
type caches struct {
	// Two trees (SkyLB 3.2): the expected caches of the replicas, and those of the peers, derived from
	// forwarded requests.
	replicas  *prefix.Tree
	peers     *prefix.Tree
	treeSlots [2]slotAllocator // of the two trees: replicas, peers
	tenants   treeTenants
	sharing   sharing
	// neighbours: another balancer of this region exists. distant: one of another region exists, which receives
	// requests from here. Without either, nothing is shared.
	neighbours, distant bool
	matches, superseded []int // scratch of match
}

// cacheTarget is the cache state of a replica or a peer. A target embeds it.
type cacheTarget struct {
	id       string
	process  string // replica only: ReplicaInfo.Process
	peer     bool
	treeSlot int // its number in the tree; -1 after removal
	added    time.Duration
	// cacheLostAt is the time of the last loss of its cache; older updates are ignored.
	cacheLostAt time.Duration
}

func newCaches(cfg *Config) caches {
	return caches{
		replicas: prefix.NewTreeWithOrder(cfg.TreeBytes, cfg.TreeOrder),
		peers:    prefix.NewTreeWithOrder(cfg.TreeBytes, cfg.TreeOrder),
		tenants:  newTreeTenants(),
		sharing:  newSharing(cfg.ShareBytes),
	}
}

// slotAllocator allocates the small integers that identify targets in the trees.
type slotAllocator struct {
	free []int
	next int
}

func (s *slotAllocator) allocate() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next++
	return s.next - 1
}

func (s *slotAllocator) release(slot int) { s.free = append(s.free, slot) }

func (c *caches) tree(ct *cacheTarget) *prefix.Tree {
	if ct.peer {
		return c.peers
	}
	return c.replicas
}

// addPeer allocates a peer's slot.
func (c *caches) addPeer(ct *cacheTarget) { ct.treeSlot = c.treeSlots[1].allocate() }

// removePeer removes a peer and the replicas that it reported.
func (c *caches) removePeer(ct *cacheTarget) {
	c.peers.RemoveTarget(ct.treeSlot)
	c.treeSlots[1].release(ct.treeSlot)
	ct.treeSlot = -1
	c.dropReportedBy(ct.id)
}

// recordSent records that a prompt is sent to a target, which has matched bytes of it. Balancers of other regions
// receive this at once, not at the end of the request: meanwhile they would send the same prompt to their own replicas.
func (c *caches) recordSent(now time.Duration, ct *cacheTarget, tenant string, prompt prefix.Key, matched int) {
	c.tree(ct).InsertFor(c.tenants.numberFor(now, tenant), prompt, ct.treeSlot)
	if !ct.peer && c.distant && matched < prompt.Bytes() {
		c.shareCacheUpdate(now, ct, tenant, prompt, nil, now)
	}
}

// recordFinished records that a prompt was served. withResponse is the key of the prompt with its
// response, nil if unknown; sessionStart is the start of its session.
func (c *caches) recordFinished(now time.Duration, ct *cacheTarget, tenant string, prompt, withResponse prefix.Key, sessionStart time.Duration) {
	if ct.treeSlot < 0 {
		return
	}
	if withResponse != nil {
		c.tree(ct).InsertResponseFor(c.tenants.numberFor(now, tenant), withResponse, ct.treeSlot, sessionStart)
	}
	if !ct.peer && c.neighbours {
		c.shareCacheUpdate(now, ct, tenant, prompt, withResponse, sessionStart)
	}
}

// forgetCache drops the expected cache contents of a target.
func (c *caches) forgetCache(now time.Duration, ct *cacheTarget) {
	if ct.treeSlot < 0 {
		return
	}
	if !ct.peer {
		c.shareCacheLoss(now, ct)
	}
	c.tree(ct).RemoveTarget(ct.treeSlot)
}

// session returns the start of a prompt's session, and whether other requests continue the same prefix in another way,
// here or at a peer. known reports whether the prompt continues an earlier prompt with its response; otherwise start is 0.
func (c *caches) session(prompt prefix.Key) (start time.Duration, known, branches bool) {
	here := c.replicas.Match(prompt, nil)
	if here.AfterResponse && here.Continues {
		return here.SessionStart, true, true
	}
	there := c.peers.Match(prompt, nil)
	if branches = here.Continues || there.Continues; here.AfterResponse {
		return here.SessionStart, true, branches
	}
	return there.SessionStart, there.AfterResponse, branches
}

// match returns the number of bytes of a prompt that each replica, or peer, has cached, and for replicas how many of them
// are superseded: another replica received them later, so this one is more likely to have evicted them
// (prefix.Tree.Superseded). Both are indexed by slot, up to highest, and valid until the next call.
func (c *caches) match(tree *prefix.Tree, prompt prefix.Key, highest int) (matches, superseded []int, found prefix.Found) {
	for len(c.matches) <= highest {
		c.matches, c.superseded = append(c.matches, 0), append(c.superseded, 0)
	}
	found = tree.Match(prompt, c.matches[:highest+1])
	if tree == c.replicas {
		tree.Superseded(prompt, c.superseded[:highest+1])
	}
	return c.matches, c.superseded, found
}

// tick removes foreign replicas without recent updates, and tenants without prompts.
func (c *caches) tick(now time.Duration) {
	c.dropUnreported(now)
	c.releaseTreeTenants(now)
}
