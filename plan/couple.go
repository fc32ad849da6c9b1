package plan

import "math"

// rowKind says what a row over several blocks limits.
type rowKind int

const (
	capacityRow rowKind = iota // replicas of all models in a region on a GPU
	standingRow                // replicas on VMs that stand there
	coverRow                   // what a model carries over a set of regions
	mostRow                    // a model's replicas over all regions
	leastRow
)

// coupledRow joins blocks: the use of its blocks together is at most right. A
// row of coverage counts what is carried, negative and divided by unit, so that
// all rows are of the size of a replica.
type coupledRow struct {
	kind        rowKind
	right, unit float64
}

// own reports whether the row is unpriced when a whole model is bounded (refine.go):
// its coverage is kept to the unit there, its least count is left out.
func (r coupledRow) own() bool { return r.kind == coverRow || r.kind == leastRow }

// coupling is the programme as blocks (one model in one region, solved to the
// last unit) and the rows that join them. At prices y >= 0 for the rows the
// blocks fall apart, and
//
//	sum over blocks of min(cost + y*use) - y*right
//
// is a bound of every solution's cost: SageServe's rows, Lagrangian relaxation.
type coupling struct {
	*solver
	models, regions, gpus int
	coverRows             [][]int // by model
	blocks                []block // model by model, region by region
	links                 []links
	rows                  []coupledRow
	reach                 []float64 // greatest need of the model's rows of coverage
	most                  float64   // no irreducible solution costs more
	base                  []float64 // by model: its bound at the prices last solved at

	// scratch
	walk   walk
	priced block
}

// links are the rows that a block is in, -1 for none.
type links struct {
	capacity, standing []int // by GPU
	cover              []int
	most, least        int
}

func newCoupling(s *solver) *coupling {
	p := s.p
	c := &coupling{solver: s, models: len(p.Models), regions: len(p.Regions), gpus: len(p.GPUs), base: make([]float64, len(p.Models))}
	c.priced.classes = make([]class, c.gpus)
	for i := range p.Models {
		need := 0.0
		for _, cv := range s.rules.covers[i] {
			need = math.Max(need, cv.need)
		}
		c.reach = append(c.reach, need)
		base := s.caseOf(i)
		for j := range base.blocks {
			b := base.blocks[j]
			b.closed, b.minTotal = true, total(p.MinTotal, i, 0)
			c.blocks = append(c.blocks, b)
			c.links = append(c.links, links{capacity: c.none(), standing: c.none(), most: -1, least: -1})
			for k, cl := range b.classes {
				c.most += float64(min(s.useful[i][j][k], cl.hi)) * (cl.stay + cl.start)
			}
			c.most += b.away.cost(0)
		}
	}
	c.joinCells()
	for i := range p.Models {
		c.joinModel(i)
	}
	return c
}

func (c *coupling) none() []int {
	out := make([]int, c.gpus)
	for k := range out {
		out[k] = -1
	}
	return out
}

func (c *coupling) addRow(kind rowKind, right, unit float64) int {
	c.rows = append(c.rows, coupledRow{kind, right, unit})
	return len(c.rows) - 1
}

// joinCells adds the rows of capacity that can bind, and those of the VMs that
// models can take over from each other.
func (c *coupling) joinCells() {
	for _, r := range c.capacities {
		at := c.addRow(capacityRow, float64(r.capacity), 1)
		for i := range c.models {
			c.links[i*c.regions+r.region].capacity[r.gpu] = at
		}
	}
	for j := range c.regions {
		for k := range c.gpus {
			if !c.shared(j, k) {
				continue
			}
			at := c.addRow(standingRow, float64(c.p.standing(j, k)), 1)
			for i := range c.models {
				c.links[i*c.regions+j].standing[k] = at
			}
		}
	}
}

// shared reports whether a VM in region j with GPU k may pass from one model to
// another.
func (c *coupling) shared(j, k int) bool {
	for i := range c.models {
		if c.p.canSwitch(i, k) && c.p.standing(j, k) > c.p.N[i][j][k] && c.p.Theta[i][k] > 0 {
			return true
		}
	}
	return false
}

// joinModel adds model i's rows over several regions, and lets its blocks take
// VMs over.
func (c *coupling) joinModel(i int) {
	p := c.p
	unit, runs := 0.0, 0
	for _, t := range p.Theta[i] {
		if t > 0 {
			unit += t
			runs++
		}
	}
	unit = math.Max(unit/math.Max(1, float64(runs)), 1e-9)
	c.coverRows = append(c.coverRows, nil)
	for _, cv := range c.rules.covers[i] {
		// What covers forgives must not make the row ask for a replica more.
		need := cv.need - relTolerance/2*math.Max(1, cv.need)
		at := c.addRow(coverRow, -need/unit, unit)
		c.coverRows[i] = append(c.coverRows[i], at)
		for j := range c.regions {
			if cv.regions.has(j) {
				l := &c.links[i*c.regions+j]
				l.cover = append(l.cover, at)
			}
		}
	}
	most, least := -1, -1
	if v := total(p.MaxTotal, i, unlimited); v < unlimited {
		most = c.addRow(mostRow, float64(v), 1)
	}
	if v := total(p.MinTotal, i, 0); v > 0 {
		least = c.addRow(leastRow, -float64(v), 1)
	}
	for j := range c.regions {
		b, l := &c.blocks[i*c.regions+j], &c.links[i*c.regions+j]
		l.most, l.least = most, least
		for k := range c.gpus {
			if l.standing[k] >= 0 && p.canSwitch(i, k) {
				b.classes[k].m = p.standing(j, k) - p.N[i][j][k]
				b.classes[k].turn = *p.Switch[i][k]
			}
		}
	}
}

