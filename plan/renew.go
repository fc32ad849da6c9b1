package plan

import "math/rand/v2"

// renewal improves counts that keep every row: it takes a few regions out and
// solves them anew together, exactly but for choices that lie far from the
// relaxation. Above the relaxation at prices y, counts cost the sum of the
// blocks' excess, of capacity left over and of what models carry beyond their
// need, the last two priced. All three are 0 or more, so what the regions lose
// now is how far their knapsack has to be searched for something better.
type renewal struct {
	*coupling
	y       []float64
	mu      []float64  // by model: price of what it carries
	need    []float64  // by model
	choices [][]choice // by block, of least excess first
	most    []float64  // by block: what a choice carries at most
	counted []int      // by region and GPU: the row of a capacity that matters, or -1
	random  *rand.Rand

	x     [][][]int
	now   []choice  // by block: the counts in x
	total []float64 // by model: what x carries
	used  []int     // by region and GPU

	// of the regions renewed
	set    []int
	pack   knapsack
	fields []int // by region of the set and GPU: the knapsack's capacity, or -1
	flat   []int // scratch
	tries  int   // left for listing picks
}

// choice is a count for every class of a block.
type choice struct {
	x               []int
	excess, carried float64
}

// The course of renewals.
const (
	renewed     = 3       // regions solved together, at most
	mostPicks   = 2000    // of a model in the regions renewed
	choiceBits  = 8       // of a pick's tag, for a region
	mostChoices = 48      // of a block
	mostTried   = 200_000 // choices looked at in one renewal
)

// renewable reports whether nothing but capacity and coverage joins blocks.
func (c *coupling) renewable() bool {
	return c.exchangeable() && c.p.MinTotal == nil && c.p.MaxTotal == nil
}

// newRenewal starts from the best counts, with choices of an excess up to d at
// the prices of p, where blocks are relaxed.
func (c *coupling) newRenewal(p *point, in box, d float64, seed uint64) *renewal {
	r := &renewal{
		coupling: c, y: p.y, x: clone3(c.best), random: rand.New(rand.NewPCG(seed, 0x72656e65)),
		mu: make([]float64, c.models), need: make([]float64, c.models), total: make([]float64, c.models),
		used: make([]int, c.regions*c.gpus), pack: knapsack{work: &c.work},
	}
	for i, rows := range c.coverRows {
		for _, row := range rows {
			r.mu[i] = p.y[row] / c.rows[row].unit
			r.need[i] = -c.rows[row].right * c.rows[row].unit
		}
	}
	for at := range c.blocks {
		options, _ := c.pool(p, in, at, d, mostChoices)
		choices, most := []choice{}, 0.0
		for _, o := range options {
			carried := c.blocks[at].capacity(o.x)
			choices, most = append(choices, choice{o.x, o.excess, carried}), max(most, carried)
		}
		r.choices, r.most = append(r.choices, choices), append(r.most, most)
		x := r.x[at/c.regions][at%c.regions]
		r.now = append(r.now, choice{x, r.excess(at, x, p.reduced[at]), c.blocks[at].capacity(x)})
		r.take(at, 1)
	}
	r.count()
	return r
}

// excess is the reduced cost of counts above the least of their block.
func (r *renewal) excess(at int, x []int, least float64) float64 {
	sum := r.blocks[at].cost(x) - r.mu[at/r.regions]*r.blocks[at].capacity(x) - least
	for k, row := range r.links[at].capacity {
		if row >= 0 {
			sum += r.y[row] * float64(x[k])
		}
	}
	return sum
}

// take adds the counts of a block to the books, or takes them out.
func (r *renewal) take(at, sign int) {
	i, j, o := at/r.regions, at%r.regions, r.now[at]
	r.total[i] += float64(sign) * o.carried
	for k, n := range o.x {
		r.used[j*r.gpus+k] += sign * n
	}
}

// count finds the capacities that are worth something or that the choices could
// exceed.
func (r *renewal) count() {
	for j := range r.regions {
		for k, row := range r.links[j].capacity {
			if row >= 0 && r.y[row] == 0 && float64(r.mostUsed(j, k)) <= r.rows[row].right {
				row = -1
			}
			r.counted = append(r.counted, row)
		}
	}
}

// mostUsed is how much of a capacity the choices use at most.
func (r *renewal) mostUsed(j, k int) int {
	sum := 0
	for i := range r.models {
		most := r.now[i*r.regions+j].x[k]
		for _, o := range r.choices[i*r.regions+j] {
			most = max(most, o.x[k])
		}
		sum += most
	}
	return sum
}

// run renews n sets of regions.
func (r *renewal) run(n int) {
	order := make([]int, r.regions)
	for j := range order {
		order[j] = j
	}
	for ; n > 0 && !r.work.spent() && !r.done(r.bound); n-- {
		k := min(1+r.random.IntN(renewed), r.regions)
		for at := range k {
			o := at + r.random.IntN(r.regions-at)
			order[at], order[o] = order[o], order[at]
		}
		if r.renew(order[:k]) {
			r.offer(r.x)
		}
	}
}

