package forecast

import "math"

const (
	// minDecrease is the minimum decrease of a step, as a share of the predicted decrease.
	minDecrease = 1e-4
	// stepCut is the factor by which a step with a lower decrease is cut.
	stepCut = 0.2
	// maxStepLength bounds the change of any variable in one step: the search variables for ARMA
	// coefficients are all of the order of 1.
	maxStepLength = 1.5
	// minStepLength is the change of every variable below which a step is empty.
	minStepLength = 1e-10
	// maxIterations bounds the search; a typical one needs 5 to 30.
	maxIterations = 200
)

// accuracy is the stopping rule of a search: every slope is below gradient, or a step gains less
// than change.
type accuracy struct {
	gradient, change float64
	// step is the step of the finite differences that approximate the gradient; central makes them
	// two-sided.
	step    float64
	central bool
}

var (
	// exact is more precise than any printed value of a model.
	exact = accuracy{gradient: 1e-6, change: 1e-12, step: 1e-4, central: true}
	// rough computes AICc to about a thousandth, which is enough for comparing orders.
	rough = accuracy{gradient: 1e-4, change: 1e-7, step: 1e-5}
)

// bfgs minimises a function by the variable metric method of Broyden, Fletcher, Goldfarb and
// Shanno, with a backtracking line search (Nash 1990, algorithm 21, the one of R's optim).
type bfgs struct {
	f func(x []float64) float64
	accuracy
	n       int
	x, grad []float64
	value   float64
	// inverse approximates the inverse of the second derivatives, by rows; isIdentity is set while it is
	// the identity.
	inverse    []float64
	isIdentity bool

	lastStep           []float64 // the direction of the search, then the last step of x
	trial              []float64 // the next x to evaluate
	lastGradient       []float64 // the gradient before the last step
	inverseTimesChange []float64 // inverse times the change of the gradient
}

// minimise starts at x, where f is value, and returns the minimum found and its value.
func minimise(f func(x []float64) float64, x []float64, value float64, a accuracy) (minimum []float64, at float64) {
	n := len(x)
	b := &bfgs{f: f, accuracy: a, n: n, x: append([]float64(nil), x...), value: value, inverse: make([]float64, n*n)}
	for _, v := range []*[]float64{&b.grad, &b.lastStep, &b.trial, &b.lastGradient, &b.inverseTimesChange} {
		*v = make([]float64, n)
	}
	b.resetInverse()
	b.setGradient()
	for range maxIterations {
		if !b.iterate() {
			break
		}
	}
	return b.x, b.value
}

func (b *bfgs) resetInverse() {
	clear(b.inverse)
	for i := range b.n {
		b.inverse[i*b.n+i] = 1
	}
	b.isIdentity = true
}

// setGradient sets grad at x.
func (b *bfgs) setGradient() {
	copy(b.trial, b.x)
	for i, v := range b.x {
		b.trial[i] = v + b.step
		up := b.f(b.trial)
		down, offset := b.value, b.step
		if b.central {
			b.trial[i] = v - b.step
			down, offset = b.f(b.trial), 2*b.step
		}
		b.trial[i] = v
		b.grad[i] = (up - down) / offset
	}
}

// iterate makes one step; false when the search is finished.
func (b *bfgs) iterate() bool {
	downhill := b.direction()
	if downhill >= 0 {
		if b.isIdentity {
			return false
		}
		b.resetInverse()
		return true
	}
	value, ok := b.lineSearch(downhill)
	if !ok {
		if b.isIdentity {
			return false
		}
		b.resetInverse()
		return true
	}
	gained := b.value - value
	b.value = value
	for i, v := range b.trial {
		b.lastStep[i] = v - b.x[i]
		b.x[i] = v
	}
	if gained < b.change {
		return false
	}
	copy(b.lastGradient, b.grad)
	b.setGradient()
	var largest float64
	for _, g := range b.grad {
		largest = max(largest, math.Abs(g))
	}
	if largest < b.gradient {
		return false
	}
	b.updateInverse()
	return true
}

// direction sets lastStep to the direction of the search and returns the slope along it.
func (b *bfgs) direction() (downhill float64) {
	for i := range b.n {
		b.lastStep[i] = -dot(b.inverse[i*b.n:(i+1)*b.n], b.grad)
		downhill += b.lastStep[i] * b.grad[i]
	}
	return downhill
}

// lineSearch cuts the step along the direction in lastStep until the decrease is sufficient, and leaves the point
// in trial; ok is false when no step suffices.
func (b *bfgs) lineSearch(downhill float64) (value float64, ok bool) {
	var largest float64
	for _, m := range b.lastStep {
		largest = max(largest, math.Abs(m))
	}
	length := min(1, maxStepLength/largest)
	for largest*length > minStepLength {
		for i, m := range b.lastStep {
			b.trial[i] = b.x[i] + length*m
		}
		value = b.f(b.trial)
		if value <= b.value+minDecrease*length*downhill {
			return value, true
		}
		length *= stepCut
	}
	return 0, false
}

// updateInverse updates inverse with the change of the slope in the last step.
func (b *bfgs) updateInverse() {
	n, change := b.n, b.lastGradient
	for i := range change {
		change[i] = b.grad[i] - change[i]
	}
	along := dot(b.lastStep, change)
	if along <= 0 {
		b.resetInverse()
		return
	}
	var across float64
	for i := range n {
		b.inverseTimesChange[i] = dot(b.inverse[i*n:(i+1)*n], change)
		across += b.inverseTimesChange[i] * change[i]
	}
	scale := 1 + across/along
	for i := range n {
		for j := range n {
			b.inverse[i*n+j] += (scale*b.lastStep[i]*b.lastStep[j] - b.lastStep[i]*b.inverseTimesChange[j] - b.inverseTimesChange[i]*b.lastStep[j]) / along
		}
	}
	b.isIdentity = false
}
