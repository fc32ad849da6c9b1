package forecast

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// drawProcess is any stationary, invertible process of small orders.
func drawProcess(t *rapid.T) (ARIMAOrder, arma) {
	o := ARIMAOrder{
		P: rapid.IntRange(0, 3).Draw(t, "p"), Q: rapid.IntRange(0, 3).Draw(t, "q"),
		SP: rapid.IntRange(0, 1).Draw(t, "P"), SQ: rapid.IntRange(0, 2).Draw(t, "Q"), Season: rapid.SampledFrom([]int{4, 7}).Draw(t, "season"),
	}
	factor := func(n int, sign float64) []float64 {
		u, out, work := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range u {
			u[i] = rapid.Float64Range(-1.5, 1.5).Draw(t, "partial")
		}
		fromPartial(u, out, work)
		for i := range out {
			out[i] *= sign
		}
		return out
	}
	return o, o.expand(factor(o.P, 1), factor(o.Q, -1), factor(o.SP, 1), factor(o.SQ, -1))
}

func drawValues(t *rapid.T, n int) []float64 {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 4))
	out := make([]float64, n)
	for i := range out {
		out[i] = r.NormFloat64()
	}
	return out
}

// bruteForce is the covariance matrix of n values of a process from its weights as an infinite
// moving average, truncated where they vanish.
func bruteForce(a arma, n int) [][]float64 {
	psi := make([]float64, 4000)
	a.psi(psi)
	// Near a unit root the weights vanish slowly.
	for tail := psi[len(psi)*3/4:]; dot(tail, tail) > 1e-12*dot(psi, psi); tail = psi[len(psi)*3/4:] {
		psi = make([]float64, 2*len(psi))
		a.psi(psi)
	}
	gamma := make([]float64, n)
	for h := range gamma {
		for j := 0; j+h < len(psi); j++ {
			gamma[h] += psi[j] * psi[j+h]
		}
	}
	out := make([][]float64, n)
	for i := range out {
		out[i] = make([]float64, n)
		for j := range out[i] {
			out[i][j] = gamma[abs(i-j)]
		}
	}
	return out
}

// quadratic is log det of a covariance and the squared length of values by its
// inverse, through its Cholesky factor.
func quadratic(cov [][]float64, values []float64) (logDet, square float64) {
	n := len(values)
	l := make([][]float64, n)
	z := make([]float64, n)
	for i := range n {
		l[i] = make([]float64, n)
		for j := range i + 1 {
			v := cov[i][j]
			for k := range j {
				v -= l[i][k] * l[j][k]
			}
			if i == j {
				l[i][i] = math.Sqrt(v)
			} else {
				l[i][j] = v / l[j][j]
			}
		}
		z[i] = values[i]
		for k := range i {
			z[i] -= l[i][k] * z[k]
		}
		z[i] /= l[i][i]
		logDet += 2 * math.Log(l[i][i])
		square += z[i] * z[i]
	}
	return logDet, square
}

// stationaryFilter, covarianceFilter and the covariance matrix itself yield the same
// likelihood, and covarianceFilter does so too where values are unknown.
func TestFiltersEqualTheCovarianceMatrix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, a := drawProcess(t)
		y := drawValues(t, rapid.IntRange(1, 40).Draw(t, "n"))
		var fast stationaryFilter
		if !fast.reset(a) {
			t.Fatal("the process has no variance")
		}
		first := append([]float64(nil), fast.first...)
		logDet, square := quadratic(bruteForce(a, len(y)), y)
		out := [][]float64{make([]float64, len(y))}
		state := [][]float64{make([]float64, len(a.phi))}
		logs := fast.predictionErrors([][]float64{y}, out, state)
		agree(t, "fast log", logs, logDet)
		agree(t, "fast square", dot(out[0], out[0]), square)
		expected := state[0][0]

		var slow covarianceFilter
		slow.reset(a, nil, first)
		logs, used := slow.predictionErrors([][]float64{y}, out, state)
		agree(t, "covariance log", logs, logDet)
		agree(t, "covariance square", dot(out[0], out[0]), square)
		agree(t, "next value", state[0][0], expected)
		if used != len(y) {
			t.Fatalf("%d values count, want %d", used, len(y))
		}
		withHoles(t, a, first, y)
	})
}

