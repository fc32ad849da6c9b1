package proxy

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"sync/atomic"

	"skyserve/lbd/openai"
)

// When another replica continues a response, the number of tokens that the client has received is
// required: for the limits, and for the usage in the response. Counting events is not enough: engines
// put several tokens into one event (speculative decoding, --stream-interval, a frontend that is
// slower than the engine). So the usage so far in each event is requested from engines that support
// it, and hidden from clients that did not request it. Otherwise events count as tokens only if the
// target was observed to send each token in its own event.

// minSingleTokens is how many tokens of a target must have arrived in events of one token, without exception,
// before its events count as tokens. A target that sends two tokens in a tenth of its events passes this
// check once in a thousand times.
const minSingleTokens = 64

// tokenEvents contains observations about the tokens per event of a target.
type tokenEvents struct {
	singleTokens  atomic.Int64  // tokens of responses with one token per event; far below zero after any other response
	rejectsCounts atomic.Bool   // it rejects requests for the usage so far
	meanPerEvent  atomic.Uint64 // mean tokens per event, a float64's bits; 0 = nothing learned
}

// meanWeight is the weight of each stream in the mean, and maxPerEvent limits its value.
const (
	meanWeight  = 0.2
	maxPerEvent = 64
)

// learnMean updates the mean tokens per event from a stream that reported its usage. If two streams
// end at the same moment, one of them may not be counted.
func (t *tokenEvents) learnMean(events, tokens int) {
	ratio := min(max(float64(tokens)/float64(events), 1.0/maxPerEvent), maxPerEvent)
	if bits := t.meanPerEvent.Load(); bits != 0 {
		mean := math.Float64frombits(bits)
		ratio = mean + meanWeight*(ratio-mean)
	}
	t.meanPerEvent.Store(math.Float64bits(ratio))
}

// learnSingle updates singleTokens from a complete response. A response that ends by itself may
// have a last token without text.
func (t *tokenEvents) learnSingle(events, tokens int, bounded bool) {
	if tokens == events || tokens == events+1 && !bounded {
		t.singleTokens.Add(int64(tokens))
		return
	}
	t.singleTokens.Store(math.MinInt64 / 2)
}

// eventsAreTokens reports whether each event of the target counts as a token.
func (t *tokenEvents) eventsAreTokens() bool { return t.singleTokens.Load() >= minSingleTokens }

// observeEvents updates the tokens per event of a target from a stream that this target alone served.
// complete: the whole stream has arrived.
func (x *exchange) observeEvents(complete bool) {
	a, c := &x.answer, x.current.targetCounts()
	if c == nil || x.splice != nil || !a.Usage.Output.Known || a.Events == 0 {
		return
	}
	c.learnMean(a.Events, a.Usage.Output.Value)
	if complete && x.hasTranscript() {
		c.learnSingle(a.Events, a.Usage.Output.Value, a.Bounded)
	}
}

// tokensPerEvent returns the mean tokens per event of the current target; 1 if it is unknown.
func (x *exchange) tokensPerEvent() float64 {
	if c := x.current.targetCounts(); c != nil {
		if bits := c.meanPerEvent.Load(); bits != 0 {
			return math.Float64frombits(bits)
		}
	}
	return 1
}

// impliedBound returns the token limit that the current target applies although the client set none; 0
// if there is none or it is unknown.
func (x *exchange) impliedBound() int {
	r := x.current.rank.replica
	if r == nil || x.namesMaxTokens {
		return 0
	}
	return x.endpoint.ImpliedBound(r.cfg.Kind)
}

// countKnown reports whether the number of tokens that the client has received is known, if it is
// needed.
func (x *exchange) countKnown() bool {
	if !x.countMatters && x.impliedBound() == 0 || x.answer.Tokens == 0 || x.answer.Exact {
		return true
	}
	c := x.current.targetCounts()
	return c != nil && c.eventsAreTokens()
}

// shouldRequestCounts reports whether to request the usage so far from the current target. A peer requests it from
// its engines itself; headerCounts requests that the peer does not hide it.
func (x *exchange) shouldRequestCounts(body *sharedBody) bool {
	r := x.current.rank.replica
	switch {
	case !x.hasTranscript() && x.requestedCounts == "":
		return false
	case r == nil:
		return x.current.peer != nil
	}
	return len(body.counts.With) > 0 && openai.SupportsUsageCounts(r.cfg.Kind) && !r.count.rejectsCounts.Load()
}

// refusesCounts reports whether a response is an engine's error about the request for the usage so
// far. It is not requested from that engine again.
func (x *exchange) refusesCounts(resp *http.Response) bool {
	if !x.usageSoFarRequested || x.current.rank.replica == nil || resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity {
		return false
	}
	const limit = 64 << 10 // of an error's text
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err == nil && bytes.Contains(text, []byte("continuous_usage_stats")) {
		x.current.rank.count.rejectsCounts.Store(true)
		resp.Body.Close()
		return true
	}
	resp.Body = &rereadBody{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body} // its Read returns err again
	return false
}

// rereadBody is the body of a response with the part that was already read.
type rereadBody struct {
	io.Reader
	io.Closer
}
