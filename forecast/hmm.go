package forecast

import (
	"math"
	"slices"
	"time"
)

// Parameters of the hidden Markov model.
const (
	// hmmBlock is the step of the model.
	hmmBlock = 10 * time.Minute
	// hmmPast is the history that is fitted.
	hmmPast = 7 * day
	// hmmIterations bounds Baum-Welch; hmmGain stops it when the likelihood per step grows by less.
	hmmIterations = 25
	hmmGain       = 3e-4
	// hmmRecent is the number of blocks from which the load's offset from its state's mean is
	// computed.
	hmmRecent = 3
	// hmmMemory is the history that determines the current state: the chain forgets sooner.
	hmmMemory = 12 * time.Hour
	// hmmIdle is the load, as a share of the history's mean, below which a block is idle.
	hmmIdle = 0.01
	// hmmFloor keeps logarithms finite: a share of the mean.
	hmmFloor = 1e-3
	// hmmMinDeviation is the minimum deviation of a state, in logarithms: a state of equal values
	// would have an infinite likelihood.
	hmmMinDeviation = 0.05
)

// hmmStates are the numbers of states to try.
var hmmStates = []int{2, 3, 4}

type hmm struct{}

// HMM is a hidden Markov model with Gaussian emissions of the logarithm of ten-minute means
// (SageServe, Appendix B, uses one with the tokens as observations): the load is in one of a few
// states and moves between them. Baum-Welch starts from quantiles; the number of states is the one
// with the lowest BIC. With two days of history it also tries the load relative to its daily
// profile, and keeps the variant with the lower absolute error. The forecast is the mean over the
// distribution of states. It requires 3 hours of history.
func HMM() Forecaster { return modelForecaster{hmm{}} }

func (hmm) Name() string { return "hmm" }

func (hmm) need(s Series) (steps int, description string) {
	n := max(s.steps(3*time.Hour), 18)
	return n, s.formatSteps(n)
}

func (hmm) fit(s Series, horizon int) predictor {
	size := s.blockSize(hmmBlock)
	ahead := blocksOf(horizon, size)
	plain := fitRegimes(s, size, false)
	best := plain
	if len(s.Values) >= 2*s.steps(day) {
		relative := fitRegimes(s, size, true)
		if relative.pastError(ahead) < plain.pastError(ahead) {
			best = relative
		}
	}
	return func(s Series, horizon int) []float64 {
		r := newRegimes(s, size, best.relative, hmmMemory)
		r.chain, r.ratios = best.chain, best.ratios
		return unblock(r.forecast(blocksOf(horizon, size)), size, horizon)
	}
}

// regimes is a series prepared for a hidden Markov model.
type regimes struct {
	days
	relative bool      // the base is the daily profile
	first    int       // the first block that is used
	loaded   days      // without the blocks below hmmIdle
	base     []float64 // what each value is divided by: see baseAt
	logs     []float64 // log of value/base
	chain    chain
	ratios   []float64 // mean of value/base by state
}

// newRegimes prepares the last `past` of a series.
func newRegimes(s Series, size int, relative bool, past time.Duration) *regimes {
	r := &regimes{days: newDays(s, size), relative: relative}
	n := len(r.values)
	r.loaded = r.withoutIdle()
	r.first = max(0, n-s.steps(past)/size)
	if relative {
		r.first = max(r.first, r.period)
	}
	r.base, r.logs = make([]float64, n), make([]float64, n)
	for t := r.first; t < n; t++ {
		r.base[t] = r.baseAt(t, t)
		r.logs[t] = math.Log(r.values[t]/r.base[t] + hmmFloor)
	}
	return r
}

// withoutIdle returns the days with idle blocks unknown.
func (d days) withoutIdle() days {
	n := len(d.values)
	idle := hmmIdle * d.mean(0, n, n)
	out := d
	out.values = slices.Clone(d.values)
	for i, v := range out.values {
		if v <= idle {
			out.values[i] = math.NaN()
		}
	}
	out.sum, out.count = prefixSums(out.values)
	return out
}

// baseAt returns the base of block t at an origin: the mean of the day before without its idle blocks or, if relative is
// set, the daily profile, but at least a hundredth of that mean. If the mean included idle blocks, it would be near zero
// after an idle day, and value/base so large in the first hours that no later hours would resemble them.
func (r *regimes) baseAt(t, origin int) float64 {
	all := r.loaded.mean(origin-r.period, origin, origin)
	if math.IsNaN(all) {
		all = r.loaded.mean(0, len(r.values), len(r.values))
	}
	if !(all > 0) {
		return 1
	}
	if !r.relative {
		return all
	}
	if m := r.at(t, origin); m > 0.01*all {
		return m
	}
	return 0.01 * all
}

func fitRegimes(s Series, size int, relative bool) *regimes {
	r := newRegimes(s, size, relative, hmmPast)
	logs := r.logs[r.first:]
	lowest := math.Inf(1)
	have := float64(len(known(logs)))
	for _, k := range hmmStates {
		c, likelihood := fitChain(logs, k)
		if free := float64(k*k + 2*k - 1); len(c.start) > 0 {
			if bic := -2*likelihood + free*math.Log(have); bic < lowest {
				lowest, r.chain = bic, c
			}
		}
	}
	r.ratios = r.stateRatios()
	return r
}

