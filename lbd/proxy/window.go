package proxy

import (
	"math"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

const (
	rateSeconds = 10 // length of a rate's window in seconds
	slotLength  = 5 * time.Second
	windowSlots = 12 // of slotLength: one minute, including the current slot
)

// rateWindow counts events per second. The zero value is usable.
type rateWindow struct {
	mu      sync.Mutex
	seconds [rateSeconds + 2]struct{ at, n int64 }
}

// addCount counts n events at a time. Calls may be out of order by a second.
func (w *rateWindow) addCount(at time.Duration, n int64) {
	second := int64(at / time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.seconds[second%int64(len(w.seconds))]
	if s.at < second {
		s.at, s.n = second, 0
	}
	if s.at == second {
		s.n += n
	}
}

// perSecond returns the mean over the last ten complete seconds, or fewer if the balancer started
// later; nil in its first second.
func (w *rateWindow) perSecond(now time.Duration) *float64 {
	present := int64(now / time.Second)
	over := min(present, rateSeconds)
	if over == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum int64
	for _, s := range w.seconds {
		if s.at >= present-over && s.at < present {
			sum += s.n
		}
	}
	mean := float64(sum) / float64(over)
	return &mean
}

// slotOf returns the slot of a time in the windows of a minute, counted from 1 so that an unused slot
// is never the current one.
func slotOf(at time.Duration) int64 { return int64(at/slotLength) + 1 }

// hitWindow sums prompt and cached tokens over a minute. The zero value is usable.
type hitWindow struct {
	mu    sync.Mutex
	slots [windowSlots]struct{ at, prompt, cached int64 }
}

func (w *hitWindow) addTokens(at time.Duration, prompt, cached int) {
	slot := slotOf(at)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.slots[slot%windowSlots]
	if s.at < slot {
		s.at, s.prompt, s.cached = slot, 0, 0
	}
	s.prompt += int64(prompt)
	s.cached += int64(cached)
}

// rate returns the ratio of cached to prompt tokens; nil if no prompt was counted.
func (w *hitWindow) rate(now time.Duration) *float64 {
	slot := slotOf(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	var prompt, cached int64
	for _, s := range w.slots {
		if s.at > slot-windowSlots {
			prompt += s.prompt
			cached += s.cached
		}
	}
	if prompt == 0 {
		return nil
	}
	rate := float64(cached) / float64(prompt)
	return &rate
}

// Latencies are counted in buckets that grow by 2 %: the error of a percentile is at most 1 %, for
// any number of requests.
const (
	bucketGrowth = 1.02
	bucketFirst  = 0.1 // milliseconds; everything shorter is one bucket
	bucketCount  = 940 // up to three hours
)

// latencyWindow is the distribution of latencies over a minute. The zero value is usable.
type latencyWindow struct {
	mu    sync.Mutex
	slots [windowSlots]latencySlot
}

type latencySlot struct {
	at      int64
	n       int64
	sum     float64
	max     float64
	buckets [bucketCount]uint32
}

func (w *latencyWindow) addLatency(at, latency time.Duration) {
	slot, ms := slotOf(at), millis(latency)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.slots[slot%windowSlots]
	if s.at < slot {
		*s = latencySlot{at: slot}
	}
	s.n++
	s.sum += ms
	s.max = max(s.max, ms)
	s.buckets[bucketOf(ms)]++
}

func bucketOf(ms float64) int {
	if ms <= bucketFirst {
		return 0
	}
	return min(1+int(math.Log(ms/bucketFirst)/math.Log(bucketGrowth)), bucketCount-1)
}

// bucketValue returns the middle of a bucket in milliseconds.
func bucketValue(i int) float64 {
	return bucketFirst * math.Pow(bucketGrowth, float64(i)-0.5)
}

// percentiles returns the percentiles over the last minute in milliseconds; nil when nothing was
// counted.
func (w *latencyWindow) percentiles(now time.Duration) *telemetry.Percentiles {
	var all latencySlot
	slot := slotOf(now)
	w.mu.Lock()
	for i := range w.slots {
		if s := &w.slots[i]; s.at > slot-windowSlots && s.n > 0 {
			all.merge(s)
		}
	}
	w.mu.Unlock()
	if all.n == 0 {
		return nil
	}
	return &telemetry.Percentiles{
		Mean: all.sum / float64(all.n),
		P10:  all.quantile(0.10), P25: all.quantile(0.25), P50: all.quantile(0.50), P75: all.quantile(0.75),
		P90: all.quantile(0.90), P95: all.quantile(0.95), P99: all.quantile(0.99), Max: all.max,
	}
}

func (s *latencySlot) merge(o *latencySlot) {
	s.n += o.n
	s.sum += o.sum
	s.max = max(s.max, o.max)
	for i, n := range o.buckets {
		s.buckets[i] += n
	}
}

// quantile returns the latency that a share q of the requests did not exceed.
func (s *latencySlot) quantile(q float64) float64 {
	rank := int64(math.Ceil(q * float64(s.n)))
	var seen int64
	for i, n := range s.buckets {
		seen += int64(n)
		if seen >= rank {
			return min(bucketValue(i), s.max)
		}
	}
	return s.max
}
