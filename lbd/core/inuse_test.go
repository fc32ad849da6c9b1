package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// candidates records the replicas that a policy was asked about, and whether the match branched.
type candidates struct {
	policy.Policy
	replicas []policy.Candidate
	shared   bool
}

func (s *candidates) Choose(f *policy.Facts) policy.Choice {
	s.replicas, s.shared = append(s.replicas[:0], f.Candidates...), f.SharedPrefix
	return s.Policy.Choose(f)
}

// The memory in use is the longest beginning of the prompt that a request at the replica has too, within the match. It
// counts only if the prefix is shared.
func TestMemoryInUseIsThatOfOutstandingRequests(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	spy := &candidates{Policy: policy.NewCost()}
	b := start(DefaultConfig(spy), 3)
	sent := map[string]map[string]prefix.Key{"r0": {}, "r1": {}, "r2": {}}
	used := 0
	for i := range 3000 {
		now := time.Duration(i) * time.Millisecond
		for r := range sent {
			b.Step(now, idle(r))
		}
		id, text := fmt.Sprint(i), make([]byte, 1+rng.IntN(6))
		for j := range text {
			text[j] = 'a' + byte(rng.IntN(3))
		}
		prompt := letters(string(text))
		target := ask(t, b, now, Request{ID: id, Prompt: prompt, PromptTokens: 100})
		for _, c := range spy.replicas {
			longest := 0
			for _, other := range sent[c.ID] {
				n := 0
				for n < min(len(prompt), len(other)) && prompt[n] == other[n] {
					n++
				}
				longest = max(longest, n*prefix.BlockBytes)
			}
			want := min(longest, c.MatchBytes)
			if !spy.shared {
				want = 0
			}
			if c.InUseBytes != want {
				t.Fatalf("request %d at %s: %d bytes in use, want %d of %d cached", i, c.ID, c.InUseBytes, want, c.MatchBytes)
			}
			if want > 0 {
				used++
			}
		}
		sent[target][id] = prompt
		for len(sent[target]) > 4 {
			for old := range sent[target] { // any
				b.Step(now, Event{Kind: EventFinished, ID: old, Outcome: &Outcome{}})
				delete(sent[target], old)
				break
			}
		}
	}
	if used < 1000 {
		t.Errorf("memory was in use in %d cases only", used)
	}
}
