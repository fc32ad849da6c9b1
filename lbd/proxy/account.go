package proxy

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// statusLabel returns an HTTP status as a metric label.
func statusLabel(status int) string { return strconv.Itoa(status) }

// recordTokens records that n tokens were sent to the client at time now.
func (x *exchange) recordTokens(now time.Time, n int) {
	r := x.rt
	if !x.sentToken {
		x.sentToken = true
		r.stepFor(&x.inFlight, core.Event{Kind: core.EventFirstToken}, x.recordFirstToken(now))
	}
	if x.firstTokenAt.IsZero() {
		x.firstTokenAt = now
		if x.from == "" {
			ttft := now.Sub(x.startedAt)
			r.stats.ttft.addLatency(r.Elapsed(), ttft)
			x.itl = r.metrics.itl.WithLabelValues(x.model)
			r.metrics.ttft.WithLabelValues(x.model, string(x.tier)).Observe(ttft.Seconds())
		}
	} else if x.itl != nil {
		x.itl.Observe(now.Sub(x.latestTokenAt).Seconds())
	}
	x.latestTokenAt = now
	x.countStreamed(n)
}

// recordFirstToken returns an edit of the request record that stores the time of the first token; nil when an
// earlier target sent one.
func (x *exchange) recordFirstToken(now time.Time) func(*record.RequestRecord) {
	if !x.firstTokenAt.IsZero() {
		return nil
	}
	ttft := millis(now.Sub(x.startedAt))
	return func(d *record.RequestRecord) { d.TTFTMillis = &ttft }
}

// countStreamed counts n tokens for the replica that generated them, unless it is a peer's, and for this
// balancer's clients if the request is from one of them.
func (x *exchange) countStreamed(n int) {
	if x.servedBy.replica != nil {
		x.servedBy.tokens().Add(int64(n))
	}
	if x.from == "" {
		x.rt.stats.tokens.Add(int64(n))
	}
}

// finalize completes the accounting of a request that has ended in core.
func (x *exchange) finalize(status int, state string) {
	used := x.computeUsage(status, state)
	x.used = used
	x.countTokens(used)
	x.reservation.Settle(x.model, used, x.rt.Elapsed())
	e2e := millis(time.Since(x.startedAt))
	x.rt.endInFlight(&x.inFlight, func(d *record.RequestRecord) {
		d.State, d.Status, d.E2EMillis = state, status, &e2e
		u := &x.answer.Usage
		d.PromptTokens, d.CachedTokens, d.OutputTokens = u.Prompt.Ptr(), u.Cached.Ptr(), u.Output.Ptr()
	})
	x.reportEnd(status, state)
}

// countTokens adds the tokens of a request to points and metrics. Points (telemetry.Point: the traffic by minute
// that forecasts use) contain the tokens of the client's request: the engine's counts if it reported any,
// otherwise the estimate and the tokens in the stream.
// Metrics contain the tokens of requests that engines served, cached ones included.
func (x *exchange) countTokens(used telemetry.Usage) {
	r, u := x.rt, &x.answer.Usage
	output := x.outputTokens()
	x.countStreamed(x.unstreamedTokens())
	prompt, cached := x.promptUsed()
	if u.Prompt.Known && u.Cached.Known && x.servedBy.replica != nil {
		c := x.servedBy.count
		c.hits.addTokens(r.Elapsed(), prompt, cached)
		c.prompt.Add(int64(prompt))
		c.cached.Add(int64(cached))
		c.countMismatch(x.current.decision, prompt, cached)
	}
	if x.from != "" {
		return
	}
	if u.Prompt.Known && u.Cached.Known {
		r.stats.hits.addTokens(r.Elapsed(), prompt, cached)
	}
	r.points.addTally(x.model, x.tier, tally{prompt: int64(prompt - x.countedPrompt), cached: int64(cached), output: int64(output)})
	for _, c := range []struct {
		of     *prometheus.CounterVec
		tokens int64
	}{{r.metrics.prompt, used.PromptTokens}, {r.metrics.cached, used.CachedTokens}, {r.metrics.output, used.OutputTokens}} {
		c.of.WithLabelValues(x.model, string(x.tier)).Add(float64(c.tokens))
	}
	if used.PricedRequests > 0 {
		cost := used.Cost // a copy, because &used.Cost would allocate memory for every request
		x.cost = &cost
		r.metrics.cost.WithLabelValues(x.model, string(x.tier)).Add(used.Cost.USD())
	}
}

// countMismatch counts the prompt tokens that a decision expected in the replica's cache and the engine computed,
// or the other way round.
func (c *replicaCount) countMismatch(d *core.Decision, prompt, cached int) {
	if d == nil || d.PromptBytes == 0 {
		return
	}
	expected := int(math.Round(float64(d.MatchBytes) / float64(d.PromptBytes) * float64(prompt)))
	c.notCached.Add(int64(max(0, expected-cached)))
	c.notExpected.Add(int64(max(0, cached-expected)))
}

// promptUsed returns the number of tokens of the prompt, as reported by the engine or otherwise
// estimated, and the number of them that came from the engine's cache. A prompt that is only tokenized
// does not count: the model does not process it.
func (x *exchange) promptUsed() (prompt, cached int) {
	u := &x.answer.Usage
	if !x.endpoint.EstimatesTokens() && !u.Prompt.Known {
		return 0, 0
	}
	prompt = u.Prompt.Or(x.promptTokens)
	return prompt, min(u.Cached.Or(0), prompt)
}
