package forecast

import "math"

// maxCovarianceState is the largest number of states with which covarianceFilter runs just for standard errors: a season
// of a day at 15 minutes has 200 states.
const maxCovarianceState = 128

// paths forecasts the process z from each of the ascending origins, using the values before it, in
// one pass of the filter. An origin before the values that differencing needs has no path (nil).
func (m *ARIMA) paths(z []float64, origins []int, horizon int) [][]float64 {
	var fast stationaryFilter
	if anyUnknown(z) || !fast.reset(m.process) {
		return m.covariancePaths(z, origins, horizon)
	}
	out := make([][]float64, len(origins))
	w, lost, delta := m.difference(z), m.differenced(), m.delta()
	state := make([]float64, len(m.process.phi))
	done := 0
	for i, o := range origins {
		if o < lost {
			continue
		}
		for ; done < o-lost; done++ {
			fast.stepFilter(state, w[done])
			fast.advance()
		}
		out[i] = m.path(state, z[o-lost:o], delta, horizon)
	}
	return out
}

// path continues the process without shocks from a state. `last` are the values before it, at least as many as
// differencing needs.
func (m *ARIMA) path(state, last, delta []float64, horizon int) []float64 {
	state = append([]float64(nil), state...)
	out := make([]float64, horizon)
	phi := m.process.phi
	r := len(phi)
	for h := range out {
		w := state[0]
		for i := range r - 1 {
			state[i] = state[i+1] + phi[i]*w
		}
		state[r-1] = phi[r-1] * w
		for i, d := range delta {
			if at := h - 1 - i; at >= 0 {
				w += d * out[at]
			} else {
				w += d * last[len(last)+at]
			}
		}
		out[h] = w
	}
	return out
}

// covariancePaths is paths by covarianceFilter: for a process with unknown values, or one that stationaryFilter does not
// support.
func (m *ARIMA) covariancePaths(z []float64, origins []int, horizon int) [][]float64 {
	out := make([][]float64, len(origins))
	k := m.newCovarianceFilter()
	state, next := make([]float64, k.m), make([]float64, k.m)
	done := 0
	for i, o := range origins {
		for ; done < o; done++ {
			k.advance(state, next, z[done])
		}
		if o == 0 {
			continue
		}
		out[i] = make([]float64, horizon)
		ahead := append([]float64(nil), state...)
		for h := range out[i] {
			out[i][h] = k.expected(ahead)
			k.stepState(ahead, next)
			copy(ahead, next)
		}
	}
	return out
}

func (m *ARIMA) newCovarianceFilter() *covarianceFilter {
	var start stationaryFilter
	start.reset(m.process)
	k := &covarianceFilter{}
	k.reset(m.process, m.delta(), start.first)
	return k
}

// standardErrors returns the standard errors of the forecasts after z. Once the gain has converged
// only future shocks contribute; before, the uncertainty of the state contributes too, except for
// states beyond maxCovarianceState.
func (m *ARIMA) standardErrors(z []float64, horizon int) []float64 {
	out := make([]float64, horizon)
	var fast stationaryFilter
	settled := fast.reset(m.process) && !anyUnknown(z)
	for t := 0; settled && t < len(z)-m.differenced() && !fast.settled; t++ {
		fast.advance()
	}
	if size := len(m.process.phi) + m.differenced(); settled && fast.settled || size > maxCovarianceState {
		m.shockErrors(out)
		return out
	}
	k := m.newCovarianceFilter()
	for _, v := range z {
		k.updateByValue(!math.IsNaN(v))
	}
	for h := range out {
		out[h] = math.Sqrt(max(0, m.Sigma2*k.variance))
		k.predictCovariance()
	}
	return out
}

// shockErrors sets out to the errors caused by future shocks.
func (m *ARIMA) shockErrors(out []float64) {
	weights := make([]float64, len(out))
	m.process.psi(weights)
	delta, sum := m.delta(), 0.0
	for j := range weights {
		for i := 0; i < len(delta) && i < j; i++ {
			weights[j] += delta[i] * weights[j-1-i]
		}
		sum += weights[j] * weights[j]
		out[j] = math.Sqrt(m.Sigma2 * sum)
	}
}

// advance updates a state and the covariance by one value.
func (k *covarianceFilter) advance(state, next []float64, value float64) {
	if !math.IsNaN(value) {
		e := value - k.expected(state)
		for i, g := range k.gain {
			state[i] += g * e
		}
	}
	k.updateByValue(!math.IsNaN(value))
	k.stepState(state, next)
	copy(state, next)
}
