package forecast

import "math"

// ARIMAOrder is the order of a seasonal ARIMA model, (P,D,Q)(SP,SD,SQ)[Season]: the number of
// autoregressive terms, differences and moving-average terms at single steps and at whole seasons.
type ARIMAOrder struct {
	P, D, Q    int
	SP, SD, SQ int
	// Season is the length of a season in steps. With 0 or 1 there is none, and the seasonal orders
	// are 0.
	Season int
}

// lags returns the length of the season, 0 for none.
func (o ARIMAOrder) lags() int {
	if o.Season > 1 {
		return o.Season
	}
	return 0
}

// differenced returns the number of values lost to differencing.
func (o ARIMAOrder) differenced() int { return o.D + o.SD*o.lags() }

// params returns the number of ARMA coefficients.
func (o ARIMAOrder) params() int { return o.P + o.Q + o.SP + o.SQ }

// arma is an ARMA process with its seasonal factors multiplied out, in state-space form: r = max(p,
// q+1) states, phi and theta with one value per state, theta[0] = 1.
type arma struct{ phi, theta []float64 }

// expand multiplies the factors out. ar, ma, sar and sma are coefficients with R's signs: (1 - ar
// B) y = (1 + ma B) e.
func (o ARIMAOrder) expand(ar, ma, sar, sma []float64) arma {
	s := o.lags()
	p, q := len(ar)+s*len(sar), len(ma)+s*len(sma)
	r := max(p, q+1)
	a := arma{phi: make([]float64, r), theta: make([]float64, r)}
	a.theta[0] = 1
	copy(a.phi, ar)
	copy(a.theta[1:], ma)
	for j, c := range sar {
		at := s * (j + 1)
		a.phi[at-1] += c
		for i, v := range ar {
			a.phi[at+i] -= c * v
		}
	}
	for j, c := range sma {
		at := s * (j + 1)
		a.theta[at] += c
		for i, v := range ma {
			a.theta[at+i+1] += c * v
		}
	}
	return a
}

// delta returns the differencing polynomial as the weights of past values: y[t] = w[t] + sum
// delta[i] y[t-1-i], where w is the differenced series.
func (o ARIMAOrder) delta() []float64 {
	poly := []float64{1}
	times := func(lag int) {
		out := make([]float64, len(poly)+lag)
		for i, v := range poly {
			out[i] += v
			out[i+lag] -= v
		}
		poly = out
	}
	for range o.D {
		times(1)
	}
	for range o.SD {
		times(o.lags())
	}
	out := make([]float64, len(poly)-1)
	for i := range out {
		out[i] = -poly[i+1]
	}
	return out
}

// difference applies the order's differences. The result is shorter by differenced values, and
// unknown wherever one of its inputs is.
func (o ARIMAOrder) difference(y []float64) []float64 {
	for range o.D {
		y = lagged(y, 1)
	}
	for range o.SD {
		y = lagged(y, o.lags())
	}
	return y
}

func lagged(y []float64, lag int) []float64 {
	if len(y) <= lag {
		return nil
	}
	out := make([]float64, len(y)-lag)
	for i := range out {
		out[i] = y[i+lag] - y[i]
	}
	return out
}

// fromPartial writes to out the coefficients of the autoregression whose partial autocorrelations
// are tanh of u. Every u gives a stationary one, and every stationary one has exactly one u (Jones
// 1980, Monahan 1984). work has the same length.
func fromPartial(u, out, work []float64) {
	for k, v := range u {
		r := math.Tanh(v)
		copy(work, out[:k])
		for i := range k {
			out[i] = work[i] - r*work[k-1-i]
		}
		out[k] = r
	}
}

// toPartial is the inverse of fromPartial; ok is false for coefficients of a process that is not
// stationary.
func toPartial(coef []float64) (u []float64, ok bool) {
	partial, ok := partials(coef)
	if !ok {
		return nil, false
	}
	for i, r := range partial {
		partial[i] = math.Atanh(r)
	}
	return partial, true
}

// partials converts the coefficients of an autoregression to its partial autocorrelations, which
// are all in (-1,1) exactly when it is stationary.
func partials(coef []float64) (partial []float64, ok bool) {
	a := append([]float64(nil), coef...)
	work := make([]float64, len(a))
	for k := len(a) - 1; k >= 0; k-- {
		r := a[k]
		if !(math.Abs(r) < 1) {
			return nil, false
		}
		copy(work, a[:k])
		for i := range k {
			a[i] = (work[i] + r*work[k-1-i]) / (1 - r*r)
		}
	}
	return a, true
}

// rootsBeyond reports whether every root of 1 - sum coef[i] z^(i+1) is further from the origin than
// radius.
func rootsBeyond(coef []float64, radius float64) bool {
	scaled := make([]float64, len(coef))
	f := 1.0
	for i, c := range coef {
		f *= radius
		scaled[i] = c * f
	}
	_, ok := partials(scaled)
	return ok
}

// negated converts the polynomial of a moving average to that of an autoregression.
func negated(coef []float64) []float64 {
	out := make([]float64, len(coef))
	for i, c := range coef {
		out[i] = -c
	}
	return out
}

// psi writes the first weights of the process as an infinite moving average.
func (a arma) psi(out []float64) {
	for j := range out {
		v := 0.0
		if j < len(a.theta) {
			v = a.theta[j]
		}
		for i := 0; i < len(a.phi) && i < j; i++ {
			v += a.phi[i] * out[j-1-i]
		}
		out[j] = v
	}
}

// trimmed returns coef without trailing zeros.
func trimmed(coef []float64) []float64 {
	for len(coef) > 0 && coef[len(coef)-1] == 0 {
		coef = coef[:len(coef)-1]
	}
	return coef
}

// conditioningValues returns the number of first values that the conditional errors depend on and do not predict.
func (a arma) conditioningValues() int { return len(trimmed(a.phi)) }

// term is a non-zero coefficient at its lag.
type term struct {
	lag  int
	coef float64
}

// terms lists the autoregressive and the moving-average coefficients.
func (a arma) terms() (ar, ma []term) {
	for i, c := range a.phi {
		if c != 0 {
			ar = append(ar, term{i + 1, c})
		}
	}
	for i, c := range a.theta[1:] {
		if c != 0 {
			ma = append(ma, term{i + 1, c})
		}
	}
	return ar, ma
}

// conditionalErrors writes each column's prediction errors to out, with the first values taken as
// given and the shocks before the first as 0 (Box and Jenkins).
func (a arma) conditionalErrors(columns, out [][]float64) {
	ar, ma := a.terms()
	given := a.conditioningValues()
	for c, col := range columns {
		e := out[c]
		clear(e[:min(given, len(e))])
		for t := given; t < len(col); t++ {
			v := col[t]
			for _, x := range ar {
				v -= x.coef * col[t-x.lag]
			}
			for _, x := range ma {
				if t >= x.lag {
					v -= x.coef * e[t-x.lag]
				}
			}
			e[t] = v
		}
	}
}
