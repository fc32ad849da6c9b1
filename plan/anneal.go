package plan

import (
	"math"
	"math/rand/v2"
)

// annealing looks for cheap counts that keep every row by simulated annealing
// over the blocks' options: a row that is broken costs its price and more, so
// that a way through what is not allowed is open while the temperature is high.
// Its random numbers are a stream of its own seed: the same problem gives the
// same counts.
type annealing struct {
	c       *coupling
	pool    [][]option
	rows    [][]int // of each block, as its options state their use
	figures [][]float64
	state   []rowState
	pick    []int
	spares  []float64 // by region and GPU: what taking VMs over spares
	flat    []int     // the counts picked
	movable []int     // blocks with more than one option
	random  *rand.Rand
	cost    float64
	broken  int // rows

	best     []int // picks
	bestCost float64
}

// rowState is a row in an annealing: its use, what it allows (rounding aside)
// and the price of what lies above.
type rowState struct{ use, right, weight float64 }

func (r *rowState) over(use float64) float64 { return max(0, use-r.right) }

// The course of an annealing. Temperatures are shares of the mean price of a
// replica of the greatest price, which is 1 after scaling.
const (
	hottest     = 0.06
	coldest     = 0.0006
	stages      = 60
	proposeWork = 12 // effort of a proposal, about
	rowSlack    = 1e-9
	pairReach   = 1.5 // what a first move may cost for a second to make good
)

func (c *coupling) newAnnealing(p *point, pool [][]option, broken float64, seed uint64) *annealing {
	a := &annealing{
		c: c, pool: pool, rows: make([][]int, len(pool)), figures: make([][]float64, len(pool)), state: make([]rowState, len(c.rows)),
		pick: make([]int, len(pool)), spares: make([]float64, c.regions*c.gpus), flat: make([]int, len(pool)*c.gpus),
		random: rand.New(rand.NewPCG(seed, 0x706c616e)), bestCost: math.Inf(1),
	}
	for r, row := range c.rows {
		a.state[r] = rowState{right: row.right + rowSlack*math.Max(1, math.Abs(row.right)), weight: 1.2*p.y[r] + broken}
		if row.kind == standingRow {
			a.state[r] = rowState{right: math.Inf(1)}
		}
	}
	for at := range pool {
		a.rows[at] = c.poolRows(at)
		for _, o := range pool[at] {
			a.figures[at] = append(append(a.figures[at], o.cost), o.use...)
		}
		if len(pool[at]) > 1 {
			a.movable = append(a.movable, at)
		}
	}
	return a
}

// figure is the cost of block at's option n, and behind it its use of the rows.
func (a *annealing) figure(at, n int) []float64 {
	width := len(a.rows[at]) + 1
	return a.figures[at][n*width : (n+1)*width]
}

// begin sets the picks and counts everything anew.
func (a *annealing) begin(pick []int) {
	copy(a.pick, pick)
	for r := range a.state {
		a.state[r].use = 0
	}
	a.cost, a.broken = 0, 0
	for at, n := range a.pick {
		f := a.figure(at, n)
		a.cost += f[0]
		copy(a.flat[at*a.c.gpus:], a.pool[at][n].x)
		for t, r := range a.rows[at] {
			a.state[r].use += f[t+1]
		}
	}
	for r := range a.state {
		if s := &a.state[r]; s.over(s.use) > 0 {
			a.broken++
		}
	}
	if a.c.p.Switch != nil {
		for cell := range a.spares {
			a.spares[cell] = a.spare(cell)
			a.cost -= a.spares[cell]
		}
	}
}

// spare is what taking VMs over spares in a cell at the counts picked.
func (a *annealing) spare(cell int) float64 {
	c := a.c
	j, k := cell/c.gpus, cell%c.gpus
	return c.p.spared(j, k, func(i int) int { return a.flat[(i*c.regions+j)*c.gpus+k] }, nil)
}

// run makes n proposals from the hottest to the coldest temperature.
func (a *annealing) run(n int, hot float64) {
	if len(a.movable) == 0 {
		a.keep()
		return
	}
	cool, each := math.Pow(coldest/hot, 1.0/stages), proposeWork
	if a.c.p.Switch != nil {
		each *= a.c.models // who takes which VM over is settled at each
	}
	temperature := hot
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
	a.keep()
}

