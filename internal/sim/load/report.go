package load

import (
	"encoding/json"
	"time"

	"skyserve/internal/telemetry"
)

// ClientFigures are the measurements of a load, over all regions or in one. Percentiles cover
// completed requests, in milliseconds; a set or rate without measurements is nil (JSON
// null).
type ClientFigures struct {
	// Requests = OK + Rejected (429, 503) + Failed + Cancelled (still in flight
	// when the drain ended).
	Requests  int `json:"requests"`
	OK        int `json:"ok"`
	Rejected  int `json:"rejected"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
	// DurationSeconds is the time that rates cover: the duration of the load without the drain or, of a
	// completed trace, with it.
	DurationSeconds float64 `json:"duration_s"`
	// RequestsPerSecond counts requests completed in that time, OutputTokensPerSecond the
	// tokens received in it.
	RequestsPerSecond     float64 `json:"requests_per_second"`
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	// TTFT is the time to the first event with content.
	TTFT *telemetry.Percentiles `json:"ttft_ms"`
	// TPOT is (E2E-TTFT)/(output tokens-1) of a request.
	TPOT *telemetry.Percentiles `json:"tpot_ms"`
	// ITL is the time between two events with content.
	ITL *telemetry.Percentiles `json:"itl_ms"`
	// E2E is the time to [DONE].
	E2E *telemetry.Percentiles `json:"e2e_ms"`
	// PrefixHitRate is cached over prompt tokens, of responses whose usage contains cached tokens; nil
	// if none does.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// Token counts cover completed requests, from their usage; without it, output tokens
	// count events with content.
	PromptTokens int  `json:"prompt_tokens"`
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens int  `json:"output_tokens"`
	// Forwarded counts responses from a region other than the client's; nil if the target has no region.
	Forwarded *int `json:"forwarded"`
	// ByStatus counts requests by HTTP status; "none" means no response.
	ByStatus map[string]int `json:"by_status"`
	// Failures counts failed requests by reason: connect, timeout, status,
	// stream_broken (no [DONE]), stream_error (an error event).
	Failures map[string]int `json:"failures"`
}

// Report is the result of a load.
type Report struct {
	ClientFigures
	ByRegion map[string]ClientFigures `json:"by_region"`
	// FirstError is the first error, empty if there was none.
	FirstError string `json:"first_error,omitempty"`
	// Interrupted reports that the load ended early.
	Interrupted bool `json:"interrupted"`

	// For a replay only: rows whose prompt exceeds the limit, rows that waited because too many requests
	// were in flight, and the largest delay of a row.
	RowsSkipped *int     `json:"rows_skipped,omitempty"`
	Delayed     *int     `json:"delayed,omitempty"`
	MaxLag      *float64 `json:"max_lag_ms,omitempty"`
}

// MarshalJSON adds the former key of RowsSkipped.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		plain
		OldRowsSkipped *int `json:"rows_left_out,omitempty"`
	}{plain(r), r.RowsSkipped})
}

// report returns the report; rates cover window.
func (r *recorder) report(window time.Duration, interrupted bool) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{ByRegion: map[string]ClientFigures{}, FirstError: r.firstError, Interrupted: interrupted}
	all := newTally()
	for region, t := range r.regions { // the sums do not depend on the order
		out.ByRegion[region] = t.figures(window)
		all.merge(t)
	}
	out.ClientFigures = all.figures(window)
	if f, unknown := out.ByRegion[onlyRegion]; unknown {
		f.Forwarded, out.Forwarded = nil, nil
		out.ByRegion[onlyRegion] = f
	}
	return out
}

func (t *tally) figures(window time.Duration) ClientFigures {
	f := ClientFigures{
		Requests: t.requests, OK: t.ok, Rejected: t.rejected, Failed: t.failed, Cancelled: t.cancelled,
		DurationSeconds:   window.Seconds(),
		RequestsPerSecond: float64(t.okInWindow) / window.Seconds(),
		// Events are counted on arrival, tokens only when a request ends: the tokens received in the
		// window are its events times the tokens per event.
		OutputTokensPerSecond: float64(t.inWindow) * t.tokensPerEvent() / window.Seconds(),
		TTFT:                  t.ttft.percentiles(), TPOT: t.tpot.percentiles(),
		ITL: t.itl.percentiles(), E2E: t.e2e.percentiles(),
		PromptTokens: t.prompt, OutputTokens: t.output, Forwarded: &t.forwarded,
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

// tokensPerEvent returns the mean number of tokens in an event with content.
func (t *tally) tokensPerEvent() float64 {
	if t.okEvents == 0 {
		return 1
	}
	return float64(t.output) / float64(t.okEvents)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
