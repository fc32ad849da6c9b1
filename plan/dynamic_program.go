package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// dynamicProgram enumerates all choices of one candidate per item by dynamic programming over the items, which are the
// blocks of a model, or models. A row is live at a stage if both an earlier and a later item use it. A partial choice is
// dropped when another one costs no more and uses no more of any live row. A choice is also dropped when the excess cost
// of its candidates plus the slack of its rows, at the prices of the rows, is above the limit.
type dynamicProgram struct {
	c                 *integerProgram
	y                 []float64
	limit             float64 // bound on the cost of candidates and slack above the relaxation
	remainingPartials int     // partial choices that may still be created
	items             [][]candidate
	rows              [][]int // by item: the row of each entry of its candidates' use, -1 to ignore it
	open              []bool  // by row: items of later searches use it too, so the slack that remains in the end is unknown
	incomparable      bool    // partial choices are not compared: with switch costs, only the costs of complete choices are comparable
	// minUse and maxUse are the minimum and maximum use of each row by the items from a stage on.
	minUse, maxUse [][]float64
	last           []int // by row: the stage of its last item
	live           []int // the live rows at the present stage, whose use partial choices record
	stages         [][]partial
	memory         []float64 // of the last stage
}

// maxComparisons is the maximum number of partial choices that another one is compared with.
const maxComparisons = 32

// partial is a choice for the first items.
type partial struct {
	cost float64
	// bound is the minimum by which the cost of the candidates and of the slack exceeds the relaxation.
	bound float64
	use   int32 // where its use by live row begins in the memory of its stage
	// from is the index of the choice of the previous stage that this one extends, candidate that of the added candidate.
	from, candidate int32
}

// computeRemainingUse sets minUse, maxUse and last.
func (g *dynamicProgram) computeRemainingUse() {
	n, rows := len(g.items), len(g.open)
	g.minUse, g.maxUse, g.last = make([][]float64, n+1), make([][]float64, n+1), make([]int, rows)
	g.minUse[n], g.maxUse[n] = make([]float64, rows), make([]float64, rows)
	for r := range g.last {
		if g.last[r] = -1; g.open[r] {
			g.last[r] = n
		}
	}
	for s := n - 1; s >= 0; s-- {
		g.minUse[s], g.maxUse[s] = slices.Clone(g.minUse[s+1]), slices.Clone(g.maxUse[s+1])
		for t, r := range g.rows[s] {
			if r < 0 {
				continue
			}
			low, high := math.Inf(1), math.Inf(-1)
			for _, o := range g.items[s] {
				low, high = math.Min(low, o.use[t]), math.Max(high, o.use[t])
			}
			g.minUse[s][r] += low
			g.maxUse[s][r] += high
			g.last[r] = max(g.last[r], s)
		}
	}
}

// minSlack returns the minimum unused part of row r, at its price, given the use so far and the
// maximum use by the remaining items.
func (g *dynamicProgram) minSlack(r int, used, remaining float64) float64 {
	return g.y[r] * math.Max(0, g.c.rows[r].rhs-used-remaining)
}

// enumerate enumerates all choices within the limit. It returns false when there are too many or the
// effort is spent.
func (g *dynamicProgram) enumerate() bool {
	g.computeRemainingUse()
	first := partial{}
	for r, s := range g.last {
		if s >= 0 && !g.open[r] {
			first.bound += g.minSlack(r, 0, g.maxUse[0][r])
		}
	}
	g.stages = [][]partial{{first}}
	for s := range g.items {
		if !g.extend(s) {
			return false
		}
	}
	return true
}

// completeChoices returns the choices that enumerate found.
func (g *dynamicProgram) completeChoices() []partial { return g.stages[len(g.items)] }

// candidatesPicked returns the candidate of each item in a choice.
func (g *dynamicProgram) candidatesPicked(choice int) []int {
	out := make([]int, len(g.items))
	for s := len(g.items); s > 0; s-- {
		q := &g.stages[s][choice]
		out[s-1], choice = int(q.candidate), int(q.from)
	}
	return out
}

// rowPosition is a row of a stage's item: its entry in the use of the item's candidates, and its index among the live
// rows before and after the stage, -1 for none.
type rowPosition struct{ row, entry, before, after int }

