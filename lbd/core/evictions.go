package core

import (
	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
)

// supersededWeight is the weight of each response in the share of superseded text (request.superseded) that was still
// cached. The share starts at the value that the policy assumes: a single response says little.
const supersededWeight = 0.05

// evictions measures which share of the computed prompt tokens had been cached before and was evicted. Such text
// was sent to the same target before, and its engine did not find it in the cache. A prompt sent while
// its engine was still computing the same text is not measured: branches of a tree of thoughts arrive together.
type evictions struct {
	evicted, computed pace.Mean // tokens per request
	// superseded is the mean share of superseded text that was still cached.
	superseded policy.Maybe[float64]
}

// addPrompt adds the prompt of r, which was served.
func (e *evictions) addPrompt(r *request, out *Outcome) {
	if !out.CachedTokens.Known || r.matchInProgress {
		return
	}
	// The engine's count of the prompt may differ from the estimate that uncached is a part of.
	prompt := float64(max(1, min(out.PromptTokens.Or(r.promptLength()), maxTokens)))
	expected := prompt * float64(r.uncached) / float64(max(1, r.promptLength()))
	computed := prompt - min(prompt, float64(max(0, out.CachedTokens.Value)))
	e.computed.Add(computed, hitWeight)
	e.evicted.Add(max(0, computed-expected), hitWeight)
	if superseded := prompt * float64(r.superseded) / float64(max(1, r.Prompt.Bytes())); superseded >= 1 {
		mean := e.superseded.Or(policy.DefaultCostConstants().SupersededMatchWeight)
		e.superseded = policy.Known(mean + supersededWeight*(min(1, (prompt-computed)/superseded)-mean))
	}
}

// evictedShare returns the share of computed tokens that had been evicted.
func (e *evictions) evictedShare() float64 {
	if computed := e.computed.Or(0); computed > 0 {
		return e.evicted.Or(0) / computed
	}
	return 0
}
