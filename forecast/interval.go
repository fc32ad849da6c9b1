package forecast

import (
	"math"
	"slices"
)

// minErrors is how many past errors an interval needs: with fewer than 20 the
// ends of a 90 % interval lie outside everything seen.
const minErrors = 20

// band is a model's past error range: forecast + lo .. forecast + hi holds 90 %
// of what came.
type band struct{ lo, hi float64 }

// bandOf takes the 5 % and 95 % quantiles of past errors (actual - forecast).
// ok is false when there are too few. It sorts errs.
func bandOf(errs []float64) (b band, ok bool) {
	if len(errs) < minErrors {
		return band{}, false
	}
	slices.Sort(errs)
	return band{lo: errs[lowRank(len(errs))], hi: errs[len(errs)-1-lowRank(len(errs))]}, true
}

// lowRank is the index of the 5 % quantile, rounded outwards: of n past errors
// and the next one, every order is as likely.
func lowRank(n int) int { return max(0, int(math.Floor(0.05*float64(n+1)))-1) }

// around makes the interval about a mean, kept in order and above zero.
func (b band) around(mean float64) (lo, hi float64) {
	return max(0, mean+min(b.lo, 0)), mean + max(b.hi, 0)
}

// spread is the band of a normal distribution with the values' own deviation,
// for when there are no past errors; of a single value nothing is known, and
// the band is as wide as the value.
func spread(values []float64) band {
	n := float64(len(values))
	m := mean(values)
	if n < 2 {
		return band{-m, m}
	}
	var ss float64
	for _, v := range values {
		ss += (v - m) * (v - m)
	}
	half := 1.645 * math.Sqrt(ss/(n-1)*(1+1/n))
	return band{-half, half}
}

func mean(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// known keeps the values that are known.
func known(values []float64) []float64 {
	out := make([]float64, 0, len(values))
	for _, v := range values {
		if !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	return out
}
