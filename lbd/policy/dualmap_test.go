package policy

import (
	"fmt"
	"testing"
)

// prefixesOf returns hashes of the prefixes of a prompt of one-letter blocks.
func prefixesOf(prompt string) []uint64 {
	var hashes []uint64
	for i := range prompt {
		hashes = append(hashes, mix(hashKey(prompt[:i+1])))
	}
	return hashes
}

func TestDualMapUsesTwoReplicasPerPrefix(t *testing.T) {
	const replicas, conversations = 16, 64
	p, cs := NewDualMap(), fleet(replicas)
	used := map[int]map[int]bool{} // by conversation
	load := make([]int, replicas)
	for i := range 4 * dualMapWindow {
		conversation := i * 7 % conversations
		// All prompts begin with the same system prompt of nine blocks.
		prompt := "system..." + fmt.Sprintf("%02d", conversation)
		got := p.Choose(&Facts{ID: fmt.Sprint(i), Model: "m", PromptTokens: 100, PrefixHashes: prefixesOf(prompt), Candidates: cs})
		load[got.Index]++
		if i < 2*dualMapWindow {
			continue // the common prefix must be seen first
		}
		if used[conversation] == nil {
			used[conversation] = map[int]bool{}
		}
		used[conversation][got.Index] = true
	}
	for conversation, by := range used {
		if len(by) > 2 {
			t.Errorf("conversation %d used %d replicas", conversation, len(by))
		}
	}
	for i, n := range load {
		if n == 0 || n > 4*dualMapWindow/4 {
			t.Errorf("replica %d received %d of %d requests", i, n, 4*dualMapWindow)
		}
	}
}

// Complaint: a model with a tenth of a service's requests stays at two replicas, because one system prompt of it has
// less than the fair share of the requests for all models.
func TestDualMapCountsEachModelAlone(t *testing.T) {
	p, cs, used := NewDualMap(), fleet(16), map[int]bool{}
	for i := range 2 * dualMapWindow {
		model, prompt := "large", fmt.Sprintf("%04d", i)
		if i%10 == 0 {
			model, prompt = "small", "s"+prompt
		}
		got := p.Choose(&Facts{ID: fmt.Sprint(i), Model: model, PromptTokens: 100, PrefixHashes: prefixesOf(prompt), Candidates: cs})
		if model == "small" {
			used[got.Index] = true
		}
	}
	if len(used) < 8 {
		t.Errorf("the smaller model used %d of %d replicas", len(used), len(cs))
	}
}

func TestDualMapChoosesBetweenTheTwo(t *testing.T) {
	prefixes := prefixesOf("abcd")
	facts := func(change func(a, b *Candidate)) (chosen Candidate, why string) {
		p, cs := NewDualMap(), fleet(2)
		change(&cs[0], &cs[1])
		got := p.Choose(&Facts{Model: "m", PromptBytes: 256, PromptTokens: 2000, PrefixHashes: prefixes, Candidates: cs})
		return cs[got.Index], got.Reason
	}
	seconds := func(s float64) int { return int(s * DefaultCostConstants().PrefillRate) }
	cases := []struct {
		name   string
		change func(a, b *Candidate)
		want   string // ID
		reason string
	}{
		{"the longer match within the objective", func(a, b *Candidate) { b.MatchBytes, b.PrefillTokens = 128, seconds(4) }, "r01", ReasonPrefixMatch},
		{"load beyond the objective", func(a, b *Candidate) { b.MatchBytes, b.PrefillTokens = 128, seconds(6) }, "r00", ReasonPowerOfTwo},
		{"the longer match if the other is worse", func(a, b *Candidate) { b.MatchBytes, b.PrefillTokens, a.PrefillTokens = 128, seconds(6), seconds(9) }, "r01", ReasonPowerOfTwo},
		{"load without a match", func(a, b *Candidate) { a.PrefillTokens = seconds(1) }, "r01", ReasonPowerOfTwo},
		{"the only available one", func(a, b *Candidate) { a.Available = false; b.PrefillTokens = seconds(9) }, "r01", ReasonPowerOfTwo},
		{"the only available one with a match", func(a, b *Candidate) { a.Available = false; b.MatchBytes = 128 }, "r01", ReasonPrefixMatch},
		{"the only available one with a match beyond the objective", func(a, b *Candidate) { a.Available = false; b.MatchBytes, b.PrefillTokens = 128, seconds(6) }, "r01", ReasonPowerOfTwo},
	}
	for _, c := range cases {
		if got, reason := facts(c.change); got.ID != c.want || reason != c.reason {
			t.Errorf("%s: chose %s because %s, want %s because %s", c.name, got.ID, reason, c.want, c.reason)
		}
	}
}

// A request that is sent again, with no other in between, is mapped again. It counts once.
func TestDualMapCountsRequestsOnce(t *testing.T) {
	p, cs := NewDualMap(), fleet(4)
	f := &Facts{ID: "again", Model: "m", PrefixHashes: prefixesOf("ab"), Candidates: cs}
	for range 100 {
		p.Choose(f)
	}
	if got := p.models[f.Model].byPrefix[f.PrefixHashes[0]]; got != 1 {
		t.Errorf("counted %d times", got)
	}
}
