package telemetry

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"skyserve/internal/service"
)

// maxHistoryMinutes bounds the span of a History (400 days): a stray minute
// number must not ask for the memory of a century.
const maxHistoryMinutes = 400 * 24 * 60

// AnyRegion stands for the region of a history that names none.
const AnyRegion service.Region = "all"

// SeriesKey names one series of a History.
type SeriesKey struct {
	Region service.Region
	Model  string
	Tier   service.Tier
}

// String is region/model/tier, as tables and errors show it.
func (k SeriesKey) String() string { return fmt.Sprintf("%s %s %s", k.Region, k.Model, k.Tier) }

func compareKeys(a, b SeriesKey) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Tier, b.Tier))
}

// Series is the traffic of one model and tier that arrived in one region,
// summed over its balancers, by minute from the history's first. NaN means that
// no balancer of the region reported that minute, so that nobody knows.
type Series struct {
	SeriesKey
	// PromptTokens, CachedTokens, OutputTokens and Requests are per minute.
	PromptTokens, CachedTokens, OutputTokens, Requests []float64
}

// History is the traffic of a service by minute: one Series for every region,
// model and tier seen, all of the same span.
type History struct {
	// First is the first minute since the Unix epoch, Minutes how many there are.
	First   int64
	Minutes int
	// Series are sorted by model, region and tier.
	Series []Series
}

// NewHistory sums points into series. A point that comes twice (same minute,
// balancer, region, model and tier) counts once, the later one. A minute without
// a point is zero traffic when any balancer of that region reported that minute,
// else unknown. It fails when the points span more than 400 days.
func NewHistory(points []Point) (*History, error) {
	unique, err := dedupe(points)
	if err != nil || len(unique) == 0 {
		return &History{}, err
	}
	first, last := unique[0].Minute, unique[0].Minute
	for _, p := range unique {
		first, last = min(first, p.Minute), max(last, p.Minute)
	}
	if first < 0 || last-first >= maxHistoryMinutes {
		return nil, fmt.Errorf("building history: minutes %d to %d: want minutes since 1970 within 400 days of each other", first, last)
	}
	h := &History{First: first, Minutes: int(last-first) + 1}
	h.fill(unique)
	return h, nil
}

// dedupe drops all but the last point of each identity, keeping the order.
func dedupe(points []Point) ([]Point, error) {
	type id struct {
		minute   int64
		balancer string
		key      SeriesKey
	}
	at := make(map[id]int, len(points))
	out := make([]Point, 0, len(points))
	for _, p := range points {
		if p.PromptTokens < 0 || p.CachedTokens < 0 || p.OutputTokens < 0 || p.Requests < 0 {
			return nil, fmt.Errorf("building history: minute %d of %s: counts must not be negative, got %+v", p.Minute, p.Balancer, p)
		}
		k := id{p.Minute, p.Balancer, SeriesKey{p.Region, p.Model, p.Tier}}
		if i, ok := at[k]; ok {
			out[i] = p
			continue
		}
		at[k] = len(out)
		out = append(out, p)
	}
	return out, nil
}

func (h *History) fill(points []Point) {
	reported := map[service.Region][]bool{}
	index := map[SeriesKey]int{}
	for _, p := range points {
		if reported[p.Region] == nil {
			reported[p.Region] = make([]bool, h.Minutes)
		}
		reported[p.Region][p.Minute-h.First] = true
		key := SeriesKey{p.Region, p.Model, p.Tier}
		if _, ok := index[key]; !ok {
			index[key] = len(h.Series)
			h.Series = append(h.Series, newSeries(key, h.Minutes))
		}
		h.Series[index[key]].add(int(p.Minute-h.First), p)
	}
	for i := range h.Series {
		h.Series[i].forget(reported[h.Series[i].Region])
	}
	slices.SortFunc(h.Series, func(a, b Series) int { return compareKeys(a.SeriesKey, b.SeriesKey) })
}

func newSeries(key SeriesKey, minutes int) Series {
	return Series{
		SeriesKey: key, PromptTokens: make([]float64, minutes), CachedTokens: make([]float64, minutes),
		OutputTokens: make([]float64, minutes), Requests: make([]float64, minutes),
	}
}

func (s *Series) add(i int, p Point) {
	s.PromptTokens[i] += float64(p.PromptTokens)
	s.CachedTokens[i] += float64(p.CachedTokens)
	s.OutputTokens[i] += float64(p.OutputTokens)
	s.Requests[i] += float64(p.Requests)
}

// forget marks the minutes that nobody reported as unknown.
func (s *Series) forget(reported []bool) {
	for i, ok := range reported {
		if !ok {
			nan := math.NaN()
			s.PromptTokens[i], s.CachedTokens[i], s.OutputTokens[i], s.Requests[i] = nan, nan, nan, nan
		}
	}
}

// End is the minute after the last.
func (h *History) End() int64 { return h.First + int64(h.Minutes) }

// Begun is the history up to and with a minute that is still running, of which
// the given share (0..1) has passed: what was counted in it is taken to go on at
// the same rate. The series do not share memory with h.
func (h *History) Begun(minute int64, share float64) *History {
	out := h.Before(minute + 1)
	last := int(minute - out.First)
	if last < 0 || last >= out.Minutes || share <= 0 {
		return out
	}
	for i := range out.Series {
		s := &out.Series[i]
		for _, values := range []*[]float64{&s.PromptTokens, &s.CachedTokens, &s.OutputTokens, &s.Requests} {
			*values = slices.Clone(*values)
			(*values)[last] /= min(share, 1)
		}
	}
	return out
}

// Before is the history of the minutes before the given one: what was known at
// its start. The series share memory with h.
func (h *History) Before(minute int64) *History {
	n := int(min(max(minute-h.First, 0), int64(h.Minutes)))
	out := &History{First: h.First, Minutes: n, Series: make([]Series, len(h.Series))}
	for i, s := range h.Series {
		out.Series[i] = Series{
			SeriesKey: s.SeriesKey, PromptTokens: s.PromptTokens[:n], CachedTokens: s.CachedTokens[:n],
			OutputTokens: s.OutputTokens[:n], Requests: s.Requests[:n],
		}
	}
	return out
}

// HitRate is the share of a model's prompt tokens that engines took from their
// prefix caches, 0..1, over the last given minutes; ok is false when no prompt
// token is known there.
func (h *History) HitRate(model string, minutes int) (rate float64, ok bool) {
	var prompt, cached float64
	from := max(h.Minutes-minutes, 0)
	for _, s := range h.Series {
		if s.Model != model {
			continue
		}
		for i := from; i < h.Minutes; i++ {
			if !math.IsNaN(s.PromptTokens[i]) {
				prompt += s.PromptTokens[i]
				cached += s.CachedTokens[i]
			}
		}
	}
	if prompt <= 0 {
		return 0, false
	}
	return min(cached/prompt, 1), true
}
