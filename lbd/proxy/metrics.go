package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// Buckets of the histograms, in seconds. First token: from a cached prompt on an idle engine to a
// minute in a queue. Gap between tokens: from a small model's step to a preemption. Complete response:
// from one token to a long response that was queued. Decision: from one candidate to a pool of a
// thousand.
var (
	ttftBuckets  = []float64{.01, .025, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60}
	itlBuckets   = []float64{.002, .005, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1, 5}
	e2eBuckets   = []float64{.05, .1, .25, .5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600}
	queueBuckets = []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}
	stepBuckets  = []float64{.000005, .00001, .00002, .00005, .0001, .0002, .0005, .001, .002, .005, .01, .05}
)

// Bounds of the native histograms, which are sent in addition to the buckets above to scrapers that
// request them.
const (
	nativeFactor  = 1.1 // the error of a quantile is at most 5 %
	nativeBuckets = 160 // from a millisecond to 17 minutes: the actual factor is 2^(1/8)
	nativeReset   = time.Hour
)

// metrics counts events as they happen; gauges are read from core at each scrape. The number of label
// values is bounded: known models, tiers, HTTP statuses, core's reasons.
type metrics struct {
	requests    *prometheus.CounterVec   // model, tier, outcome, status
	ttft        *prometheus.HistogramVec // model, tier
	e2e         *prometheus.HistogramVec // model, tier
	queued      *prometheus.HistogramVec // model, tier
	itl         *prometheus.HistogramVec // model
	step        prometheus.Histogram
	decisions   *prometheus.CounterVec // kind, policy, reason
	retries     prometheus.Counter
	fallbacks   *prometheus.CounterVec // model, fallback, reason
	skipped     *prometheus.CounterVec // fallback
	providerUSD *prometheus.CounterVec // provider
	continued   *prometheus.CounterVec // outcome
	forwarded   *prometheus.CounterVec // direction
	matchBytes  prometheus.Counter
	promptBytes prometheus.Counter
	prompt      *prometheus.CounterVec // model, tier
	cached      *prometheus.CounterVec // model, tier
	output      *prometheus.CounterVec // model, tier
	cost        *prometheus.CounterVec // model, tier
}

func newMetrics() *metrics {
	return &metrics{
		requests:    counters("skyserve_requests_total", "Requests of this balancer's clients by outcome: finished, rejected, cancelled (status 499 if the client disconnected), failed (after a part of the response was sent), or refused (before a decision).", "model", "tier", "outcome", "status"),
		ttft:        histograms("skyserve_ttft_seconds", "Time from arrival to the first token of a stream.", ttftBuckets, "model", "tier"),
		e2e:         histograms("skyserve_e2e_seconds", "Time from arrival to the end of requests that were served.", e2eBuckets, "model", "tier"),
		queued:      histograms("skyserve_queue_seconds", "Time that requests were queued before they were first sent; a forwarded request is counted at each balancer.", queueBuckets, "model", "tier"),
		itl:         prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "skyserve_itl_seconds", Help: "Time between two tokens of a stream.", Buckets: itlBuckets}, []string{"model"}),
		step:        prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skyserve_step_seconds", Help: "Time to decide on one event.", Buckets: stepBuckets}),
		decisions:   counters("skyserve_decisions_total", "Decisions by kind, policy and reason.", "kind", "policy", "reason"),
		fallbacks:   counters("skyserve_fallbacks_total", "Requests that went to a fallback because their model could not serve them, by model, fallback and the reason why the model rejected them.", "model", "fallback", "reason"),
		skipped:     counters("skyserve_fallbacks_skipped_total", "Requests that did not go to a provider because of its limits.", "fallback"),
		providerUSD: counters("skyserve_provider_usd_total", "Cost of requests at a provider in USD, by the configured prices.", "provider"),
		retries:     counter("skyserve_retries_total", "Attempts after the first of a request."),
		continued:   counters("skyserve_continuations_total", "Streams whose replica failed midway, by outcome: whole (completed), broken, cancelled, refused (cannot be continued), or unproven (no engine was proven to continue it).", "outcome"),
		forwarded:   counters("skyserve_forwarded_total", "Requests sent to peers (out) and accepted from them (in).", "direction"),
		matchBytes:  counter("skyserve_prefix_match_bytes_total", "Prompt bytes expected to be cached at the target of a request."),
		promptBytes: counter("skyserve_prompt_bytes_total", "Prompt bytes of the requests sent."),
		prompt:      counters("skyserve_prompt_tokens_total", "Prompt tokens of requests that engines served, cached ones included; estimated if the engine does not report them.", "model", "tier"),
		cached:      counters("skyserve_cached_tokens_total", "Prompt tokens that engines read from their caches.", "model", "tier"),
		output:      counters("skyserve_output_tokens_total", "Tokens generated.", "model", "tier"),
		cost:        counters("skyserve_cost_usd_total", "Cost of clients' requests in USD, by the prices of the models; requests to a model without a price are not included.", "model", "tier"),
	}
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// histograms returns a histogram of an event that happens at most a few times per request: a native
// histogram allocates memory for every value outside its first buckets.
func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeReset,
	}, labels)
}

// countDecision counts an action of a policy for a request.
func (m *metrics) countDecision(a *core.Action, policy string, e *record.RequestRecord) {
	m.decisions.WithLabelValues(string(a.Kind), policy, a.Reason).Inc()
	d := a.Decision
	if d == nil {
		return
	}
	if d.Attempt > 0 {
		m.retries.Inc()
	} else {
		m.queued.WithLabelValues(e.Model, string(e.Tier)).Observe(d.Waited.Seconds())
	}
	if a.Kind == core.ActionForward {
		m.forwarded.WithLabelValues("out").Inc()
	}
	m.matchBytes.Add(float64(d.MatchBytes))
	m.promptBytes.Add(float64(d.PromptBytes))
}

// RegisterMetrics registers all metrics of this runtime.
func (r *Runtime) RegisterMetrics(reg *prometheus.Registry) {
	m := r.metrics
	reg.MustRegister(
		m.requests, m.ttft, m.e2e, m.queued, m.itl, m.step, m.decisions, m.retries, m.fallbacks, m.skipped, m.providerUSD, m.continued, m.forwarded,
		m.matchBytes, m.promptBytes, m.prompt, m.cached, m.output, m.cost,
	)
	reg.MustRegister(gauges{r}, keyMetrics{r.ledger})
}

// countEnded counts a client's request that has ended.
func (x *exchange) countEnded(status int, outcome string) {
	if x.from != "" {
		return // it is counted at the balancer to which its client is connected
	}
	counted := outcomeOf(status, outcome, x.inFlight.retries)
	x.rt.stats.countOutcome(counted)
	x.countTraffic(counted, outcome)
	m := x.rt.metrics
	m.requests.WithLabelValues(x.model, string(x.tier), outcome, statusLabel(status)).Inc()
	if outcome == record.StateFinished {
		m.e2e.WithLabelValues(x.model, string(x.tier)).Observe(time.Since(x.startedAt).Seconds())
	}
}
