package core

import (
	"time"

	"skyserve/lbd/policy"
)

// prefillCount counts the prompt tokens that a target has computed. Answers are streamed more slowly while
// the engine computes other prompts, so the measured pace accounts for them.
type prefillCount struct {
	tokens int
	batch  *prefillBatch
}

// prefillBatch is a set of prompts that were computed in the same step.
type prefillBatch struct {
	firstToken time.Duration // the time of the first one
	tokens     int           // prefillCount.tokens after all of them
}

// addPrompt records the first token of a request with a number of uncached tokens. First
// tokens that are more than half a decode step apart belong to different steps.
func (p *prefillCount) addPrompt(now time.Duration, tokens int, step time.Duration) {
	p.tokens += tokens
	if p.batch == nil || now-p.batch.firstToken > step/2 {
		p.batch = &prefillBatch{firstToken: now}
	}
	p.batch.tokens = p.tokens
}

// since returns the number of prompt tokens that were computed after a batch.
func (p *prefillCount) since(b *prefillBatch) int { return p.tokens - b.tokens }

// recordPrefill records that r's target has computed its prompt.
func (r *request) recordPrefill(now time.Duration) {
	t := r.target
	t.removeUnstarted(r)
	if !r.prefilled {
		step := float64(policy.NominalStep(t.outstanding, t.work.context())) * t.pace.Value()
		t.prefillTotal.addPrompt(now, r.uncached, time.Duration(step))
		t.streams.addFirstToken(r)
	}
	t.work.endPrefill(r)
}
