package tui

import (
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Limits of the history of rates.
const (
	bucketSpan = 5 * time.Second // one cell of a sparkline; longer in a fast replay
	maxBuckets = 720             // an hour
	maxRegions = 256             // regions whose rates are kept
)

// history holds each region's output tokens per second in the snapshots received, as means
// over buckets aligned to their span, so that a sparkline shifts but does not flicker.
type history struct {
	regions map[service.Region]*series
	cell    time.Duration // the span of a bucket
	newest  int64         // the bucket of the newest snapshot
	last    int64         // the last bucket to draw
}

// series is a ring of buckets; bucket b is at index b mod maxBuckets.
type series [maxBuckets]bucket

type bucket struct {
	number int64
	sum    float64
	n      int
}

// newHistory returns an empty history. The snapshots of a replay that is faster than the recording are further apart,
// and so are its buckets: otherwise most of them would be empty.
func newHistory(replaySpeed float64) *history {
	return &history{cell: time.Duration(float64(bucketSpan) * max(replaySpeed, 1))}
}

// number returns the bucket of a time; negative for the zero time.
func (h *history) number(t time.Time) int64 {
	if t.Before(time.Unix(0, 0)) {
		return -1
	}
	return t.UnixNano() / int64(h.cell)
}

// addSnapshot adds the rates of a snapshot.
func (h *history) addSnapshot(s *telemetry.Snapshot) {
	if h.regions == nil {
		h.regions = make(map[service.Region]*series)
	}
	h.newest = h.number(s.At)
	if h.newest < 0 {
		return
	}
	for i := range s.Regions {
		r := &s.Regions[i]
		if r.OutputTokensPerSecond == nil {
			continue
		}
		if b := h.bucket(r.Name); b != nil {
			b.sum += *r.OutputTokensPerSecond
			b.n++
		}
	}
}

// bucket returns the newest bucket of a region, or nil if there are too many regions.
func (h *history) bucket(name service.Region) *bucket {
	s := h.regions[name]
	if s == nil {
		if len(h.regions) >= maxRegions {
			return nil
		}
		s = new(series)
		h.regions[name] = s
	}
	b := &s[h.newest%maxBuckets]
	if b.number != h.newest {
		*b = bucket{number: h.newest}
	}
	return b
}

// drawUntil makes the bucket of a snapshot's time t the last one to draw.
func (h *history) drawUntil(t time.Time) { h.last = h.number(t) }

// mean returns the mean of a region's bucket; known is false if the bucket is empty.
func (h *history) mean(name service.Region, number int64) (v float64, known bool) {
	s := h.regions[name]
	if s == nil || number < 0 {
		return 0, false
	}
	b := s[number%maxBuckets]
	if b.number != number || b.n == 0 {
		return 0, false
	}
	return b.sum / float64(b.n), true
}

// peak returns the greatest mean of all regions over the last n buckets. It is the common
// scale of all sparklines, so that regions can be compared.
func (h *history) peak(regions []*telemetry.RegionSnapshot, n int) float64 {
	top := 0.0
	for _, r := range regions {
		for i := range n {
			if v, known := h.mean(r.Name, h.last-int64(i)); known {
				top = max(top, v)
			}
		}
	}
	return top
}

// spark draws the last n buckets of a region, the newest on the right; an empty bucket is
// blank.
func (h *history) spark(name service.Region, n int, peak float64, g glyphs) string {
	var b strings.Builder
	for i := range n {
		v, known := h.mean(name, h.last-int64(n-1-i))
		if !known {
			b.WriteByte(' ')
			continue
		}
		level := 0
		if peak > 0 {
			level = int(max(v, 0)/peak*float64(len(g.spark)-1) + 0.5)
		}
		b.WriteString(g.spark[min(level, len(g.spark)-1)])
	}
	return b.String()
}

// total returns the sum of the regions' means in a bucket.
func (h *history) total(regions []*telemetry.RegionSnapshot, number int64) (sum float64, known bool) {
	for _, r := range regions {
		if v, ok := h.mean(r.Name, number); ok {
			sum += v
			known = true
		}
	}
	return sum, known
}

// sparkSpan returns the time that n cells of a sparkline cover, such as "LAST 5m".
func (h *history) sparkSpan(n int) string {
	d := time.Duration(n) * h.cell
	if d < 2*time.Minute || d >= 100*time.Minute {
		return "LAST " + age(d)
	}
	halves := int(d / (30 * time.Second))
	if halves%2 == 0 || halves >= 20 {
		return "LAST " + strconv.Itoa(halves/2) + "m"
	}
	return "LAST " + strconv.Itoa(halves/2) + ".5m"
}
