package cachemap

import (
	"strings"
	"testing"

	"skyserve/lbd/prefix"
)

// A prompt that is learned before the first block is published has no block size: it must be learned again.
func TestForgottenChangesWithBlockSizes(t *testing.T) {
	tokens := make([]uint32, 64)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	key := prefix.Key{1, 2, 3, 4}
	stored := Stored{Hashes: []Hash{1, 2, 3, 4}, Root: true, Tokens: tokens, BlockSize: 16}
	m := New(0)
	if got := m.Learn(tokens, "", key, key.Bytes()); got != nil {
		t.Fatalf("changes %v without a block", got)
	}
	before := m.Forgotten()
	if got := m.Store(0, stored); got != nil {
		t.Fatalf("changes %v of a prompt without a block size", got)
	}
	after := m.Forgotten()
	if after == before {
		t.Fatal("the first block size did not change Forgotten")
	}
	if got := m.Learn(tokens, "", key, key.Bytes()); len(got) != 1 || got[0].Target != 0 || len(got[0].Key) != len(key) {
		t.Fatalf("changes %v after learning again", got)
	}
	m.Store(1, stored)
	if m.Forgotten() != after {
		t.Fatal("a known block size changed Forgotten")
	}
}

// stored is the event of a prompt's blocks of one token each.
func stored(target int, prompt string) Stored {
	s := Stored{Root: true, Tokens: tokensOf(prompt), BlockSize: 1}
	for i := range prompt {
		s.Hashes = append(s.Hashes, nameOf(target, prompt[:i+1]))
	}
	return s
}

// A full map whose blocks engines have removes nothing, so no prompt must be learned again. Evicted ones make
// way at once.
func TestFullMapForgetsOnlyWhatItRemoves(t *testing.T) {
	m := New(4)
	m.Store(0, stored(0, "abcd"))
	m.Learn(tokensOf("abcd"), "", keyOf("abcd"), 4*prefix.BlockBytes)
	before := m.Forgotten()
	for range 3 {
		m.Store(0, stored(0, "xy"))
		m.Learn(tokensOf("uv"), "", keyOf("uv"), 2*prefix.BlockBytes)
	}
	if n, _ := m.Blocks(); n != 4 || m.Forgotten() != before {
		t.Errorf("%d blocks, Forgotten changed by %d, want 4 and no change", n, m.Forgotten()-before)
	}
	m.Remove(0, []Hash{nameOf(0, "abc"), nameOf(0, "abcd")})
	m.Store(0, stored(0, "xy"))
	if n, _ := m.Blocks(); n != 4 || m.Known(tokensOf("abcd"), "") != 2 || m.Forgotten() == before {
		t.Errorf("%d blocks, %d tokens of the evicted prompt known, want 4 and 2", n, m.Known(tokensOf("abcd"), ""))
	}
}

// A few blocks that no engine has do not make a large map forget its prompts.
func TestFewLooseBlocksAreNotSwept(t *testing.T) {
	text := func(first rune, n int) string { return string(first) + strings.Repeat("z", n-1) }
	m := New(4 * sweepShare)
	m.Store(0, stored(0, text('a', 4*sweepShare-1)))
	before := m.Forgotten()
	for _, first := range "bcd" { // only the first block of "b" has a place, and no engine has it
		m.Learn(tokensOf(text(first, 3)), "", keyOf(text(first, 3)), 3*prefix.BlockBytes)
	}
	if m.Forgotten() != before || m.Known(tokensOf("bzz"), "") != 1 {
		t.Errorf("Forgotten changed by %d, %d tokens known, want no change and 1", m.Forgotten()-before, m.Known(tokensOf("bzz"), ""))
	}
}

// The blocks of a removal are gone, in whatever order the engine names them.
func TestRemovedBlocksTakeNoPlace(t *testing.T) {
	m := New(4)
	m.Store(0, stored(0, "abcd"))
	m.Remove(0, []Hash{nameOf(0, "a"), nameOf(0, "ab"), nameOf(0, "abc"), nameOf(0, "abcd")})
	if n, _ := m.Blocks(); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}
