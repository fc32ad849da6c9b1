package proxy

import (
	"math"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// What was generated of an answer that did not come to its end costs its client as
// much as one that did: of a stream it is counted, of an answer in one piece core
// estimates it by the time at the target.

// answersForCore is a number of answers as core.Request has it.
func answersForCore(n int) int {
	switch n {
	case 0:
		return -1
	case 1:
		return 0
	}
	return n
}

// partly is what core is told of an answer that did not come to its end.
func (x *exchange) partly() *core.Outcome {
	out := &core.Outcome{PromptTokens: x.answer.Usage.Prompt, OutputTokens: policy.Known(x.soFar())}
	x.generated = max(x.generated, out.OutputTokens.Value)
	if x.splice != nil {
		out.Elsewhere = x.splice.TokensBefore
	}
	return out
}

// Text is how many tokens of the answer were generated until now.
func (x *exchange) soFar() int {
	switch u := &x.answer.Usage; {
	case x.answer.Tokens > 0 && !x.answer.Exact && !u.Output.Known:
		return int(math.Ceil(float64(x.answer.Tokens) * x.tokensPerEvent()))
	case x.passed() > 0 || x.streamWanted:
		return x.passed()
	}
	return x.rt.generated(&x.inFlight)
}

// estimate counts the tokens of a whole answer that nobody has read.
func (x *exchange) estimate() {
	n := x.rt.generated(&x.inFlight)
	x.answer.Tokens = n
	x.streamed(n)
}

// generated is core's estimate for a request in flight at the present time.
func (r *Runtime) generated(f *inFlight) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Generated(r.Elapsed(), f.id)
}

// growEvery is the number of ticks between two looks at what answers in flight have
// outgrown of their reservations: a second, in which none grows by much.
const growEvery = int(time.Second / tickEvery)

// growReservations reserves more for the answers that have more tokens by now than was
// expected of them; the lock is held.
func (r *Runtime) growReservations(now time.Duration) {
	for _, f := range r.inFlight {
		if f.reservation != nil && f.entry.State == record.StateSent {
			f.reservation.Grow(r.core.Generated(now, f.id), now)
		}
	}
}