func withHoles(t *rapid.T, a arma, first, y []float64) {
	holed := append([]float64(nil), y...)
	var at []int
	for i := range holed {
		if rapid.IntRange(0, 3).Draw(t, "hole") == 0 {
			holed[i] = math.NaN()
			continue
		}
		at = append(at, i)
	}
	all := bruteForce(a, len(y))
	cov := make([][]float64, len(at))
	for i := range at {
		for _, j := range at {
			cov[i] = append(cov[i], all[at[i]][j])
		}
	}
	logDet, square := quadratic(cov, known(holed))
	var slow covarianceFilter
	slow.reset(a, nil, first)
	out := [][]float64{make([]float64, len(y))}
	logs, used := slow.predictionErrors([][]float64{holed}, out, [][]float64{make([]float64, slow.m)})
	agree(t, "log with holes", logs, logDet)
	agree(t, "square with holes", dot(out[0], out[0]), square)
	if used != len(at) {
		t.Fatalf("%d values count, want %d", used, len(at))
	}
}

func agree(t *rapid.T, what string, got, want float64) {
	if math.Abs(got-want) > 1e-5*(1+math.Abs(want)) {
		t.Fatalf("%s: %g, want %g", what, got, want)
	}
}

// With differences, a diffuse start costs only the information of the first values:
// covarianceFilter on the series equals stationaryFilter on its differences.
func TestDiffuseStartEqualsDifferencing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, a := drawProcess(t)
		o.D, o.SD = rapid.IntRange(0, 1).Draw(t, "d"), rapid.IntRange(0, 1).Draw(t, "D")
		y := drawValues(t, 60)
		w := o.difference(y)
		var fast stationaryFilter
		fast.reset(a)
		var slow covarianceFilter
		slow.reset(a, o.delta(), fast.first)
		out := [][]float64{make([]float64, len(w))}
		logs := fast.predictionErrors([][]float64{w}, out, [][]float64{make([]float64, len(a.phi))})
		square := dot(out[0], out[0])
		out = [][]float64{make([]float64, len(y))}
		got, used := slow.predictionErrors([][]float64{y}, out, [][]float64{make([]float64, slow.m)})
		if used != len(w) {
			t.Fatalf("%d values count, want %d", used, len(w))
		}
		if math.Abs(got-logs) > 1e-2*(1+math.Abs(logs)) || math.Abs(dot(out[0], out[0])-square) > 1e-2*square {
			t.Fatalf("log %g and square %g, want %g and %g", got, dot(out[0], out[0]), logs, square)
		}
	})
}

// Every point of the search corresponds to one stationary factor, and back.
func TestPartialAutocorrelationsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "n")
		u, coef := make([]float64, n), make([]float64, n)
		for i := range u {
			u[i] = rapid.Float64Range(-2, 2).Draw(t, "u")
		}
		fromPartial(u, coef, make([]float64, n))
		if !rootsBeyond(coef, 1) {
			t.Fatalf("%v is not stationary", coef)
		}
		back, ok := toPartial(coef)
		if !ok {
			t.Fatalf("%v has no partial autocorrelations", coef)
		}
		for i := range u {
			if math.Abs(back[i]-u[i]) > 1e-6 {
				t.Fatalf("%v came back as %v", u, back)
			}
		}
	})
}

func TestRoots(t *testing.T) {
	for _, c := range []struct {
		coef   []float64
		radius float64
		want   bool
	}{
		{nil, 1, true},
		{[]float64{0.5}, 1.99, true},
		{[]float64{0.5}, 2.01, false},
		{[]float64{-0.5}, 2.01, false},
		{[]float64{1}, 1, false},
		{[]float64{1.5, -0.56}, 1.24, true}, // roots 1/0.7 and 1/0.8
		{[]float64{1.5, -0.56}, 1.26, false},
	} {
		if got := rootsBeyond(c.coef, c.radius); got != c.want {
			t.Errorf("roots of %v beyond %g: %v", c.coef, c.radius, got)
		}
	}
}
