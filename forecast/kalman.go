package forecast

import "math"

// convergedChange is the relative change of a prediction's variance below which its gain counts as
// converged.
const convergedChange = 1e-13

// largeProduct is the size from which a product of variances, all at least 1, may soon overflow a
// float64.
const largeProduct = 1e150

// stationaryFilter is the exact filter of a stationary ARMA process without unknown values, with the
// variance of its shocks as 1. The gain follows the recursions of Morf, Sidhu and Kailath (1974):
// the covariance of the state changes by a matrix of rank one per step. The cost of a step therefore grows with the number
// of states, and not with its square. The gain does not depend on data, so one pass serves several series. The next pass reuses
// the buffers.
type stationaryFilter struct {
	arma
	// gain is the state's response to a prediction error, and variance the variance of the errors
	// as a multiple of the shocks'; both are for the next step.
	gain     []float64
	variance float64
	// settled is set when the gain has converged.
	settled bool

	change    []float64 // W: the covariance changes by weight * W W'
	weight    float64   // M
	unscaled  []float64 // gain * variance
	first     []float64 // the stationary covariance of the state with the value
	gamma     []float64
	plain     []float64 // autocovariances without the moving average
	weights   []float64 // of the moving average in gamma, by lag
	partial   []float64
	levels    []float64
	psiBuffer []float64
}

// reset prepares the filter for a process before its first value; ok is false when the process is
// too close to one without a finite variance.
func (k *stationaryFilter) reset(a arma) (ok bool) {
	k.arma = a
	r := len(a.phi)
	for _, b := range []*[]float64{&k.gain, &k.change, &k.unscaled, &k.first} {
		*b = resized(*b, r)
	}
	if !k.covariance() {
		return false
	}
	k.variance = k.first[0]
	for i := range r {
		k.unscaled[i] = a.phi[i] * k.first[0]
		if i+1 < r {
			k.unscaled[i] += k.first[i+1]
		}
		k.change[i] = k.unscaled[i]
		k.gain[i] = k.unscaled[i] / k.variance
	}
	k.weight = -1 / k.variance
	k.settled = false
	return true
}

func resized(b []float64, n int) []float64 {
	if cap(b) < n {
		return make([]float64, n)
	}
	return b[:n]
}

// advance updates the gain by one step.
func (k *stationaryFilter) advance() {
	if k.settled {
		return
	}
	r := len(k.gain)
	w, phi, unscaled, gain := k.change[:r], k.phi[:r], k.unscaled[:r], k.gain[:r]
	before, lead := k.variance, w[0]
	move := k.weight * lead
	k.variance += move * lead
	if !(k.variance > 1) {
		k.variance = 1 // a prediction is never more certain than the shocks
	}
	inverse, remainder := 1/k.variance, 0.0
	for i, p := range phi {
		next := p * lead
		if i+1 < len(w) {
			next += w[i+1]
		}
		u := unscaled[i] + next*move
		unscaled[i] = u
		u *= inverse
		gain[i] = u
		u = next - u*lead
		w[i] = u
		remainder += u * u
	}
	k.weight += move * move / before
	k.settled = remainder*math.Abs(k.weight) <= convergedChange*k.variance
}

// covariance sets first to the covariance of the value with each state of the stationary process.
func (k *stationaryFilter) covariance() bool {
	p, q := len(trimmed(k.phi)), len(trimmed(k.theta))-1
	r := len(k.phi)
	if !k.autocovariances(p, q, r) {
		return false
	}
	k.psiBuffer = resized(k.psiBuffer, r)
	k.psi(k.psiBuffer)
	k.first[0] = k.gamma[0]
	for i := 1; i < r; i++ {
		var v float64
		for j := i; j < p; j++ {
			v += k.phi[j] * k.gamma[1+j-i]
		}
		for j := i; j <= q; j++ {
			v += k.theta[j] * k.psiBuffer[j-i]
		}
		k.first[i] = v
	}
	return k.gamma[0] >= 1-1e-9 && !math.IsInf(k.gamma[0], 0)
}

// autocovariances sets gamma to the autocovariances of the process at lags 0 to r: those of its
// autoregression alone, weighted by the moving average.
func (k *stationaryFilter) autocovariances(p, q, r int) bool {
	k.plain = resized(k.plain, r+q+2)
	if !k.autoregression(p, k.plain) {
		return false
	}
	k.weights = resized(k.weights, q+1)
	clear(k.weights)
	for i, a := range k.theta[:q+1] {
		if a == 0 {
			continue
		}
		for j, b := range k.theta[i : q+1] {
			k.weights[j] += a * b
		}
	}
	k.gamma = resized(k.gamma, r+1)
	for h := range k.gamma {
		v := k.weights[0] * k.plain[h]
		for lag := 1; lag <= q; lag++ {
			if c := k.weights[lag]; c != 0 {
				v += c * (k.plain[abs(h-lag)] + k.plain[h+lag])
			}
		}
		k.gamma[h] = v
	}
	return true
}

