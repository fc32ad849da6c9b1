package core

import (
	"time"

	"skyserve/lbd/policy"
)

const (
	// streamSliceTime is the minimum duration of a measurement of a replica's streams.
	streamSliceTime = 500 * time.Millisecond
	// maxPrefillShare is the maximum share of prompts in the work of such a measurement. Streams pause while
	// prompts are computed, and how much of a prompt is still cached is known only after its first token.
	maxPrefillShare = 0.35
)

// streams measures a replica's recent pace, by the tokens that its streams receive between ticks.
type streams struct {
	answers    int   // the answers of outstanding requests with a first token
	unstreamed int   // tokens of ended answers that were counted only at the end; they are part of the next progress
	counted    int64 // target.tokens at the last tick
	atLastTick int   // running answers at the last tick
	since      time.Duration
	steps      time.Duration // nominal duration of the tokens since then
	prompts    int           // tokens of the prompts whose first token arrived since then
	uncached   int           // the uncached part of prompts, as expected
	idle       bool          // there was a time without streams since then
}

// addFirstToken records that r, which had no first token, has one.
func (s *streams) addFirstToken(r *request) {
	s.answers += r.completions()
	s.prompts += r.expectedPrompt
	s.uncached += r.uncached
}

// removeRequest records that r is no longer outstanding.
func (s *streams) removeRequest(r *request) {
	if r.prefilled {
		s.answers -= r.completions()
	}
}

// addUnstreamed records the result of a request.
func (s *streams) addUnstreamed(out *Outcome) {
	if out != nil {
		s.unstreamed = clampTokens(s.unstreamed + clampTokens(out.UnstreamedTokens))
	}
}

// measureStreams adds the progress since the last tick to t's recent pace.
func (t *target) measureStreams(now time.Duration) {
	s := &t.streams
	tokens := int(t.tokens - s.counted)
	s.counted = t.tokens
	ended := min(tokens, s.unstreamed)
	s.unstreamed -= ended
	answers := min(s.answers, t.running.Or(s.answers)) // an engine pauses streams when its KV memory is full
	s.idle = s.idle || s.atLastTick == 0 || answers == 0
	if n := s.atLastTick + answers; n > 0 {
		s.steps += time.Duration(2 * float64(tokens-ended) / float64(n) * float64(policy.NominalStep(t.outstanding, t.work.context())))
	}
	s.atLastTick = answers
	if now-s.since < streamSliceTime {
		return
	}
	prefill := policy.NominalPrefill(s.prompts + t.work.pendingPromptTokens)
	if !s.idle && float64(prefill) <= maxPrefillShare*float64(prefill+s.steps) {
		t.recentPace.Add(now, now-s.since, s.steps+policy.NominalPrefill(s.uncached))
	}
	s.since, s.steps, s.prompts, s.uncached, s.idle = now, 0, 0, 0, false
}
