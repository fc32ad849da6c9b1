package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// regions assigns rows to regions by weight.
type regions struct {
	seed    uint64
	weights []Weight // by region
	total   float64
}

func newRegions(weights []Weight, seed uint64) regions {
	s := slices.Clone(weights)
	slices.SortFunc(s, func(a, b Weight) int { return cmp.Compare(a.Region, b.Region) })
	r := regions{seed: seed, weights: s}
	for _, w := range s {
		r.total += w.Weight
	}
	return r
}

// checkWeights validates weights.
func checkWeights(weights []Weight) error {
	total := 0.0
	for _, w := range weights {
		if !(w.Weight >= 0) || math.IsInf(w.Weight, 0) {
			return fmt.Errorf("weight of %s: must be at least 0, got %v", w.Region, w.Weight)
		}
		total += w.Weight
	}
	if len(weights) > 0 && !(total > 0 && !math.IsInf(total, 0)) {
		return fmt.Errorf("weights: the sum must be greater than 0, got %v", total)
	}
	return nil
}

// regionOf returns the region of a row: its own if that has a weight, otherwise a draw that depends only on
// the seed and the row's session, or its number without one.
func (r regions) regionOf(row TraceRow) string {
	if len(r.weights) == 0 {
		return row.Region
	}
	for _, w := range r.weights {
		if w.Region == row.Region && w.Weight > 0 {
			return w.Region
		}
	}
	key := keyOf("region", r.seed, uint64(row.Number))
	if row.Session != "" {
		key = keyOf("region/"+row.Session, r.seed)
	}
	at := float64(key>>11) / (1 << 53) * r.total
	chosen := ""
	for _, w := range r.weights {
		if w.Weight == 0 {
			continue
		}
		chosen = w.Region
		if at < w.Weight {
			break
		}
		at -= w.Weight
	}
	return chosen
}
