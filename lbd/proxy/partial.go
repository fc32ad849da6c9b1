package proxy

import (
	"math"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// A client is charged for the generated part of an incomplete response. In a stream its tokens are counted.
// For a response that is not streamed, core estimates them from the time at the target.

// coreAnswers converts a number of parallel responses to core.Request.Completions, where 0 means one response and
// -1 means none.
func coreAnswers(n int) int {
	switch n {
	case 0:
		return -1
	case 1:
		return 0
	}
	return n
}

// partialOutcome returns the outcome of an incomplete response for core.
func (x *exchange) partialOutcome() *core.Outcome {
	out := &core.Outcome{PromptTokens: x.answer.Usage.Prompt, OutputTokens: policy.Known(x.tokensSoFar())}
	x.maxGenerated = max(x.maxGenerated, out.OutputTokens.Value)
	if x.splice != nil {
		out.EarlierTokens = x.splice.TokensBefore
	}
	return out
}

// tokensSoFar returns the number of generated tokens of the response.
func (x *exchange) tokensSoFar() int {
	switch u := &x.answer.Usage; {
	case x.answer.Tokens > 0 && !x.answer.Exact && !u.Output.Known:
		return int(math.Ceil(float64(x.answer.Tokens) * x.tokensPerEvent()))
	case x.tokensDelivered() > 0 || x.streamWanted:
		return x.tokensDelivered()
	}
	return x.rt.estimateGenerated(&x.inFlight)
}

// estimateTokens counts the tokens of a complete response that was not parsed.
func (x *exchange) estimateTokens() {
	n := x.rt.estimateGenerated(&x.inFlight)
	x.answer.Tokens = n
	x.countStreamed(n)
}

// estimateGenerated returns core's estimate for a request in flight at the current time.
func (r *Runtime) estimateGenerated(f *inFlight) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.GeneratedTokens(r.Elapsed(), f.id)
}

// growTicks is the number of ticks between two checks whether responses in flight have exceeded their
// reservations: one second.
const growTicks = int(time.Second / tickInterval)

// growReservations increases the reservations of responses that have more tokens than expected; the
// lock must be held.
func (r *Runtime) growReservations(now time.Duration) {
	for _, f := range r.inFlight {
		if f.reservation != nil && f.entry.State == record.StateSent {
			f.reservation.Grow(r.core.GeneratedTokens(now, f.id), now)
		}
	}
}
