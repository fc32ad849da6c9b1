package plan

import (
	"math"
	"math/rand/v2"
	"slices"
)

// annealing searches for cheap counts that satisfy every row by simulated annealing over the
// blocks' options. A broken row costs its price plus a penalty, so that the search can pass through
// infeasible counts while the temperature is high. Its random numbers come from a stream with its
// own seed: the same problem yields the same counts.
type annealing struct {
	c            *integerProgram
	options      [][]option
	optionCosts  [][]float64 // by block: for each option its cost, then its use of each link
	state        []rowState
	optionIndex  []int     // by block: the index of its option
	reuseSavings []float64 // by region and GPU: the saving of taking VMs over
	counts       []int     // the selected counts
	movable      []int     // blocks with more than one option
	random       *rand.Rand
	cost         float64
	brokenRows   int

	best     []int // as optionIndex
	bestCost float64
}

// rowState is a row in an annealing: its use, its bound including rounding, and the penalty per
// unit above it.
type rowState struct{ use, rhs, weight float64 }

func (r *rowState) excess(use float64) float64 { return max(0, use-r.rhs) }

// The schedule of an annealing. Temperatures are relative to the highest price of a replica's hour or
// start, which is 1 after scaling.
const (
	maxTemperature      = 0.06
	minTemperature      = 0.0006
	stages              = 60
	proposalEffort      = 12 // approximate effort of a proposal
	rowSlack            = 1e-9
	maxPairCost         = 1.5        // maximum cost of a first move that a second one may compensate
	optionDistance      = 2e-4       // distance of options from the relaxation, as a share of the bound
	smallOptionDistance = 0.1        // the same with few counts
	baseOptionLimit     = 24         // basic limit on the options of a block
	maxGrowth           = 16         // units that addGrowth adds
	minProposals        = 20_000     // minimum number of proposals of the first annealing
	blockProposals      = 2_500      // proposals per block of the first annealing
	maxProposals        = 32_000_000 // maximum number of proposals of any annealing
	brokenPenalty       = 0.1        // penalty of a broken row beyond its price
)

// anneal searches for counts among the options near the relaxation at p. Rounds differ in the
// distance and in the penalty of broken rows.
func (c *integerProgram) anneal(p *point, round int) {
	d, limit := optionDistance*float64(1+round%3), baseOptionLimit*(1+round%2)
	if c.small() {
		d, limit = smallOptionDistance, 8*baseOptionLimit
	}
	if c.best == nil || !c.small() && round > 3 {
		limit *= 1 + round // few nearby options may contain no feasible counts
	}
	d *= math.Max(math.Abs(p.value), 1e-3)
	if c.best != nil {
		d = math.Min(d, c.bestCost-p.value+roundingError(c.bestCost))
	}
	options, _ := c.allOptions(p, d, limit)
	if options == nil {
		return
	}
	for at := range options {
		options[at] = c.addBest(at, c.addGrowth(p, at, options[at]))
	}
	a := c.newAnnealing(p, options, brokenPenalty*float64(1+round%4), uint64(round))
	a.recompute()
	a.runAnnealing(min(max(minProposals, blockProposals*len(c.blocks))<<min(round, 20), maxProposals))
	if a.best != nil {
		flat := make([]int, len(a.counts))
		for at, n := range a.best {
			copy(flat[at*c.gpus:], options[at][n].x)
		}
		c.offerIncumbent(c.unflatten(flat))
	}
}

// addGrowth adds to a block's options its cheapest option with more units of the class with the
// cheapest throughput. Where many options cost the same, the listed ones alone may have too little
// capacity.
func (c *integerProgram) addGrowth(p *point, at int, options []option) []option {
	if len(options) == 0 {
		return options
	}
	c.priceBlock(at, p.y)
	best, lowest := -1, math.Inf(1)
	for k, cl := range c.priced.classes {
		if slope := (cl.keepCost + cl.startCost) / cl.tps; cl.tps > 0 && slope < lowest {
			best, lowest = k, slope
		}
	}
	if best < 0 {
		return options
	}
	first, count := options[0].x, 0
	for _, n := range first {
		count += n
	}
	free := min(c.priced.classes[best].max-first[best], c.priced.max-count)
	for more := 1; more <= min(free, maxGrowth); more *= 2 {
		x := slices.Clone(first)
		x[best] += more
		options = c.addOption(at, options, x)
	}
	return options
}

