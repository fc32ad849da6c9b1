package forecast

import "math"

// fourier are the sines and cosines of the first terms multiples of a period, at
// n times: two columns a term, in the sequence of the terms. at gives the time of
// a value and period has its unit.
func fourier(period float64, terms, n int, at func(i int) float64) [][]float64 {
	out := make([][]float64, 2*terms)
	for i := range out {
		out[i] = make([]float64, n)
	}
	for i := range n {
		angle := 2 * math.Pi * math.Mod(at(i), period) / period
		for k := range terms {
			sin, cos := math.Sincos(float64(k+1) * angle)
			out[2*k][i], out[2*k+1][i] = sin, cos
		}
	}
	return out
}

// season is a period, in minutes, with how many of its Fourier terms a model has.
type season struct {
	period float64
	terms  int
}

// seasonColumns are the regressors of several seasons.
func seasonColumns(seasons []season, n int, at func(i int) float64) [][]float64 {
	var out [][]float64
	for _, s := range seasons {
		out = append(out, fourier(s.period, s.terms, n, at)...)
	}
	return out
}

// fitFourier chooses an ARIMA model with Fourier terms of seasons, each with up
// to the given number of terms: the order by AutoARIMA on what all of them leave
// of the series, then the number of terms of one season after the other by AICc
// at that model's coefficients, then all coefficients by maximum likelihood.
func fitFourier(y []float64, seasons []season, at func(i int) float64) (*ARIMA, []season, error) {
	search := &orderSearch{y: y, x: seasonColumns(seasons, len(y), at)}
	rest, err := search.withoutRegressors()
	if err != nil {
		return nil, nil, err
	}
	m, err := AutoARIMA(rest, 0, trafficDifferences, nil)
	if err != nil {
		return nil, nil, err
	}
	spec := ARIMASpec{Order: m.Order, Constant: m.D == 0}
	kept, err := fewestTerms(y, spec, m, seasons, at)
	if err != nil {
		return nil, nil, err
	}
	spec.X = seasonColumns(kept, len(y), at)
	l, err := newLikelihood(y, spec)
	if err != nil {
		return nil, nil, err
	}
	return l.fit(m.free(), exact), kept, nil
}

// fewestTerms lowers the number of terms of each season in turn, last first, to
// where AICc is least at the coefficients of m. One pass of the filter serves all
// numbers of terms.
func fewestTerms(y []float64, spec ARIMASpec, m *ARIMA, seasons []season, at func(i int) float64) ([]season, error) {
	kept := append([]season(nil), seasons...)
	for i := len(kept) - 1; i >= 0; i-- {
		others := append(append([]season(nil), kept[:i]...), kept[i+1:]...)
		spec.X = seasonColumns(append(others, kept[i]), len(y), at)
		l, err := newLikelihood(y, spec)
		if err != nil {
			return nil, err
		}
		l.value(m.free())
		least := math.Inf(1)
		most := len(l.out) - 1
		for terms := range kept[i].terms + 1 {
			columns := most - 2*(seasons[i].terms-terms)
			rss, ok := l.regression.solve(l.out[0], l.out[1:1+columns])
			if a := l.aicc(rss, columns); ok && a < least {
				least = a
				kept[i].terms = terms
			}
		}
	}
	return kept, nil
}

// aicc is the criterion, less what does not depend on the regression, of the
// first columns of the regression with the sum of squares that they leave.
func (l *likelihood) aicc(rss float64, columns int) float64 {
	n, k := float64(l.used), float64(l.spec.params()+columns+1)
	if n <= k+1 {
		return math.Inf(1)
	}
	return n*math.Log(max(rss/n, leastVariance)) + 2*k + 2*k*(k+1)/(n-k-1)
}

// free are the free variables of the search that stand for the model's
// coefficients; nil when they lie at its edge.
func (m *ARIMA) free() []float64 {
	out := []float64{}
	for _, factor := range [][]float64{m.AR, negated(m.MA), m.SAR, negated(m.SMA)} {
		u, ok := toPartial(factor)
		if !ok {
			return nil
		}
		out = append(out, u...)
	}
	return out
}
