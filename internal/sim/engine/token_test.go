package engine

import (
	"slices"
	"strings"
	"testing"
)

// pieces returns the texts of the tokens of text.
func pieces(text string) (list []string) {
	for len(text) > 0 {
		n := tokenLen(text)
		list = append(list, text[:n])
		text = text[n:]
	}
	return list
}

func TestTokenRule(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "",
		" abc":             " abc",
		"abc def":          "abc| def",
		"  abc":            " | abc",
		"internationalise": "internat|ionalise",
		" 123456789":       " 12345678|9",
		"a,b":              "a|,|b",
		"a\n\nb":           "a|\n|\n|b",
		"über":             "ü|ber",
		"\xff\xfe":         "\xff|\xfe",
		" é":               " |é",
		"<|user|>\nhi\n":   "<|||user|||>|\n|hi|\n",
	} {
		if got := strings.Join(pieces(text), "|"); got != want {
			t.Errorf("tokens of %q: %q, want %q", text, got, want)
		}
	}
}

func TestTokenIsTheHashOfItsBytes(t *testing.T) {
	a := Tokenize(nil, " river river")
	if a[0] != a[1] {
		t.Errorf("the same bytes yielded tokens %d and %d", a[0], a[1])
	}
	if b := Tokenize(nil, "river"); b[0] == a[0] {
		t.Errorf("%q and %q yielded the same token", " river", "river")
	}
}

func FuzzTokenize(f *testing.F) {
	f.Add("Hello, wörld  of tokens\n", 5)
	f.Add("\xf0\x9f\x98\x80 x", 2)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		whole := Tokenize(nil, text)
		if CountTokens(text) != len(whole) {
			t.Fatalf("CountTokens = %d, Tokenize returned %d", CountTokens(text), len(whole))
		}
		list := pieces(text)
		if strings.Join(list, "") != text {
			t.Fatalf("the tokens of %q do not join to it: %q", text, list)
		}
		at := 0
		if len(list) > 0 {
			at = (cut%len(list) + len(list)) % len(list)
		}
		left, right := strings.Join(list[:at], ""), strings.Join(list[at:], "")
		if joined := Tokenize(Tokenize(nil, left), right); !slices.Equal(joined, whole) {
			t.Fatalf("cutting %q after %q changes its tokens", text, left)
		}
	})
}

func BenchmarkTokenize(b *testing.B) {
	text := strings.Repeat("The quiet river keeps a small market, near our old bridge.\n", 70)
	var dst []Token
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = Tokenize(dst[:0], text)
	}
}
