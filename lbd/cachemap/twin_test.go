package cachemap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/lbd/prefix"
)

// twin is the reference: for every target, the texts from the beginning to the end of its blocks.
type twin map[int]map[string]bool

// reach returns how many of a prompt's tokens a target has in consecutive blocks from the beginning.
func (w twin) reach(target int, prompt string, size int) (n int) {
	for n+size <= len(prompt) && w[target][prompt[:n+size]] {
		n += size
	}
	return n
}

// keyOf returns a key with a hash for every token, which is a letter.
func keyOf(text string) prefix.Key {
	h := prefix.NewHasher(1)
	for i := range len(text) {
		_, _ = h.WriteString(strings.Repeat(text[i:i+1], prefix.BlockBytes))
	}
	return h.Key()
}

func tokensOf(text string) (tokens []uint32) {
	for i := range len(text) {
		tokens = append(tokens, uint32(text[i]))
	}
	return tokens
}

// alike returns the length of the common beginning.
func alike(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// nameOf names blocks like an engine: differently in every target.
func nameOf(target int, text string) Hash { return Hash(nextChain(uint64(target), tokensOf(text), 0)) }

// A tree that applies the changes has, of every learned prompt, exactly the tokens that each target
// has from the beginning, plus less than a block of text that it shares with another learned prompt.
func TestChangesEqualReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 3).Draw(t, "block size")
		targets := []int{0, 1, 70}
		m, w, tree := New(0), twin{0: {}, 1: {}, 70: {}}, prefix.NewTree(1<<24)
		m.addSize(size) // otherwise prompts learned before the first event are unknown
		learned := map[string]bool{}
		apply := func(changes []Change) {
			for _, c := range changes {
				if c.Evicted {
					tree.RemoveBelow(c.Key, c.Keep, c.Target)
				} else {
					tree.Insert(c.Key, c.Target)
				}
			}
		}
		texts := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 12, -1), 1, 6).Draw(t, "texts")
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			target := rapid.SampledFrom(targets).Draw(t, "target")
			text := rapid.SampledFrom(texts).Draw(t, "text")
			held := slices.Sorted(maps.Keys(w[target]))
			switch op := rapid.SampledFrom([]string{"store", "store", "remove", "remove", "learn", "learn", "clear"}).Draw(t, "operation"); {
			case op == "store":
				// The blocks after those that are there, whether or not later ones are there too.
				from := w.reach(target, text, size)
				s := Stored{Root: from == 0, BlockSize: size, Parent: nameOf(target, text[:from])}
				for end := from + size; end <= len(text) && !w[target][text[:end]]; end += size {
					s.Hashes = append(s.Hashes, nameOf(target, text[:end]))
					s.Tokens = append(s.Tokens, tokensOf(text[end-size:end])...)
					w[target][text[:end]] = true
				}
				if len(s.Hashes) > 0 {
					apply(m.Store(target, s))
				}
			case op == "remove" && len(held) > 0:
				var hashes []Hash
				for _, text := range held {
					if rapid.IntRange(0, 3).Draw(t, "removed") == 0 {
						hashes = append(hashes, nameOf(target, text))
						delete(w[target], text)
					}
				}
				apply(m.Remove(target, append(hashes, 12345)))
			case op == "learn":
				learned[text] = true
				key := keyOf(text)
				apply(m.Learn(tokensOf(text), "", key, key.Bytes()))
			case op == "clear":
				m.Clear(target)
				tree.RemoveTarget(target)
				clear(w[target])
			}
			out := make([]int, 71)
			for text := range learned {
				tree.Match(keyOf(text), out)
				for _, target := range targets {
					want := 0 // text of learned prompts that the target has, as far as they are alike
					for other := range learned {
						want = max(want, alike(text, other[:w.reach(target, other, size)]))
					}
					got, usable := out[target]/prefix.BlockBytes, w.reach(target, text, size)
					if got != want || got < usable || got >= usable+size {
						t.Fatalf("target %d has %d tokens of %q, want %d, usable %d", target, got, text, want, usable)
					}
				}
			}
		}
		for _, target := range targets {
			m.Clear(target)
		}
		m.sweep()
		if n, _ := m.Blocks(); n != 0 {
			t.Fatalf("%d blocks are left", n)
		}
	})
}

