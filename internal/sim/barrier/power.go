package barrier

import "math"

// Power returns the watts that a worker draws in a step, given the share of the step in which it
// computes; it waits for the remainder.
type Power func(busy float64) float64

const (
	idleWatts = 100
	peakWatts = 400
)

// Linear is proportional to the computed share of the step. It yields the 360 to 400 W of the paper's
// Figure 7.
func Linear(busy float64) float64 { return idleWatts + (peakWatts-idleWatts)*busy }

// Sublinear is the model of the paper's appendix D, equation (57): Pidle + (Pmax - Pidle) * min(1,
// mfu/0.45)^0.7. A worker that computes the whole step has the saturation mfu 0.45, otherwise
// proportionally less.
func Sublinear(busy float64) float64 {
	const saturation, gamma = 0.45, 0.7
	mfu := busy * saturation
	return idleWatts + (peakWatts-idleWatts)*math.Pow(min(1, mfu/saturation), gamma)
}
