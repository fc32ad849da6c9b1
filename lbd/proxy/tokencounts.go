package proxy

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"sync/atomic"

	"skyserve/lbd/openai"
)

// How many tokens of an answer a client has matters when another replica goes on with
// it: for its bounds, and for the usage that the client is told. Events do not tell:
// engines put several tokens into one (speculative decoding, --stream-interval, a
// frontend that is slower than the engine). So engines that can are asked for the usage
// so far with each event, which is hidden from clients that did not ask for it. Where
// that is not to be had, events count as tokens only if the target was seen to send each
// token by itself.

// oneByOne is how many tokens of a target must have come one in an event, and none
// otherwise, before its events count as tokens: one that sends two in a tenth of its
// events does so once in a thousand times.
const oneByOne = 64

// tokenEvents is what was seen of how a target puts tokens into events.
type tokenEvents struct {
	single  atomic.Int64  // tokens of answers that had one in each event; far below zero once one had not
	refuses atomic.Bool   // it answers requests for the usage so far with an error
	mean    atomic.Uint64 // tokens of an event, a float64's bits; 0 = nothing was learned
}

// meanWeight is the weight of each stream in the mean, and maxPerEvent bounds what it
// may tell.
const (
	meanWeight  = 0.2
	maxPerEvent = 64
)

// learnMean learns how many tokens an event stands for from a stream that told its usage.
// Of two streams that end at the same instant one may not count.
func (t *tokenEvents) learnMean(events, tokens int) {
	ratio := min(max(float64(tokens)/float64(events), 1.0/maxPerEvent), maxPerEvent)
	if bits := t.mean.Load(); bits != 0 {
		mean := math.Float64frombits(bits)
		ratio = mean + meanWeight*(ratio-mean)
	}
	t.mean.Store(math.Float64bits(ratio))
}

// observe learns from an answer that is whole. An answer that ends by itself may have a
// last token without a text.
func (t *tokenEvents) observe(events, tokens int, bounded bool) {
	if tokens == events || tokens == events+1 && !bounded {
		t.single.Add(int64(tokens))
		return
	}
	t.single.Store(math.MinInt64 / 2)
}

// areTokens says whether each event of the target is taken for a token.
func (t *tokenEvents) areTokens() bool { return t.single.Load() >= oneByOne }

// observeEvents learns from a stream that one target served alone how it puts tokens into
// events; complete: all of it has come.
func (x *exchange) observeEvents(complete bool) {
	a, c := &x.answer, x.sent.counted()
	if c == nil || x.splice != nil || !a.Usage.Output.Known || a.Events == 0 {
		return
	}
	c.learnMean(a.Events, a.Usage.Output.Value)
	if complete && x.keepsTranscript() {
		c.observe(a.Events, a.Usage.Output.Value, a.Bounded)
	}
}

// tokensPerEvent is how many tokens each event is taken for that the target at hand has
// streamed; 1 where nothing was learned.
func (x *exchange) tokensPerEvent() float64 {
	if c := x.sent.counted(); c != nil {
		if bits := c.mean.Load(); bits != 0 {
			return math.Float64frombits(bits)
		}
	}
	return 1
}

// ImpliedBound is the bound that the answer has at the target at hand though the client
// set none; 0 where there is none, or that is not known.
func (x *exchange) impliedBound() int {
	r := x.sent.rank.replica
	if r == nil || x.bounded {
		return 0
	}
	return x.endpoint.ImpliedBound(r.cfg.Kind)
}

// countKnown says whether it is known how many tokens of the answer the client has, as
// far as that matters.
func (x *exchange) countKnown() bool {
	if !x.countMatters && x.impliedBound() == 0 || x.answer.Tokens == 0 || x.answer.Exact {
		return true
	}
	c := x.sent.counted()
	return c != nil && c.areTokens()
}

// asks says whether the target at hand is to be asked for the usage so far. A peer asks
// its engines by itself, and is told not to hide what they say.
func (x *exchange) asks(body *sharedBody) bool {
	r := x.sent.rank.replica
	switch {
	case !x.keepsTranscript() && x.wantsCounts == "":
		return false
	case r == nil:
		return x.sent.peer != nil
	}
	return len(body.counts.With) > 0 && openai.CountsUsage(r.cfg.Kind) && !r.count.refuses.Load()
}

// refusesCounts says whether an answer is an error that an engine makes of a request for
// the usage so far, which it then is not asked for again.
func (x *exchange) refusesCounts(resp *http.Response) bool {
	if !x.counting || x.sent.rank.replica == nil || resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity {
		return false
	}
	const most = 64 << 10 // of an error's text
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err == nil && bytes.Contains(text, []byte("continuous_usage_stats")) {
		x.sent.rank.count.refuses.Store(true)
		resp.Body.Close()
		return true
	}
	resp.Body = &putBack{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body} // which tells err again
	return false
}

// putBack is an answer's body of which a part was read already.
type putBack struct {
	io.Reader
	io.Closer
}
