package load

import (
	"math"
	"strconv"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

// growth is the ratio of two bucket bounds of a histogram: percentiles are within half a percent.
const growth = 1.01

// histogram counts durations in buckets that grow by growth from a microsecond on, which limits its
// memory (2,300 buckets reach three hours) and lets histograms of several regions be added. Mean and
// maximum are exact.
type histogram struct {
	counts []int
	n      int
	sum    float64 // microseconds
	max    float64
}

func (h *histogram) addDuration(d time.Duration) {
	x := max(float64(d)/float64(time.Microsecond), 1)
	i := int(math.Log(x) / math.Log(growth))
	for len(h.counts) <= i {
		h.counts = append(h.counts, 0)
	}
	h.counts[i]++
	h.n++
	h.sum += x
	h.max = max(h.max, x)
}

// merge adds another histogram's samples.
func (h *histogram) merge(o *histogram) {
	for len(h.counts) < len(o.counts) {
		h.counts = append(h.counts, 0)
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// quantile returns the smallest value that a share q of the samples does not exceed, in microseconds,
// at the middle of its bucket.
func (h *histogram) quantile(q float64) float64 {
	rank := max(int(math.Ceil(q*float64(h.n))), 1)
	for i, c := range h.counts {
		if rank -= c; rank <= 0 {
			return min(math.Pow(growth, float64(i)+0.5), h.max)
		}
	}
	return h.max
}

// percentiles returns the percentiles in milliseconds, nil without samples.
func (h *histogram) percentiles() *telemetry.Percentiles {
	if h.n == 0 {
		return nil
	}
	ms := func(q float64) float64 { return h.quantile(q) / 1000 }
	return &telemetry.Percentiles{
		Mean: h.sum / float64(h.n) / 1000,
		P10:  ms(0.10), P25: ms(0.25), P50: ms(0.50), P75: ms(0.75),
		P90: ms(0.90), P95: ms(0.95), P99: ms(0.99), Max: h.max / 1000,
	}
}

// tally accumulates the results of all requests of a region.
type tally struct {
	requests, ok, rejected, failed, cancelled int
	forwarded                                 int
	ttft, tpot, itl, e2e                      histogram
	prompt, output, cached                    int // tokens
	cachedPrompt                              int // prompt tokens of requests with cached tokens in their usage
	cachedKnown                               bool
	okEvents                                  int // events with content of completed requests
	okInWindow, inWindow                      int // completed requests, and events, before the end
	byStatus                                  map[string]int
	failures                                  map[string]int
}

func newTally() *tally { return &tally{byStatus: map[string]int{}, failures: map[string]int{}} }

// addResult counts one request.
func (t *tally) addResult(r *result) {
	t.requests++
	status := "none"
	if r.status > 0 {
		status = strconv.Itoa(r.status)
	}
	t.byStatus[status]++
	if r.forwarded {
		t.forwarded++
	}
	switch r.outcome {
	case outcomeOK:
		t.addOK(r)
	case outcomeRejected:
		t.rejected++
	case outcomeFailed:
		t.failed++
		t.failures[r.reason]++
	case outcomeCancelled:
		t.cancelled++
		t.inWindow += r.inWindow
	}
}

// addOK counts a completed request. Only these count in latencies.
func (t *tally) addOK(r *result) {
	t.ok++
	if r.endedInWindow {
		t.okInWindow++
	}
	t.inWindow += r.inWindow
	t.okEvents += r.events
	output := r.outputTokens()
	t.output += output
	t.addUsage(r.usage)
	t.e2e.addDuration(r.e2e)
	if r.events == 0 {
		return
	}
	t.ttft.addDuration(r.ttft)
	if output > 1 {
		t.tpot.addDuration((r.e2e - r.ttft) / time.Duration(output-1))
	}
	for _, gap := range r.gaps {
		t.itl.addDuration(gap)
	}
}

func (t *tally) addUsage(u *usage) {
	if u == nil {
		return
	}
	t.prompt += u.prompt
	if u.hasCached {
		t.cachedKnown = true
		t.cached += u.cached
		t.cachedPrompt += u.prompt
	}
}

// merge adds another region's tally.
func (t *tally) merge(o *tally) {
	t.requests += o.requests
	t.ok += o.ok
	t.rejected += o.rejected
	t.failed += o.failed
	t.cancelled += o.cancelled
	t.forwarded += o.forwarded
	t.ttft.merge(&o.ttft)
	t.tpot.merge(&o.tpot)
	t.itl.merge(&o.itl)
	t.e2e.merge(&o.e2e)
	t.prompt += o.prompt
	t.output += o.output
	t.cached += o.cached
	t.cachedPrompt += o.cachedPrompt
	t.cachedKnown = t.cachedKnown || o.cachedKnown
	t.okEvents += o.okEvents
	t.okInWindow += o.okInWindow
	t.inWindow += o.inWindow
	for k, n := range o.byStatus {
		t.byStatus[k] += n
	}
	for k, n := range o.failures {
		t.failures[k] += n
	}
}

// recorder collects the results of concurrent requests.
type recorder struct {
	mu         sync.Mutex
	regions    map[string]*tally
	lastEnd    time.Time // of a request that was not cancelled
	firstError string
}

func newRecorder(targets []Target) *recorder {
	r := &recorder{regions: map[string]*tally{}}
	for _, t := range targets {
		r.regions[t.Region] = newTally()
	}
	return r
}

func (r *recorder) addResult(res *result, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.regions[res.region].addResult(res)
	if res.outcome != outcomeCancelled {
		r.lastEnd = now
	}
	if r.firstError == "" {
		r.firstError = res.detail
	}
}
