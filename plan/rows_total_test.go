package plan

import (
	"math/rand/v2"
	"testing"

	"skyserve/internal/testkit"
)

// A minimum over all regions that is above the need of the load is met by the cheapest counts, and is
// infeasible only where brute force finds none. The counts tried are several times those that the
// load needs.
func TestMinTotalAboveTheLoad(t *testing.T) {
	p := one()
	p.Current, p.MinTotal, p.LoadTPS = [][][]int{{{0}}}, []*int{ptr(2)}, [][][]float64{{{500}}}
	if got := solve(t, p, SolveOptions{}); got.Status != StatusOptimal || got.Counts[0][0][0] != 2 {
		t.Fatalf("one replica serves the load, 2 are required: %s %v %v", got.Status, got.Counts, got.Infeasible)
	}
	testkit.Slow(t)
	high := []shape{{1, 1, 1, 40}, {1, 2, 1, 20}, {1, 1, 2, 20}, {1, 1, 3, 10}, {2, 1, 1, 12}, {1, 3, 1, 6}, {1, 2, 2, 6}, {2, 2, 1, 6}}
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 23))
		s := high[r.IntN(len(high))]
		low := s
		low.maximum = 1 + r.IntN(3)
		p := plainOf(r, low)
		p.MinTotal = someOf(r, 1, len(p.Models), 0, s.maximum)[0]
		if k := rowKinds[r.IntN(len(rowKinds))]; k.name != "min_total" {
			k.add(p, r, s.maximum)
		}
		o := SolveOptions{Effort: []int64{0, 3000}[r.IntN(2)]}
		if wrong := wrongOf(p, s.maximum, o, solve(t, p, o)); wrong != "" {
			t.Errorf("seed %d: %s\n%s", seed, wrong, asJSON(t, p))
		}
	}
}
