package engine

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// say returns the next n words.
func say(s *Speech, n int) (tokens []Token, text string) {
	var b strings.Builder
	for range n {
		t, w := s.Next()
		tokens = append(tokens, t)
		b.WriteString(w)
	}
	return tokens, b.String()
}

func TestVocabularyWordsAreSingleTokens(t *testing.T) {
	seen := map[string]wordClass{}
	for class, words := range vocabulary {
		if len(words) == 0 && wordClass(class) != classNone {
			t.Errorf("class %d has no words", class)
		}
		for _, w := range words {
			if other, twice := seen[w.inside.text]; twice {
				t.Errorf("%q is in classes %d and %d", w.inside.text, other, class)
			}
			seen[w.inside.text] = wordClass(class)
			for _, f := range []form{w.inside, w.opening} {
				if got := Tokenize(nil, f.text); len(got) != 1 || got[0] != f.token {
					t.Errorf("%q is tokens %v, want only %d", f.text, got, f.token)
				}
			}
		}
	}
}

func TestSpeechTokenisesToItself(t *testing.T) {
	prompt := "<|user|>\nhi\n<|assistant|>\n"
	s := NewSpeech(1, Tokenize(nil, prompt))
	tokens, text := say(&s, 200)
	want := append(Tokenize(nil, prompt), tokens...)
	if got := Tokenize(nil, prompt+text+"\n")[:len(want)]; !slices.Equal(got, want) {
		t.Errorf("the response %q does not tokenise to the generated tokens", text)
	}
	if text[0] < 'A' || text[0] > 'Z' {
		t.Errorf("the response begins with %q, want a capital letter", text[:1])
	}
}

func TestSpeechContinuesAfterCut(t *testing.T) {
	prompt := "<|user|>\nwhere is the station?\n<|assistant|>\n"
	whole := NewSpeech(7, Tokenize(nil, prompt))
	_, want := say(&whole, 60)
	for cut := 1; cut < 60; cut++ {
		first := NewSpeech(7, Tokenize(nil, prompt))
		_, head := say(&first, cut)
		second := NewSpeech(7, Tokenize(nil, prompt+head))
		if _, tail := say(&second, 60-cut); head+tail != want {
			t.Fatalf("cut after %d words: %q + %q, want %q", cut, head, tail, want)
		}
	}
}

func TestSpeechDependsOnSeedAndPrompt(t *testing.T) {
	base, other := Tokenize(nil, "abc"), Tokenize(nil, "abd")
	texts := map[string]bool{}
	for _, s := range []Speech{NewSpeech(1, base), NewSpeech(2, base), NewSpeech(1, other), {}} {
		again := s
		_, a := say(&s, 20)
		if _, b := say(&again, 20); a != b {
			t.Errorf("the same speech generated %q and %q", a, b)
		}
		texts[a] = true
	}
	if len(texts) != 4 {
		t.Errorf("four different speeches generated %d different texts", len(texts))
	}
}

func TestDrawLengthDistribution(t *testing.T) {
	lengths := make([]int, 4000)
	logs := 0.0
	for i := range lengths {
		s := NewSpeech(uint64(i), nil)
		lengths[i] = s.DrawLength()
		if lengths[i] < 1 || lengths[i] > MaxDrawnTokens {
			t.Fatalf("length %d is not in 1..%d", lengths[i], MaxDrawnTokens)
		}
		if lengths[i] != s.DrawLength() {
			t.Fatal("the same speech drew two lengths")
		}
		if lengths[i] < 160 {
			logs += math.Pow(math.Log(float64(lengths[i])/160), 2)
		}
	}
	slices.Sort(lengths)
	if median := lengths[len(lengths)/2]; median < 150 || median > 170 {
		t.Errorf("median length %d, want about 160", median)
	}
	// The half below the median is not cut, so its spread is sigma.
	if sigma := math.Sqrt(logs / float64(len(lengths)/2)); sigma < 0.71 || sigma > 0.79 {
		t.Errorf("sigma %.3f, want about 0.75", sigma)
	}
}
