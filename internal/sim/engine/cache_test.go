package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// trie is the reference implementation of cache: one node per token, searched linearly.
type trie struct {
	root  *trieNode
	clock int
}

type trieNode struct {
	parent  *trieNode
	token   Token
	kids    map[Token]*trieNode
	ref     int
	stamp   int  // time of last use
	segment bool // a walk or an insertion ended here
}

func newTrie() *trie { return &trie{root: &trieNode{kids: map[Token]*trieNode{}}} }

func (t *trie) walk(tokens []Token) (*trieNode, int) {
	at, depth := t.root, 0
	for depth < len(tokens) && at.kids[tokens[depth]] != nil {
		at = at.kids[tokens[depth]]
		depth++
	}
	at.segment = true
	return at, depth
}

func (t *trie) extend(tokens []Token) *trieNode {
	at, depth := t.walk(tokens)
	for _, tok := range tokens[depth:] {
		kid := &trieNode{parent: at, token: tok, kids: map[Token]*trieNode{}}
		at.kids[tok] = kid
		at = kid
	}
	at.segment = true
	t.lock(at)
	return at
}

func (t *trie) lock(n *trieNode) {
	for ; n != t.root; n = n.parent {
		n.ref++
	}
}

func (t *trie) unlock(n *trieNode) {
	for ; n != t.root; n = n.parent {
		t.clock++
		if n.ref--; n.ref == 0 {
			n.stamp = t.clock
		}
	}
}

func (t *trie) all(n *trieNode, visit func(*trieNode)) {
	if n != t.root {
		visit(n)
	}
	for _, kid := range n.kids {
		t.all(kid, visit)
	}
}

func (t *trie) count(which func(*trieNode) bool) (n int) {
	t.all(t.root, func(x *trieNode) {
		if which(x) {
			n++
		}
	})
	return n
}

func (t *trie) evict(tokens int) {
	for tokens > 0 {
		var oldest *trieNode
		t.all(t.root, func(x *trieNode) {
			if len(x.kids) == 0 && x.ref == 0 && (oldest == nil || x.stamp < oldest.stamp) {
				oldest = x
			}
		})
		if oldest == nil {
			return
		}
		for n := oldest; ; n = n.parent {
			delete(n.parent.kids, n.token)
			tokens--
			if n.parent == t.root || n.parent.segment {
				break
			}
		}
	}
}

func TestCacheMatchesReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, twin := newCache(), newTrie()
		type held struct {
			node   *node
			twin   *trieNode
			tokens []Token
		}
		var locks []held
		sequence := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 2), func(i int) Token { return Token(i) }), 1, 12)
		pick := func(t *rapid.T) int { return rapid.IntRange(0, len(locks)-1).Draw(t, "lock") }
		t.Repeat(map[string]func(*rapid.T){
			"lock a prefix": func(t *rapid.T) {
				s := sequence.Draw(t, "tokens")
				n, depth := c.walk(&c.root, s)
				m, twinDepth := twin.walk(s)
				if depth != twinDepth {
					t.Fatalf("walk %v: matched %d, want %d", s, depth, twinDepth)
				}
				c.lock(n)
				twin.lock(m)
				locks = append(locks, held{n, m, s[:depth]})
			},
			"extend a lock": func(t *rapid.T) {
				if len(locks) == 0 {
					return
				}
				l := &locks[pick(t)]
				more := sequence.Draw(t, "tokens")
				old, oldTwin := l.node, l.twin
				l.node = c.extend(old, more)
				l.tokens = append(append([]Token{}, l.tokens...), more...)
				l.twin = twin.extend(l.tokens)
				c.unlock(old)
				twin.unlock(oldTwin)
			},
			"unlock": func(t *rapid.T) {
				if len(locks) == 0 {
					return
				}
				i := pick(t)
				c.unlock(locks[i].node)
				twin.unlock(locks[i].twin)
				locks = append(locks[:i], locks[i+1:]...)
			},
			"evict": func(t *rapid.T) {
				n := rapid.IntRange(1, 10).Draw(t, "tokens")
				c.evict(n)
				twin.evict(n)
			},
			"peek": func(t *rapid.T) {
				s := sequence.Draw(t, "tokens")
				at, depth := twin.root, 0
				for depth < len(s) && at.kids[s[depth]] != nil {
					at = at.kids[s[depth]]
					depth++
				}
				if got := c.peek(s); got != depth {
					t.Fatalf("peek %v: %d, want %d", s, got, depth)
				}
			},
			"": func(t *rapid.T) {
				if want := twin.count(func(*trieNode) bool { return true }); c.tokens != want {
					t.Fatalf("tokens = %d, want %d", c.tokens, want)
				}
				if want := twin.count(func(n *trieNode) bool { return n.ref > 0 }); c.locked != want {
					t.Fatalf("locked = %d, want %d", c.locked, want)
				}
				checkCache(t, c)
			},
		})
	})
}

type fataler interface{ Fatalf(string, ...any) }

// checkCache recomputes all counts of a cache.
func checkCache(t fataler, c *cache) {
	tokens, locked, kids, unused := 0, 0, map[*node]int32{}, 0
	for e, n := range c.kids {
		if n.key[0] != e.first || n.parent.id != e.parent {
			t.Fatalf("a node is filed under the wrong edge %v", e)
		}
		tokens += len(n.key)
		kids[n.parent]++
		if n.ref > 0 {
			locked += len(n.key)
		} else {
			unused++
		}
		if n.ref > 0 && n.parent != &c.root && n.parent.ref < n.ref {
			t.Fatalf("a node in use %d times has a parent in use %d times", n.ref, n.parent.ref)
		}
	}
	if tokens != c.tokens || locked != c.locked {
		t.Fatalf("tokens, locked = %d, %d, recounted %d, %d", c.tokens, c.locked, tokens, locked)
	}
	seen := map[*node]bool{}
	for n := c.lru.prev; n != &c.lru; n = n.prev {
		if n.ref != 0 || n.kids != kids[n] {
			t.Fatalf("a listed node has ref %d, kids %d (recounted %d)", n.ref, n.kids, kids[n])
		}
		if seen[n.parent] {
			t.Fatalf("a parent is listed as older than its child")
		}
		seen[n] = true
	}
	if len(seen) != unused {
		t.Fatalf("%d nodes are listed, %d unused", len(seen), unused)
	}
}

func TestCacheReuseIsBounded(t *testing.T) {
	c := newCache()
	long := make([]Token, 10*maxSpareKey)
	for i := range long {
		long[i] = Token(i)
	}
	for i := range 3 * maxSpareNodes {
		long[0] = Token(1_000_000 + i)
		c.unlock(c.extend(&c.root, long))
	}
	c.evict(c.tokens)
	if len(c.spare) > maxSpareNodes {
		t.Errorf("%d spare nodes, want at most %d", len(c.spare), maxSpareNodes)
	}
	for _, n := range c.spare {
		if cap(n.key) > maxSpareKey {
			t.Fatalf("a spare node has capacity for %d tokens, want at most %d", cap(n.key), maxSpareKey)
		}
	}
}
