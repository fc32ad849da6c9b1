package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// A consumer of the changes knows of every prompt how many of its full blocks are cached.
func TestCacheChangesDescribeTheCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "block size")
		c := newCache()
		c.log = &blockLog{size: size, seed: 7}
		// tokens of cached blocks from the beginning, by hash
		held := map[uint64]string{}
		text := func(tokens []Token) string {
			var b []byte
			for _, x := range tokens {
				b = append(b, byte(x))
			}
			return string(b)
		}
		apply := func() {
			for _, change := range c.log.changes {
				if !change.Stored {
					for _, h := range change.Hashes {
						if _, ok := held[h]; !ok {
							t.Fatal("a block was removed that was not stored")
						}
						delete(held, h)
					}
					continue
				}
				before, ok := held[change.Parent]
				if ok == change.Root || len(change.Tokens) != size*len(change.Hashes) {
					t.Fatalf("%+v below %q", change, before)
				}
				for i, h := range change.Hashes {
					before += text(change.Tokens[i*size : (i+1)*size])
					if _, ok := held[h]; ok {
						t.Fatal("a block was stored twice")
					}
					held[h] = before
				}
			}
			c.log.changes = nil
		}
		prompts := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 20), 1, 40).Draw(t, "prompts")
		for i, p := range prompts {
			tokens := make([]Token, len(p))
			for j, x := range p {
				tokens[j] = Token(x)
			}
			c.unlock(c.extend(&c.root, tokens))
			if i%3 == 2 {
				c.evict(rapid.IntRange(1, 12).Draw(t, "evicted"))
			}
			apply()
			byText := map[string]bool{}
			for _, s := range held {
				byText[s] = true
			}
			for _, q := range prompts[:i+1] {
				tokens := tokens[:0]
				for _, x := range q {
					tokens = append(tokens, Token(x))
				}
				want := c.peek(tokens) / size
				for n := 1; n <= len(tokens)/size; n++ {
					if byText[text(tokens[:n*size])] != (n <= want) {
						t.Fatalf("%v: %d tokens are cached, block %d is wrong", tokens, c.peek(tokens), n)
					}
				}
			}
		}
	})
}
