package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/core"
)

// Buckets of the latency histograms, in seconds: a first token takes from a
// cached prompt on an idle engine to a minute in a queue, a gap between tokens
// from a small model's step to a preemption.
var (
	ttftBuckets = []float64{.01, .025, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60}
	itlBuckets  = []float64{.002, .005, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1, 5}
)

// metrics is what is counted as it happens; gauges are read from core when
// they are asked for. Labels are bounded: models that are known, tiers, HTTP
// statuses, core's own words, replicas that are attached.
type metrics struct {
	requests    *prometheus.CounterVec // model, tier, status
	ttft        *prometheus.HistogramVec
	itl         prometheus.Histogram
	decisions   *prometheus.CounterVec // kind, reason
	retries     prometheus.Counter
	continued   *prometheus.CounterVec // outcome
	forwarded   *prometheus.CounterVec // direction
	matchBytes  prometheus.Counter
	promptBytes prometheus.Counter
	prompt      prometheus.Counter
	cached      prometheus.Counter
	output      prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		requests: counters("skyserve_requests_total", "Requests of this balancer's clients by how they ended (499: the client left).", "model", "tier", "status"),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skyserve_ttft_seconds", Help: "Time from arrival to the first token.", Buckets: ttftBuckets,
		}, []string{"model", "tier"}),
		itl: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skyserve_itl_seconds", Help: "Time between two tokens of a stream.", Buckets: itlBuckets,
		}),
		decisions:   counters("skyserve_decisions_total", "Decisions by kind and reason.", "kind", "reason"),
		retries:     counter("skyserve_retries_total", "Tries after the first of a request."),
		continued:   counters("skyserve_continuations_total", "Streams whose replica failed in the middle, by how they ended: whole, broken, cancelled, or refused (not to be continued).", "outcome"),
		forwarded:   counters("skyserve_forwarded_total", "Requests sent to peers (out) and taken from them (in).", "direction"),
		matchBytes:  counter("skyserve_prefix_match_bytes_total", "Prompt bytes thought to be cached where a request was sent."),
		promptBytes: counter("skyserve_prompt_bytes_total", "Prompt bytes of the requests sent."),
		prompt:      counter("skyserve_prompt_tokens_total", "Prompt tokens as the engines counted them."),
		cached:      counter("skyserve_cached_tokens_total", "Prompt tokens that engines took from their caches."),
		output:      counter("skyserve_output_tokens_total", "Tokens generated."),
	}
}

// decided counts an action.
func (m *metrics) decided(a *core.Action) {
	m.decisions.WithLabelValues(string(a.Kind), a.Reason).Inc()
	d := a.Decision
	if d == nil {
		return
	}
	if d.Try > 0 {
		m.retries.Inc()
	}
	if a.Kind == core.ActionForward {
		m.forwarded.WithLabelValues("out").Inc()
	}
	m.matchBytes.Add(float64(d.MatchBytes))
	m.promptBytes.Add(float64(d.PromptBytes))
}

// Collect registers everything that this runtime counts.
func (r *Runtime) Collect(reg *prometheus.Registry) {
	m := r.metrics
	reg.MustRegister(m.requests, m.ttft, m.itl, m.decisions, m.retries, m.continued, m.forwarded, m.matchBytes, m.promptBytes, m.prompt, m.cached, m.output)
	reg.MustRegister(gauges{r}, keyMetrics{r.ledger})
}

// gauges reads core's state when a scrape asks for it.
type gauges struct{ r *Runtime }

var (
	descQueue       = desc("skyserve_queue_depth", "Requests held by the balancer.")
	descOldest      = desc("skyserve_queue_oldest_seconds", "Time that the oldest queued request has waited.")
	descOutstanding = desc("skyserve_replica_outstanding", "Requests sent to a replica and not ended.", "replica")
	descReady       = desc("skyserve_replica_ready", "1 when the replica answers.", "replica")
	descTokens      = desc("skyserve_replica_tokens_total", "Tokens that a replica generated.", "replica")
	descPeer        = desc("skyserve_peer_outstanding", "Requests forwarded to a peer and not ended.", "peer")
	descPeerLive    = desc("skyserve_peer_live", "1 when the peer answers.", "peer")
	descEnded       = desc("skyserve_ended_total", "Requests by how they left the balancer, forwarded ones included.", "how")
	descTree        = desc("skyserve_prefix_tree_bytes", "Memory of the prefix trees.")
	descRecord      = desc("skyserve_record_dropped_total", "Steps that the record misses.")
	descEvents      = desc("skyserve_events_dropped_total", "Decisions that slow subscribers missed.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe sends every gauge's description.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descQueue, descOldest, descOutstanding, descReady, descTokens, descPeer, descPeerLive, descEnded, descTree, descRecord, descEvents} {
		ch <- d
	}
}

// Collect sends every gauge's present value.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	v := g.r.View()
	send(descQueue, prometheus.GaugeValue, float64(v.Counts.Queued))
	send(descOldest, prometheus.GaugeValue, v.OldestWait.Seconds())
	send(descTree, prometheus.GaugeValue, float64(v.TreeBytes))
	send(descRecord, prometheus.CounterValue, float64(g.r.record.lost()))
	send(descEvents, prometheus.CounterValue, float64(g.r.subs.dropped.Load()))
	for _, rep := range v.Replicas {
		send(descOutstanding, prometheus.GaugeValue, float64(rep.Outstanding), rep.ID)
		send(descReady, prometheus.GaugeValue, oneIf(rep.Ready), rep.ID)
		send(descTokens, prometheus.CounterValue, float64(rep.Tokens), rep.ID)
	}
	for _, p := range v.Peers {
		send(descPeer, prometheus.GaugeValue, float64(p.Outstanding), p.ID)
		send(descPeerLive, prometheus.GaugeValue, oneIf(p.Live), p.ID)
	}
	c := v.Counts
	for _, e := range []struct {
		how string
		n   int64
	}{{"finished", c.Finished}, {"rejected", c.Rejected}, {"cancelled", c.Cancelled}, {"bounced", c.Bounced}} {
		send(descEnded, prometheus.CounterValue, float64(e.n), e.how)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
