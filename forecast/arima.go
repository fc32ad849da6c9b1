package forecast

import (
	"fmt"
	"math"
	"strings"
)

// ARIMASpec specifies the ARIMA model to fit.
type ARIMASpec struct {
	ARIMAOrder
	// Constant adds the mean of a model without differences, or the drift of a model with one. A
	// model with two differences has no constant.
	Constant bool
	// X are regressors, one column each, as long as the series and without unknown values. The
	// errors of the regression are the ARIMA process.
	X [][]float64
}

// ARIMA is a seasonal ARIMA model, with or without regressors, fitted by exact maximum likelihood.
// The signs of the coefficients are those of R and of statsmodels: y[t] = ar y[t-1] + ... + e[t] +
// ma e[t-1] + ...
type ARIMA struct {
	ARIMAOrder
	// AR and MA are the coefficients at single steps, SAR and SMA those at seasons.
	AR, MA, SAR, SMA []float64
	// HasConstant is set when Constant, the mean or the drift per step, was fitted.
	HasConstant bool
	Constant    float64
	// Beta has one coefficient per regressor.
	Beta []float64
	// Sigma2 is the variance of the shocks (sum of squares over Used), LogLik the log-likelihood.
	// For a series that the model reproduces exactly they are 0 and +Inf.
	Sigma2, LogLik float64
	// AIC, AICc and BIC count the coefficients and Sigma2. AICc is +Inf where there are too few
	// values for it.
	AIC, AICc, BIC float64
	// Used is the number of values in the likelihood: the known ones minus those lost to
	// differencing.
	Used int

	process arma
	y       []float64
	x       [][]float64
}

// String returns the model's name as in R: ARIMA(0,1,1)(0,1,1)[12].
func (m *ARIMA) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ARIMA%s", m.ARIMAOrder)
	switch {
	case m.HasConstant && m.differenced() > 0:
		b.WriteString(" with drift")
	case m.HasConstant:
		b.WriteString(" with mean")
	}
	if n := len(m.Beta); n > 0 {
		fmt.Fprintf(&b, " and %d regressors", n)
	}
	return b.String()
}

// String returns (p,d,q)(P,D,Q)[s], without a zero seasonal part.
func (o ARIMAOrder) String() string {
	s := fmt.Sprintf("(%d,%d,%d)", o.P, o.D, o.Q)
	if o.SP+o.SD+o.SQ > 0 {
		s += fmt.Sprintf("(%d,%d,%d)[%d]", o.SP, o.SD, o.SQ, o.Season)
	}
	return s
}

// FitARIMA fits one ARIMA model by exact maximum likelihood (Gaussian shocks; Harvey 1989, Durbin
// and Koopman 2012, chapter 2). Unknown values (NaN) are skipped exactly; with differences they
// make the values before the series diffuse, as in R's arima. Regression coefficients and the
// variance are maximised in closed form, the others by BFGS among stationary and invertible
// coefficients. It fails when the order is impossible, when there are too few values for it, or
// when regressors are linearly dependent.
func FitARIMA(y []float64, spec ARIMASpec) (*ARIMA, error) {
	l, err := newLikelihood(y, spec)
	if err != nil {
		return nil, fmt.Errorf("fitting ARIMA%s: %w", spec.ARIMAOrder, err)
	}
	return l.fit(nil, exact), nil
}

// checkSpec rejects an invalid order, constant or regressor.
func (s ARIMASpec) checkSpec(n int) error {
	for _, v := range []int{s.P, s.D, s.Q, s.SP, s.SD, s.SQ, s.Season} {
		if v < 0 {
			return fmt.Errorf("order: must not be negative, got %d", v)
		}
	}
	if s.lags() == 0 && s.SP+s.SD+s.SQ > 0 {
		return fmt.Errorf("season: a seasonal order requires a season of at least 2 steps, got %d", s.Season)
	}
	if s.Constant && s.D+s.SD > 1 {
		return fmt.Errorf("constant: must have at most one difference, got %d", s.D+s.SD)
	}
	for i, c := range s.X {
		if len(c) != n {
			return fmt.Errorf("regressor %d: must have %d values, got %d", i, n, len(c))
		}
		for t, v := range c {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("regressor %d: value %d: must be a number, got %g", i, t, v)
			}
		}
	}
	return nil
}

// Predict forecasts the horizon values after the fitted series, with the standard error of each,
// assuming Gaussian shocks and known coefficients. x are the regressors over the horizon. It fails
// when they do not fit.
func (m *ARIMA) Predict(horizon int, x [][]float64) (mean, se []float64, err error) {
	if horizon < 1 {
		return nil, nil, fmt.Errorf("predicting by %s: horizon: must be at least 1, got %d", m, horizon)
	}
	if len(x) != len(m.Beta) {
		return nil, nil, fmt.Errorf("predicting by %s: must have %d regressors, got %d", m, len(m.Beta), len(x))
	}
	for i, c := range x {
		if len(c) < horizon {
			return nil, nil, fmt.Errorf("predicting by %s: regressor %d: must have %d values, got %d", m, i, horizon, len(c))
		}
	}
	z := m.unexplained(m.y, m.x)
	mean = m.paths(z, []int{len(z)}, horizon)[0]
	for h := range mean {
		mean[h] += m.explained(len(z)+h, func(i int) float64 { return x[i][h] })
	}
	return mean, m.standardErrors(z, horizon), nil
}

// explained returns the part of step t that constant and regressors explain.
func (m *ARIMA) explained(t int, x func(i int) float64) float64 {
	v := 0.0
	if m.HasConstant {
		v = m.Constant
		if m.differenced() > 0 {
			v *= float64(t + 1)
		}
	}
	for i, b := range m.Beta {
		v += b * x(i)
	}
	return v
}

// unexplained returns the series minus the part that constant and regressors explain: the ARIMA
// process itself.
func (m *ARIMA) unexplained(y []float64, x [][]float64) []float64 {
	z := make([]float64, len(y))
	for t, v := range y {
		z[t] = v - m.explained(t, func(i int) float64 { return x[i][t] })
	}
	return z
}

func anyUnknown(values []float64) bool {
	for _, v := range values {
		if math.IsNaN(v) {
			return true
		}
	}
	return false
}