// renew solves a set of regions anew and reports whether that costs less.
func (r *renewal) renew(set []int) bool {
	r.set = set
	d := r.loss() - 2*slackOf(r.bestCost)
	if d <= 0 || !r.hold() || !r.list(d) {
		return false
	}
	picked, _, done := r.pack.solve(d)
	if !done || picked == nil {
		return false
	}
	for i, n := range picked {
		tag := r.pack.items[i][n].tag
		for _, j := range set {
			at := i*r.regions + j
			r.take(at, -1)
			r.now[at] = r.choices[at][tag&(1<<choiceBits-1)]
			r.x[i][j] = r.now[at].x
			r.take(at, 1)
			tag >>= choiceBits
		}
	}
	return true
}

// loss is what the set's counts cost above the relaxation.
func (r *renewal) loss() float64 {
	r.work.spend(r.models * (1 + len(r.set)))
	var sum float64
	for _, j := range r.set {
		for k := range r.gpus {
			if row := r.counted[j*r.gpus+k]; row >= 0 {
				sum += r.y[row] * (r.rows[row].right - float64(r.used[j*r.gpus+k]))
			}
		}
	}
	for i := range r.models {
		sum += r.mu[i] * (r.total[i] - r.need[i])
		for _, j := range r.set {
			sum += r.now[i*r.regions+j].excess
		}
	}
	return sum
}

// hold gives the knapsack the set's capacities; false where they are too many.
func (r *renewal) hold() bool {
	r.pack.begin(r.models)
	r.fields = r.fields[:0]
	for _, j := range r.set {
		for _, row := range r.counted[j*r.gpus : (j+1)*r.gpus] {
			if row < 0 {
				r.fields = append(r.fields, -1)
				continue
			}
			r.fields = append(r.fields, len(r.pack.caps))
			if !r.pack.hold(int(r.rows[row].right), r.y[row]) {
				return false
			}
		}
	}
	return true
}

// list lists every model's picks that may be part of something within d; false
// when there are none, or too many.
func (r *renewal) list(d float64) bool {
	least := make([]float64, r.models)
	r.tries = mostTried
	defer func() { r.work.spend(mostTried - r.tries) }()
	for i := range least {
		m := r.newMerger(i, d)
		m.from(0, 0, -m.need, 0)
		if least[i] = m.limit; !m.found {
			return false
		}
		d -= least[i]
	}
	for i := range least {
		m := r.newMerger(i, d+least[i])
		m.keep = true
		m.from(0, 0, -m.need, 0)
		if len(r.pack.items[i]) > mostPicks || r.tries <= 0 {
			return false
		}
	}
	return true
}

// merger is one model over the set's regions: a pick is a choice for each of
// them that together carry what the other regions leave.
type merger struct {
	r     *renewal
	model int
	need  float64              // what the set must carry
	room  [renewed + 1]float64 // what the set's regions from each one on carry at most
	limit float64              // of a pick's excess
	keep  bool                 // every pick is listed; else limit falls to the least
	found bool
}

func (r *renewal) newMerger(i int, limit float64) *merger {
	m := &merger{r: r, model: i, need: r.need[i] - r.total[i], limit: limit}
	for n := len(r.set) - 1; n >= 0; n-- {
		at := i*r.regions + r.set[n]
		m.need += r.now[at].carried
		m.room[n] = m.room[n+1] + r.most[at]
	}
	return m
}

// from chooses for the set's regions from n on, where those before it cost so
// much excess and carry so much over the need.
func (m *merger) from(n int, excess, over float64, tag int) {
	r := m.r
	if n == len(r.set) {
		if excess += r.mu[m.model] * over; excess <= m.limit {
			m.end(excess, tag)
		}
		return
	}
	choices := r.choices[m.model*r.regions+r.set[n]]
	for o := range choices {
		c := &choices[o]
		if excess+c.excess > m.limit || len(r.pack.items[m.model]) > mostPicks || r.tries <= 0 {
			return
		}
		r.tries--
		if over+c.carried+m.room[n+1] >= 0 {
			m.from(n+1, excess+c.excess, over+c.carried, tag|o<<(n*choiceBits))
		}
	}
}

// end takes a pick.
func (m *merger) end(excess float64, tag int) {
	m.found = true
	if !m.keep {
		m.limit = excess
		return
	}
	r := m.r
	r.flat = r.flat[:0]
	for n, j := range r.set {
		r.flat = append(r.flat, r.choices[m.model*r.regions+j][tag>>(n*choiceBits)&(1<<choiceBits-1)].x...)
	}
	if use, ok := r.pack.use(r.flat, r.fields); ok {
		r.pack.items[m.model] = append(r.pack.items[m.model], pick{excess, use, tag})
	}
}
