package proxy

import (
	"math"
	"sync/atomic"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
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
	out := &core.Outcome{PromptTokens: x.answer.usage.prompt, OutputTokens: policy.Known(x.soFar())}
	x.generated = max(x.generated, out.OutputTokens.Value)
	if x.seam != nil {
		out.Elsewhere = x.seam.said
	}
	return out
}

// soFar is how many tokens of the answer were generated until now.
func (x *exchange) soFar() int {
	switch u := &x.answer.usage; {
	case x.answer.tokens > 0 && !u.output.Known:
		return int(math.Ceil(float64(x.answer.tokens) * x.tokensPerPiece()))
	case x.passed() > 0 || x.streamWanted:
		return x.passed()
	}
	return x.rt.generated(&x.flight)
}

// generated is core's estimate for a flight at the present time.
func (r *Runtime) generated(f *flight) int {
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
	for _, f := range r.flights {
		if f.visit != nil && f.entry.State == stateSent {
			f.visit.grow(r.core.Generated(now, f.id), now)
		}
	}
}

// pieceRatio is how many tokens an event of a target's streams stands for, as learned
// from those that ended with their usage; zero has learned nothing. Of two streams
// that end at the same instant one may not count.
type pieceRatio struct{ bits atomic.Uint64 }

// pieceWeight is the weight of each stream in the mean, and mostPerPiece bounds what
// it may tell.
const (
	pieceWeight  = 0.2
	mostPerPiece = 64
)

func (p *pieceRatio) learn(tokens, pieces int) {
	ratio := min(max(float64(tokens)/float64(pieces), 1.0/mostPerPiece), mostPerPiece)
	if bits := p.bits.Load(); bits != 0 {
		mean := math.Float64frombits(bits)
		ratio = mean + pieceWeight*(ratio-mean)
	}
	p.bits.Store(math.Float64bits(ratio))
}

func (p *pieceRatio) value() float64 {
	if bits := p.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1
}

// learnPieces learns from a stream that came from one target as a whole.
func (x *exchange) learnPieces() {
	c, output := x.sent.counted(), x.answer.usage.output
	if c != nil && x.seam == nil && output.Known && x.answer.tokens > 0 {
		c.pieces.learn(output.Value, x.answer.tokens)
	}
}

// tokensPerPiece is how many tokens each event is taken for that the target at hand
// has streamed.
func (x *exchange) tokensPerPiece() float64 {
	if c := x.sent.counted(); c != nil {
		return c.pieces.value()
	}
	return 1
}
