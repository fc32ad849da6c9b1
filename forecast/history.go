package forecast

import (
	"math"
	"slices"
	"time"
)

// TokenSeries is the prompt tokens of one key by minute, and the part of them that hit prefix caches.
// NaN in both = unknown.
type TokenSeries struct {
	KeyedSeries
	// Cached has the same minutes as Values and is included in them.
	Cached []float64
}

// History is the traffic of a service by minute: one TokenSeries for every region, model and tier, all
// of the same span.
type History struct {
	// First is the first minute since the Unix epoch, Minutes their number.
	First   int64
	Minutes int
	// Series are sorted by model, region and tier.
	Series []TokenSeries
	// Report lists the flaws of the samples of prompt tokens.
	Report BuildReport
}

// NewHistory creates a history from samples of prompt tokens and samples of cached tokens with the same keys, sources and
// times. The tokens of a step of several minutes are divided equally among them. It fails like BuildSeries.
func NewHistory(prompt, cached []Sample, o BuildOptions) (*History, error) {
	prompts, report, err := BuildSeries(prompt, o)
	if err != nil || len(prompts) == 0 {
		return &History{Report: report}, err
	}
	spared, _, err := BuildSeries(cached, o)
	if err != nil {
		return nil, err
	}
	h := &History{First: prompts[0].Start, Minutes: len(prompts[0].Values) * int(o.Step/time.Minute), Report: report}
	for i, k := range prompts {
		k.Values = byMinute(k.Values, o.Step)
		k.Step = time.Minute
		h.Series = append(h.Series, TokenSeries{KeyedSeries: k, Cached: byMinute(spared[i].Values, o.Step)})
	}
	return h, nil
}

// byMinute divides each count of a step equally among its minutes. NaN stays NaN.
func byMinute(counts []float64, step time.Duration) []float64 {
	n := int(step / time.Minute)
	if n == 1 {
		return counts
	}
	out := make([]float64, 0, n*len(counts))
	for _, v := range counts {
		for range n {
			out = append(out, v/float64(n))
		}
	}
	return out
}

// End returns the minute after the last.
func (h *History) End() int64 { return h.First + int64(h.Minutes) }

// IncludingRunningMinute returns the history including the current minute. share is the
// part of it that has passed, 0 to 1. Its counts are extrapolated at the same rate. The
// series do not share memory with h.
func (h *History) IncludingRunningMinute(minute int64, share float64) *History {
	out := h.Before(minute + 1)
	last := int(minute - out.First)
	if last < 0 || last >= out.Minutes || share <= 0 {
		return out
	}
	for i := range out.Series {
		s := &out.Series[i]
		for _, values := range []*[]float64{&s.Values, &s.Cached} {
			*values = slices.Clone(*values)
			(*values)[last] /= min(share, 1)
		}
	}
	return out
}

// Before returns the history of the minutes before the given one: what is known when that minute starts. The
// series share memory with h.
func (h *History) Before(minute int64) *History {
	n := int(min(max(minute-h.First, 0), int64(h.Minutes)))
	out := &History{First: h.First, Minutes: n, Series: slices.Clone(h.Series)}
	for i := range out.Series {
		s := &out.Series[i]
		s.Values, s.Cached = s.Values[:n], s.Cached[:n]
	}
	return out
}

// Since returns the history from the given minute on. The series share memory with h.
func (h *History) Since(minute int64) *History {
	skip := int(min(max(minute-h.First, 0), int64(h.Minutes)))
	out := &History{First: h.First + int64(skip), Minutes: h.Minutes - skip, Series: slices.Clone(h.Series)}
	for i := range out.Series {
		s := &out.Series[i]
		s.Start, s.Values, s.Cached = s.Start+int64(skip), s.Values[skip:], s.Cached[skip:]
	}
	return out
}

// HitRate returns the share of a model's prompt tokens that hit prefix caches, 0..1, over the last
// `minutes` minutes; ok is false when no prompt token is known there.
func (h *History) HitRate(model string, minutes int) (rate float64, ok bool) {
	var prompt, cached float64
	from := max(h.Minutes-minutes, 0)
	for _, s := range h.Series {
		if s.Model != model {
			continue
		}
		for i := from; i < h.Minutes; i++ {
			if !math.IsNaN(s.Values[i]) {
				prompt += s.Values[i]
				cached += s.Cached[i]
			}
		}
	}
	if prompt <= 0 {
		return 0, false
	}
	return min(cached/prompt, 1), true
}
