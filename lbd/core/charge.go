package core

import (
	"time"

	"skyserve/lbd/policy"
)

// The cost of a request to its tenant is counted in tokens: its prompt once, and the generated part
// of its answer once, whatever its outcome. The prompt is charged when the request is sent. Every
// chargeEvery, an estimate of the generated tokens is charged, like in VTC (core/fair/tenants.go),
// which charges tokens when they are generated. The difference from the true count is charged at
// the end.

const (
	// chargeEvery is the time between two charges for outstanding requests: short compared with an
	// answer, and much longer than the time needed to charge all of them.
	chargeEvery = time.Second
	// maxUnboundedAnswer is the assumed maximum length, in tokens, of an answer without max_tokens
	// whose tokens were not counted: ten minutes at 27 tokens per second.
	maxUnboundedAnswer = 16 << 10
)

// chargedTokens returns the total cost of r to its tenant, from the counts in out if known, and otherwise
// from an estimate of the generated tokens.
func (r *request) chargedTokens(out *Outcome, generated int) int64 {
	prompt := r.sendCharge()
	if out != nil && out.PromptTokens.Known {
		prompt = int64(clampTokens(out.PromptTokens.Value))
	}
	if out != nil && out.OutputTokens.Known {
		generated = out.OutputTokens.Value
	}
	return prompt + int64(clampTokens(generated))
}

func clampTokens(tokens int) int { return min(max(0, tokens), maxTokens) }

// setCharge sets the total number of tokens charged to r's tenant for r.
func (q *queue) setCharge(r *request, tokens int64) {
	q.Charge(&r.Item, tokens)
}

// chargeServed corrects the charge for a served request by the engine's counts.
func (q *queue) chargeServed(r *request, out *Outcome) {
	if out != nil {
		q.setCharge(r, r.chargedTokens(out, 0))
	}
}

// chargeUnserved charges for a request that failed or was cancelled: for its prompt and the
// generated tokens, or for those of an earlier attempt, whichever is more. generated is the estimate
// for an out without a count. The charge stays while the request waits for a retry, so that failing
// requests are not free; the next attempt is not charged in addition. A retryable attempt for which
// out counts no generated tokens is not charged.
func (q *queue) chargeUnserved(r *request, out *Outcome, generated int) {
	retryable := out != nil && out.Retryable
	if !retryable || out.OutputTokens.Or(0) > 0 {
		r.minCharge = max(r.minCharge, r.chargedTokens(out, generated))
	}
	q.setCharge(r, r.minCharge)
}

// chargeOutstanding charges for outstanding requests, unless there is only one tenant.
func (b *Balancer) chargeOutstanding(now time.Duration, q *queue) {
	if q.Tenants() < 2 || now-q.chargedAt < chargeEvery {
		return
	}
	q.chargedAt = now
	q.ChargeOutstanding(func(r *request) int64 { return r.chargedTokens(nil, b.estimateGenerated(now, r)) })
}

// GeneratedTokens estimates the tokens generated for a request in flight, of all its answers together,
// from its time at the target and the target's pace. The result is at most the request's bound. It
// is 0 for a request that is queued or unknown.
func (b *Balancer) GeneratedTokens(now time.Duration, id string) int {
	if r := b.requests[id]; r != nil {
		return b.estimateGenerated(now, r)
	}
	return 0
}

func (b *Balancer) estimateGenerated(now time.Duration, r *request) int {
	t := r.target
	if t == nil || r.Completions < 0 {
		return 0
	}
	step := policy.NominalStep(t.outstanding, t.work.context())
	busy, pace := now-r.sentAt, t.pace.ResidencePace()
	prefill := policy.NominalPrefill(r.uncached)
	if r.firstTokenAt > 0 { // a stream: its prompt is computed
		busy, prefill = now-r.firstTokenAt, 0
		if t.pace.Known() {
			pace = t.pace.Value()
		}
	}
	tokens := int(float64(max(0, time.Duration(float64(busy)/pace)-prefill)) / float64(step))
	bound := maxUnboundedAnswer
	if r.MaxTokens > 0 {
		bound = min(r.MaxTokens, maxTokens)
	}
	return clampTokens(min(tokens, bound) * r.completions())
}

// completions returns the number of r's answers.
func (r *request) completions() int { return min(max(1, r.Completions), maxAnswers) }

// learnResidence updates t's residence pace (the residence time compared with the nominal replica)
// from a request that ended there; n tokens were generated.
func (t *target) learnResidence(residence time.Duration, r *request, n int) {
	n /= max(1, r.Completions)
	step := policy.NominalStep(t.outstanding+1, t.work.context()+r.expectedPrompt)
	nominal := policy.NominalPrefill(r.uncached) + time.Duration(n)*step
	t.pace.LearnResidence(n, residence, nominal)
}
