package proxy

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/telemetry"
)

// maxLabelled is how many API keys have series of their own; with 10 models and
// 4 series each that is 8,000. The others are added up as labelOther.
const (
	maxLabelled = 200
	labelOther  = "other"
)

var (
	descKeyRequests = desc("skyserve_key_requests_total", "Requests of an API key that were served; keys after the first 200 are added up as other.", "key", "model")
	descKeyTokens   = desc("skyserve_key_tokens_total", "Tokens of an API key by kind: prompt, cached (a part of prompt) and output.", "key", "model", "kind")
	descKeyDenied   = desc("skyserve_key_denied_total", "Requests of an API key answered 429 because of its limits, by limit.", "key", "limit")
	descKeyInFlight = desc("skyserve_key_in_flight", "Requests of an API key in flight.", "key")
	descKeyReserved = desc("skyserve_key_reserved_tokens", "Tokens that requests of an API key in flight may still use.", "key")
)

// keyMetrics reads the accounts when a scrape asks for them.
type keyMetrics struct{ ledger *ledger }

// Describe sends the description of every series.
func (keyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descKeyRequests, descKeyTokens, descKeyDenied, descKeyInFlight, descKeyReserved} {
		ch <- d
	}
}

// labelled is what one label of the metrics adds up.
type labelled struct {
	used               map[string]telemetry.Usage // by model
	denied             map[string]int64
	inFlight, reserved int64
}

// Collect sends the present value of every series.
func (m keyMetrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, float64(v), labels...)
	}
	for key, l := range m.gather() {
		for model, u := range l.used {
			send(descKeyRequests, prometheus.CounterValue, u.Requests, key, model)
			send(descKeyTokens, prometheus.CounterValue, u.PromptTokens, key, model, "prompt")
			send(descKeyTokens, prometheus.CounterValue, u.CachedTokens, key, model, "cached")
			send(descKeyTokens, prometheus.CounterValue, u.OutputTokens, key, model, "output")
		}
		for _, limit := range slices.Sorted(maps.Keys(l.denied)) {
			send(descKeyDenied, prometheus.CounterValue, l.denied[limit], key, limit)
		}
		send(descKeyInFlight, prometheus.GaugeValue, l.inFlight, key)
		send(descKeyReserved, prometheus.GaugeValue, l.reserved, key)
	}
}

// gather adds the accounts that were used up by label.
func (m keyMetrics) gather() map[string]*labelled {
	sums := map[string]*labelled{}
	for _, a := range m.ledger.list() {
		a.mu.Lock()
		if a.label != "" {
			if sums[a.label] == nil {
				sums[a.label] = &labelled{used: map[string]telemetry.Usage{}, denied: map[string]int64{}}
			}
			sums[a.label].add(a)
		}
		a.mu.Unlock()
	}
	return sums
}

// add adds an account, whose lock is held.
func (l *labelled) add(a *account) {
	for model, u := range a.used {
		l.used[model] = l.used[model].Plus(*u)
	}
	for limit, n := range a.denied {
		l.denied[limit] += n
	}
	l.inFlight += int64(a.inFlight)
	l.reserved += a.reserved
}