// rowsAt lists the rows of a stage's item, the live rows after the stage, and the index (from) of each of these before
// the stage, -1 for none.
func (g *dynamicProgram) rowsAt(s int) (rows []rowPosition, live, from []int) {
	for at, r := range g.live {
		if g.last[r] > s {
			live, from = append(live, r), append(from, at)
		}
	}
	for t, r := range g.rows[s] {
		if r < 0 {
			continue
		}
		row := rowPosition{r, t, slices.Index(g.live, r), slices.Index(live, r)}
		if row.after < 0 && g.last[r] > s {
			row.after = len(live)
			live, from = append(live, r), append(from, -1)
		}
		rows = append(rows, row)
	}
	return rows, live, from
}

// extend combines the partial choices of a stage with the candidates of its item. It returns false when
// there are too many or the effort is spent.
func (g *dynamicProgram) extend(s int) bool {
	rows, live, from := g.rowsAt(s)
	var memory []float64
	var out []partial
	for n := range g.stages[s] {
		q := &g.stages[s][n]
		for o := range g.items[s] {
			candidate := &g.items[s][o]
			if q.bound+candidate.excess > g.limit {
				break // candidates are sorted
			}
			if !g.c.work.spend(2 + len(rows)) {
				return false
			}
			at := len(memory)
			next := partial{q.cost + candidate.cost, q.bound + candidate.excess, int32(at), int32(n), int32(o)}
			for _, before := range from {
				if before < 0 {
					memory = append(memory, 0)
				} else {
					memory = append(memory, g.memory[int(q.use)+before])
				}
			}
			if !g.addCandidateUse(s, q, candidate, rows, memory[at:], &next) {
				memory = memory[:at]
				continue
			}
			out = append(out, next)
			if g.remainingPartials--; g.remainingPartials < 0 {
				return false
			}
		}
	}
	each := bits.Len(uint(len(out))) // sorting
	if len(live) > 1 {
		each += maxComparisons // with other choices
	}
	if !g.c.work.spend(each * len(out)) {
		return false
	}
	if g.live = live; !g.incomparable {
		out = paretoFront(out, memory, len(live))
	}
	g.memory = memory
	g.stages = append(g.stages, out)
	return true
}

// addCandidateUse adds up the use of a partial choice with one more candidate; false when a row is violated or the
// limit is exceeded.
func (g *dynamicProgram) addCandidateUse(s int, q *partial, o *candidate, rows []rowPosition, use []float64, next *partial) bool {
	for _, t := range rows {
		used := 0.0
		if t.before >= 0 {
			used = g.memory[int(q.use)+t.before]
		}
		now := used + o.use[t.entry]
		if t.after >= 0 {
			use[t.after] = now
		}
		if g.open[t.row] {
			continue
		}
		right := g.c.rows[t.row].rhs
		if now+g.minUse[s+1][t.row] > right+1e-8*math.Max(1, math.Abs(right)) {
			return false
		}
		next.bound += g.minSlack(t.row, now, g.maxUse[s+1][t.row]) - g.minSlack(t.row, used, g.maxUse[s][t.row])
	}
	return next.bound <= g.limit
}

// paretoFront removes the partial choices that another one dominates in cost and in the use of every live
// row. If several rows are live and more than maxComparisons choices are kept, each choice is compared only with the
// first and the last maxComparisons/2 of these.
func paretoFront(in []partial, memory []float64, live int) []partial {
	use := func(q *partial) []float64 { return memory[q.use : int(q.use)+live] }
	slices.SortFunc(in, func(a, b partial) int {
		if a.cost != b.cost {
			return cmp.Compare(a.cost, b.cost)
		}
		return cmp.Or(slices.Compare(use(&a), use(&b)), cmp.Compare(a.from, b.from), cmp.Compare(a.candidate, b.candidate))
	})
	out := in[:0]
	lowest := math.Inf(1) // use of the one live row
	dominated := func(q *partial) bool {
		for n := 0; n < len(out); n++ {
			if n == maxComparisons/2 && len(out) > maxComparisons {
				n = len(out) - maxComparisons/2
			}
			if usesNoMore(use(&out[n]), use(q)) {
				return true
			}
		}
		return false
	}
	for n := range in {
		q := in[n]
		switch {
		case live == 0 && len(out) > 0:
			return out
		case live == 1 && memory[q.use] >= lowest-1e-12:
			continue
		case live > 1 && dominated(&q):
			continue
		}
		if live == 1 {
			lowest = memory[q.use]
		}
		out = append(out, q)
	}
	return out
}

// usesNoMore reports whether one use is at most another in every row.
func usesNoMore(one, other []float64) bool {
	for r, u := range one {
		if u > other[r]+1e-12 {
			return false
		}
	}
	return true
}