func abs(i int) int {
	if i < 0 {
		return -i
	}
	return i
}

// autoregression sets out to the autocovariances of the autoregressive part alone, from its partial
// autocorrelations: Levinson's recursion down and up again.
func (k *stationaryFilter) autoregression(p int, out []float64) bool {
	k.levels = resized(k.levels, p*p)
	k.partial = resized(k.partial, p)
	copy(k.partial, k.phi[:p])
	for m := p; m > 0; m-- {
		row := k.levels[(m-1)*p : (m-1)*p+m]
		copy(row, k.partial[:m])
		last := row[m-1]
		if !(math.Abs(last) < 1) {
			return false
		}
		for i := range m - 1 {
			k.partial[i] = (row[i] + last*row[m-2-i]) / (1 - last*last)
		}
	}
	variance := 1.0
	for m := range p {
		last := k.levels[m*p+m]
		variance /= 1 - last*last
	}
	out[0] = variance
	remainder := variance
	for m := 1; m < len(out); m++ {
		var v float64
		if m <= p {
			if m > 1 {
				for i, c := range k.levels[(m-2)*p : (m-2)*p+m-1] {
					v += c * out[m-1-i]
				}
			}
			last := k.levels[(m-1)*p+m-1]
			v += last * remainder
			remainder *= 1 - last*last
		} else {
			for i, c := range k.phi[:p] {
				v += c * out[m-1-i]
			}
		}
		out[m] = v
	}
	return !math.IsNaN(variance) && !math.IsInf(variance, 0)
}

// predictionErrors filters each column and writes its prediction errors to out, each divided by the root of
// its variance; it returns the sum of the variances' logarithms. states, where not nil, hold the
// states after the last value: the prediction of the next value is a column's states[0].
func (k *stationaryFilter) predictionErrors(columns, out, states [][]float64) (logs float64) {
	n := len(columns[0])
	for _, s := range states {
		clear(s)
	}
	t := 0
	product := 1.0 // of variances whose logarithm is still to be added: one call serves many
	for ; t < n && !k.settled; t++ {
		root := 1 / math.Sqrt(k.variance)
		if product *= k.variance; product > largeProduct {
			logs += math.Log(product)
			product = 1
		}
		for c, col := range columns {
			out[c][t] = k.stepFilter(states[c], col[t]) * root
		}
		k.advance()
	}
	logs += math.Log(product)
	if t == n {
		return logs
	}
	root := 1 / math.Sqrt(k.variance)
	logs += float64(n-t) * math.Log(k.variance)
	for c, col := range columns {
		k.filterConverged(states[c], col[t:], out[c][t:], root)
	}
	return logs
}

// stepFilter updates a column's state by one value and returns its prediction error.
func (k *stationaryFilter) stepFilter(state []float64, value float64) float64 {
	expected := state[0]
	e := value - expected
	phi, gain := k.phi[:len(state)], k.gain[:len(state)]
	last := len(state) - 1
	for i, next := range state[1:] {
		state[i] = next + phi[i]*expected + gain[i]*e
	}
	state[last] = phi[last]*expected + gain[last]*e
	return e
}

// filterConverged does what stepFilter does, for the remaining values of a column once the gain has converged.
func (k *stationaryFilter) filterConverged(state, values, out []float64, root float64) {
	switch len(state) {
	case 1:
		a, p0, g0 := state[0], k.phi[0], k.gain[0]
		for t, v := range values {
			e := v - a
			out[t] = e * root
			a = p0*a + g0*e
		}
		state[0] = a
	case 2:
		a, b, p0, p1, g0, g1 := state[0], state[1], k.phi[0], k.phi[1], k.gain[0], k.gain[1]
		for t, v := range values {
			e := v - a
			out[t] = e * root
			a, b = b+p0*a+g0*e, p1*a+g1*e
		}
		state[0], state[1] = a, b
	case 3:
		a, b, c := state[0], state[1], state[2]
		p0, p1, p2, g0, g1, g2 := k.phi[0], k.phi[1], k.phi[2], k.gain[0], k.gain[1], k.gain[2]
		for t, v := range values {
			e := v - a
			out[t] = e * root
			a, b, c = b+p0*a+g0*e, c+p1*a+g1*e, p2*a+g2*e
		}
		state[0], state[1], state[2] = a, b, c
	default:
		for t, v := range values {
			out[t] = k.stepFilter(state, v) * root
		}
	}
}
