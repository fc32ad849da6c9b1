package load

import (
	"time"

	"skyserve/internal/telemetry"
)

// Figures are what a load measured, over all regions or in one. Percentile sets
// are over answered requests, in milliseconds; a set or a rate that nothing was
// measured for is nil (JSON null).
type Figures struct {
	// Requests = OK + Rejected (429, 503) + Failed + Cancelled (still in flight
	// when the drain ended).
	Requests  int `json:"requests"`
	OK        int `json:"ok"`
	Rejected  int `json:"rejected"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
	// DurationSeconds is what the rates are over: the time that load was on,
	// without the drain.
	DurationSeconds float64 `json:"duration_s"`
	// RequestsPerSecond counts requests answered in that time,
	// OutputTokensPerSecond the tokens that arrived in it.
	RequestsPerSecond     float64 `json:"requests_per_second"`
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	// TTFT is until the first event with content.
	TTFT *telemetry.Percentiles `json:"ttft_ms"`
	// TPOT is (E2E-TTFT)/(output tokens-1) of a request.
	TPOT *telemetry.Percentiles `json:"tpot_ms"`
	// ITL is the time between two events with content.
	ITL *telemetry.Percentiles `json:"itl_ms"`
	// E2E is until [DONE].
	E2E *telemetry.Percentiles `json:"e2e_ms"`
	// PrefixHitRate is cached over prompt tokens, of the answers whose usage
	// says how many were cached; nil when none does.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// Token counts are of answered requests, as their usage says; output tokens
	// fall back to events with content.
	PromptTokens int  `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens int  `json:"output_tokens"`
	// Forwarded counts responses from another region than the client's.
	Forwarded int `json:"forwarded"`
	// ByStatus counts requests by HTTP status; "none" had no response.
	ByStatus map[string]int `json:"by_status"`
	// Failures counts failed requests by reason: connect, timeout, status,
	// stream_broken (no [DONE]), stream_error (an error event).
	Failures map[string]int `json:"failures"`
}

// Report is what came of a load.
type Report struct {
	Figures
	ByRegion map[string]Figures `json:"by_region"`
	// FirstError is the first thing that went wrong, empty when nothing did.
	FirstError string `json:"first_error,omitempty"`
	// Interrupted tells that the load was ended before its time.
	Interrupted bool `json:"interrupted"`

	// Of a replay only: the rows with a prompt longer than allowed, the rows
	// that had to wait because too many requests were in flight, and how late
	// the latest row was issued.
	RowsLeftOut *int     `json:"rows_left_out,omitempty"`
	Delayed     *int     `json:"delayed,omitempty"`
	MaxLag      *float64 `json:"max_lag_ms,omitempty"`
}

// report makes the report; window is what rates are over.
func (r *recorder) report(window time.Duration, interrupted bool) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{ByRegion: map[string]Figures{}, FirstError: r.firstError, Interrupted: interrupted}
	all := newTally()
	for region, t := range r.regions { // counts add up to the same in any order
		out.ByRegion[region] = t.figures(window)
		all.merge(t)
	}
	out.Figures = all.figures(window)
	return out
}

func (t *tally) figures(window time.Duration) Figures {
	f := Figures{
		Requests: t.requests, OK: t.ok, Rejected: t.rejected, Failed: t.failed, Cancelled: t.cancelled,
		DurationSeconds:   window.Seconds(),
		RequestsPerSecond: float64(t.okInWindow) / window.Seconds(),
		// Events are counted as they arrive, tokens only when a request is done:
		// what arrived in the window is its events times the tokens of one.
		OutputTokensPerSecond: float64(t.inWindow) * t.tokensPerEvent() / window.Seconds(),
		TTFT:                  t.ttft.percentiles(), TPOT: t.tpot.percentiles(),
		ITL: t.itl.percentiles(), E2E: t.e2e.percentiles(),
		PromptTokens: t.prompt, OutputTokens: t.output, Forwarded: t.forwarded,
		ByStatus: t.byStatus, Failures: t.failures,
	}
	if t.cachedKnown {
		f.CachedTokens = &t.cached
		if t.cachedPrompt > 0 {
			rate := float64(t.cached) / float64(t.cachedPrompt)
			f.PrefixHitRate = &rate
		}
	}
	return f
}

// tokensPerEvent is how many tokens an event with content carries.
func (t *tally) tokensPerEvent() float64 {
	if t.okEvents == 0 {
		return 1
	}
	return float64(t.output) / float64(t.okEvents)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
