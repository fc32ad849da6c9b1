package plan

import (
	"container/heap"
	"math"
	"slices"
)

// branchCells is up to how many model x region x GPU cells the last resort is
// to branch.
const branchCells = 400

// branching is branch and bound over the counts of cells, with a coupling's
// relaxation as the bound; where few options are left it tries them all.
type branching struct {
	*coupling
	open  nodeHeap
	seq   int
	floor float64 // least bound of what was cut off as not worth the gap
}

const (
	nodeSteps = 25
	maxNodes  = 100_000
	tryNodes  = 60_000 // of a search that tries all options, before it branches
)

// node is a part of the search space.
type node struct {
	in    box
	y     []float64
	bound float64
	seq   int
}

type nodeHeap []*node

func (h nodeHeap) Len() int { return len(h) }
func (h nodeHeap) Less(a, b int) bool {
	if h[a].bound != h[b].bound {
		return h[a].bound < h[b].bound
	}
	return h[a].seq > h[b].seq
}
func (h nodeHeap) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h *nodeHeap) Push(n any)   { *h = append(*h, n.(*node)) }
func (h *nodeHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}

func newBranching(c *coupling) *branching { return &branching{coupling: c, floor: math.Inf(1)} }

// run searches the box until the best counts are proven, effort runs out or
// nothing is left.
func (b *branching) run(y []float64, in box) {
	b.push(&node{in: in, y: y, bound: b.bound})
	for len(b.open) > 0 && len(b.open) < maxNodes && !b.done(b.open[0].bound) {
		n := heap.Pop(&b.open).(*node)
		if !b.explore(n) {
			b.push(n) // effort ran out: it stays open
			break
		}
	}
	bound := math.Min(b.floor, b.bestCost)
	if len(b.open) > 0 {
		bound = math.Min(bound, b.open[0].bound)
	} else if b.best == nil {
		b.giveReasons()
		return
	}
	b.raise(bound)
}

func (b *branching) push(n *node) {
	n.seq = b.seq
	b.seq++
	heap.Push(&b.open, n)
}

// explore bounds a node, narrows it, and tries all that is left or splits it.
// False when effort ran out first.
func (b *branching) explore(n *node) bool {
	a := b.newAscent(n.y, n.in, 0.01)
	a.run(nodeSteps)
	if b.work.spent() || math.IsInf(a.best.value, -1) {
		return false
	}
	n.bound = math.Max(n.bound, a.best.value)
	if b.refinable() && !b.done(n.bound) && !math.IsInf(n.bound, 1) {
		n.bound = math.Max(n.bound, b.wholeModels(a.best, n.in, polishEffort))
	}
	if math.IsInf(n.bound, 1) || n.bound > b.most+slackOf(b.most) {
		return true
	}
	b.offer(b.counts(a.best.x))
	if b.done(n.bound) {
		b.floor = math.Min(b.floor, n.bound)
		return true
	}
	n.y = slices.Clone(a.best.y)
	pool, whole := b.pools(a.best, n.in, b.limit()-a.best.value, exactOptions)
	if b.work.spent() {
		return false
	}
	if whole {
		if !b.narrow(n, pool) {
			return true
		}
		t := newTrial(b.coupling, a.best, pool)
		if t.run() {
			return true
		}
	}
	if b.work.spent() {
		return false
	}
	return b.split(n, a)
}

// limit is the cost that counts worth finding lie below.
func (b *branching) limit() float64 {
	if b.best == nil {
		return b.most + slackOf(b.most)
	}
	return b.bestCost
}

// narrow bounds a node's cells to the counts that its options have; false when
// a block has none.
func (b *branching) narrow(n *node, pool [][]option) bool {
	for at, options := range pool {
		if len(options) == 0 {
			return false
		}
		for k := range b.gpus {
			lo, hi := options[0].x[k], options[0].x[k]
			for _, o := range options {
				lo, hi = min(lo, o.x[k]), max(hi, o.x[k])
			}
			n.in.lo[at*b.gpus+k], n.in.hi[at*b.gpus+k] = lo, hi
		}
	}
	return true
}

// split cuts a node in two at the cell whose mean count is nearest a half, else
// at the one of widest bounds.
func (b *branching) split(n *node, a *ascent) bool {
	best, score, below := -1, 0.0, 0
	for cell := range n.in.lo {
		lo, hi := n.in.lo[cell], n.in.hi[cell]
		if lo == hi {
			continue
		}
		mean := math.Min(math.Max(a.mean[cell], float64(lo)), float64(hi))
		fraction := mean - math.Floor(mean)
		s := math.Min(fraction, 1-fraction) + 1e-3 - 1e-3/float64(1+hi-lo)
		if s > score {
			best, score, below = cell, s, min(int(math.Floor(mean)), hi-1)
		}
	}
	if best < 0 {
		return true // one choice is left, and it was offered
	}
	for side := range 2 {
		child := &node{in: box{slices.Clone(n.in.lo), slices.Clone(n.in.hi)}, y: n.y, bound: n.bound}
		if side == 0 {
			child.in.hi[best] = below
		} else {
			child.in.lo[best] = below + 1
		}
		b.push(child)
	}
	return true
}

