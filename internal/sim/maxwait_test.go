package sim

import (
	"testing"
	"time"
)

// Complaint: in an overload of long prompts, a longer max_wait served fewer requests. Replicas do the same work
// with every max_wait: a short one rejects more of the long prompts, and shorter prompts are served instead.
func TestLongerMaxWaitDoesNoLessWork(t *testing.T) {
	s := short(t, "completion", 400*time.Second)
	s.Rate, s.Engine = 8, LightEngine // 1.1 times the capacity
	served := func(maxWait time.Duration) (tokens int64, completed int) {
		s.MaxWait = maxWait
		r := run(t, s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: 1})
		for _, l := range r.Replicas {
			tokens += l.PromptTokens + l.GeneratedTokens
		}
		return tokens, r.Totals.Answered
	}
	most := int64(0)
	for _, maxWait := range []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute} {
		tokens, completed := served(maxWait)
		t.Logf("max_wait %s: %d tokens of prompts and answers, %d requests", maxWait, tokens, completed)
		if float64(tokens) < 0.99*float64(most) {
			t.Errorf("max_wait %s: %d tokens of prompts and answers, %d with a shorter one", maxWait, tokens, most)
		}
		most = max(most, tokens)
	}
}
