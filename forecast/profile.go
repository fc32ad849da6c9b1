package forecast

import (
	"math"
	"time"
)

// Parameters of the seasonal profile.
const (
	// profileBlock is the step of the profile.
	profileBlock = 10 * time.Minute
	// profileDays is the number of previous days in the profile.
	profileDays = 7
	// profileReach is the smoothing window of the profile, to each side.
	profileReach = 30 * time.Minute
	// profileOrigins is the number of past forecasts that select the level adjustment.
	profileOrigins = 96
	// maxLevelRatio bounds the scaling to the current level.
	maxLevelRatio = 5
)

type seasonalProfile struct{}

// SeasonalProfile forecasts the mean of previous days at the same time of day, smoothed
// over half an hour to each side. The mean is scaled or shifted to the level of the last
// half hour or hour. The adjustment to the level is the one with the lowest absolute error
// of past forecasts. It requires a day of history.
func SeasonalProfile() Forecaster { return modelForecaster{seasonalProfile{}} }

func (seasonalProfile) Name() string { return "seasonal-profile" }

func (seasonalProfile) need(s Series) (steps int, description string) {
	return s.steps(day) + s.steps(time.Hour), "1 day and 1 hour"
}

// levelAdjustment is a rule that adjusts a profile to the level of the last blocks.
type levelAdjustment struct {
	blocks   int     // number of last blocks whose mean is the level
	power    float64 // exponent of the level's ratio to the profile's; 1 adjusts completely
	additive bool    // shift by power times the difference instead
}

// levelAdjustments are the rules to try; the one with the lowest past error is used.
var levelAdjustments = []levelAdjustment{
	{3, 0.8, false},
	{3, 1, false},
	{6, 1, false},
	{6, 0.8, false},
	{6, 0.5, false},
	{3, 0.9, true},
	{6, 0.9, true},
	{6, 0.5, true},
	{12, 0.5, false},
}

func (seasonalProfile) fit(s Series, horizon int) predictor {
	size := s.blockSize(profileBlock)
	d := newDays(s, size)
	ahead := blocksOf(horizon, size)
	best, lowest := 0, math.Inf(1)
	for i, f := range levelAdjustments {
		if e := d.pastError(f, ahead); e < lowest {
			best, lowest = i, e
		}
	}
	return func(s Series, horizon int) []float64 {
		d := newDays(s, size)
		return unblock(d.forecast(len(d.values), blocksOf(horizon, size), levelAdjustments[best]), size, horizon)
	}
}

// days is a series in blocks with running sums, for averaging a time of day over previous days.
type days struct {
	values []float64
	sum    []float64
	count  []float64
	period int // blocks per day
	reach  int
}

func newDays(s Series, size int) days {
	d := days{values: blocks(s.Values, size), period: s.steps(day) / size, reach: s.steps(profileReach) / size}
	d.sum, d.count = prefixSums(d.values)
	return d
}

// prefixSums returns running sums and counts of the known values: sum[i] is over the first i.
func prefixSums(values []float64) (sum, count []float64) {
	sum, count = make([]float64, len(values)+1), make([]float64, len(values)+1)
	for i, v := range values {
		sum[i+1], count[i+1] = sum[i], count[i]
		if !math.IsNaN(v) {
			sum[i+1] += v
			count[i+1]++
		}
	}
	return sum, count
}

// mean returns the mean of the known blocks from..to-1 that are before limit; NaN for none.
func (d days) mean(from, to, limit int) float64 {
	from, to = max(0, from), min(to, limit)
	if from >= to {
		return math.NaN()
	}
	return (d.sum[to] - d.sum[from]) / (d.count[to] - d.count[from])
}

// at returns the profile at block t as of the origin: the mean over previous days.
func (d days) at(t, origin int) float64 {
	var sum, have float64
	first := 1
	for t-first*d.period >= origin {
		first++
	}
	for k := first; k < first+profileDays; k++ {
		if c := t - k*d.period; c >= 0 {
			if m := d.mean(c-d.reach, c+d.reach+1, origin); !math.IsNaN(m) {
				sum += m
				have++
			}
		}
	}
	return sum / have
}

// forecast returns the profile of the blocks from the origin on, adjusted to the level of those
// before it; the level itself where no day has a value.
func (d days) forecast(origin, ahead int, f levelAdjustment) []float64 {
	level := d.mean(origin-f.blocks, origin, origin)
	var base, have float64
	for t := origin - f.blocks; t < origin; t++ {
		if m := d.at(t, origin); t >= 0 && !math.IsNaN(m) {
			base += m
			have++
		}
	}
	base /= have
	out := make([]float64, ahead)
	for h := range out {
		out[h] = d.adjustToLevel(d.at(origin+h, origin), level, base, f)
	}
	return out
}

// adjustToLevel adjusts one value of the profile to the level.
func (d days) adjustToLevel(m, level, base float64, f levelAdjustment) float64 {
	switch {
	case math.IsNaN(m):
		return level
	case math.IsNaN(level) || math.IsNaN(base):
		return m
	case f.additive:
		return max(0, m+f.power*(level-base))
	case base <= 0:
		return m
	}
	return m * math.Pow(min(max(level/base, 1.0/maxLevelRatio), maxLevelRatio), f.power)
}

// pastError returns the sum of |actual - forecast| over past origins, by blocks.
func (d days) pastError(f levelAdjustment, ahead int) float64 {
	n := len(d.values)
	first := d.period + f.blocks
	stride := max(1, (n-first)/profileOrigins)
	var sum float64
	for o := n - ahead; o >= first; o -= stride {
		for h, m := range d.forecast(o, ahead, f) {
			if e := math.Abs(d.values[o+h] - m); !math.IsNaN(e) {
				sum += e
			}
		}
	}
	return sum
}