// trial tries all options of all blocks, block by block, as long as the cost
// that the relaxation accounts for (excess of options, priced slack of rows)
// and what the rows' last blocks can still use leave hope.
type trial struct {
	c          *coupling
	p          *point
	pool       [][]option
	order      []int
	rows       [][]int
	restLo     [][]float64 // by position in order and row: the least and most
	restHi     [][]float64 // that the blocks from there on use
	use, terms []float64
	pick       []int
	left       int
}

func newTrial(c *coupling, p *point, pool [][]option) *trial {
	n := len(pool)
	t := &trial{
		c: c, p: p, pool: pool, rows: make([][]int, n), pick: make([]int, n), left: tryNodes,
		use: make([]float64, len(c.rows)), terms: make([]float64, len(c.rows)),
	}
	for j := range c.regions {
		for i := range c.models {
			t.order = append(t.order, i*c.regions+j)
		}
	}
	for at := range pool {
		t.rows[at] = c.poolRows(at)
	}
	t.restLo, t.restHi = make([][]float64, n+1), make([][]float64, n+1)
	t.restLo[n], t.restHi[n] = make([]float64, len(c.rows)), make([]float64, len(c.rows))
	for pos := n - 1; pos >= 0; pos-- {
		at := t.order[pos]
		t.restLo[pos], t.restHi[pos] = slices.Clone(t.restLo[pos+1]), slices.Clone(t.restHi[pos+1])
		for at2, r := range t.rows[at] {
			lo, hi := math.Inf(1), math.Inf(-1)
			for _, o := range pool[at] {
				lo, hi = math.Min(lo, o.use[at2]), math.Max(hi, o.use[at2])
			}
			t.restLo[pos][r] += lo
			t.restHi[pos][r] += hi
		}
	}
	return t
}

// run reports whether all options were tried.
func (t *trial) run() bool {
	sum := t.p.value
	for r := range t.terms {
		if t.c.rows[r].kind != standingRow {
			t.terms[r] = t.term(r, 0, t.restHi[0][r])
			sum += t.terms[r]
		}
	}
	t.from(0, sum)
	t.c.work.spend(8 * (tryNodes - t.left))
	return t.left >= 0
}

// term is what row r's slack costs at least at its price.
func (t *trial) term(r int, use, rest float64) float64 {
	return t.p.y[r] * math.Max(0, t.c.rows[r].right-use-rest)
}

// limit is the cost at which counts are not worth finding.
func (t *trial) limit() float64 {
	if t.c.best == nil {
		return t.c.most + slackOf(t.c.most)
	}
	return t.c.bestCost - slackOf(t.c.bestCost)
}

// from fixes the blocks from position pos on, the earlier ones accounting for
// sum.
func (t *trial) from(pos int, sum float64) {
	if pos == len(t.order) {
		flat := make([]int, len(t.pick)*t.c.gpus)
		for at, n := range t.pick {
			copy(flat[at*t.c.gpus:], t.pool[at][n].x)
		}
		t.c.offer(t.c.counts(flat))
		return
	}
	at := t.order[pos]
	rows := t.rows[at]
	was := make([]float64, 2*len(rows))
	for n, r := range rows {
		was[2*n], was[2*n+1] = t.use[r], t.terms[r]
	}
	for n := range t.pool[at] {
		if t.left--; t.left < 0 {
			break
		}
		o := &t.pool[at][n]
		if sum+o.excess > t.limit() {
			break
		}
		next, possible := sum+o.excess, true
		for m, r := range rows {
			t.use[r] = was[2*m] + o.use[m]
			right := t.c.rows[r].right
			if t.use[r]+t.restLo[pos+1][r] > right+1e-8*math.Max(1, math.Abs(right)) {
				possible = false
			}
			t.terms[r] = t.term(r, t.use[r], t.restHi[pos+1][r])
			next += t.terms[r] - was[2*m+1]
		}
		if possible && next <= t.limit() {
			t.pick[at] = n
			t.from(pos+1, next)
		}
	}
	for n, r := range rows {
		t.use[r], t.terms[r] = was[2*n], was[2*n+1]
	}
}
