package core

import (
	"slices"
	"time"

	"skyserve/lbd/core/pace"
	"skyserve/lbd/policy"
)

// Bounds of the figures in a report. A larger figure is dropped or capped, so that wrong figures of
// an engine or peer cannot make sums overflow or comparisons fail.
const (
	maxCount = 1 << 30
	maxTime  = time.Hour
)

// sanitized returns a replica's report without impossible figures.
func (r ProbeReport) sanitized() ProbeReport {
	r.Age, r.MetricsAge = max(0, r.Age), max(0, r.MetricsAge)
	r.Pending, r.Running, r.KV = sanitizeCount(r.Pending), sanitizeCount(r.Running), sanitizeShare(r.KV)
	if r.Slots = sanitizeCount(r.Slots); r.Slots.Value < 1 {
		r.Slots = policy.Maybe[int]{}
	}
	return r
}

// sanitized returns a peer's report without impossible figures.
func (l ModelLoad) sanitized() ModelLoad {
	for _, n := range []*int{&l.Replicas, &l.Available, &l.Queued, &l.Outstanding, &l.ContextTokens, &l.MinPrefillTokens} {
		*n = min(max(0, *n), maxCount)
	}
	l.KV = sanitizeShare(l.KV)
	l.ExpectedWait, l.Residence = min(max(0, l.ExpectedWait), maxTime), min(max(0, l.Residence), maxTime)
	if !(l.Pace >= 1.0/pace.Limit && l.Pace <= pace.Limit) {
		l.Pace = 0
	}
	if l.Adapters.Known && !slices.IsSorted(l.Adapters.Value) {
		l.Adapters.Value = slices.Sorted(slices.Values(l.Adapters.Value))
	}
	return l
}

// sanitizeCount returns unknown for values outside 0..maxCount. An unknown count has the value 0, as in a record.
func sanitizeCount(n policy.Maybe[int]) policy.Maybe[int] {
	if !n.Known || n.Value < 0 || n.Value > maxCount {
		return policy.Maybe[int]{}
	}
	return n
}

// sanitizeShare returns unknown for values outside 0..1, including NaN. An unknown share has the value 0.
func sanitizeShare(v policy.Maybe[float64]) policy.Maybe[float64] {
	if !v.Known || !(v.Value >= 0 && v.Value <= 1) {
		return policy.Maybe[float64]{}
	}
	return v
}
