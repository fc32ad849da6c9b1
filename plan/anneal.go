package plan

import (
	"math"
	"math/rand/v2"
	"slices"
)

// annealing searches for cheap counts that satisfy every row by simulated annealing over the
// blocks' candidates. Counts may exceed a row, at a penalty, so that the search can pass through infeasible counts. Its
// random numbers come from a stream with its own seed: the same problem yields the same counts.
type annealing struct {
	c              *integerProgram
	candidates     [][]candidate
	costsAndUses   [][]float64 // by block: for each candidate its cost, then its use of each link
	rowStates      []rowState
	candidateIndex []int     // by block: the index of its candidate
	reuseSavings   []float64 // by region and GPU: the saving of taking VMs over
	counts         []int     // the selected counts
	movable        []int     // blocks with more than one candidate
	random         *rand.Rand
	cost           float64
	violatedRows   int

	best     []int // as candidateIndex
	bestCost float64
}

// rowState is a row in an annealing: its use, its bound including rounding, and the penalty per
// unit above it.
type rowState struct{ use, rhs, weight float64 }

func (r *rowState) excess(use float64) float64 { return max(0, use-r.rhs) }

// The schedule of an annealing. Temperatures are relative to the highest price of a replica's hour or
// start, which is 1 after scaling.
const (
	maxTemperature         = 0.06
	minTemperature         = 0.0006
	stages                 = 60
	moveEffort             = 12 // approximate effort of a move
	rowSlack               = 1e-9
	maxPairCost            = 1.5        // maximum cost of a first move that a second one may compensate
	candidateDistance      = 2e-4       // distance of candidates from the relaxation, as a share of the bound
	smallCandidateDistance = 0.1        // the same for a small problem
	baseCandidateLimit     = 24         // basic limit on the candidates of a block
	maxGrowth              = 16         // units that addGrowth adds at most
	minMoves               = 20_000     // minimum number of moves of the first annealing
	blockMoves             = 2_500      // moves per block of the first annealing
	maxMoves               = 32_000_000 // maximum number of moves of any annealing
	violationPenalty       = 0.1        // penalty per unit above a row, beyond 1.2 times the row's price
)

// anneal searches for counts among the candidates near the relaxation at p. Rounds differ in the
// distance and in the penalty of violated rows.
func (c *integerProgram) anneal(p *point, round int) {
	d, limit := candidateDistance*float64(1+round%3), baseCandidateLimit*(1+round%2)
	if c.small() {
		d, limit = smallCandidateDistance, 8*baseCandidateLimit
	}
	if c.best == nil || !c.small() && round > 3 {
		limit *= 1 + round // few nearby candidates may contain no feasible counts
	}
	d *= math.Max(math.Abs(p.value), 1e-3)
	if c.best != nil {
		d = math.Min(d, c.bestCost-p.value+roundingError(c.bestCost))
	}
	candidates, _ := c.allCandidates(p, d, limit)
	if candidates == nil {
		return
	}
	for at := range candidates {
		candidates[at] = c.addBest(at, c.addGrowth(p, at, candidates[at]))
	}
	a := c.newAnnealing(p, candidates, violationPenalty*float64(1+round%4), uint64(round))
	a.recompute()
	a.runAnnealing(min(max(minMoves, blockMoves*len(c.blocks))<<min(round, 20), maxMoves))
	if a.best != nil {
		flat := make([]int, len(a.counts))
		for at, n := range a.best {
			copy(flat[at*c.gpus:], candidates[at][n].x)
		}
		c.offerIncumbent(c.unflatten(flat))
	}
}

