package proxy

import (
	"net/http"
	"sync/atomic"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/lbd/record"
)

// TrafficStats is this balancer's recent traffic. Pointers are nil if the figure is unknown. Requests are
// counted at the balancer that received them from their clients, so forwarded ones are counted at their
// origin. Replicas count all requests that they served.
type TrafficStats struct {
	// RequestsPerSecond and OutputTokensPerSecond cover the last 10 s.
	RequestsPerSecond     *float64
	OutputTokensPerSecond *float64
	// PrefixHitRate is the ratio of cached to prompt tokens, as reported by the engines, of the
	// requests that finished in the last 60 s.
	PrefixHitRate *float64
	// TTFT is in milliseconds since the arrival at this balancer, over the last 60 s.
	TTFT *telemetry.Percentiles
	// Outcomes counts the requests of the balancer's clients since it started.
	Outcomes telemetry.Outcomes
	// Models is the traffic of models with requests in the last minute, Keys that of API keys and users, sorted.
	// TrafficSeconds is the time that both cover.
	TrafficSeconds float64
	Models         map[string]telemetry.Traffic
	Keys           []telemetry.KeyTraffic
	// ByReplica contains the traffic by replica id.
	ByReplica map[string]ReplicaTrafficStats
}

// ReplicaTrafficStats is one replica's recent traffic.
type ReplicaTrafficStats struct {
	Continuation          ContinuationState
	OutputTokensPerSecond *float64
	PrefixHitRate         *float64
	// Sent counts the attempts since the replica was attached, Failed those that failed. Attachment is another
	// number whenever both begin at 0 again.
	Sent, Failed int64
	Attachment   uint64
}

// stats counts the traffic of this balancer's own clients.
type stats struct {
	arrivals rateWindow
	tokens   atomic.Int64 // tokens streamed since the last tick
	output   rateWindow
	hits     hitWindow
	ttft     latencyWindow
	// served, limited, failed and retries are those of telemetry.Outcomes.
	served, limited, failed, retries atomic.Int64
	models                           trafficTable[string]
	keys                             trafficTable[clientKey]
}

// countOutcome counts requests of clients by their response.
func (s *stats) countOutcome(o telemetry.Outcomes) {
	s.served.Add(o.Served)
	s.limited.Add(o.Limited)
	s.failed.Add(o.Failed)
	s.retries.Add(o.Retries)
}

// outcomeOf returns the count of one request of a client by its response. Errors of the client count as served:
// the service answered them. A request that its client cancelled is not counted. Neither are the retries of one with
// 429: retries are compared with the requests that were served or failed.
func outcomeOf(status int, outcome string, retries int64) telemetry.Outcomes {
	switch {
	case outcome == record.StateCancelled:
		return telemetry.Outcomes{}
	case status == http.StatusTooManyRequests:
		return telemetry.Outcomes{Limited: 1}
	case status >= http.StatusInternalServerError || outcome == record.StateFailed:
		return telemetry.Outcomes{Failed: 1, Retries: retries}
	}
	return telemetry.Outcomes{Served: 1, Retries: retries}
}

// collectTokens adds the tokens since the last tick to the window.
func (s *stats) collectTokens(at time.Duration) {
	if n := s.tokens.Swap(0); n > 0 {
		s.output.addCount(at, n)
	}
}

// TrafficStats returns the recent traffic.
func (r *Runtime) TrafficStats() TrafficStats {
	now := r.Elapsed()
	s := TrafficStats{
		RequestsPerSecond:     r.stats.arrivals.perSecond(now),
		OutputTokensPerSecond: r.stats.output.perSecond(now),
		PrefixHitRate:         r.stats.hits.rate(now),
		TTFT:                  r.stats.ttft.percentiles(now),
		Outcomes:              telemetry.Outcomes{Served: r.stats.served.Load(), Limited: r.stats.limited.Load(), Failed: r.stats.failed.Load(), Retries: r.stats.retries.Load()},
		TrafficSeconds:        trafficSeconds(now),
		Models:                r.stats.models.list(now),
		Keys:                  keyTraffic(r.stats.keys.list(now)),
		ByReplica:             map[string]ReplicaTrafficStats{},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, rep := range r.replicas {
		s.ByReplica[id] = ReplicaTrafficStats{
			OutputTokensPerSecond: rep.count.rate.perSecond(now),
			Continuation:          rep.continuation(),
			PrefixHitRate:         rep.count.hits.rate(now),
			Sent:                  rep.count.sent.Load(),
			Failed:                rep.count.failures(),
			Attachment:            rep.count.attachment,
		}
	}
	return s
}
