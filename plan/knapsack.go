package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// knapsack chooses one pick for every item, so that what the picks use of each
// capacity together is at most what it holds, at the least sum of excess and of
// what stays unused, priced: the multiple-choice knapsack of several dimensions.
// Its states are what the first items use. Only those are followed that may end
// within a distance d, and near a good relaxation these are few.
type knapsack struct {
	caps  []packedCap
	items [][]pick
	work  *effort
	full  uint // bits taken of the last capacity's word

	free   []float64   // by item: least excess of it and those after it
	rest   [][]float64 // by capacity: see complete
	stages [][]packState
	slots  []int32 // table of states, by hash: their place in the stage, or -1
	seen   [mostCapacity + 1]int
	stamp  int // marks what was seen of one item
}

// packedCap is a capacity, the price of what stays unused, and the bits that
// hold its use.
type packedCap struct {
	right       int
	price       float64
	word, shift uint
	mask        uint64
}

// packedUse is what is used of every capacity.
type packedUse [3]uint64

// pick is one choice for an item; tag is the caller's.
type pick struct {
	excess float64
	use    packedUse
	tag    int
}

// packState is a choice for the first items.
type packState struct {
	use          packedUse
	excess       float64
	prev, choice int32
}

const (
	mostStates   = 20_000  // of one stage
	mostTries    = 400_000 // of a state with a pick, in one stage
	mostCapacity = 4096    // of one capacity
)

// begin forgets capacities and items.
func (k *knapsack) begin(items int) {
	k.caps, k.full = k.caps[:0], 0
	for len(k.items) < items {
		k.items = append(k.items, nil)
	}
	k.items = k.items[:items]
	for i := range k.items {
		k.items[i] = k.items[i][:0]
	}
}

// hold adds a capacity and reports whether there is room for it.
func (k *knapsack) hold(right int, price float64) bool {
	width := uint(bits.Len(uint(2 * right))) // of a state and a pick together
	word := uint(0)
	if len(k.caps) > 0 {
		word = k.caps[len(k.caps)-1].word
	}
	if k.full+width > 64 {
		word, k.full = word+1, 0
	}
	if word >= uint(len(packedUse{})) || right > mostCapacity {
		return false
	}
	k.caps = append(k.caps, packedCap{right, price, word, k.full, 1<<width - 1})
	k.full += width
	return true
}

// of is how much of the capacity is used.
func (c *packedCap) of(u *packedUse) int { return int(u[c.word] >> c.shift & c.mask) }

// use is what counts use of the capacities that fields names, -1 for none; ok is
// false when that is more than one of them holds.
func (k *knapsack) use(counts, fields []int) (use packedUse, ok bool) {
	for at, t := range fields {
		if t < 0 {
			continue
		}
		c := &k.caps[t]
		if counts[at] > c.right {
			return use, false
		}
		use[c.word] += uint64(counts[at]) << c.shift
	}
	return use, true
}

// solve finds the least sum, when that is at most d: picked is the pick of every
// item, nil when nothing lies within d. done is false when effort ran out or too
// many states were met, for then nothing is known.
func (k *knapsack) solve(d float64) (picked []int32, least float64, done bool) {
	for i := range k.items {
		slices.SortFunc(k.items[i], func(a, b pick) int {
			return cmp.Or(cmp.Compare(a.excess, b.excess), a.tag-b.tag)
		})
		k.work.spend(4 * len(k.items[i]))
	}
	k.complete()
	for len(k.stages) <= len(k.items) {
		k.stages = append(k.stages, nil)
	}
	k.stages[0] = append(k.stages[0][:0], packState{})
	for i := range k.items {
		if !k.join(i, d) {
			return nil, 0, false
		}
	}
	end, least := k.end(d)
	if end < 0 {
		return nil, d, true
	}
	picked = make([]int32, len(k.items))
	for i := len(k.items) - 1; i >= 0; i-- {
		s := &k.stages[i+1][end]
		picked[i], end = s.choice, int(s.prev)
	}
	return picked, least, true
}

// end is the cheapest last state with what it leaves unused priced, -1 where none
// is within d.
func (k *knapsack) end(d float64) (end int, least float64) {
	end, least = -1, d
	last := k.stages[len(k.items)]
	for n := range last {
		sum := last[n].excess
		for t := range k.caps {
			c := &k.caps[t]
			sum += c.price * float64(c.right-c.of(&last[n].use))
		}
		if sum <= least {
			least, end = sum, n
		}
	}
	return end, least
}

