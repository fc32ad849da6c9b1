package forecast

import (
	"errors"
	"fmt"
	"math"
)

const (
	// minVariance is the minimum variance of the shocks relative to that of the series, so that a
	// series without noise has a maximum likelihood.
	minVariance = 1e-24
	// impossibleValue is what likelihood.value returns for coefficients that no process can have.
	impossibleValue = 1e10
)

// likelihood is the likelihood of one specification and one series, as a function of the ARMA
// coefficients alone: the regression and the variance of the shocks are optimal for those. It
// reuses all its buffers.
type likelihood struct {
	spec ARIMASpec
	y    []float64
	// columns are the series, the constant where there is one and the regressors, differenced
	// unless undifferenced, each divided by its scale.
	columns [][]float64
	scales  []float64
	// undifferenced is set when values are unknown: covarianceFilter, which is then used, does the differencing
	// itself.
	undifferenced bool
	// conditional treats the first values as given instead of as drawn from the stationary process.
	// It costs a fraction of the work and is accurate enough for comparing orders.
	conditional bool
	delta       []float64

	stationary  stationaryFilter // without unknown values
	covariance  covarianceFilter // with unknown values
	out, states [][]float64
	regression  leastSquares
	coef, work  []float64

	used int
	logs float64
	rss  float64
}

func newLikelihood(y []float64, spec ARIMASpec) (*likelihood, error) {
	if err := spec.checkSpec(len(y)); err != nil {
		return nil, err
	}
	have := len(known(y))
	if need := spec.differenced() + spec.count() + 1; have < need {
		return nil, fmt.Errorf("must have at least %d known values, got %d", need, have)
	}
	l := &likelihood{spec: spec, y: y, undifferenced: anyUnknown(y), delta: spec.delta()}
	l.columns = append([][]float64{y}, spec.X...)
	if spec.Constant {
		l.columns = append([][]float64{y, l.constant(len(y))}, spec.X...)
	}
	for i, c := range l.columns {
		if !l.undifferenced {
			c = spec.difference(c)
		}
		var scale float64
		l.columns[i], scale = scaled(c)
		l.scales = append(l.scales, scale)
	}
	l.allocate(len(l.columns[0]))
	if l.value(make([]float64, spec.params())) == impossibleValue {
		return nil, errors.New("regressors: must be linearly independent of each other and of the constant")
	}
	return l, nil
}

// count returns the number of coefficients of the specification, ARMA and regression.
func (s ARIMASpec) count() int {
	n := s.params() + len(s.X)
	if s.Constant {
		n++
	}
	return n
}

// constant returns the regressor of a mean or of a drift.
func (l *likelihood) constant(n int) []float64 {
	out := make([]float64, n)
	for t := range out {
		out[t] = 1
		if len(l.delta) > 0 {
			out[t] = float64(t + 1)
		}
	}
	return out
}

// scaled divides a column by the root of its mean square, so that nothing depends on its unit.
func scaled(c []float64) (out []float64, scale float64) {
	var largest, sum float64
	for _, v := range c {
		if !math.IsNaN(v) {
			largest = max(largest, math.Abs(v))
		}
	}
	if largest == 0 {
		return c, 1
	}
	n := 0
	for _, v := range c {
		if !math.IsNaN(v) {
			sum += v / largest * (v / largest)
			n++
		}
	}
	scale = largest * math.Sqrt(sum/float64(n))
	out = make([]float64, len(c))
	for t, v := range c {
		out[t] = v / scale
	}
	return out, scale
}

func (l *likelihood) allocate(n int) {
	states := max(l.spec.P+l.spec.lags()*l.spec.SP, l.spec.Q+l.spec.lags()*l.spec.SQ+1)
	if l.undifferenced {
		states += len(l.delta)
	}
	for range l.columns {
		l.out = append(l.out, make([]float64, n))
		l.states = append(l.states, make([]float64, states))
	}
	l.coef, l.work = make([]float64, l.spec.params()), make([]float64, l.spec.params())
}

