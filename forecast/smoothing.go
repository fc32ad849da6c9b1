package forecast

import (
	"math"
	"time"
)

// smoothingBlock is the step of the smoothing: single minutes are mostly noise.
const smoothingBlock = 10 * time.Minute

// smoothingReach is the number of blocks over which the constants are evaluated and a trend is
// extrapolated: two hours.
const smoothingReach = 12

// smoothingPast is the history that selects the constants.
const smoothingPast = 7 * day

type dampedTrend struct{}

// DampedTrend is exponential smoothing of level and trend with a damped trend (Gardner and McKenzie
// 1985), at ten-minute steps; without a trend it is simple exponential smoothing. The constants are
// those of a grid with the lowest past absolute error over the horizon, or over two hours of it.
// After two hours the level is constant.
func DampedTrend() Forecaster { return modelForecaster{dampedTrend{}} }

func (dampedTrend) Name() string { return "damped-trend" }

func (dampedTrend) need(s Series) (steps int, description string) {
	return s.steps(averageSpan), s.formatSteps(s.steps(averageSpan))
}

// damping are the constants of level, trend and damping.
type damping struct{ alpha, beta, phi float64 }

// dampings returns the grid.
func dampings() []damping {
	var out []damping
	for _, alpha := range []float64{0.6, 0.1, 0.2, 0.3, 0.45, 0.8, 1} {
		out = append(out, damping{alpha: alpha, phi: 1})
		for _, beta := range []float64{0.05, 0.15, 0.4} {
			for _, phi := range []float64{0.7, 0.85, 0.95} {
				out = append(out, damping{alpha, beta, phi})
			}
		}
	}
	return out
}

func (dampedTrend) fit(s Series, horizon int) predictor {
	size := s.blockSize(smoothingBlock)
	values := blocks(s.Values, size)
	values = values[max(0, len(values)-s.steps(smoothingPast)/size):]
	ahead := blocksOf(horizon, size)
	grid := dampings()
	best, lowest := grid[0], math.Inf(1)
	for _, c := range grid {
		if e := c.pastError(values, ahead); e < lowest {
			best, lowest = c, e
		}
	}
	return func(s Series, horizon int) []float64 {
		level, trend := best.runSmoothing(blocks(s.Values, size), nil)
		out := make([]float64, blocksOf(horizon, size))
		for h := range out {
			if h < smoothingReach {
				trend *= best.phi
				level += trend
			}
			out[h] = max(0, level)
		}
		return unblock(out, size, horizon)
	}
}

// runSmoothing smooths values and returns the state after the last. visit, unless nil, is called with the
// state before each value.
func (c damping) runSmoothing(values []float64, visit func(t int, level, trend float64)) (level, trend float64) {
	level = math.NaN()
	for t, v := range values {
		if visit != nil && !math.IsNaN(level) {
			visit(t, level, trend)
		}
		switch {
		case math.IsNaN(v):
			trend *= c.phi // the level stays: there is no evidence of a change
		case math.IsNaN(level):
			level = v
		default:
			before := level
			level = c.alpha*v + (1-c.alpha)*(level+c.phi*trend)
			trend = c.beta*(level-before) + (1-c.beta)*c.phi*trend
		}
	}
	return level, trend
}

// pastError returns the sum of absolute errors of forecasts at every block, up to ahead blocks.
func (c damping) pastError(values []float64, ahead int) float64 {
	ahead = min(ahead, smoothingReach)
	var sum float64
	c.runSmoothing(values, func(t int, level, trend float64) {
		for h := t; h < min(t+ahead, len(values)); h++ {
			trend *= c.phi
			level += trend
			if e := math.Abs(values[h] - max(0, level)); !math.IsNaN(e) {
				sum += e
			}
		}
	})
	return sum
}
