package probe

import (
	"time"

	"skyserve/lbd/policy"
)

// The window of the hit rate: as long as that of the balancer's own hit rate (lbd/proxy), with steps
// that limit the number of samples.
const (
	hitSpan = time.Minute
	hitStep = time.Second
)

// hitWindow converts an engine's cumulative counters to a recent rate.
type hitWindow struct {
	samples    []hitSample // oldest first, one step apart
	last       hitSample
	engineRate policy.Maybe[float64] // the engine's own hit rate, at most hitSpan old
	ratedAt    time.Time
}

type hitSample struct {
	at            time.Time
	hits, queries float64
}

// addFigures adds a page's figures to the window.
func (h *hitWindow) addFigures(now time.Time, f EngineFigures) {
	if f.HitRate.Known || now.Sub(h.ratedAt) > hitSpan {
		h.engineRate, h.ratedAt = f.HitRate, now
	}
	if !f.HitTokens.Known || !f.QueryTokens.Known {
		h.samples = h.samples[:0]
		return
	}
	s := hitSample{at: now, hits: f.HitTokens.Value, queries: f.QueryTokens.Value}
	if s.hits < h.last.hits || s.queries < h.last.queries {
		h.samples = h.samples[:0] // the engine was restarted
	}
	h.last = s
	n := len(h.samples)
	if n > 0 && now.Sub(h.samples[n-1].at) < hitStep {
		return
	}
	drop := 0
	for drop < n && now.Sub(h.samples[drop].at) > hitSpan {
		drop++
	}
	h.samples = append(h.samples[:0], h.samples[drop:]...)
	h.samples = append(h.samples, s)
}

// rate returns the share of prompt tokens in the window that came from the cache, or the engine's own
// rate if it has no counters; unknown if there were no prompts.
func (h *hitWindow) rate() policy.Maybe[float64] {
	if len(h.samples) == 0 {
		return h.engineRate
	}
	queries := h.last.queries - h.samples[0].queries
	if queries <= 0 {
		return policy.Maybe[float64]{}
	}
	return policy.Known(min(max((h.last.hits-h.samples[0].hits)/queries, 0), 1))
}