// stateRatios returns the mean of value/base by state.
func (r *regimes) stateRatios() []float64 {
	k := len(r.chain.start)
	sum, weight := make([]float64, k), make([]float64, k)
	r.chain.filter(r.logs[r.first:], func(t int, p []float64) {
		if v := r.values[r.first+t] / r.base[r.first+t]; !math.IsNaN(v) {
			for i := range p {
				sum[i] += p[i] * v
				weight[i] += p[i]
			}
		}
	})
	for i := range sum {
		sum[i] /= weight[i]
		if math.IsNaN(sum[i]) {
			sum[i] = max(0, math.Exp(r.chain.mean[i])-hmmFloor)
		}
	}
	return sum
}

// expected returns the mean of block t at an origin over a distribution of states.
func (r *regimes) expected(p []float64, t, origin int) float64 {
	var ratio float64
	for i, q := range p {
		ratio += q * r.ratios[i]
	}
	return ratio * r.baseAt(t, origin)
}

// filterBlocks filters the blocks and calls visit after each with the distribution of states and the mean
// offset of the last hmmRecent values from their expectation.
func (r *regimes) filterBlocks(visit func(origin int, p []float64, offset float64)) {
	var recent [hmmRecent]float64
	seen := 0
	r.chain.filter(r.logs[r.first:], func(t int, p []float64) {
		if v := r.values[r.first+t]; !math.IsNaN(v) {
			recent[seen%hmmRecent] = v - r.expected(p, r.first+t, r.first+t)
			seen++
		}
		var offset float64
		for _, a := range recent {
			offset += a / hmmRecent
		}
		visit(r.first+t+1, p, offset)
	})
}

// forecast continues from the state after the last block.
func (r *regimes) forecast(ahead int) []float64 {
	out := flat(math.NaN(), ahead)
	if len(r.chain.start) == 0 {
		return out
	}
	r.filterBlocks(func(origin int, p []float64, offset float64) {
		if origin == len(r.values) {
			out = r.forecastAt(p, offset, origin, ahead)
		}
	})
	return out
}

// forecastAt returns the forecast at an origin: the mean over the states, plus the load's current
// offset, which decays with the probability of staying in the state.
func (r *regimes) forecastAt(p []float64, offset float64, origin, ahead int) []float64 {
	stay := slices.Clone(p)
	out := make([]float64, ahead)
	for h := range out {
		p = r.chain.stepState(p)
		var stays float64
		for i := range stay {
			stay[i] *= r.chain.transitions[i][i]
			stays += stay[i]
		}
		out[h] = max(0, r.expected(p, origin+h, origin)+offset*stays)
	}
	return out
}

// pastError returns the sum of |actual - forecast| over past forecasts: one from each block at which both variants
// have a day of history.
func (r *regimes) pastError(ahead int) float64 {
	n := len(r.values)
	var sum float64
	r.filterBlocks(func(origin int, p []float64, offset float64) {
		if origin <= r.period || origin <= n-r.period*int(hmmPast/day) {
			return
		}
		for h, m := range r.forecastAt(p, offset, origin, min(ahead, n-origin)) {
			if e := math.Abs(r.values[origin+h] - m); !math.IsNaN(e) {
				sum += e
			}
		}
	})
	return sum
}

// chain is a hidden Markov chain with Gaussian emissions.
type chain struct {
	start       []float64
	transitions [][]float64
	mean, dev   []float64
	logDev      []float64 // log(dev * sqrt(2 pi))
}

// fitChain runs Baum-Welch (Rabiner 1989, scaled) from k quantiles of x; NaN is unknown. The chain
// is empty when there are too few known values.
func fitChain(x []float64, k int) (chain, float64) {
	sorted := known(x)
	if len(sorted) < 4*k {
		return chain{}, math.Inf(-1)
	}
	slices.Sort(sorted)
	c := startChain(sorted, k)
	last := math.Inf(-1)
	for range hmmIterations {
		likelihood := c.baumWelchStep(x)
		if likelihood-last < hmmGain*float64(len(sorted)) {
			return c, likelihood
		}
		last = likelihood
	}
	return c, last
}

// startChain returns a chain with one state at the middle of each k-th of the values, which mostly stays in
// its state.
func startChain(sorted []float64, k int) chain {
	c := chain{start: make([]float64, k), mean: make([]float64, k), dev: make([]float64, k), logDev: make([]float64, k)}
	for i := range k {
		part := sorted[i*len(sorted)/k : (i+1)*len(sorted)/k]
		c.start[i] = 1 / float64(k)
		c.mean[i] = part[len(part)/2]
		c.setDeviation(i, (sorted[len(sorted)-1]-sorted[0])/float64(2*k))
		row := make([]float64, k)
		for j := range row {
			row[j] = 0.1 / float64(max(1, k-1))
		}
		row[i] = 0.9
		c.transitions = append(c.transitions, row)
	}
	return c
}

