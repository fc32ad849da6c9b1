package cachemap

import (
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