// addGrowth adds copies of a block's cheapest candidate to its candidates, with 1, 2, 4, ... more units of the
// offering whose throughput has the lowest price. Where many candidates cost the same, the listed ones alone may
// have too little capacity.
func (c *integerProgram) addGrowth(p *point, at int, candidates []candidate) []candidate {
	if len(candidates) == 0 {
		return candidates
	}
	c.priceBlock(at, p.y)
	best, lowest := -1, math.Inf(1)
	for k, bo := range c.priced.offerings {
		if unitPrice := (bo.keepCost + bo.startCost) / bo.tps; bo.tps > 0 && unitPrice < lowest {
			best, lowest = k, unitPrice
		}
	}
	if best < 0 {
		return candidates
	}
	first, count := candidates[0].x, 0
	for _, n := range first {
		count += n
	}
	free := min(c.priced.offerings[best].max-first[best], c.priced.max-count)
	for more := 1; more <= min(free, maxGrowth); more *= 2 {
		x := slices.Clone(first)
		x[best] += more
		candidates = c.addCandidate(at, candidates, x)
	}
	return candidates
}

// addBest adds the incumbent's counts of a block to its candidates.
func (c *integerProgram) addBest(at int, candidates []candidate) []candidate {
	if c.best == nil {
		return candidates
	}
	return c.addCandidate(at, candidates, slices.Clone(c.best[at/c.regions][at%c.regions]))
}

func (c *integerProgram) addCandidate(at int, candidates []candidate, x []int) []candidate {
	if slices.ContainsFunc(candidates, func(o candidate) bool { return slices.Equal(o.x, x) }) {
		return candidates
	}
	o := candidate{x: x}
	c.fillCandidate(at, &o)
	return append(candidates, o)
}

func (c *integerProgram) newAnnealing(p *point, candidates [][]candidate, penalty float64, seed uint64) *annealing {
	a := &annealing{
		c: c, candidates: candidates, costsAndUses: make([][]float64, len(candidates)), rowStates: make([]rowState, len(c.rows)),
		candidateIndex: make([]int, len(candidates)), reuseSavings: make([]float64, c.regions*c.gpus), counts: make([]int, len(candidates)*c.gpus),
		random: rand.New(rand.NewPCG(seed, 0x706c616e)), bestCost: math.Inf(1),
	}
	for r, row := range c.rows {
		a.rowStates[r] = rowState{rhs: row.rhs + rowSlack*math.Max(1, math.Abs(row.rhs)), weight: 1.2*p.y[r] + penalty}
		if row.runningVMs {
			a.rowStates[r] = rowState{rhs: math.Inf(1)}
		}
	}
	for at := range candidates {
		for _, o := range candidates[at] {
			a.costsAndUses[at] = append(append(a.costsAndUses[at], o.cost), o.use...)
		}
		if len(candidates[at]) > 1 {
			a.movable = append(a.movable, at)
		}
	}
	return a
}

// costAndUse returns the cost of a block's candidate n, followed by its use of the rows.
func (a *annealing) costAndUse(at, n int) []float64 {
	width := len(a.c.links[at]) + 1
	return a.costsAndUses[at][n*width : (n+1)*width]
}