// setDeviation sets the deviation of a state.
func (c *chain) setDeviation(i int, dev float64) {
	c.dev[i] = max(hmmMinDeviation, dev)
	c.logDev[i] = math.Log(c.dev[i] * math.Sqrt(2*math.Pi))
}

// density sets the likelihood of a value in each state, relative to the most likely one, and
// returns the logarithm of the omitted factor.
func (c chain) density(v float64, out []float64) float64 {
	highest := math.Inf(-1)
	for i := range out {
		z := (v - c.mean[i]) / c.dev[i]
		out[i] = -0.5*z*z - c.logDev[i]
		highest = max(highest, out[i])
	}
	for i := range out {
		out[i] = math.Exp(out[i] - highest)
	}
	return highest
}

// stepState returns the distribution of states one step later.
func (c chain) stepState(p []float64) []float64 {
	out := make([]float64, len(p))
	for i, q := range p {
		for j, m := range c.transitions[i] {
			out[j] += q * m
		}
	}
	return out
}

// filter returns the distribution of states after the last value; visit, unless nil, is called
// after each value.
func (c chain) filter(x []float64, visit func(t int, p []float64)) []float64 {
	p, next, d := slices.Clone(c.start), make([]float64, len(c.start)), make([]float64, len(c.start))
	for t, v := range x {
		if t > 0 {
			clear(next)
			for i, q := range p {
				for j, m := range c.transitions[i] {
					next[j] += q * m
				}
			}
			p, next = next, p
		}
		if !math.IsNaN(v) {
			c.density(v, d)
			weigh(p, d)
		}
		if visit != nil {
			visit(t, p)
		}
	}
	return p
}

// weigh multiplies a distribution by densities and normalises it; it returns the sum before.
func weigh(p, d []float64) float64 {
	var sum float64
	for i := range p {
		p[i] *= d[i]
		sum += p[i]
	}
	if !(sum > 0) {
		copy(p, d) // no state of the distribution explains the value: use the densities alone
		sum = 0
		for _, q := range p {
			sum += q
		}
	}
	for i := range p {
		p[i] /= sum
	}
	return sum
}

// baumWelchStep makes one step of Baum-Welch and returns the log-likelihood before it.
func (c *chain) baumWelchStep(x []float64) float64 {
	k, n := len(c.start), len(x)
	alpha, dens := make([]float64, n*k), make([]float64, n*k)
	var likelihood float64
	p := slices.Clone(c.start)
	for t, v := range x {
		if t > 0 {
			p = c.stepState(p)
		}
		d := dens[t*k : (t+1)*k]
		if math.IsNaN(v) {
			for i := range d {
				d[i] = 1
			}
		} else {
			factor := c.density(v, d)
			likelihood += factor + math.Log(weigh(p, d))
		}
		copy(alpha[t*k:], p)
	}
	c.maximise(x, alpha, dens)
	return likelihood
}

// maximise runs the backward pass, accumulates expected counts and sets the parameters.
func (c *chain) maximise(x, alpha, dens []float64) {
	k, n := len(c.start), len(x)
	beta, older := make([]float64, k), make([]float64, k)
	for i := range beta {
		beta[i] = 1
	}
	moves := make([]float64, k*k)
	weight, sum, squares := make([]float64, k), make([]float64, k), make([]float64, k)
	gamma := make([]float64, k)
	for t := n - 1; t >= 0; t-- {
		copy(gamma, alpha[t*k:(t+1)*k])
		weigh(gamma, beta)
		if v := x[t]; !math.IsNaN(v) {
			for i, g := range gamma {
				weight[i] += g
				sum[i] += g * v
				squares[i] += g * v * v
			}
		}
		if t == 0 {
			copy(c.start, gamma)
			break
		}
		d, before := dens[t*k:(t+1)*k], alpha[(t-1)*k:t*k]
		var total float64
		for i := range older {
			older[i] = 0
			for j := range beta {
				w := c.transitions[i][j] * d[j] * beta[j]
				older[i] += w
				total += before[i] * w
			}
		}
		if total > 0 {
			for i := range older {
				for j := range beta {
					moves[i*k+j] += before[i] * c.transitions[i][j] * d[j] * beta[j] / total
				}
			}
		}
		var scale float64
		for _, o := range older {
			scale += o
		}
		for i := range older {
			older[i] /= max(scale, math.SmallestNonzeroFloat64)
		}
		beta, older = older, beta
	}
	c.setParameters(moves, weight, sum, squares)
}

// setParameters computes the parameters from expected counts. Each transition starts with a small count, so
// that none is impossible.
func (c *chain) setParameters(moves, weight, sum, squares []float64) {
	k := len(c.start)
	for i := range k {
		var total float64
		for j := range k {
			moves[i*k+j] += 0.01
			total += moves[i*k+j]
		}
		for j := range k {
			c.transitions[i][j] = moves[i*k+j] / total
		}
		if weight[i] < 1e-6 {
			continue // the state is empty and stays unchanged
		}
		c.mean[i] = sum[i] / weight[i]
		c.setDeviation(i, math.Sqrt(max(0, squares[i]/weight[i]-c.mean[i]*c.mean[i])))
	}
}
