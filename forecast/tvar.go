package forecast

import (
	"math"
	"time"
)

// tvarMaxOrder bounds the order of the autoregression.
const tvarMaxOrder = 8

// tvarOrigins is the number of past forecasts that select the span.
const tvarOrigins = 48

// tvarSpans are the spans to try, the windows of SageServe's Appendix B.
var tvarSpans = []time.Duration{90 * time.Minute, 60 * time.Minute, 120 * time.Minute, 180 * time.Minute}

// tvarMinSteps is the minimum number of steps of a span, for long steps.
const tvarMinSteps = 24

type tvar struct{}

// TVAR is an autoregression with time-varying coefficients: it is fitted anew at every origin to
// the last 60 to 180 minutes (SageServe, Appendix B) by Burg's method, which keeps it stationary,
// with its order selected by AICc. The span is the one with the lowest past absolute error. It
// requires an hour of history.
func TVAR() Forecaster { return modelForecaster{tvar{}} }

func (tvar) Name() string { return "tvar" }

func (tvar) need(s Series) (steps int, description string) {
	n := max(s.steps(time.Hour), tvarMinSteps)
	return n, s.formatSteps(n)
}

func (tvar) fit(s Series, horizon int) predictor {
	var sizes []int
	for _, w := range tvarSpans {
		sizes = append(sizes, max(s.steps(w), tvarMinSteps))
	}
	best, lowest := 0, math.Inf(1)
	for i, size := range sizes {
		if e := tvarError(s, size, horizon, sizes[len(sizes)-1]); e < lowest {
			best, lowest = i, e
		}
	}
	return func(s Series, horizon int) []float64 { return tvarMeans(s.Values, sizes[best], horizon) }
}

// tvarError returns the absolute error with a span of size steps, over past origins that have the longest span
// before them.
func tvarError(s Series, size, horizon, longest int) float64 {
	n := len(s.Values)
	stride := max(1, (n-longest)/tvarOrigins)
	var sum float64
	for o := n - horizon; o >= longest; o -= stride {
		e, _, _ := absoluteError(window(s, o, horizon), tvarMeans(s.Values[:o], size, horizon))
		sum += e
	}
	return sum
}

// tvarMeans fits the last size values and extrapolates the autoregression.
func tvarMeans(values []float64, size, horizon int) []float64 {
	x := interpolated(values[max(0, len(values)-size):])
	if len(x) == 0 || math.IsNaN(x[0]) {
		return flat(math.NaN(), horizon)
	}
	level := mean(x)
	for i := range x {
		x[i] -= level
	}
	phi := burg(x, min(tvarMaxOrder, len(x)/4))
	out := make([]float64, horizon)
	for h := range out {
		var y float64
		for i, p := range phi {
			y += p * x[len(x)-1-i]
		}
		x = append(x, y)
		out[h] = level + y
	}
	return out
}

// burg fits an autoregression by Burg's method, with the order up to maxOrder that has the
// lowest AICc; the result is stationary.
func burg(x []float64, maxOrder int) []float64 {
	n := len(x)
	f, b := append([]float64(nil), x...), append([]float64(nil), x...)
	var energy float64
	for _, v := range x {
		energy += v * v
	}
	variance := energy / float64(n)
	if !(variance > 0) {
		return nil
	}
	var phi, best []float64
	lowest := aicc(variance, n, 0)
	for p := 1; p <= maxOrder; p++ {
		var num, den float64
		for t := p; t < n; t++ {
			num += f[t] * b[t-1]
			den += f[t]*f[t] + b[t-1]*b[t-1]
		}
		if !(den > 0) {
			break
		}
		k := 2 * num / den
		next := make([]float64, p)
		for i := range phi {
			next[i] = phi[i] - k*phi[p-2-i]
		}
		next[p-1] = k
		phi = next
		for t := n - 1; t >= p; t-- {
			f[t], b[t] = f[t]-k*b[t-1], b[t-1]-k*f[t]
		}
		variance *= 1 - k*k
		if !(variance > 0) {
			break
		}
		if a := aicc(variance, n, p); a < lowest {
			best, lowest = phi, a
		}
	}
	return best
}

// aicc returns Akaike's criterion, corrected for small samples, of an autoregression with a mean.
func aicc(variance float64, n, p int) float64 {
	k := float64(p + 2)
	return float64(n)*math.Log(variance) + 2*k + 2*k*(k+1)/max(1, float64(n)-k-1)
}