// box bounds the counts of every cell: by model, region and GPU in one row.
type box struct{ lo, hi []int }

// box is the whole space of counts.
func (c *coupling) box() box {
	var b box
	for at := range c.blocks {
		for _, cl := range c.blocks[at].classes {
			b.lo, b.hi = append(b.lo, cl.lo), append(b.hi, cl.hi)
		}
	}
	return b
}

// price sets the scratch block to block at with its rows priced, within the
// box, and gives the price of what it carries.
func (c *coupling) price(at int, y []float64, in box) (mu float64) {
	b, l := &c.blocks[at], &c.links[at]
	q := &c.priced
	q.need, q.min, q.max, q.minTotal, q.away, q.closed = b.need, b.min, b.max, b.minTotal, b.away, true
	each := 0.0
	if l.most >= 0 {
		each += y[l.most]
	}
	if l.least >= 0 {
		each -= y[l.least]
	}
	for _, r := range l.cover {
		mu += y[r] / c.rows[r].unit
	}
	for k := range b.classes {
		cl := b.classes[k]
		cl.lo, cl.hi = in.lo[at*c.gpus+k], in.hi[at*c.gpus+k]
		cl.stay += each
		if r := l.capacity[k]; r >= 0 {
			cl.stay += y[r]
		}
		if r := l.standing[k]; r >= 0 && y[r] > 0 {
			cl.priceStanding(y[r])
		}
		q.classes[k] = cl
	}
	return mu
}

// priceStanding adds a price to the units on VMs that stand; those that a new
// VM then beats are taken as new.
func (c *class) priceStanding(q float64) {
	switch {
	case q >= c.start:
		c.stay, c.start, c.n, c.m = c.stay+c.start, 0, 0, 0
	case q+c.turn >= c.start:
		c.stay, c.start, c.m = c.stay+q, c.start-q, 0
	default:
		c.stay, c.start = c.stay+q, c.start-q
	}
}

// point is the relaxation at one set of prices.
type point struct {
	y, use  []float64
	value   float64
	x       []int // by model, region and GPU
	reduced []float64
}

func (c *coupling) newPoint() *point {
	return &point{
		y: make([]float64, len(c.rows)), use: make([]float64, len(c.rows)),
		x: make([]int, len(c.blocks)*c.gpus), reduced: make([]float64, len(c.blocks)),
	}
}

func (p *point) copy(o *point) {
	copy(p.y, o.y)
	copy(p.use, o.use)
	copy(p.x, o.x)
	copy(p.reduced, o.reduced)
	p.value = o.value
}

// relax solves every block at the point's prices. ok is false when effort ran
// out, for then the value proves nothing; a value of +Inf says that a block has
// no counts.
func (c *coupling) relax(p *point, in box) (ok bool) {
	p.value = 0
	for r := range p.use {
		p.use[r] = 0
		p.value -= p.y[r] * c.rows[r].right
	}
	for at := range c.blocks {
		mu := c.price(at, p.y, in)
		c.walk.reset(&c.priced, mu, c.reach[at/c.regions], &c.work)
		x := p.x[at*c.gpus : (at+1)*c.gpus]
		r, _, found := c.walk.cheapest(x)
		if c.work.spent() {
			return false
		}
		if !found {
			p.value = math.Inf(1)
			return true
		}
		p.reduced[at] = r
		p.value += r
		c.count(at, x, p.use)
	}
	return true
}

// count adds what counts x of block at use of its rows, at the prices of the
// scratch block.
func (c *coupling) count(at int, x []int, use []float64) {
	l := &c.links[at]
	carried, count := 0.0, 0
	for k, n := range x {
		carried += c.blocks[at].classes[k].theta * float64(n)
		count += n
		if r := l.capacity[k]; r >= 0 {
			use[r] += float64(n)
		}
		if r := l.standing[k]; r >= 0 {
			use[r] += float64(min(n, c.priced.classes[k].n+c.priced.classes[k].m))
		}
	}
	for _, r := range l.cover {
		use[r] -= carried / c.rows[r].unit
	}
	if l.most >= 0 {
		use[l.most] += float64(count)
	}
	if l.least >= 0 {
		use[l.least] -= float64(count)
	}
}

// counts is x by model, region and GPU.
func (c *coupling) counts(flat []int) [][][]int {
	out := make([][][]int, c.models)
	for i := range out {
		out[i] = make([][]int, c.regions)
		for j := range out[i] {
			at := (i*c.regions + j) * c.gpus
			out[i][j] = append([]int(nil), flat[at:at+c.gpus]...)
		}
	}
	return out
}