// complete tabulates, for each capacity by itself, the least excess of the items
// from i on with what stays unused priced, when so much of it is left: a bound of
// what a state costs yet.
func (k *knapsack) complete() {
	n := len(k.items)
	k.free = append(k.free[:0], make([]float64, n+1)...)
	for i := n - 1; i >= 0; i-- {
		k.free[i] = math.Inf(1)
		if len(k.items[i]) > 0 {
			k.free[i] = k.free[i+1] + k.items[i][0].excess
		}
	}
	for len(k.rest) < len(k.caps) {
		k.rest = append(k.rest, nil)
	}
	for t := range k.caps {
		c := &k.caps[t]
		width := c.right + 1
		table := slices.Grow(k.rest[t][:0], (n+1)*width)[:(n+1)*width]
		k.rest[t] = table
		for left := range width {
			table[n*width+left] = c.price * float64(left)
		}
		for i := n - 1; i >= 0; i-- {
			k.completeItem(c, i, table[i*width:(i+1)*width], table[(i+1)*width:(i+2)*width])
		}
	}
}

// completeItem is a row of complete from the row after it.
func (k *knapsack) completeItem(c *packedCap, i int, row, after []float64) {
	for left := range row {
		row[left] = math.Inf(1)
	}
	k.stamp++
	for n := range k.items[i] {
		p := &k.items[i][n]
		u := c.of(&p.use)
		if k.seen[u] == k.stamp {
			continue // one before it uses as much and costs less
		}
		k.seen[u] = k.stamp
		for left := u; left < len(row); left++ {
			row[left] = math.Min(row[left], p.excess+after[left-u])
		}
		k.work.spend(len(row) / 8)
	}
}

// join makes the states of the first i+1 items; false when effort ran out or
// there are too many.
func (k *knapsack) join(i int, d float64) bool {
	next := k.stages[i+1][:0]
	k.table(len(k.stages[i]))
	joins := 0
	for n := range k.stages[i] {
		s := &k.stages[i][n]
		for o := range k.items[i] {
			p := &k.items[i][o]
			e := s.excess + p.excess
			if e+k.free[i+1] > d {
				break
			}
			joins++
			use := s.use
			for w := range use {
				use[w] += p.use[w]
			}
			if k.within(i+1, &use, d-e) {
				next = k.add(next, packState{use, e, int32(n), int32(o)})
			}
		}
		if len(next) > mostStates || joins > mostTries {
			return false
		}
	}
	k.stages[i+1] = next
	return k.work.spend(1 + joins + 2*len(next))
}

// within reports whether the items from i on may keep every capacity and cost at
// most d more.
func (k *knapsack) within(i int, use *packedUse, d float64) bool {
	for t := range k.caps {
		c := &k.caps[t]
		left := c.right - c.of(use)
		if left < 0 || k.rest[t][i*(c.right+1)+left] > d {
			return false
		}
	}
	return true
}

// table empties the table of states and makes room for so many.
func (k *knapsack) table(states int) {
	n := 64
	for n < 2*states {
		n *= 2
	}
	if cap(k.slots) < n {
		k.slots = make([]int32, n)
	}
	k.slots = k.slots[:n]
	for at := range k.slots {
		k.slots[at] = -1
	}
}

// add puts a state among those of a stage, or in the place of a dearer one of the
// same use.
func (k *knapsack) add(next []packState, s packState) []packState {
	at := k.slot(next, &s.use)
	if n := k.slots[at]; n >= 0 {
		if s.excess < next[n].excess {
			next[n] = s
		}
		return next
	}
	k.slots[at] = int32(len(next))
	if next = append(next, s); 2*len(next) > len(k.slots) {
		k.table(2 * len(next))
		for n := range next {
			k.slots[k.slot(next, &next[n].use)] = int32(n)
		}
	}
	return next
}

// slot is where a use stands, or could stand, in the table of states.
func (k *knapsack) slot(next []packState, use *packedUse) int {
	mask := len(k.slots) - 1
	h := ((use[0]*0x9e3779b97f4a7c15+use[1])*0x9e3779b97f4a7c15 + use[2]) * 0xff51afd7ed558ccd
	for at := int(h>>32) & mask; ; at = (at + 1) & mask {
		if n := k.slots[at]; n < 0 || next[n].use == *use {
			return at
		}
	}
}
