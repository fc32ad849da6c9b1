package sim

import (
	"testing"
	"time"
)

// Complaint: in an overload of long prompts, a longer max_wait served fewer requests. Replicas do the same work
// with every max_wait: a short one rejects more of the long prompts, and shorter prompts are served instead.
// This holds for the mean of seeds: with a single one, either of two values of max_wait may be ahead.
func TestLongerMaxWaitDoesNoLessWork(t *testing.T) {
	const seeds = 4
	s := short(t, "completion", 200*time.Second)
	s.Rate, s.Engine = 8, LightEngine // 1.1 times the capacity
	type work struct{ tokens, requests, output float64 }
	served := func(maxWait time.Duration) (mean work) {
		s.MaxWait = maxWait
		for seed := range uint64(seeds) {
			r := run(t, s, Setup{Policy: "cost", Push: push(t, "pending"), Layout: Regional, Seed: seed + 1})
			for _, l := range r.Replicas {
				mean.tokens += float64(l.PromptTokens+l.GeneratedTokens) / seeds
				mean.output += float64(l.GeneratedTokens) / seeds
			}
			mean.requests += float64(r.Totals.Completed) / seeds
		}
		return mean
	}
	most := 0.0
	for _, maxWait := range []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute} {
		w := served(maxWait)
		t.Logf("max_wait %s: %.0f tokens of prompts and answers, %.0f of answers, %.0f requests", maxWait, w.tokens, w.output, w.requests)
		if w.tokens < 0.99*most {
			t.Errorf("max_wait %s: %.0f tokens of prompts and answers, %.0f with a shorter one", maxWait, w.tokens, most)
		}
		most = max(most, w.tokens)
	}
}
