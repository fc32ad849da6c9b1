package plan

import (
	"container/heap"
	"math"
	"slices"
)

// Iterations of the subgradient method.
const (
	rootIterations = 60
	nodeIterations = 6
	// maxNodes bounds the open nodes kept in memory.
	maxNodes = 200_000
)

// capSearch is branch and bound over counts in the cells that share a capacity.
// Its bound prices the shared capacities: then the models fall apart and each
// is solved by itself (SageServe's rows, Lagrangian relaxation).
type capSearch struct {
	*solver
	exact bool
	open  nodeHeap
	seq   int
	most  float64 // no irreducible solution costs more
	floor float64 // least bound of what was cut off as not worth the gap
}

// node is a part of the search space: bounds of the counts in the cells that
// share a capacity, by model and row.
type node struct {
	lo, hi [][]int
	price  []float64
	bound  float64
	seq    int
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

func newCapSearch(s *solver) *capSearch {
	cs := &capSearch{solver: s, floor: math.Inf(1), exact: len(s.p.Models)*len(s.p.Regions)*len(s.p.GPUs) <= exactCells}
	for i := range s.p.Models {
		for j := range s.p.Regions {
			for k := range s.p.GPUs {
				n := min(s.useful[i][j][k], limit(s.p.Capacity, j, k, unlimited))
				cs.most += float64(n) * (s.p.Alpha[k] + s.p.Sigma[i][k])
			}
		}
	}
	return cs
}

// run searches until the best counts are proven, effort runs out or nothing is
// left.
func (cs *capSearch) run() {
	root := cs.root()
	cs.construct(root)
	cs.explore(root, rootIterations)
	for len(cs.open) > 0 && !cs.work.spent() && len(cs.open) < maxNodes {
		if cs.done(cs.open[0].bound) {
			break
		}
		n := heap.Pop(&cs.open).(*node)
		cs.explore(n, nodeIterations)
	}
	cs.conclude()
}

// conclude turns what is left open, and what was cut off, into a bound.
func (cs *capSearch) conclude() {
	bound := math.Min(cs.floor, cs.bestCost)
	if len(cs.open) > 0 {
		bound = math.Min(bound, cs.open[0].bound)
	} else if cs.best == nil {
		cs.wrong = []string{"shared capacity: every model fits by itself, but no counts fit together"}
		return
	}
	cs.bound = math.Max(cs.bound, bound)
}

// done reports whether a node of this bound cannot improve on the best by more
// than the asked gap.
func (cs *capSearch) done(bound float64) bool {
	if cs.best == nil || bound < cs.bestCost-cs.o.Gap*cs.bestCost-slackOf(cs.bestCost) {
		return false
	}
	return true
}

// cutOff drops a node that is done, and remembers how low its costs may lie.
func (cs *capSearch) cutOff(n *node) { cs.floor = math.Min(cs.floor, n.bound) }

func (cs *capSearch) root() *node {
	n := &node{price: make([]float64, len(cs.rows)), bound: cs.bound}
	for range cs.p.Models {
		lo, hi := make([]int, len(cs.rows)), make([]int, len(cs.rows))
		for r, row := range cs.rows {
			hi[r] = row.capacity
		}
		n.lo, n.hi = append(n.lo, lo), append(n.hi, hi)
	}
	return n
}

// caseAt is model i under a node's bounds and prices.
func (cs *capSearch) caseAt(n *node, i int, price []float64) *modelCase {
	base := cs.caseOf(i)
	for r, row := range cs.rows {
		c := &base.blocks[row.region].classes[row.gpu]
		c.lo, c.hi = n.lo[i][r], min(c.hi, n.hi[i][r])
		c.stay += price[r]
	}
	return newModelCase(base.blocks, base.need)
}

// relaxed is the solution of a node with its capacities priced.
type relaxed struct {
	value float64
	x     [][][]int
	use   []int     // of each row
	exact bool      // every model was solved to the last unit
	parts []float64 // each model's share of the value, capacities aside
}

// relax solves every model by itself at the given prices. ok is false when a
// model has no counts under the node's bounds, or effort ran out.
func (cs *capSearch) relax(n *node, price []float64) (out relaxed, ok bool) {
	out.use, out.exact = make([]int, len(cs.rows)), true
	for r, row := range cs.rows {
		out.value -= price[r] * float64(row.capacity)
	}
	for i := range cs.p.Models {
		m := cs.caseAt(n, i, price)
		if m.impossible(func(int) string { return "" }) != "" {
			out.value = math.Inf(1)
			return out, false
		}
		res := m.solve(&cs.work, cs.exact)
		if res.x == nil {
			return out, false
		}
		out.value += res.bound
		out.parts = append(out.parts, res.bound)
		out.exact = out.exact && res.exact
		out.x = append(out.x, res.x)
		for r, row := range cs.rows {
			out.use[r] += res.x[row.region][row.gpu]
		}
	}
	return out, true
}

// explore raises a node's bound by moving prices along the subgradient, offers
// what it meets, and splits the node unless it is settled.
func (cs *capSearch) explore(n *node, iterations int) {
	if cs.hopeless(n) {
		return
	}
	price := slices.Clone(n.price)
	best := relaxed{value: math.Inf(-1)}
	average := newAverages(len(cs.p.Models), len(cs.rows))
	pace, stuck := 1.0, 0
	for range iterations {
		rel, ok := cs.relax(n, price)
		if math.IsInf(rel.value, 1) {
			return
		}
		if !ok {
			break
		}
		cs.offer(rel.x)
		average.add(rel.x, cs.rows)
		if rel.value > best.value {
			best, n.price = rel, slices.Clone(price)
			n.bound = math.Max(n.bound, rel.value)
			stuck = 0
		} else if stuck++; stuck >= 4 {
			pace, stuck = pace/2, 0
		}
		if n.bound > cs.most+slackOf(cs.most) {
			return // dearer than any solution: there is none
		}
		if cs.done(n.bound) {
			cs.cutOff(n)
			return
		}
		if !cs.step(price, rel, pace) {
			break // prices and use are complementary: nothing to gain
		}
	}
	if best.x == nil {
		cs.giveUp(n)
		return
	}
	if iterations == rootIterations {
		cs.construct(n)
		if cs.done(n.bound) {
			cs.cutOff(n)
			return
		}
	}
	if cs.tighten(n, best) {
		cs.split(n, best, average)
	}
}

// hopeless reports whether a node's least counts exceed a capacity, and frees
// the prices of rows that its greatest counts cannot.
func (cs *capSearch) hopeless(n *node) bool {
	for r, row := range cs.rows {
		lo, hi := 0, 0
		for i := range cs.p.Models {
			lo += n.lo[i][r]
			hi += n.hi[i][r]
		}
		if lo > row.capacity {
			return true
		}
		if hi <= row.capacity {
			n.price[r] = 0
		}
	}
	return false
}

// step moves the prices along the subgradient, Polyak's length towards the best
// cost known; false when the subgradient leaves them where they are.
func (cs *capSearch) step(price []float64, rel relaxed, pace float64) bool {
	var norm float64
	for r, row := range cs.rows {
		if g := float64(rel.use[r] - row.capacity); g > 0 || price[r] > 0 {
			norm += g * g
		}
	}
	if norm == 0 {
		return false
	}
	target := math.Min(cs.bestCost, cs.most)
	length := pace * math.Max(target-rel.value, 1e-6*math.Abs(target)) / norm
	for r, row := range cs.rows {
		price[r] = math.Max(0, price[r]+length*float64(rel.use[r]-row.capacity))
	}
	return true
}

// giveUp leaves a node open and ends the search: it cannot be taken further.
func (cs *capSearch) giveUp(n *node) {
	cs.push(n)
	cs.work.left = -1
}

func (cs *capSearch) push(n *node) {
	n.seq = cs.seq
	cs.seq++
	heap.Push(&cs.open, n)
}