// addBest adds the incumbent's counts of a block to its options.
func (c *integerProgram) addBest(at int, options []option) []option {
	if c.best == nil {
		return options
	}
	return c.addOption(at, options, slices.Clone(c.best[at/c.regions][at%c.regions]))
}

func (c *integerProgram) addOption(at int, options []option, x []int) []option {
	if slices.ContainsFunc(options, func(o option) bool { return slices.Equal(o.x, x) }) {
		return options
	}
	o := option{x: x}
	c.fillOption(at, &o)
	return append(options, o)
}

func (c *integerProgram) newAnnealing(p *point, options [][]option, penalty float64, seed uint64) *annealing {
	a := &annealing{
		c: c, options: options, optionCosts: make([][]float64, len(options)), state: make([]rowState, len(c.rows)),
		optionIndex: make([]int, len(options)), reuseSavings: make([]float64, c.regions*c.gpus), counts: make([]int, len(options)*c.gpus),
		random: rand.New(rand.NewPCG(seed, 0x706c616e)), bestCost: math.Inf(1),
	}
	for r, row := range c.rows {
		a.state[r] = rowState{rhs: row.rhs + rowSlack*math.Max(1, math.Abs(row.rhs)), weight: 1.2*p.y[r] + penalty}
		if row.runningVMs {
			a.state[r] = rowState{rhs: math.Inf(1)}
		}
	}
	for at := range options {
		for _, o := range options[at] {
			a.optionCosts[at] = append(append(a.optionCosts[at], o.cost), o.use...)
		}
		if len(options[at]) > 1 {
			a.movable = append(a.movable, at)
		}
	}
	return a
}

// optionCost returns the cost of a block's option n, followed by its use of the rows.
func (a *annealing) optionCost(at, n int) []float64 {
	width := len(a.c.links[at]) + 1
	return a.optionCosts[at][n*width : (n+1)*width]
}

// recompute recomputes all sums.
func (a *annealing) recompute() {
	for r := range a.state {
		a.state[r].use = 0
	}
	a.cost, a.brokenRows = 0, 0
	for at, n := range a.optionIndex {
		f := a.optionCost(at, n)
		a.cost += f[0]
		copy(a.counts[at*a.c.gpus:], a.options[at][n].x)
		for t, l := range a.c.links[at] {
			a.state[l.row].use += f[t+1]
		}
	}
	for r := range a.state {
		if s := &a.state[r]; s.excess(s.use) > 0 {
			a.brokenRows++
		}
	}
	if a.c.p.SwitchCostUSD != nil {
		for cell := range a.reuseSavings {
			a.reuseSavings[cell] = a.reuseSaving(cell)
			a.cost -= a.reuseSavings[cell]
		}
	}
}

// reuseSaving returns the saving of taking VMs over on one GPU in one region, at the selected counts.
// cell is an index of reuseSavings.
func (a *annealing) reuseSaving(cell int) float64 {
	c := a.c
	j, k := cell/c.gpus, cell%c.gpus
	return c.p.reuseSavings(j, k, func(i int) int { return a.counts[(i*c.regions+j)*c.gpus+k] }, nil)
}

// runAnnealing makes n proposals from the highest to the lowest temperature.
func (a *annealing) runAnnealing(n int) {
	if len(a.movable) == 0 {
		a.recordBest()
		return
	}
	cool, each := math.Pow(minTemperature/maxTemperature, 1.0/stages), proposalEffort
	if a.c.p.SwitchCostUSD != nil {
		each *= a.c.models // each assigns the VMs anew
	}
	n = min(n, int(a.c.work.remaining)/each*3/4) // a short run is better than none
	temperature := maxTemperature
	for range stages {
		if !a.c.work.spend(n / stages * each) {
			return
		}
		for range n / stages {
			a.propose(temperature)
		}
		temperature *= cool
		a.reweigh()
	}
	a.recordBest()
}

// reweigh raises the penalty of broken rows and recomputes the sums.
func (a *annealing) reweigh() {
	a.recompute() // floating-point sums drift
	for r := range a.state {
		if s := &a.state[r]; s.excess(s.use) > 0 {
			s.weight *= 1.1
		}
	}
}

