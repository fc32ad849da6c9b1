package forecast

import "math"

const (
	// diffuse is the variance, in shock variances, of unknown values before the first one; the same
	// as in R's arima.
	diffuse = 1e6
	// diffuseVariance is the variance from which a value only resolves the unknown start: it does not count
	// in the likelihood.
	diffuseVariance = 1e4
)

// covarianceFilter is the exact filter of an ARIMA process with its whole covariance. Its state is that of the
// ARMA process, followed by the last values that differencing needs, which are unknown at first
// (Gardner 1980; Harvey 1989, 3.4; the form of R's arima). It supports unknown values, which
// stationaryFilter does not, at a cost per step that grows with the square of the number of states.
type covarianceFilter struct {
	arma
	delta []float64
	m     int // states

	// variance and gain are for the next value.
	variance  float64
	gain      []float64
	cov, work []float64 // covariance of the predicted state, by rows
	// unchangedSteps is the number of successive known values for which the variance has not changed: beyond
	// the number of states the whole covariance is constant.
	unchangedSteps int
}

// reset prepares the filter for a process before its first value. first is the stationary
// covariance of the ARMA part's state with its value.
func (k *covarianceFilter) reset(a arma, delta, first []float64) {
	k.arma, k.delta = a, delta
	r := len(a.phi)
	k.m = r + len(delta)
	k.gain = resized(k.gain, k.m)
	k.cov, k.work = resized(k.cov, k.m*k.m), resized(k.work, k.m*k.m)
	clear(k.cov)
	stationaryCovariance(a, first, k.cov, k.m)
	for i := r; i < k.m; i++ {
		k.cov[i*k.m+i] = diffuse
	}
	k.unchangedSteps = 0
	k.setGain()
}

// stationaryCovariance sets the top left r*r of cov, whose rows have length m, to the covariance of
// the stationary state, from its first column.
func stationaryCovariance(a arma, first, cov []float64, m int) {
	r := len(first)
	at := func(i, j int) float64 {
		if i >= r || j >= r {
			return 0
		}
		return cov[i*m+j]
	}
	for i, v := range first {
		cov[i*m], cov[i] = v, v
	}
	for i := r - 1; i > 0; i-- {
		for j := r - 1; j >= i; j-- {
			v := a.phi[i]*a.phi[j]*first[0] + a.phi[i]*at(0, j+1) + a.phi[j]*at(i+1, 0) + at(i+1, j+1) + a.theta[i]*a.theta[j]
			cov[i*m+j], cov[j*m+i] = v, v
		}
	}
}

// setGain computes the variance and the gain of the next value.
func (k *covarianceFilter) setGain() {
	r, m := len(k.phi), k.m
	for i := range m {
		row := k.cov[i*m : i*m+m]
		v := row[0]
		for j, d := range k.delta {
			v += d * row[r+j]
		}
		k.gain[i] = v
	}
	k.variance = k.gain[0]
	for j, d := range k.delta {
		k.variance += d * k.gain[r+j]
	}
	for i := range k.gain {
		k.gain[i] /= k.variance
	}
}

// updateCovariance reduces the covariance by the information of a known value.
func (k *covarianceFilter) updateCovariance() {
	m := k.m
	for i := range m {
		row, g := k.cov[i*m:i*m+m], k.gain[i]*k.variance
		for j := range row {
			row[j] -= g * k.gain[j]
		}
	}
}

// predictCovariance predicts the covariance one step ahead.
func (k *covarianceFilter) predictCovariance() {
	r, m := len(k.phi), k.m
	for i := range r { // work = T cov
		row := k.work[i*m : i*m+m]
		phi := k.phi[i]
		for j, v := range k.cov[:m] {
			row[j] = phi * v
		}
		if i+1 < r {
			for j, v := range k.cov[(i+1)*m : (i+2)*m] {
				row[j] += v
			}
		}
	}
	if m > r {
		row := k.work[r*m : r*m+m]
		copy(row, k.cov[:m])
		for i, d := range k.delta {
			if d != 0 {
				for j, v := range k.cov[(r+i)*m : (r+i+1)*m] {
					row[j] += d * v
				}
			}
		}
		copy(k.work[(r+1)*m:], k.cov[r*m:(m-1)*m])
	}
	for i := range m { // cov = work T' + shocks
		row := k.work[i*m : i*m+m]
		k.stepState(row, k.cov[i*m:i*m+m])
		if i < r {
			for j := range r {
				k.cov[i*m+j] += k.theta[i] * k.theta[j]
			}
		}
	}
	k.setGain()
}

// stepState writes to out the next state without shocks: the transition matrix T times the state.
func (k *covarianceFilter) stepState(state, out []float64) {
	r := len(k.phi)
	for j := range r {
		v := k.phi[j] * state[0]
		if j+1 < r {
			v += state[j+1]
		}
		out[j] = v
	}
	if k.m > r {
		out[r] = k.expected(state)
		copy(out[r+1:], state[r:k.m-1])
	}
}

// expected returns the value of a predicted state.
func (k *covarianceFilter) expected(state []float64) float64 {
	v := state[0]
	for j, d := range k.delta {
		v += d * state[len(k.phi)+j]
	}
	return v
}

// predictionErrors filters each column like stationaryFilter.predictionErrors. Where the first column is unknown, or
// a value only determines the initial state, the error is 0 and does not count; used is the number that count.
func (k *covarianceFilter) predictionErrors(columns, out, states [][]float64) (logs float64, used int) {
	for _, s := range states {
		clear(s)
	}
	next := make([]float64, k.m)
	for t, v := range columns[0] {
		known := !math.IsNaN(v)
		counts := known && k.variance < diffuseVariance
		if counts {
			logs += math.Log(k.variance)
			used++
		}
		root := 1 / math.Sqrt(k.variance)
		for c, col := range columns {
			out[c][t] = 0
			s := states[c]
			if known {
				e := col[t] - k.expected(s)
				for i, g := range k.gain {
					s[i] += g * e
				}
				if counts {
					out[c][t] = e * root
				}
			}
			k.stepState(s, next)
			copy(s, next)
		}
		k.updateByValue(known)
	}
	return logs, used
}

// updateByValue updates the covariance by a value, known or not.
func (k *covarianceFilter) updateByValue(known bool) {
	if !known {
		k.unchangedSteps = 0
		k.predictCovariance()
		return
	}
	if k.unchangedSteps > k.m {
		return
	}
	before := k.variance
	k.updateCovariance()
	k.predictCovariance()
	k.unchangedSteps++
	if math.Abs(k.variance-before) > convergedChange*before {
		k.unchangedSteps = 0
	}
}
