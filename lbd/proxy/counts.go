package proxy

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"sync/atomic"

	"skyserve/internal/service"
)

// How many tokens of an answer a client has matters when another replica goes on with
// it: for its bounds, and for the usage that the client is told. Events do not tell:
// engines put several tokens into one (speculative decoding, --stream-interval, a
// frontend that is slower than the engine). So engines that can are asked for the usage
// so far with each event, which is hidden from clients that did not ask for it. Where
// that is not to be had, events count as tokens only if the target was seen to send each
// token by itself.

// countsUsage says whether an engine of a kind tells the usage so far with each event
// when stream_options.continuous_usage_stats says so: vLLM since 0.5.4, SGLang since
// the end of 2025; older ones pass over it. Others may refuse what they do not know.
func countsUsage(kind service.EngineKind) bool {
	return kind == service.EngineVLLM || kind == service.EngineSGLang || kind == service.EngineSim
}

const keyCounts = `"continuous_usage_stats"`

// What askCounts writes.
var (
	countsMember = []byte(keyCounts + `:true,`)
	countsValue  = []byte("true")
)

// asksCounts says whether the client asks for the usage so far with each event.
func (c *call) asksCounts() bool {
	options := c.streamOptions.of(c.body)
	if kindOf(options) != '{' {
		return false
	}
	for _, name := range []string{`"include_usage"`, keyCounts} {
		if v, found := memberSpan(options, name); !found || kindOf(v.of(options)) != 't' {
			return false
		}
	}
	return true
}

// askCounts is the edit that asks for the usage so far with each event, of the body as
// edits leave it, which ask for the usage at the end; its text is empty where there are
// no options to put it in.
func (c *call) askCounts(edits []edit) edit {
	raw := c.streamOptions.of(c.body)
	switch kindOf(raw) {
	case 0:
		for _, e := range edits {
			if at := bytes.IndexByte(e.with, '{'); at >= 0 && e.from == e.to {
				at += e.from + growth(edits, e.from-1) + 1
				return edit{span{at, at}, countsMember}
			}
		}
	case 'n', '{':
		if v, found := memberSpan(raw, keyCounts); kindOf(raw) == '{' && found {
			v.from, v.to = v.from+c.streamOptions.from, v.to+c.streamOptions.from
			grown := growth(edits, v.from)
			return edit{span{v.from + grown, v.to + grown}, countsValue}
		}
		at := c.streamOptions.from + growth(edits, c.streamOptions.from) + 1
		return edit{span{at, at}, countsMember}
	}
	return edit{}
}

// growth is by how many bytes edits that end at or before a place move it.
func growth(edits []edit, at int) (n int) {
	for _, e := range edits {
		if e.to <= at {
			n += len(e.with) - (e.to - e.from)
		}
	}
	return n
}

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

// meanWeight is the weight of each stream in the mean, and mostPerEvent bounds what it
// may tell.
const (
	meanWeight   = 0.2
	mostPerEvent = 64
)

// learnMean learns how many tokens an event stands for from a stream that told its usage.
// Of two streams that end at the same instant one may not count.
func (t *tokenEvents) learnMean(events, tokens int) {
	ratio := min(max(float64(tokens)/float64(events), 1.0/mostPerEvent), mostPerEvent)
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
	if c == nil || x.seam != nil || !a.usage.output.Known || a.events == 0 {
		return
	}
	c.learnMean(a.events, a.usage.output.Value)
	if complete && x.listens() {
		c.observe(a.events, a.usage.output.Value, a.bounded)
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

// completionBound is how many tokens OpenAI's API gives a completion that sets no
// max_tokens; vLLM and SGLang keep to it.
const completionBound = 16

// impliedBound is the bound that the answer has at the target at hand though the client
// set none; 0 where there is none, or that is not known.
func (x *exchange) impliedBound() int {
	r := x.sent.rank.replica
	if x.endpoint.chat || r == nil || r.cfg.Kind != service.EngineVLLM && r.cfg.Kind != service.EngineSGLang || x.bounded {
		return 0
	}
	return completionBound
}

// countKnown says whether it is known how many tokens of the answer the client has, as
// far as that matters.
func (x *exchange) countKnown() bool {
	if !x.countMatters && x.impliedBound() == 0 || x.answer.tokens == 0 || x.answer.exact {
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
	case !x.listens() && x.wantsCounts == "":
		return false
	case r == nil:
		return x.sent.peer != nil
	}
	return len(body.counts.with) > 0 && countsUsage(r.cfg.Kind) && !r.count.refuses.Load()
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

// uncounted appends an event to dst without the part of its data that tells the usage so
// far.
func uncounted(dst, event, data []byte, counts span) []byte {
	at, inside := offsetOf(event, data)
	if !inside { // its data stands in several lines
		return appendEvent(dst, append(append([]byte(nil), data[:counts.from]...), data[counts.to:]...))
	}
	dst = append(dst, event[:at+counts.from]...)
	return append(dst, event[at+counts.to:]...)
}

// offsetOf is where a part of some bytes begins in them.
func offsetOf(whole, part []byte) (at int, inside bool) {
	at = cap(whole) - cap(part)
	if at < 0 || at+len(part) > len(whole) || len(part) == 0 || &whole[at] != &part[0] {
		return 0, false
	}
	return at, true
}

// memberAt is the span of an object's member with the comma that parts it from the
// others; the zero span where key and value are not parts of the object.
func memberAt(object, key, value []byte) span {
	from, ok := offsetOf(object, key)
	to, ok2 := offsetOf(object, value)
	if !ok || !ok2 {
		return span{}
	}
	to += len(value)
	if before := len(bytes.TrimRight(object[:from], " \t\r\n")); before > 0 && object[before-1] == ',' {
		return span{before - 1, to}
	}
	if rest := bytes.TrimLeft(object[to:], " \t\r\n"); len(rest) > 0 && rest[0] == ',' {
		to = len(object) - len(rest) + 1
	}
	return span{from, to}
}
