package forecast

import "math"

// hannanRissanen returns a starting point of the search (Hannan and Rissanen 1982): a long
// autoregression estimates the shocks, then the series is regressed on past values and past shocks.
// It returns the search variables, nil without a result.
func (l *likelihood) hannanRissanen() []float64 {
	w := l.residuals()
	if w == nil {
		return nil
	}
	n := len(w)
	long := min(int(10*math.Log10(float64(n))), n/4)
	shocks := longShocks(w, long)
	if shocks == nil {
		return nil
	}
	lags := l.startLags()
	from := long
	for _, g := range lags {
		from = max(from, g.lag)
	}
	if n-from < 3*len(lags)+5 {
		return nil
	}
	columns := make([][]float64, len(lags))
	for i, g := range lags {
		past := w
		if g.shock {
			past = shocks
		}
		columns[i] = past[from-g.lag : n-g.lag]
	}
	var ls leastSquares
	if _, ok := ls.solve(w[from:], columns); !ok {
		return nil
	}
	return l.freeVariables(ls.beta)
}

// startLag is one regressor of the starting point: a past value or a past shock.
type startLag struct {
	lag   int
	shock bool
}

// startLags lists the regressors in the order of the coefficients.
func (l *likelihood) startLags() []startLag {
	var out []startLag
	add := func(count, step int, shock bool) {
		for i := range count {
			out = append(out, startLag{(i + 1) * step, shock})
		}
	}
	s := l.spec
	add(s.P, 1, false)
	add(s.Q, 1, true)
	add(s.SP, s.lags(), false)
	add(s.SQ, s.lags(), true)
	return out
}

// residuals returns the differenced series without the part that constant and regressors explain by
// ordinary least squares; nil where values are unknown.
func (l *likelihood) residuals() []float64 {
	if l.undifferenced {
		return nil
	}
	w := append([]float64(nil), l.columns[0]...)
	var ls leastSquares
	if _, ok := ls.solve(w, l.columns[1:]); !ok {
		return nil
	}
	for i, b := range ls.beta[:len(l.columns)-1] {
		for t, v := range l.columns[i+1] {
			w[t] -= b * v
		}
	}
	return w
}

// longShocks returns the errors of an autoregression of the given order by Yule-Walker, 0 before
// its first; nil for a series without variance.
func longShocks(w []float64, order int) []float64 {
	if order < 1 {
		return nil
	}
	gamma := make([]float64, order+1)
	for h := range gamma {
		for t := h; t < len(w); t++ {
			gamma[h] += w[t] * w[t-h]
		}
	}
	if gamma[0] == 0 {
		return nil
	}
	phi := levinson(gamma)
	out := make([]float64, len(w))
	for t := order; t < len(w); t++ {
		e := w[t]
		for i, c := range phi {
			e -= c * w[t-1-i]
		}
		out[t] = e
	}
	return out
}

// levinson solves the Yule-Walker equations of the autocovariances gamma.
func levinson(gamma []float64) []float64 {
	phi, work := make([]float64, 0, len(gamma)-1), make([]float64, len(gamma))
	remainder := gamma[0]
	for m := 1; m < len(gamma); m++ {
		r := gamma[m]
		for i, c := range phi {
			r -= c * gamma[m-1-i]
		}
		if remainder <= 0 {
			break
		}
		r /= remainder
		copy(work, phi)
		for i := range phi {
			phi[i] = work[i] - r*work[len(phi)-1-i]
		}
		phi = append(phi, r)
		remainder *= 1 - r*r
	}
	return phi
}

// freeVariables converts estimates to search variables, shrinking a factor until it is stationary,
// or invertible.
func (l *likelihood) freeVariables(coef []float64) []float64 {
	var out []float64
	at := 0
	for i, n := range []int{l.spec.P, l.spec.Q, l.spec.SP, l.spec.SQ} {
		factor := coef[at : at+n]
		if i%2 == 1 {
			factor = negated(factor)
		}
		u := within(factor)
		if u == nil {
			return nil
		}
		out = append(out, u...)
		at += n
	}
	return out
}

// within shrinks a factor until its roots are well outside the unit circle; nil when that fails.
func within(coef []float64) []float64 {
	c := append([]float64(nil), coef...)
	for range 60 {
		if rootsBeyond(c, 1.02) {
			u, _ := toPartial(c)
			if u == nil {
				return []float64{}
			}
			return u
		}
		f := 1.0
		for i := range c {
			f *= 0.95
			c[i] *= f
		}
	}
	return nil
}
