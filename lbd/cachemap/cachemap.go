package cachemap

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"skyserve/lbd/prefix"
)

// Hash is the name that an engine gave a block. It has a meaning for one target only.
type Hash uint64

// Stored describes consecutive blocks that an engine has added to its cache.
type Stored struct {
	Hashes []Hash
	// Parent is the block before the first one, unless Root.
	Parent Hash
	Root   bool
	// Tokens are those of all blocks, BlockSize each; nil = unknown, and so are the blocks then.
	Tokens    []uint32
	BlockSize int
	// Adapter is the LoRA adapter; empty = none.
	Adapter string
	// Extra[i] is a hash of everything else that block i depends on, 0 = nothing; nil = all are 0.
	Extra []uint64
}

// Change is a change of the prefixes that a target has.
type Change struct {
	Target int
	// Evicted: the target has only the first Keep hashes of Key. Otherwise it has all of Key.
	Evicted bool
	Key     prefix.Key
	Keep    int
}

// Map knows the blocks of all engines of one model. Targets are small integers from 0 that the caller
// assigns. It is not safe for concurrent use.
type Map struct {
	max     int
	blocks  map[uint64]*block // by chain, without roots
	roots   map[uint64]*block // by chain; as many as adapters and block sizes
	engines map[int]map[Hash]*block
	sizes   []int // block sizes of the engines so far

	ignored   int64 // blocks that were not recorded
	forgotten int   // see Forgotten
	loose     int   // learned blocks without a target since the last sweep; a block may count several times
}

// block is a block of tokens with everything before it.
type block struct {
	parent *block // nil = the root, which has no tokens
	chain  uint64 // hash of all tokens to its end, the adapter and extra keys
	kids   []*block
	// held and reachable are sets of targets.
	held, reachable bits
	// prompt is the key of a learned prompt that begins with the block; nil = unknown. The block ends
	// after the first depth hashes of it.
	prompt prefix.Key
	depth  int
}

const (
	// maxSizes is the number of block sizes that a map follows; engines of a model have one or two.
	maxSizes = 4
	// DefaultMaxBlocks is the number of blocks at which a map stops recording new ones: 8 million tokens
	// at 16 tokens a block, and about 150 MB.
	DefaultMaxBlocks = 1 << 19
	// sweepShare is the share of a full map, 1/sweepShare, that must be loose before it is swept. A sweep
	// visits all blocks and makes the caller learn all prompts again, so a few blocks are not worth it.
	sweepShare = 16
)

// New returns a map of at most maxBlocks blocks; 0 = DefaultMaxBlocks.
func New(maxBlocks int) *Map {
	if maxBlocks <= 0 {
		maxBlocks = DefaultMaxBlocks
	}
	return &Map{max: maxBlocks, blocks: map[uint64]*block{}, roots: map[uint64]*block{}, engines: map[int]map[Hash]*block{}}
}

// Blocks returns the number of recorded blocks, and how many were not recorded because something before
// them is unknown or because the map was full.
func (m *Map) Blocks() (recorded int, ignored int64) { return len(m.blocks), m.ignored }

// Forgotten returns a number that changes whenever prompts that were learned must be learned again: when an
// engine publishes blocks of a size that was unknown until then, also the first one, and when the map was
// full and has removed prompts.
func (m *Map) Forgotten() int { return m.forgotten }

// Store records that an engine has added blocks, and returns the changes.
func (m *Map) Store(target int, s Stored) []Change {
	m.addSize(s.BlockSize)
	names := m.engines[target]
	if names == nil {
		names = map[Hash]*block{}
		m.engines[target] = names
	}
	at := names[s.Parent]
	if s.Root {
		at = m.root(s.Adapter, s.BlockSize)
	}
	if at == nil || s.Tokens == nil || s.BlockSize < 1 {
		m.ignored += int64(len(s.Hashes))
		return nil
	}
	var first *block // that became reachable
	chain := at.chain
	for i, h := range s.Hashes {
		if (i+1)*s.BlockSize > len(s.Tokens) {
			break // a partial block at the end
		}
		extra := uint64(0)
		if i < len(s.Extra) {
			extra = s.Extra[i]
		}
		chain = nextChain(chain, s.Tokens[i*s.BlockSize:(i+1)*s.BlockSize], extra)
		b := m.block(at, chain)
		if b == nil {
			m.ignored += int64(len(s.Hashes) - i)
			break
		}
		if old := names[h]; old != nil && old != b {
			m.drop(target, old)
		}
		names[h] = b
		b.held.add(target)
		if first == nil && !b.reachable.has(target) && at.isReachable(target) {
			first = b
		}
		at = b
	}
	if first == nil {
		return nil
	}
	return m.reach(target, first, nil)
}

