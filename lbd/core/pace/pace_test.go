package pace

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Replicas with similar paces share their mean, others do not, in any order.
func TestSimilarReplicasSharePace(t *testing.T) {
	all := make([]Estimate, 5)
	for i, pace := range []float64{2, 1, 1.1, 2.2, 1.2} {
		all[i].LearnStream(time.Duration(pace*float64(20*time.Millisecond)), 20*time.Millisecond)
	}
	list := make([]*Estimate, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	Group(list)
	for i, want := range []float64{2.1, 1.1, 1.1, 2.1, 1.1} {
		if got := all[i].Value(); math.Abs(got-want) > 1e-9 {
			t.Errorf("replica %d has the pace %v, want %v", i, got, want)
		}
	}
}

// For any figures of an engine or a clock, a pace stays within its limits.
func TestPacesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Estimate
		for range rapid.IntRange(1, 20).Draw(t, "answers") {
			l.LearnStream(time.Duration(rapid.Int64Range(1, 1e15).Draw(t, "streamed")), time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "nominal")))
			l.LearnResidence(rapid.IntRange(0, 99).Draw(t, "tokens"), time.Duration(rapid.Int64Range(-9, 1e15).Draw(t, "stay")), time.Second)
		}
		Group([]*Estimate{&l})
		for _, v := range []float64{l.Value(), l.ResidencePace()} {
			if !(v >= 1.0/Limit && v <= Limit) {
				t.Fatalf("the pace is %v", v)
			}
		}
	})
}