// The estimate of bytes never exceeds what two prompts share.
func TestEstimateStaysWithinSharedText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 2
		m := New(0)
		m.addSize(size)
		// Tokens a and b have different lengths, unknown to the map.
		draw := func() string { return rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 30, -1).Draw(t, "text") }
		textOf := func(tokens string) string {
			return strings.ReplaceAll(strings.ReplaceAll(tokens, "a", strings.Repeat("x", 40)), "b", strings.Repeat("y", 130))
		}
		hashed := func(text string) prefix.Key {
			h := prefix.NewHasher(1)
			_, _ = h.WriteString(text)
			return h.Key()
		}
		var texts []string
		for range rapid.IntRange(1, 6).Draw(t, "prompts") {
			tokens := draw()
			texts = append(texts, tokens)
			m.Learn(tokensOf(tokens), "", hashed(textOf(tokens)), len(textOf(tokens)))
		}
		for _, a := range texts {
			at := m.root("", size)
			chain := at.chain
			for end := size; end <= len(a); end += size {
				chain = nextChain(chain, tokensOf(a[end-size:end]), 0)
				b := m.blocks[chain]
				for _, other := range texts {
					if strings.HasPrefix(other, a[:end]) && !slices.Equal(b.prompt[:b.depth], hashed(textOf(other))[:min(b.depth, len(hashed(textOf(other))))]) {
						t.Fatalf("block %q has %d hashes, %q has others", a[:end], b.depth, other)
					}
				}
			}
		}
	})
}

func TestBlocksThatCannotBeUsed(t *testing.T) {
	m := New(3)
	key := keyOf("abcdef")
	if c := m.Store(0, Stored{Hashes: []Hash{1}, Parent: 9, Tokens: tokensOf("a"), BlockSize: 1}); c != nil {
		t.Errorf("an unknown parent: %v", c)
	}
	if c := m.Store(0, Stored{Hashes: []Hash{1}, Root: true, BlockSize: 1}); c != nil {
		t.Errorf("unknown tokens: %v", c)
	}
	if c := m.Learn(tokensOf("abcdef"), "", key, 1); c != nil {
		t.Errorf("a short prompt: %v", c)
	}
	// Only three blocks fit; the learned ones that nobody has make way for stored ones.
	m.Learn(tokensOf("xyz"), "", keyOf("xyz"), 3*prefix.BlockBytes)
	m.Store(0, Stored{Hashes: []Hash{1, 2, 3, 4, 5}, Root: true, Tokens: tokensOf("abcde"), BlockSize: 1})
	if n, ignored := m.Blocks(); n != 3 || ignored != 4 {
		t.Errorf("%d blocks, %d ignored, want 3 and 4", n, ignored)
	}
	// Other adapters and extra keys are other blocks.
	m = New(0)
	m.Store(0, Stored{Hashes: []Hash{1}, Root: true, Tokens: tokensOf("a"), BlockSize: 1, Adapter: "sql"})
	m.Store(0, Stored{Hashes: []Hash{2}, Root: true, Tokens: tokensOf("a"), BlockSize: 1, Extra: []uint64{7}})
	if c := m.Learn(tokensOf("ab"), "", keyOf("ab"), 2*prefix.BlockBytes); c != nil {
		t.Errorf("another adapter: %v", c)
	}
	if c := m.Learn(tokensOf("ab"), "sql", keyOf("ab"), 2*prefix.BlockBytes); fmt.Sprint(c) != fmt.Sprint([]Change{{Key: keyOf("a")}}) {
		t.Errorf("the adapter: %v", c)
	}
}