// reach marks a block and the held blocks below it as reachable, and appends a change for each end of
// the known part of them.
func (m *Map) reach(target int, b *block, changes []Change) []Change {
	for {
		b.reachable.add(target)
		var next *block
		for _, k := range b.kids {
			if !k.held.has(target) || k.reachable.has(target) {
				continue
			}
			if next == nil {
				next = k
				continue
			}
			changes = m.reach(target, k, changes)
		}
		if next == nil || next.prompt == nil {
			changes = b.appendStored(target, changes)
		}
		if next == nil {
			return changes
		}
		b = next
	}
}

// appendStored appends the change that target has block b.
func (b *block) appendStored(target int, changes []Change) []Change {
	if b.prompt == nil || b.depth == 0 {
		return changes
	}
	return append(changes, Change{Target: target, Key: b.prompt[:b.depth:b.depth]})
}

// Remove records that an engine has evicted blocks, and returns the changes. Unknown names are ignored.
func (m *Map) Remove(target int, hashes []Hash) (changes []Change) {
	names := m.engines[target]
	var lost []*block
	for _, h := range hashes {
		b := names[h]
		if b == nil {
			continue
		}
		delete(names, h)
		b.held.remove(target)
		if !b.reachable.has(target) {
			m.prune(b)
			continue
		}
		unreach(target, b)
		lost = append(lost, b)
	}
	for _, b := range lost {
		// The blocks after the topmost lost one are lost with it.
		if b.parent.isReachable(target) {
			changes = b.appendEvicted(target, changes)
		}
	}
	for _, b := range lost {
		m.prune(b)
	}
	return changes
}

// appendEvicted appends the change that target has nothing from block b on.
func (b *block) appendEvicted(target int, changes []Change) []Change {
	if b.prompt == nil {
		return changes
	}
	// Text that it shares with another block after the same parent is still there.
	keep := b.parent.depth
	for _, k := range b.parent.kids {
		if k.reachable.has(target) {
			for keep < min(len(b.prompt), len(k.prompt)) && b.prompt[keep] == k.prompt[keep] {
				keep++
			}
		}
	}
	if keep >= len(b.prompt) {
		return changes
	}
	return append(changes, Change{Target: target, Evicted: true, Key: b.prompt[: keep+1 : keep+1], Keep: keep})
}

// unreach marks a block and all below it as not reachable.
func unreach(target int, b *block) {
	b.reachable.remove(target)
	for _, k := range b.kids {
		if k.reachable.has(target) {
			unreach(target, k)
		}
	}
}

// drop removes a target from a block whose name the engine has given to another one.
func (m *Map) drop(target int, b *block) {
	b.held.remove(target)
	if b.reachable.has(target) {
		unreach(target, b)
	}
	m.prune(b)
}

// Clear forgets everything about an engine's cache. The caller forgets the target's prefixes.
func (m *Map) Clear(target int) {
	names := m.engines[target]
	delete(m.engines, target)
	for _, b := range names {
		b.held.remove(target)
		b.reachable.remove(target)
	}
	for _, b := range names {
		m.prune(b)
	}
}

// Learn records that a prompt with this key has these tokens, and returns the changes that follow for
// blocks that engines already have. The key must not change afterwards. bytes is the length of the
// prompt, of which the key has only whole pieces of 64 bytes.
func (m *Map) Learn(tokens []uint32, adapter string, key prefix.Key, bytes int) (changes []Change) {
	if bytes < key.Bytes() || len(tokens) == 0 {
		return nil
	}
	for _, size := range m.sizes {
		changes = m.learn(tokens, adapter, key, bytes, size, changes)
	}
	return changes
}

func (m *Map) learn(tokens []uint32, adapter string, key prefix.Key, bytes, size int, changes []Change) []Change {
	at := m.root(adapter, size)
	chain := at.chain
	// The last point of the prompt at which both lengths are known.
	anchorTokens, anchorBytes := 0, 0
	var ends []*block // known blocks of this prompt, in order
	fresh := -1       // index in ends of the first one that was unknown
	for end := size; end <= len(tokens); end += size {
		chain = nextChain(chain, tokens[end-size:end], 0)
		b := m.block(at, chain)
		if b == nil {
			break
		}
		if b.prompt != nil {
			b.shorten(key)
			anchorTokens, anchorBytes = end, b.depth*prefix.BlockBytes
		} else {
			part := (end - anchorTokens) * (bytes - anchorBytes) / (len(tokens) - anchorTokens)
			b.prompt, b.depth = key, min((anchorBytes+part)/prefix.BlockBytes, len(key))
			m.countLoose(b)
			if fresh < 0 {
				fresh = len(ends)
			}
		}
		ends = append(ends, b)
		at = b
	}
	if fresh < 0 {
		return changes
	}
	// For every target, the last reachable block of this prompt.
	var done bits
	for i := len(ends) - 1; i >= fresh; i-- {
		ends[i].reachable.each(func(target int) {
			if !done.has(target) {
				done.add(target)
				changes = ends[i].appendStored(target, changes)
			}
		})
	}
	return changes
}