// propose moves one block to another of its options: always when that is cheaper, otherwise with a
// probability that falls with the difference. When rejected, a second block of the same region or
// model moves with it and may compensate for the use of shared rows.
func (a *annealing) propose(temperature float64) {
	// Drawn first, so that one number decides on both moves.
	limit := -temperature * math.Log(1-a.random.Float64())
	at := a.movable[a.random.IntN(len(a.movable))]
	to := a.randomOption(at)
	if to == a.optionIndex[at] {
		return
	}
	change, costChange := a.moveCost(at, to)
	if change <= limit {
		a.applyMove(at, to, costChange)
		return
	}
	second := a.randomNeighbour(at)
	next := a.randomOption(second)
	if change > maxPairCost || second == at || next == a.optionIndex[second] {
		a.undoMove(at, to)
		return
	}
	was := a.optionIndex[at]
	a.applyMove(at, to, costChange)
	with, also := a.moveCost(second, next)
	if change+with <= limit {
		a.applyMove(second, next, also)
		return
	}
	a.undoMove(second, next)
	_, back := a.moveCost(at, was)
	a.applyMove(at, was, back)
}

// randomOption returns a random option of a block; cheap options are more likely.
func (a *annealing) randomOption(at int) int {
	u := a.random.Float64()
	return int(u * u * float64(len(a.options[at])))
}

// randomNeighbour returns a random block of the same region or of the same model.
func (a *annealing) randomNeighbour(at int) int {
	c := a.c
	i, j := at/c.regions, at%c.regions
	if a.random.Uint64()&1 == 0 {
		return a.random.IntN(c.models)*c.regions + j
	}
	return i*c.regions + a.random.IntN(c.regions)
}

// moveCost returns the cost of a move with and without the penalties of broken rows.
func (a *annealing) moveCost(at, to int) (change, costChange float64) {
	from, next := a.optionCost(at, a.optionIndex[at]), a.optionCost(at, to)
	costChange = next[0] - from[0]
	if a.c.p.SwitchCostUSD != nil {
		costChange -= a.updateReuseSavings(at, a.options[at][a.optionIndex[at]].x, a.options[at][to].x)
	}
	change = costChange
	for t, l := range a.c.links[at] {
		s := &a.state[l.row]
		change += s.weight * (s.excess(s.use+next[t+1]-from[t+1]) - s.excess(s.use))
	}
	return change, costChange
}

// undoMove reverts the bookkeeping of moveCost for a move that is rejected.
func (a *annealing) undoMove(at, to int) {
	if a.c.p.SwitchCostUSD != nil {
		a.updateReuseSavings(at, a.options[at][to].x, a.options[at][a.optionIndex[at]].x)
	}
}

// updateReuseSavings changes the counts of a block and returns the change of the saving from taking
// VMs over.
func (a *annealing) updateReuseSavings(at int, from, to []int) float64 {
	j, more := at%a.c.regions, 0.0
	for k := range to {
		a.counts[at*a.c.gpus+k] = to[k]
		if cell := j*a.c.gpus + k; from[k] != to[k] && a.c.runningRows[at][k] >= 0 {
			now := a.reuseSaving(cell)
			more += now - a.reuseSavings[cell]
			a.reuseSavings[cell] = now
		}
	}
	return more
}

// applyMove applies a proposal with the given change of cost, penalties excluded.
func (a *annealing) applyMove(at, to int, costChange float64) {
	if costChange > 0 {
		a.recordBest() // the move leaves counts that may be the best
	}
	from, next := a.optionCost(at, a.optionIndex[at]), a.optionCost(at, to)
	a.cost += costChange
	for t, l := range a.c.links[at] {
		s := &a.state[l.row]
		was := s.use > s.rhs
		s.use += next[t+1] - from[t+1]
		switch is := s.use > s.rhs; {
		case is && !was:
			a.brokenRows++
		case was && !is:
			a.brokenRows--
		}
	}
	a.optionIndex[at] = to
}

// recordBest records the counts when they are feasible and the cheapest so far.
func (a *annealing) recordBest() {
	if a.brokenRows == 0 && a.cost < a.bestCost {
		a.best, a.bestCost = append(a.best[:0], a.optionIndex...), a.cost
	}
}
