package sim

import (
	"skyserve/internal/sim/engine"
	"skyserve/lbd/cachemap"
	"skyserve/lbd/core"
	"skyserve/lbd/prefix"
)

const (
	// cacheBlock is the number of tokens of an engine's blocks: vLLM's default, and as long as a block of a
	// prompt's key.
	cacheBlock = prefix.BlockBytes / wordBytes
	// learnTokens is the number of tokens of a prompt that must be unknown for the balancer to have it tokenized,
	// as in the balancer (lbd: 1 KB).
	learnTokens = 16 * cacheBlock
)

// cacheBatch contains cache events of an engine in transit to a balancer.
type cacheBatch struct {
	changes []engine.CacheChange
	to      *node
	life    int // of the balancer
	engine  *engine.Engine
}

// publishCache sends the changes of an engine's cache to the replica's balancer.
func (w *world) publishCache(r *replica) {
	changes := r.engine.CacheChanges()
	if len(changes) == 0 || r.down {
		return
	}
	half := w.delay[r.region][r.node.region]
	w.pushEvent(half, event{kind: evCache, index: r.index, cache: &cacheBatch{changes: changes, to: r.node, life: r.node.lives, engine: r.engine}})
}

// receiveCache applies an engine's cache events, unless the balancer has lost the replica or the engine has
// restarted.
func (w *world) receiveCache(r *replica, b *cacheBatch) {
	if b.to != r.node || b.to.dead || b.life != b.to.lives || b.engine != r.engine || b.to.cached == nil {
		return
	}
	for i := range b.changes {
		c := &b.changes[i]
		hashes := make([]cachemap.Hash, len(c.Hashes))
		for k, h := range c.Hashes {
			hashes[k] = cachemap.Hash(h)
		}
		if !c.Stored {
			w.applyCache(b.to, b.to.cached.Remove(int(r.index), hashes))
			continue
		}
		w.applyCache(b.to, b.to.cached.Store(int(r.index), cachemap.Stored{
			Hashes: hashes, Parent: cachemap.Hash(c.Parent), Root: c.Root, Tokens: tokensOf(c.Tokens), BlockSize: cacheBlock,
		}))
	}
}

// applyCache sends the changes of prefixes to the balancer.
func (w *world) applyCache(n *node, changes []cachemap.Change) {
	for _, c := range changes {
		change := core.CacheChange{Kind: core.CacheStored, Key: c.Key}
		if c.Evicted {
			change.Kind, change.KeptHashes = core.CacheEvicted, c.Keep
		}
		w.sendEvent(n, core.Event{Kind: core.EventCacheChanged, Target: w.replicas[c.Target].id, CacheChanges: []core.CacheChange{change}})
	}
}

// learnPrompt adds the tokens of a prompt to the cache map of its balancer, once a replica has responded. It adds
// nothing if fewer than learnTokens of them are new.
func (w *world) learnPrompt(l *leg) {
	f := l.request
	if l.node.cached == nil || l.replica == nil || len(f.key) == 0 {
		return
	}
	tokens := tokensOf(f.prompt)
	if len(tokens)-l.node.cached.Known(tokens, "") >= learnTokens {
		w.applyCache(l.node, l.node.cached.Learn(tokens, "", f.key, len(tokens)*wordBytes))
	}
}

// forgetCache removes the cache of a replica from its balancer's cache map: another balancer takes over the replica,
// or its engine restarts.
func (w *world) forgetCache(r *replica) {
	if r.node == nil || r.node.dead || r.node.cached == nil {
		return
	}
	r.node.cached.Clear(int(r.index))
	w.sendEvent(r.node, core.Event{Kind: core.EventCacheChanged, Target: r.id, CacheChanges: []core.CacheChange{{Kind: core.CacheCleared}}})
}

func tokensOf(tokens []engine.Token) []uint32 {
	all := make([]uint32, len(tokens))
	for i, t := range tokens {
		all[i] = uint32(t)
	}
	return all
}