// shorten reduces a block to the text that another prompt which begins with it shares.
func (b *block) shorten(key prefix.Key) {
	if n := b.depth; n > 0 && (n > len(key) || key[n-1] != b.prompt[n-1]) {
		common := 0
		for common < min(n, len(key)) && key[common] == b.prompt[common] {
			common++
		}
		b.depth = common
	}
}

// Known returns how many of a prompt's tokens are in blocks that some learned prompt begins with, for the
// block size that reaches furthest.
func (m *Map) Known(tokens []uint32, adapter string) (known int) {
	for _, size := range m.sizes {
		chain := rootChain(adapter, size)
		for end := size; end <= len(tokens); end += size {
			chain = nextChain(chain, tokens[end-size:end], 0)
			if b := m.blocks[chain]; b == nil || b.prompt == nil {
				break
			}
			known = max(known, end)
		}
	}
	return known
}

// block returns the block after parent with a chain, a new one if necessary; nil if the map is full.
func (m *Map) block(parent *block, chain uint64) *block {
	if b := m.blocks[chain]; b != nil {
		return b
	}
	if len(m.blocks) >= m.max {
		if m.loose > 0 && m.loose*sweepShare >= m.max {
			m.sweep()
		}
		if len(m.blocks) >= m.max || !parent.isRoot() && m.blocks[parent.chain] != parent {
			return nil
		}
	}
	b := &block{parent: parent, chain: chain}
	m.blocks[chain] = b
	parent.kids = append(parent.kids, b)
	return b
}

// root returns the empty block before the first ones of an adapter and a block size.
func (m *Map) root(adapter string, size int) *block {
	chain := rootChain(adapter, size)
	if m.roots[chain] == nil {
		m.roots[chain] = &block{chain: chain}
	}
	return m.roots[chain]
}

func (b *block) isRoot() bool { return b.parent == nil }

// isReachable reports whether a target has the block and all before it.
func (b *block) isReachable(target int) bool { return b.isRoot() || b.reachable.has(target) }

// prune removes a block, and those before it, that no target has and no prompt is known for.
func (m *Map) prune(b *block) {
	for !b.isRoot() && len(b.kids) == 0 && b.held.empty() && b.prompt == nil && m.blocks[b.chain] == b {
		m.removeBlock(b)
		b = b.parent
	}
	m.countLoose(b)
}

// countLoose counts a learned block that no target has.
func (m *Map) countLoose(b *block) {
	if b.prompt != nil && b.held.empty() {
		m.loose++
	}
}

func (m *Map) removeBlock(b *block) {
	delete(m.blocks, b.chain)
	kids := b.parent.kids
	if i := slices.Index(kids, b); i >= 0 {
		b.parent.kids = slices.Delete(kids, i, i+1) // in order, so that the order of removals does not matter
	}
}

// sweep removes all learned blocks that no target has.
func (m *Map) sweep() {
	before := len(m.blocks)
	for _, b := range m.blocks {
		for !b.isRoot() && len(b.kids) == 0 && b.held.empty() && m.blocks[b.chain] == b {
			m.removeBlock(b)
			b = b.parent
		}
	}
	if m.loose = 0; len(m.blocks) < before {
		m.forgotten++
	}
}

func (m *Map) addSize(size int) {
	for _, s := range m.sizes {
		if s == size {
			return
		}
	}
	if size > 0 && len(m.sizes) < maxSizes {
		m.sizes = append(m.sizes, size)
		m.forgotten++
	}
}

// rootChain returns the chain before the first block.
func rootChain(adapter string, size int) uint64 { return xxh3.HashStringSeed(adapter, uint64(size)) }

// nextChain extends a chain by a block.
func nextChain(chain uint64, tokens []uint32, extra uint64) uint64 {
	var buf [1024]byte
	b := buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	if extra != 0 {
		b = binary.LittleEndian.AppendUint64(b, extra)
	}
	return xxh3.HashSeed(b, chain)
}
