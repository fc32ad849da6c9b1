package engine

// cache is a radix tree over tokens: the prefixes of finished and running requests in KV memory. A path
// from the root is a prefix; common prefixes are stored, and counted, once. A node with a positive ref
// is used by that many running requests and cannot be evicted.
//
// Unused nodes are in a list by time of last use. A node is never used after its parent, and of nodes
// used together the deeper one is listed as older; so the oldest node of the list is always a leaf, and
// eviction removes whole leaves from the end of the list, least recently used first.
type cache struct {
	root   node
	kids   map[edge]*node
	lru    node // sentinel: next is the most recently used, prev the least
	tokens int  // in all nodes
	locked int  // in used nodes

	spare  []*node
	nextID uint64
	log    *blockLog // nil = changes are not recorded
}

// edge identifies a child: its parent and its first token.
type edge struct {
	parent uint64
	first  Token
}

type node struct {
	parent     *node
	key        []Token // tokens between the parent and this node, owned by the node
	id         uint64
	ref        int32
	kids       int32
	prev, next *node // in cache.lru; nil while in use
}

// Limits of the nodes kept for reuse, so that the memory of a cache is a small multiple of its tokens.
const (
	maxSpareNodes = 256
	maxSpareKey   = 1024
)

func newCache() *cache {
	c := &cache{kids: make(map[edge]*node)}
	c.lru.prev, c.lru.next = &c.lru, &c.lru
	return c
}

// peek returns the length of the cached prefix of tokens. It changes nothing, not even the order of
// eviction.
func (c *cache) peek(tokens []Token) int {
	at, depth := &c.root, 0
	for depth < len(tokens) {
		kid := c.kids[edge{at.id, tokens[depth]}]
		if kid == nil {
			break
		}
		n := commonLen(kid.key, tokens[depth:])
		depth += n
		if n < len(kid.key) {
			break
		}
		at = kid
	}
	return depth
}

// walk follows tokens from a node as far as they are cached. It returns the last node, splitting one
// that matches in part, and the number of matched tokens.
func (c *cache) walk(from *node, tokens []Token) (*node, int) {
	depth := 0
	for depth < len(tokens) {
		kid := c.kids[edge{from.id, tokens[depth]}]
		if kid == nil {
			break
		}
		n := commonLen(kid.key, tokens[depth:])
		depth += n
		if n < len(kid.key) {
			return c.split(kid, n), depth
		}
		from = kid
	}
	return from, depth
}

// extend caches tokens below a node, locks the path to their end and returns that.
func (c *cache) extend(from *node, tokens []Token) *node {
	end, depth := c.walk(from, tokens)
	if depth < len(tokens) {
		leaf := c.newNode(end, tokens[depth:])
		c.kids[edge{end.id, leaf.key[0]}] = leaf
		end.kids++
		c.tokens += len(leaf.key)
		if c.log != nil {
			c.log.addStored(c, leaf)
		}
		end = leaf
	}
	c.lock(end)
	return end
}

// lock increments the use count of the path from the root to n.
func (c *cache) lock(n *node) {
	for ; n != &c.root; n = n.parent {
		if n.ref == 0 {
			n.unlink()
			c.locked += len(n.key)
		}
		n.ref++
	}
}

// unlock decrements the use count. Nodes that become unused become the most recently used.
func (c *cache) unlock(n *node) {
	for ; n != &c.root; n = n.parent {
		n.ref--
		if n.ref == 0 {
			n.linkAfter(&c.lru)
			c.locked -= len(n.key)
		}
	}
}

// evict frees at least that many tokens, or all unused ones.
func (c *cache) evict(tokens int) {
	for tokens > 0 && c.lru.prev != &c.lru {
		leaf := c.lru.prev
		tokens -= len(leaf.key)
		c.removeLeaf(leaf)
	}
}

// removeLeaf removes an unused leaf from the tree.
func (c *cache) removeLeaf(leaf *node) {
	if c.log != nil {
		c.log.addRemoved(c, leaf)
	}
	leaf.unlink()
	delete(c.kids, edge{leaf.parent.id, leaf.key[0]})
	leaf.parent.kids--
	c.tokens -= len(leaf.key)
	leaf.parent = nil
	if cap(leaf.key) > maxSpareKey {
		leaf.key = nil
	}
	if len(c.spare) < maxSpareNodes {
		c.spare = append(c.spare, leaf)
	}
}

// split splits a node after its first i tokens and returns the new upper half. The lower half keeps its
// identity, so references to the node's end stay valid.
func (c *cache) split(n *node, i int) *node {
	upper := c.newNode(n.parent, n.key[:i])
	upper.ref, upper.kids = n.ref, 1
	if n.ref == 0 {
		upper.linkAfter(n.prev)
	}
	c.kids[edge{n.parent.id, n.key[0]}] = upper
	n.key = append(n.key[:0], n.key[i:]...)
	n.parent = upper
	c.kids[edge{upper.id, n.key[0]}] = n
	return upper
}

// newNode returns an unlinked node with its own copy of key.
func (c *cache) newNode(parent *node, key []Token) *node {
	var n *node
	if last := len(c.spare) - 1; last >= 0 {
		n, c.spare = c.spare[last], c.spare[:last]
	} else {
		c.nextID++
		n = &node{id: c.nextID}
	}
	n.parent, n.ref, n.kids = parent, 0, 0
	n.key = append(n.key[:0], key...)
	return n
}

// linkAfter inserts an unlinked node right after (as older than) another.
func (n *node) linkAfter(newer *node) {
	n.prev, n.next = newer, newer.next
	n.next.prev = n
	newer.next = n
}

func (n *node) unlink() {
	if n.next == nil {
		return
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

// commonLen returns the length of the common prefix of a and b.
func commonLen(a, b []Token) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i, t := range a {
		if t != b[i] {
			return i
		}
	}
	return n
}
