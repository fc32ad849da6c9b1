package plan

import (
	"cmp"
	"math"
	"slices"
)

// averages keeps the mean count of each model in each row over a node's
// relaxed solutions: near the counts of the node's convex relaxation, and so a
// good place to split.
type averages struct {
	sum [][]float64
	n   float64
}

func newAverages(models, rows int) *averages {
	a := &averages{sum: make([][]float64, models)}
	for i := range a.sum {
		a.sum[i] = make([]float64, rows)
	}
	return a
}

// add counts one solution; older ones fade, for they came from worse prices.
func (a *averages) add(x [][][]int, rows []capRow) {
	const fade = 0.85
	a.n = a.n*fade + 1
	for i := range a.sum {
		for r, row := range rows {
			a.sum[i][r] = a.sum[i][r]*fade + float64(x[i][row.region][row.gpu])
		}
	}
}

func (a *averages) mean(i, r int) float64 { return a.sum[i][r] / a.n }

// split cuts a node in two at a count of one cell: at the fraction of its
// average that is nearest a half, in a row that is priced or broken; else about
// its count in the relaxed solution.
func (cs *capSearch) split(n *node, rel relaxed, avg *averages) {
	bestI, bestR, at, score := -1, -1, 0, 0.0
	for r, row := range cs.rows {
		weight := n.price[r]
		if rel.use[r] > row.capacity {
			weight += 1
		}
		for i := range cs.p.Models {
			if weight == 0 || n.lo[i][r] == n.hi[i][r] {
				continue
			}
			below, sc := cs.cut(n, rel, avg, i, r)
			if s := sc * weight; s > score {
				bestI, bestR, at, score = i, r, below, s
			}
		}
	}
	if bestI < 0 {
		cs.settleNode(n, rel)
		return
	}
	left, right := n.child(), n.child()
	left.hi[bestI][bestR], right.lo[bestI][bestR] = at, at+1
	cs.push(left)
	cs.push(right)
}

// cut is the count at which to split cell (i, r), and how promising that is.
func (cs *capSearch) cut(n *node, rel relaxed, avg *averages, i, r int) (below int, score float64) {
	mean := avg.mean(i, r)
	fraction := mean - math.Floor(mean)
	below = int(math.Floor(mean))
	score = 0.01 + math.Min(fraction, 1-fraction)
	if fraction < 1e-6 {
		row := cs.rows[r]
		below = rel.x[i][row.region][row.gpu]
		if rel.use[r] > row.capacity {
			below--
		}
	}
	return min(max(below, n.lo[i][r]), n.hi[i][r]-1), score
}

// settleNode handles a node in which no cell is left to split: its rows hold
// and nothing is priced, so that its bound is reached; unless the relaxation
// was not solved to the end.
func (cs *capSearch) settleNode(n *node, rel relaxed) {
	cs.offer(rel.x)
	if cs.done(n.bound) {
		cs.cutOff(n)
		return
	}
	if !rel.exact || cs.p.Verify(rel.x) != nil {
		cs.giveUp(n)
	}
}

func (n *node) child() *node {
	c := &node{price: slices.Clone(n.price), bound: n.bound}
	for i := range n.lo {
		c.lo, c.hi = append(c.lo, slices.Clone(n.lo[i])), append(c.hi, slices.Clone(n.hi[i]))
	}
	return c
}

// construct makes counts that keep every row: one model after another under
// the capacity that is left, in several orders, at true prices and at the
// node's; then each model again in turn until none gets cheaper.
func (cs *capSearch) construct(n *node) {
	order := make([]int, len(cs.p.Models))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(cs.p.GlobalNeed(b), cs.p.GlobalNeed(a)) })
	for range min(len(order), 4) {
		for _, price := range [][]float64{n.price, make([]float64, len(cs.rows))} {
			if x := cs.oneByOne(n, order, price); x != nil {
				cs.offer(x)
				cs.polish(n, x)
			}
		}
		order = append(order[1:], order[0])
	}
}

// oneByOne places the models in order; nil when one does not fit any more.
func (cs *capSearch) oneByOne(n *node, order []int, price []float64) [][][]int {
	x := make([][][]int, len(order))
	for _, i := range order {
		m := cs.caseAt(n, i, price)
		cs.leave(m, i, x)
		if m.impossible(func(int) string { return "" }) != "" {
			return nil
		}
		if x[i] = cs.place(m).x; x[i] == nil {
			return nil
		}
	}
	return x
}

// placeEffort bounds the work on one model in a constructed solution, so that
// one hard model does not use up what all have.
const placeEffort = 2_000_000

// place solves one model to the last unit where that is not too much work.
func (cs *capSearch) place(m *modelCase) modelResult {
	share := effort{left: min(placeEffort, cs.work.left)}
	before := share.left
	r := m.solve(&share, true)
	cs.work.spend(int(before - share.left))
	return r
}

// leave bounds model i's case by the capacity that the others in x leave.
func (cs *capSearch) leave(m *modelCase, i int, x [][][]int) {
	for _, row := range cs.rows {
		left := row.capacity
		for o := range x {
			if o != i && x[o] != nil {
				left -= x[o][row.region][row.gpu]
			}
		}
		c := &m.blocks[row.region].classes[row.gpu]
		c.hi = min(c.hi, left)
	}
	*m = *newModelCase(m.blocks, m.need)
}

// polish solves each model again under what the others leave, until a whole
// round changes nothing.
func (cs *capSearch) polish(n *node, x [][][]int) {
	zero := make([]float64, len(cs.rows))
	for range 8 {
		better := false
		for i := range x {
			m := cs.caseAt(n, i, zero)
			cs.leave(m, i, x)
			res := cs.place(m)
			if res.x == nil || res.cost >= m.cost(x[i])-slackOf(res.cost) {
				continue
			}
			x[i], better = res.x, true
		}
		cs.offer(x)
		if !better {
			return
		}
	}
}
