package engine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// CacheChange is a change of the prefix cache in blocks of tokens, as engines publish them. A block is
// cached while all its tokens and those before it are; the tokens after the last full block of a path
// belong to no block.
type CacheChange struct {
	// Stored: the blocks are consecutive, and were added below Parent, or at the beginning if Root.
	// Otherwise they were evicted, and the fields after Hashes are not set.
	Stored bool
	// Hashes identify the blocks. They depend on all tokens up to the end of a block and on the seed.
	Hashes []uint64
	Parent uint64
	Root   bool
	Tokens []Token
}

// blockLog derives the changes of blocks from those of the radix tree, whose nodes end anywhere.
type blockLog struct {
	size    int // tokens of a block
	seed    uint64
	changes []CacheChange
	path    []Token // scratch
}

// ReportCache makes the engine record the changes of its cache in blocks of size tokens. Engines with
// different seeds name equal blocks differently, as real ones do. It must be called before the first
// request, and not for an engine of NewLight.
func (e *Engine) ReportCache(size int, seed uint64) {
	e.cache.log = &blockLog{size: size, seed: seed}
}

// CacheChanges returns the changes since the last call, in order. Nothing refers to the result
// afterwards.
func (e *Engine) CacheChanges() []CacheChange {
	l := e.cache.log
	if l == nil {
		return nil
	}
	changes := l.changes
	l.changes = nil
	return changes
}

// addStored records a new leaf.
func (l *blockLog) addStored(c *cache, leaf *node) {
	tokens, first := l.pathTo(c, leaf)
	hashes := l.hashes(tokens)
	if first == len(hashes) {
		return
	}
	change := CacheChange{Stored: true, Hashes: append([]uint64(nil), hashes[first:]...), Root: first == 0}
	if first > 0 {
		change.Parent = hashes[first-1]
	}
	change.Tokens = append(change.Tokens, tokens[first*l.size:len(hashes)*l.size]...)
	l.changes = append(l.changes, change)
}

// addRemoved records that a leaf is evicted, the last block first, as engines free them.
func (l *blockLog) addRemoved(c *cache, leaf *node) {
	tokens, first := l.pathTo(c, leaf)
	hashes := l.hashes(tokens)
	if first == len(hashes) {
		return
	}
	change := CacheChange{}
	for i := len(hashes) - 1; i >= first; i-- {
		change.Hashes = append(change.Hashes, hashes[i])
	}
	l.changes = append(l.changes, change)
}

// pathTo returns the tokens from the root to the end of a node, and the number of the first block that
// has a token of the node.
func (l *blockLog) pathTo(c *cache, n *node) (tokens []Token, first int) {
	length := 0
	for at := n; at != &c.root; at = at.parent {
		length += len(at.key)
	}
	first = (length - len(n.key)) / l.size
	if cap(l.path) < length {
		l.path = make([]Token, length)
	}
	tokens = l.path[:length]
	for at := n; at != &c.root; at = at.parent {
		length -= len(at.key)
		copy(tokens[length:], at.key)
	}
	return tokens, first
}

// hashes returns the chain of hashes of the full blocks of tokens.
func (l *blockLog) hashes(tokens []Token) []uint64 {
	all := make([]uint64, 0, len(tokens)/l.size)
	buf := make([]byte, 0, 4*l.size)
	chain := l.seed
	for len(tokens) >= l.size {
		buf = buf[:0]
		for _, t := range tokens[:l.size] {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
		}
		chain = xxh3.HashSeed(buf, chain)
		all = append(all, chain)
		tokens = tokens[l.size:]
	}
	return all
}
