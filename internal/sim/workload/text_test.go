package workload

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCountTokens(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{
		{"", 0},
		{" ", 1},
		{"a", 1},
		{" abc", 1},
		{" abc def", 2},
		{"  abc", 2},           // a space by itself, then a word with its space
		{"abcdefgh", 1},        // 8
		{"abcdefghi", 2},       // 9
		{" abcdefghi", 2},      // the space does not count towards the 8
		{"it's", 3},            // it ' s
		{"a\nb", 3},            //
		{"äö", 2},              // runes, not bytes
		{"\xff\xfe", 2},        // bytes that are not runes
		{"x1y2, 30 tokens", 4}, // x1y2 , 30 tokens
	} {
		if got := CountTokens(c.text); got != c.want {
			t.Errorf("CountTokens(%q) = %d, want %d", c.text, got, c.want)
		}
	}
}

func TestTextTokenCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Uint64().Draw(t, "key")
		n := rapid.IntRange(0, 600).Draw(t, "n")
		m := rapid.IntRange(0, 600).Draw(t, "m")
		long, short := Text(max(n, m), key), Text(min(n, m), key)
		if !strings.HasPrefix(long, short) {
			t.Fatalf("text of %d tokens is not a prefix of the one of %d", min(n, m), max(n, m))
		}
		if len(long) != wordBytes*max(n, m) {
			t.Fatalf("%d tokens are %d bytes", max(n, m), len(long))
		}
		joined := short + Text(7, key+1) + "\n"
		if got := CountTokens(joined); got != min(n, m)+8 {
			t.Fatalf("joined text has %d tokens, want %d", got, min(n, m)+8)
		}
	})
}

func TestTextDiffersByKey(t *testing.T) {
	seen := map[string]uint64{}
	for key := range uint64(2000) {
		head := Text(16, keyOf("block", key))
		if other, ok := seen[head]; ok {
			t.Fatalf("keys %d and %d begin with the same 16 tokens", other, key)
		}
		seen[head] = key
	}
}

func TestKeysSeparateTheirParts(t *testing.T) {
	keys := []uint64{
		keyOf("a"), keyOf("a", 0), keyOf("a", 0, 0), keyOf("a", 1), keyOf("a", 1, 0), keyOf("a", 0, 1), keyOf("b", 0), keyOf("", 0), keyOf(""),
	}
	seen := map[uint64]bool{}
	for i, k := range keys {
		if seen[k] {
			t.Fatalf("key %d repeats an earlier one", i)
		}
		seen[k] = true
	}
}