// reweigh makes broken rows dearer, and counts anew.
func (a *annealing) reweigh() {
	a.begin(a.pick) // sums drift
	for r := range a.state {
		if s := &a.state[r]; s.over(s.use) > 0 {
			s.weight *= 1.1
		}
	}
}

// propose moves one block to another of its options, always when that is
// cheaper, else with a chance that falls with the difference. Where that fails
// a second block that shares its region or its model moves with it: what one
// takes from a row the other gives back.
func (a *annealing) propose(temperature float64) {
	// Drawn beforehand, so that one number decides on both.
	most := -temperature * math.Log(1-a.random.Float64())
	at := a.movable[a.random.IntN(len(a.movable))]
	to := a.drawn(at)
	if to == a.pick[at] {
		return
	}
	change, dearer := a.change(at, to)
	if change <= most {
		a.move(at, to, dearer)
		return
	}
	second := a.neighbour(at)
	next := a.drawn(second)
	if change > pairReach || second == at || next == a.pick[second] {
		a.unmoved(at, to)
		return
	}
	was := a.pick[at]
	a.move(at, to, dearer)
	with, also := a.change(second, next)
	if change+with <= most {
		a.move(second, next, also)
		return
	}
	a.unmoved(second, next)
	_, back := a.change(at, was)
	a.move(at, was, back)
}

// drawn is a random option of a block, the cheap ones more often.
func (a *annealing) drawn(at int) int {
	u := a.random.Float64()
	return int(u * u * float64(len(a.pool[at])))
}

// neighbour is a block of the same region or of the same model.
func (a *annealing) neighbour(at int) int {
	c := a.c
	i, j := at/c.regions, at%c.regions
	if a.random.Uint64()&1 == 0 {
		return a.random.IntN(c.models)*c.regions + j
	}
	return i*c.regions + a.random.IntN(c.regions)
}

// change is how much a move costs, rows that it breaks included, and without
// them.
func (a *annealing) change(at, to int) (change, dearer float64) {
	from, next := a.figure(at, a.pick[at]), a.figure(at, to)
	dearer = next[0] - from[0]
	if a.c.p.Switch != nil {
		dearer -= a.respare(at, a.pool[at][a.pick[at]].x, a.pool[at][to].x)
	}
	change = dearer
	for t, r := range a.rows[at] {
		s := &a.state[r]
		change += s.weight * (s.over(s.use+next[t+1]-from[t+1]) - s.over(s.use))
	}
	return change, dearer
}

// unmoved takes back what change noted of a move that is not made.
func (a *annealing) unmoved(at, to int) {
	if a.c.p.Switch != nil {
		a.respare(at, a.pool[at][to].x, a.pool[at][a.pick[at]].x)
	}
}

// respare changes the counts of block at and gives how much more taking VMs
// over spares then.
func (a *annealing) respare(at int, from, to []int) float64 {
	j, more := at%a.c.regions, 0.0
	for k := range to {
		a.flat[at*a.c.gpus+k] = to[k]
		if cell := j*a.c.gpus + k; from[k] != to[k] && a.c.links[at].standing[k] >= 0 {
			now := a.spare(cell)
			more += now - a.spares[cell]
			a.spares[cell] = now
		}
	}
	return more
}

// move makes a proposal so, dearer by so much without its rows, and keeps the counts when they are the cheapest yet
// that keep every row.
func (a *annealing) move(at, to int, dearer float64) {
	if dearer > 0 {
		a.keep() // leaving what may be the best
	}
	from, next := a.figure(at, a.pick[at]), a.figure(at, to)
	a.cost += dearer
	for t, r := range a.rows[at] {
		s := &a.state[r]
		was := s.use > s.right
		s.use += next[t+1] - from[t+1]
		switch is := s.use > s.right; {
		case is && !was:
			a.broken++
		case was && !is:
			a.broken--
		}
	}
	a.pick[at] = to
}

// keep notes the counts when they are the cheapest yet.
func (a *annealing) keep() {
	if a.broken == 0 && a.cost < a.bestCost {
		a.best, a.bestCost = append(a.best[:0], a.pick...), a.cost
	}
}

// counts is what picks stand for.
func (a *annealing) counts(pick []int) [][][]int {
	flat := make([]int, len(a.flat))
	for at, n := range pick {
		copy(flat[at*a.c.gpus:], a.pool[at][n].x)
	}
	return a.c.counts(flat)
}
