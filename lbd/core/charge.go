package core

import (
	"time"

	"skyserve/lbd/policy"
)

// What a request costs its tenant is counted in tokens: its prompt, once, and what
// was generated of its answer, once, however it ends. It is charged its prompt when
// it is sent, what its time at its target tells of its answer every chargeEvery (as
// VTC charges tokens when they are generated), and the difference to the true count
// when it ends.

const (
	// chargeEvery is the time between two charges for answers that are being generated:
	// short against an answer, and far longer than it takes to go over all of them.
	chargeEvery = time.Second
	// maxUnboundedAnswer is how many tokens an answer without max_tokens is taken to have at
	// most where nobody counted them: ten minutes at 27 tokens a second.
	maxUnboundedAnswer = 16 << 10
)

// cost is what r costs its tenant in all, by what its target told of it and else by
// an estimate of what was generated.
func (r *request) cost(out *Outcome, generated int) int64 {
	prompt := r.turnCost()
	if out != nil && out.PromptTokens.Known {
		prompt = int64(clampTokens(out.PromptTokens.Value))
	}
	if out != nil && out.OutputTokens.Known {
		generated = out.OutputTokens.Value
	}
	return prompt + int64(clampTokens(generated))
}

func clampTokens(tokens int) int { return min(max(0, tokens), maxTokens) }

// setCharge makes a number of tokens what r's tenant is charged for r in all.
func (q *queue) setCharge(r *request, tokens int64) {
	q.Charge(&r.Item, tokens)
}

// chargeServed corrects the charge for a request that was served by what its engine told.
func (q *queue) chargeServed(r *request, out *Outcome) {
	if out != nil {
		q.setCharge(r, r.cost(out, 0))
	}
}

// chargeUnserved charges for a request that failed or whose client has gone: for what
// was generated, or what an earlier try generated if that is more; generated is an
// estimate for where the outcome does not tell. If it can be tried again, what was
// generated stays charged meanwhile, so that nobody gets work for nothing by requests
// that fail, and the next try is not charged on top of it; a try of which the outcome
// tells nothing generated costs nothing.
func (q *queue) chargeUnserved(r *request, out *Outcome, generated int) {
	retryable := out != nil && out.Retryable
	if !retryable || out.OutputTokens.Or(0) > 0 {
		r.minCharge = max(r.minCharge, r.cost(out, generated))
	}
	q.setCharge(r, r.minCharge)
}

// chargeRunning charges for the answers that are being generated, where another
// tenant could gain by it.
func (b *Balancer) chargeRunning(now time.Duration, q *queue) {
	if q.Tenants() < 2 || now-q.chargedAt < chargeEvery {
		return
	}
	q.chargedAt = now
	q.ChargeRunning(func(r *request) int64 { return r.cost(nil, b.generated(now, r)) })
}

// Generated estimates how many tokens the target of a request in flight has
// generated for it, of all its answers together, by its time there and the target's
// pace; no more than the request's bound. It is 0 for a request that waits or is not
// known.
func (b *Balancer) Generated(now time.Duration, id string) int {
	if r := b.requests[id]; r != nil {
		return b.generated(now, r)
	}
	return 0
}

func (b *Balancer) generated(now time.Duration, r *request) int {
	t := r.target
	if t == nil || r.Answers < 0 {
		return 0
	}
	step := policy.NominalStep(t.outstanding, t.work.context())
	busy, pace := now-r.sentAt, t.pace.Residence()
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
	return clampTokens(min(tokens, bound) * min(max(1, r.Answers), maxAnswers))
}

// learnResidence learns how long answers stay at t, beside the nominal replica, from the
// end of r there; n tokens were generated.
func (t *target) learnResidence(stay time.Duration, r *request, n int) {
	n /= max(1, r.Answers)
	step := policy.NominalStep(t.outstanding+1, t.work.context()+r.promptCost)
	nominal := policy.NominalPrefill(r.uncached) + time.Duration(n)*step
	t.pace.LearnResidence(n, stay, nominal)
}