// coefficients converts the search variables to coefficients: each factor is stationary, or
// invertible.
func (l *likelihood) coefficients(u []float64) (ar, ma, sar, sma []float64) {
	at := 0
	next := func(n int, sign float64) []float64 {
		out := l.coef[at : at+n]
		fromPartial(u[at:at+n], out, l.work)
		for i := range out {
			out[i] *= sign
		}
		at += n
		return out
	}
	return next(l.spec.P, 1), next(l.spec.Q, -1), next(l.spec.SP, 1), next(l.spec.SQ, -1)
}

// value returns minus the log-likelihood per value, without terms that do not depend on u.
func (l *likelihood) value(u []float64) float64 {
	process := l.spec.expand(l.coefficients(u))
	if !l.filter(process) || l.used == 0 {
		return impossibleValue
	}
	var ok bool
	if l.rss, ok = l.regression.solve(l.out[0], l.out[1:]); !ok {
		return impossibleValue
	}
	if l.conditional {
		l.rss *= float64(l.used) / float64(l.used-process.conditioningValues())
	}
	n := float64(l.used)
	v := 0.5 * (math.Log(max(l.rss/n, minVariance)) + l.logs/n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return impossibleValue
	}
	return v
}

// filter sets out to the prediction errors of the columns, and sets logs and used.
func (l *likelihood) filter(process arma) bool {
	l.used = len(l.out[0])
	if l.conditional {
		l.logs = 0
		process.conditionalErrors(l.columns, l.out)
		return l.used > process.conditioningValues()
	}
	if !l.stationary.reset(process) {
		return false
	}
	if l.undifferenced {
		l.covariance.reset(process, l.delta, l.stationary.first)
		l.logs, l.used = l.covariance.predictionErrors(l.columns, l.out, l.states)
	} else {
		l.logs = l.stationary.predictionErrors(l.columns, l.out, l.states)
	}
	return true
}

// fit searches from the best of three points: the given start (nil for none), the estimate of
// Hannan and Rissanen, and zero.
func (l *likelihood) fit(start []float64, a accuracy) *ARIMA {
	u := make([]float64, l.spec.params())
	lowest := l.value(u)
	if l.rss/float64(l.used) <= minVariance || len(u) == 0 {
		return l.model(u)
	}
	for _, s := range [][]float64{start, l.hannanRissanen()} {
		if s == nil {
			continue
		}
		if v := l.value(s); v < lowest {
			u, lowest = s, v
		}
	}
	u, _ = minimise(l.value, u, lowest, a)
	return l.model(u)
}

// model returns the fitted model at u.
func (l *likelihood) model(u []float64) *ARIMA {
	l.value(u)
	ar, ma, sar, sma := l.coefficients(u)
	clone := func(c []float64) []float64 { return append([]float64{}, c...) }
	m := &ARIMA{
		ARIMAOrder: l.spec.ARIMAOrder, AR: clone(ar), MA: clone(ma), SAR: clone(sar), SMA: clone(sma),
		HasConstant: l.spec.Constant, Used: l.used, y: l.y, x: l.spec.X,
	}
	m.process = l.spec.expand(m.AR, m.MA, m.SAR, m.SMA)
	beta := make([]float64, len(l.columns)-1)
	for i := range beta {
		beta[i] = l.regression.beta[i] * l.scales[0] / l.scales[i+1]
	}
	if m.HasConstant {
		m.Constant, beta = beta[0], beta[1:]
	}
	m.Beta = beta
	l.setCriteria(m)
	return m
}

// setCriteria sets the variance, the likelihood and the criteria.
func (l *likelihood) setCriteria(m *ARIMA) {
	n, k := float64(l.used), float64(l.spec.count()+1)
	if variance := l.rss / n; variance > minVariance {
		m.Sigma2 = variance * l.scales[0] * l.scales[0]
		m.LogLik = -0.5 * (n*(math.Log(2*math.Pi*variance)+1) + l.logs + 2*n*math.Log(l.scales[0]))
	} else {
		m.LogLik = math.Inf(1)
	}
	m.AIC = -2*m.LogLik + 2*k
	m.BIC = -2*m.LogLik + k*math.Log(n)
	m.AICc = math.Inf(1)
	if n > k+1 {
		m.AICc = m.AIC + 2*k*(k+1)/(n-k-1)
	}
}
