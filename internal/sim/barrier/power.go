package barrier

import "math"

// Power is how many watts a worker draws in a step of which it computes the
// share busy and waits the rest.
type Power func(busy float64) float64

const (
	idleWatts = 100
	peakWatts = 400
)

// Linear draws in proportion to the share of the step that is computed. It gives
// the 360 to 400 W of the paper's Figure 7.
func Linear(busy float64) float64 { return idleWatts + (peakWatts-idleWatts)*busy }

// Sublinear is the model of the paper's appendix D, equation (57):
// Pidle + (Pmax - Pidle) * min(1, mfu/0.45)^0.7, where a worker that computes
// the whole step runs at the saturation 0.45, and at less in proportion.
func Sublinear(busy float64) float64 {
	const saturation, gamma = 0.45, 0.7
	mfu := busy * saturation
	return idleWatts + (peakWatts-idleWatts)*math.Pow(min(1, mfu/saturation), gamma)
}
