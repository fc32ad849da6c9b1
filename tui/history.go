package tui

import (
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Bounds of what a screen remembers of the snapshots it saw.
const (
	bucketSpan = 5 * time.Second // one cell of a sparkline
	maxBuckets = 720             // an hour
	maxRegions = 256             // regions whose past is kept
)

// history is each region's output tokens a second in the snapshots seen, as
// means over buckets that begin at whole multiples of bucketSpan, so that a
// sparkline shifts but never flickers.
type history struct {
	regions map[service.Region]*series
	newest  int64 // the newest bucket
	last    int64 // the newest bucket that is drawn
}

// series is a ring of buckets; bucket b lies at b mod maxBuckets.
type series [maxBuckets]bucket

type bucket struct {
	number int64
	sum    float64
	n      int
}

// add remembers the figures of one snapshot that was seen at now.
func (h *history) add(s *telemetry.Snapshot, now time.Time) {
	if h.regions == nil {
		h.regions = make(map[service.Region]*series)
	}
	h.newest = now.UnixNano() / int64(bucketSpan)
	h.last = h.newest
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

// bucket is the newest bucket of a region, or nil when too many are kept.
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

// at ends what is drawn at a time that was seen.
func (h *history) at(t time.Time) { h.last = min(t.UnixNano()/int64(bucketSpan), h.newest) }

// mean is the mean of a region's bucket; known is false when it saw nothing.
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

// peak is the greatest mean of any of the regions over the last n buckets. All
// sparklines share it as their scale, so that regions can be compared.
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

// spark draws the last n buckets of a region, the newest on the right; a
// bucket without a figure stays blank.
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

// total is the sum of the regions' means in a bucket.
func (h *history) total(regions []*telemetry.RegionSnapshot, number int64) (sum float64, known bool) {
	for _, r := range regions {
		if v, ok := h.mean(r.Name, number); ok {
			sum += v
			known = true
		}
	}
	return sum, known
}

// sparkSpan is the time that n cells of a sparkline show, in words.
func sparkSpan(n int) string {
	d := time.Duration(n) * bucketSpan
	if d < 2*time.Minute {
		return "LAST " + age(d)
	}
	halves := int(d / (30 * time.Second))
	if halves%2 == 0 || halves >= 20 {
		return "LAST " + strconv.Itoa(halves/2) + "m"
	}
	return "LAST " + strconv.Itoa(halves/2) + ".5m"
}
