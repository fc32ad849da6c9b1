package sim

import (
	"math"
	"slices"
)

const (
	// exactSample is the number of values that a sample keeps exactly.
	exactSample = 1 << 18
	// bucketStep is the ratio of the bounds of a bucket beyond that: percentiles are within 0.05 %.
	bucketStep = 1.001
	// firstBucket is the upper bound of the first bucket, in ms, and bucketCount the number of buckets:
	// up to 10^9 ms.
	firstBucket = 1e-3
	bucketCount = 27_645
)

// sample is a set of times in ms for percentiles: exact while it is small, in buckets of a geometric
// scale when it is large, so that memory is bounded for runs of any length.
type sample struct {
	values  []float64
	buckets []int64 // nil while values holds all
	count   int
	sum     float64
	max     float64
}

// addLatency adds a non-negative value.
func (s *sample) addLatency(ms float64) {
	s.count++
	s.sum += ms
	s.max = max(s.max, ms)
	if s.buckets != nil {
		s.buckets[bucketOf(ms)]++
		return
	}
	s.values = append(s.values, ms)
	if len(s.values) == exactSample {
		s.buckets = make([]int64, bucketCount)
		for _, v := range s.values {
			s.buckets[bucketOf(v)]++
		}
		s.values = nil
	}
}

func bucketOf(ms float64) int {
	if ms <= firstBucket {
		return 0
	}
	return min(int(math.Log(ms/firstBucket)/math.Log(bucketStep))+1, bucketCount-1)
}

// percentiles returns the percentiles; nil without values.
func (s *sample) percentiles() *Percentiles {
	if s.count == 0 {
		return nil
	}
	if s.buckets == nil {
		return PercentilesOf(s.values)
	}
	p := &Percentiles{Mean: s.sum / float64(s.count), Max: s.max}
	seen, i := int64(0), 0
	for _, at := range []struct {
		share float64
		to    *float64
	}{{0.10, &p.P10}, {0.25, &p.P25}, {0.50, &p.P50}, {0.75, &p.P75}, {0.90, &p.P90}, {0.95, &p.P95}, {0.99, &p.P99}} {
		for rank := int64(nearest(at.share, s.count)); i < len(s.buckets)-1 && seen+s.buckets[i] < rank; i++ {
			seen += s.buckets[i]
		}
		// The geometric middle of the bucket.
		*at.to = min(s.max, firstBucket*math.Pow(bucketStep, float64(i)-0.5))
	}
	return p
}

// nearest returns the rank of a percentile among n values, from 1.
func nearest(share float64, n int) int { return max(int(math.Ceil(share*float64(n))), 1) }

// PercentilesOf sorts values and returns their percentiles, by nearest rank; nil if there are none.
func PercentilesOf(values []float64) *Percentiles {
	n := len(values)
	if n == 0 {
		return nil
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(p float64) float64 { return values[nearest(p, n)-1] }
	return &Percentiles{
		Mean: sum / float64(n), P10: at(0.10), P25: at(0.25), P50: at(0.50), P75: at(0.75),
		P90: at(0.90), P95: at(0.95), P99: at(0.99), Max: values[n-1],
	}
}
