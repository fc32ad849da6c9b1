package proxy

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/quota"
)

var (
	descKeyRequests = desc("skyserve_key_requests_total", "Requests of an API key that were served; keys after the first 200 are aggregated as other.", "key", "model")
	descKeyTokens   = desc("skyserve_key_tokens_total", "Tokens of an API key by kind: prompt, cached (a part of prompt) and output.", "key", "model", "kind")
	descKeyDenied   = desc("skyserve_key_denied_total", "Requests of an API key rejected with 429, by limit.", "key", "limit")
	descKeyInFlight = desc("skyserve_key_in_flight", "Requests of an API key in flight.", "key")
	descKeyCost     = desc("skyserve_key_cost_usd_total", "Cost of an API key's requests in USD, by the prices of the models; requests to a model without a price are not included.", "key", "model")
	descKeyReserved = desc("skyserve_key_reserved_tokens", "Tokens that requests of an API key in flight may still use.", "key")
)

// keyMetrics reads the accounts of API keys for each scrape.
type keyMetrics struct{ ledger *quota.Ledger }

// Describe sends the description of every series.
func (keyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descKeyRequests, descKeyTokens, descKeyDenied, descKeyInFlight, descKeyReserved, descKeyCost} {
		ch <- d
	}
}

// Collect sends the current value of every series.
func (m keyMetrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, float64(v), labels...)
	}
	for key, l := range m.ledger.Totals() {
		for model, u := range l.Used {
			send(descKeyRequests, prometheus.CounterValue, u.Requests, key, model)
			send(descKeyTokens, prometheus.CounterValue, u.PromptTokens, key, model, "prompt")
			send(descKeyTokens, prometheus.CounterValue, u.CachedTokens, key, model, "cached")
			send(descKeyTokens, prometheus.CounterValue, u.OutputTokens, key, model, "output")
			if u.PricedRequests > 0 {
				ch <- prometheus.MustNewConstMetric(descKeyCost, prometheus.CounterValue, u.Cost.USD(), key, model)
			}
		}
		for _, limit := range slices.Sorted(maps.Keys(l.Denied)) {
			send(descKeyDenied, prometheus.CounterValue, l.Denied[limit], key, limit)
		}
		send(descKeyInFlight, prometheus.GaugeValue, l.InFlight, key)
		send(descKeyReserved, prometheus.GaugeValue, l.Reserved, key)
	}
}