// recompute recomputes all sums.
func (a *annealing) recompute() {
	for r := range a.rowStates {
		a.rowStates[r].use = 0
	}
	a.cost, a.violatedRows = 0, 0
	for at, n := range a.candidateIndex {
		f := a.costAndUse(at, n)
		a.cost += f[0]
		copy(a.counts[at*a.c.gpus:], a.candidates[at][n].x)
		for t, l := range a.c.links[at] {
			a.rowStates[l.row].use += f[t+1]
		}
	}
	for r := range a.rowStates {
		if s := &a.rowStates[r]; s.excess(s.use) > 0 {
			a.violatedRows++
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

// runAnnealing tries n moves from the highest to the lowest temperature.
func (a *annealing) runAnnealing(n int) {
	if len(a.movable) == 0 {
		a.recordBest()
		return
	}
	cool, each := math.Pow(minTemperature/maxTemperature, 1.0/stages), moveEffort
	if a.c.p.SwitchCostUSD != nil {
		each *= a.c.models // a move assigns the VMs anew
	}
	n = min(n, int(a.c.work.remaining)/each*3/4) // with little effort left, a short run is better than none
	temperature := maxTemperature
	for range stages {
		if !a.c.work.spend(n / stages * each) {
			break
		}
		for range n / stages {
			a.propose(temperature)
		}
		temperature *= cool
		a.reweigh()
	}
	a.recordBest()
}

// reweigh raises the penalty of violated rows and recomputes the sums.
func (a *annealing) reweigh() {
	a.recompute() // floating-point sums drift
	for r := range a.rowStates {
		if s := &a.rowStates[r]; s.excess(s.use) > 0 {
			s.weight *= 1.1
		}
	}
}

// propose moves one block to another of its candidates: always when that is cheaper, otherwise with a
// probability that falls with the difference. When rejected, a second block of the same region or
// model moves with it and may compensate for the use of shared rows.
func (a *annealing) propose(temperature float64) {
	// Drawn first, so that one number decides on both moves.
	limit := -temperature * math.Log(1-a.random.Float64())
	at := a.movable[a.random.IntN(len(a.movable))]
	to := a.randomCandidate(at)
	if to == a.candidateIndex[at] {
		return
	}
	change, costChange := a.moveCost(at, to)
	if change <= limit {
		a.applyMove(at, to, costChange)
		return
	}
	second := a.randomNeighbour(at)
	next := a.randomCandidate(second)
	if change > maxPairCost || second == at || next == a.candidateIndex[second] {
		a.undoMove(at, to)
		return
	}
	previous := a.candidateIndex[at]
	a.applyMove(at, to, costChange)
	secondChange, secondCostChange := a.moveCost(second, next)
	if change+secondChange <= limit {
		a.applyMove(second, next, secondCostChange)
		return
	}
	a.undoMove(second, next)
	_, reverseCostChange := a.moveCost(at, previous)
	a.applyMove(at, previous, reverseCostChange)
}

// randomCandidate returns a random candidate of a block; cheap candidates are more likely.
func (a *annealing) randomCandidate(at int) int {
	u := a.random.Float64()
	return int(u * u * float64(len(a.candidates[at])))
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

// moveCost returns the change of cost by a move with (change) and without (costChange) the penalties of
// violated rows. It already changes counts and reuseSavings: call applyMove or undoMove next.
func (a *annealing) moveCost(at, to int) (change, costChange float64) {
	from, next := a.costAndUse(at, a.candidateIndex[at]), a.costAndUse(at, to)
	costChange = next[0] - from[0]
	if a.c.p.SwitchCostUSD != nil {
		costChange -= a.updateReuseSavings(at, a.candidates[at][a.candidateIndex[at]].x, a.candidates[at][to].x)
	}
	change = costChange
	for t, l := range a.c.links[at] {
		s := &a.rowStates[l.row]
		change += s.weight * (s.excess(s.use+next[t+1]-from[t+1]) - s.excess(s.use))
	}
	return change, costChange
}

// undoMove reverts what moveCost changed, for a move that is rejected.
func (a *annealing) undoMove(at, to int) {
	if a.c.p.SwitchCostUSD != nil {
		a.updateReuseSavings(at, a.candidates[at][to].x, a.candidates[at][a.candidateIndex[at]].x)
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

// applyMove applies a move with the given change of cost, penalties excluded.
func (a *annealing) applyMove(at, to int, costChange float64) {
	a.recordBest() // before the move: the present counts may be the best feasible ones, and the next ones infeasible
	from, next := a.costAndUse(at, a.candidateIndex[at]), a.costAndUse(at, to)
	a.cost += costChange
	for t, l := range a.c.links[at] {
		s := &a.rowStates[l.row]
		was := s.use > s.rhs
		s.use += next[t+1] - from[t+1]
		switch is := s.use > s.rhs; {
		case is && !was:
			a.violatedRows++
		case was && !is:
			a.violatedRows--
		}
	}
	a.candidateIndex[at] = to
}

// recordBest records the counts when they are feasible and the cheapest so far.
func (a *annealing) recordBest() {
	if a.violatedRows == 0 && a.cost < a.bestCost {
		a.best, a.bestCost = append(a.best[:0], a.candidateIndex...), a.cost
	}
}
