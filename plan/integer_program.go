package plan

import (
	"fmt"
	"math"
	"slices"

	"skyserve/internal/printable"
)

// couplingRow is a row that couples blocks: the sum of their uses of the row is at most rhs (its
// right-hand side). A coverage row counts served load as a negative number divided by the mean
// throughput of a replica, so that all rows are of the magnitude of a replica.
type couplingRow struct {
	rhs   float64
	model int // the model that the row belongs to, -1 where models share it
	// runningVMs marks a row that counts running VMs. A block uses as many of them as its cheapest
	// counts need; Problem.reuseSavings assigns them to models.
	runningVMs bool
}

// link is the use of a row by one unit of each offering of a block.
type link struct {
	row    int
	factor []float64
}

// integerProgram is a problem as blocks (one model in one region, each solved exactly) and the rows that
// couple them. At prices y >= 0 for the rows the blocks are independent, and
//
//	sum over blocks of min(cost + y*use) - y*rhs
//
// is a lower bound of every solution's cost: Lagrangian relaxation.
type integerProgram struct {
	p             *Problem
	gap           float64
	work          effort
	initialEffort int64 // effort at the start
	constraints   *constraintChecker

	models, regions, gpus int
	blocks                []block // model by model, region by region
	links                 [][]link
	runningRows           [][]int // by block and offering: the row of running VMs, -1 for none
	rows                  []couplingRow
	maxCost               float64 // upper bound on the cost of a solution without spare units

	best            [][][]int
	bestCost        float64
	bound           float64
	unreachableLoad bool     // after a loss, some load is out of reach of every remaining region
	infeasible      []string // reasons for infeasibility
	skipReasons     bool     // skip computing the reasons

	// scratch
	search blockSearch
	priced block
}

func newIntegerProgram(p *Problem, gap float64, work effort) *integerProgram {
	c := &integerProgram{
		p: p, gap: gap, work: work, constraints: newConstraintChecker(p), bestCost: math.Inf(1),
		models: len(p.Models), regions: len(p.Regions), gpus: len(p.GPUs),
	}
	c.priced.offerings = make([]blockOffering, c.gpus)
	for i := range p.Models {
		for j := range p.Regions {
			b := p.block(i, j)
			c.blocks = append(c.blocks, b)
			c.maxCost += b.egress.costAt(0)
			none := make([]int, c.gpus)
			for k, bo := range b.offerings {
				none[k] = -1
				c.maxCost += float64(bo.max) * (bo.keepCost + bo.startCost)
			}
			c.runningRows = append(c.runningRows, none)
		}
	}
	c.links = make([][]link, len(c.blocks))
	for j := range p.Regions {
		for k := range p.GPUs {
			c.addSharedRows(j, k)
		}
	}
	for i := range p.Models {
		c.addModelRows(i)
	}
	return c
}

// block returns model i in region j. An offering has at most the units that rows can require: as many as
// serve all load without another offering, or as many as the minimum count, whichever is more. A further
// unit could be removed without violating a row or raising the cost.
func (p *Problem) block(i, j int) block {
	b := block{need: p.LocalDemand(i, j), min: limitOr(p.Min, i, j, 0), max: limitOr(p.Max, i, j, unlimited), egress: p.egressCostOf(i, j)}
	all := p.GlobalDemand(i)
	for k := range p.GPUs {
		o := blockOffering{keepCost: p.Price(j, k), startCost: p.StartCostUSD[i][k], tps: p.ReplicaTPS[i][k], running: p.Current[i][j][k]}
		if p.canTakeOverVMs(i, k) && p.anyVMCanSwitch(j, k) {
			o.switchable, o.switchCost = p.runningVMs(j, k)-o.running, *p.SwitchCostUSD[i][k]
		}
		if o.tps > 0 { // otherwise the model does not run there
			useful := max(unitsFor(math.Max(b.need, all), o.tps), b.min, totalOr(p.MinTotal, i, 0))
			if p.growsInOtherRegion(i, j, k) {
				useful = max(min(o.running+o.switchable, useful), unitsFor(b.need, o.tps), b.min)
			}
			o.max = min(useful, limitOr(p.Capacity, j, k, unlimited), b.max)
		}
		b.offerings = append(b.offerings, o)
	}
	return b
}

// growsInOtherRegion reports whether a new unit of model i on GPU k that region j does not need itself
// can run in another region instead, without limits there and at no higher price.
func (p *Problem) growsInOtherRegion(i, j, k int) bool {
	if !p.plainCover() || p.Egress != nil {
		return false
	}
	for o := range p.Regions {
		open := limitOr(p.Capacity, o, k, unlimited) == unlimited && limitOr(p.Max, i, o, unlimited) == unlimited
		if open && (p.Price(o, k) < p.Price(j, k) || o < j && p.Price(o, k) == p.Price(j, k)) {
			return true
		}
	}
	return false
}

// addRow adds a row over blocks of one model, or of several models (model is then -1). factor is the
// use of the row by one unit of each offering.
func (c *integerProgram) addRow(model int, rhs float64, factor []float64, blocks []int) {
	for _, at := range blocks {
		c.links[at] = append(c.links[at], link{len(c.rows), factor})
	}
	c.rows = append(c.rows, couplingRow{rhs: rhs, model: model})
}

// addSharedRows adds the row of a region's limit of replicas on a GPU where it can bind, and the row of the
// VMs there that models can take over from each other.
func (c *integerProgram) addSharedRows(j, k int) {
	if limit, users := c.p.modelsContending(j, k); users != nil {
		one := make([]float64, c.gpus)
		one[k] = 1
		var blocks []int
		for _, i := range users {
			blocks = append(blocks, i*c.regions+j)
		}
		c.addRow(-1, float64(limit), one, blocks)
	}
	if !c.p.anyVMCanSwitch(j, k) {
		return
	}
	for i := range c.models {
		c.runningRows[i*c.regions+j][k] = len(c.rows)
	}
	c.rows = append(c.rows, couplingRow{rhs: float64(c.p.runningVMs(j, k)), model: -1, runningVMs: true})
}

// modelsContending returns the limit of replicas in region j on GPU k, and the models that together could exceed it; nil when
// they cannot.
func (p *Problem) modelsContending(j, k int) (limit int, users []int) {
	if limit = limitOr(p.Capacity, j, k, unlimited); limit == unlimited {
		return limit, nil
	}
	wanted := 0
	for i := range p.Models {
		if hi := p.block(i, j).offerings[k].max; hi > 0 {
			wanted += hi
			users = append(users, i)
		}
	}
	if wanted <= limit {
		return limit, nil
	}
	return limit, users
}

// anyVMCanSwitch reports whether a VM in region j with GPU k can switch from one model to another.
func (p *Problem) anyVMCanSwitch(j, k int) bool {
	for i := range p.Models {
		if p.canTakeOverVMs(i, k) && p.runningVMs(j, k) > p.Current[i][j][k] && p.ReplicaTPS[i][k] > 0 {
			return true
		}
	}
	return false
}

// modelsSwitchingVMs lists the models that have VMs in region j with GPU k, and those that can take
// them over.
func (p *Problem) modelsSwitchingVMs(j, k int) []int {
	var out []int
	for i := range p.Models {
		if p.Current[i][j][k] > 0 || p.canTakeOverVMs(i, k) && p.ReplicaTPS[i][k] > 0 {
			out = append(out, i)
		}
	}
	return out
}

// addModelRows adds model i's rows over several regions.
func (c *integerProgram) addModelRows(i int) {
	p := c.p
	meanTPS, gpus := 0.0, 0
	for _, t := range p.ReplicaTPS[i] {
		if t > 0 {
			meanTPS += t
			gpus++
		}
	}
	meanTPS = math.Max(meanTPS/math.Max(1, float64(gpus)), 1e-9)
	capacityFactors, countFactors, negatedCounts := make([]float64, c.gpus), make([]float64, c.gpus), make([]float64, c.gpus)
	for k, t := range p.ReplicaTPS[i] {
		capacityFactors[k], countFactors[k], negatedCounts[k] = -t/meanTPS, 1, -1
	}
	var all []int
	for j := range c.regions {
		all = append(all, i*c.regions+j)
	}
	for _, cv := range c.constraints.covers[i] {
		// Coverage is checked with a tolerance (meetsNeed). Without half of it here, rounding could require one more
		// replica.
		need := roundUpNeed(cv.need, p.ReplicaTPS[i])
		need -= relTolerance / 2 * math.Max(1, need)
		var blocks []int
		for j, at := range all {
			if cv.regions.has(j) {
				blocks = append(blocks, at)
			}
		}
		c.addRow(i, -need/meanTPS, capacityFactors, blocks)
		c.unreachableLoad = c.unreachableLoad || blocks == nil
	}
	if v := totalOr(p.MaxTotal, i, unlimited); v < unlimited {
		c.addRow(i, float64(v), countFactors, all)
	}
	if v := totalOr(p.MinTotal, i, 0); v > 0 {
		c.addRow(i, -float64(v), negatedCounts, all)
	}
}

// roundUpNeed returns a need that the same whole numbers of replicas cover: the next multiple of the
// smallest throughput where all others are multiples of it. It makes the relaxation of replicas of one
// throughput exact (a Chvátal-Gomory cut), whatever their number.
func roundUpNeed(need float64, tps []float64) float64 {
	step := math.Inf(1)
	for _, t := range tps {
		if t > 0 {
			step = math.Min(step, t)
		}
	}
	for _, t := range tps {
		if math.Abs(t/step-math.Round(t/step)) > 1e-12 {
			return need
		}
	}
	if units := unitsFor(need, step); units > 0 && units < maxCount {
		return math.Max(need, step*float64(units))
	}
	return need
}

// explainInfeasibleModels describes the models that cannot satisfy their own rows, whatever the other models do.
func (c *integerProgram) explainInfeasibleModels() []string {
	var out []string
	for i, name := range c.p.Models {
		if reason := c.explainInfeasibleModel(i); reason != "" {
			out = append(out, name+" "+reason)
		}
	}
	return out
}

func (c *integerProgram) explainInfeasibleModel(i int) string {
	var all float64
	for j, region := range c.p.Regions {
		b := &c.blocks[i*c.regions+j]
		reach, ok := b.maxCapacityTPS()
		switch {
		case !ok:
			return fmt.Sprintf("in %s: the minimum of %s is above what %s", region, printable.Count(b.min, "replica"), c.p.bounds())
		case !meetsNeed(reach, b.need):
			return fmt.Sprintf("in %s: %.6g uncached prompt tokens per second must be served locally, %s %.6g", region, b.need, c.p.bounds(), reach)
		}
		all += reach
	}
	if need := c.p.GlobalDemand(i); !meetsNeed(all, need) {
		return fmt.Sprintf("over all regions: %.6g uncached prompt tokens per second must be served, %s %.6g", need, c.p.bounds(), all)
	}
	return ""
}

// bounds names what bounds the counts, with its verb. The problem of a comparison of reservations has no maxima.
func (p *Problem) bounds() string {
	if len(p.Max) == 0 {
		return "the capacity allows"
	}
	return "the maximum and capacity allow"
}

// priceBlock prepares the search of a block with its rows priced.
func (c *integerProgram) priceBlock(at int, y []float64) {
	b, q := &c.blocks[at], &c.priced
	q.need, q.min, q.max, q.egress = b.need, b.min, b.max, b.egress
	for k := range b.offerings {
		bo := b.offerings[k]
		for _, l := range c.links[at] {
			bo.keepCost += y[l.row] * l.factor[k]
		}
		if r := c.runningRows[at][k]; r >= 0 && y[r] > 0 {
			bo.priceRunningVMs(y[r])
		}
		q.offerings[k] = bo
	}
	c.search.reset(q, &c.work)
}

// priceRunningVMs adds a price to the units on running VMs. Units for which a new VM is then cheaper
// count as new.
func (o *blockOffering) priceRunningVMs(q float64) {
	switch {
	case q >= o.startCost:
		o.keepCost, o.startCost, o.running, o.switchable = o.keepCost+o.startCost, 0, 0, 0
	case q+o.switchCost >= o.startCost:
		o.keepCost, o.startCost, o.switchable = o.keepCost+q, o.startCost-q, 0
	default:
		o.keepCost, o.startCost = o.keepCost+q, o.startCost-q
	}
}

// point is the relaxation at one set of prices.
type point struct {
	y, use      []float64 // by row
	value       float64   // the bound
	x           []int     // by model, region and GPU
	reducedCost []float64 // by block: its cost with its rows priced
}

func (c *integerProgram) newPoint() *point {
	return &point{
		y: make([]float64, len(c.rows)), use: make([]float64, len(c.rows)),
		x: make([]int, len(c.blocks)*c.gpus), reducedCost: make([]float64, len(c.blocks)),
	}
}

func (p *point) copy(o *point) {
	copy(p.y, o.y)
	copy(p.use, o.use)
	copy(p.x, o.x)
	copy(p.reducedCost, o.reducedCost)
	p.value = o.value
}

// relax solves every block at the point's prices. ok is false when the effort is spent: the value
// then proves nothing. A value of +Inf means that a block has no feasible counts.
func (c *integerProgram) relax(p *point) (ok bool) {
	p.value = 0
	for r := range p.use {
		p.use[r] = 0
		p.value -= p.y[r] * c.rows[r].rhs
	}
	for at := range c.blocks {
		c.priceBlock(at, p.y)
		x := p.x[at*c.gpus : (at+1)*c.gpus]
		cost, found := c.search.cheapest(x)
		if c.work.exhausted() {
			return false
		}
		if !found {
			p.value = math.Inf(1)
			return true
		}
		p.reducedCost[at] = cost
		p.value += cost
		c.addUse(at, x, p.use, func(int) bool { return true })
	}
	return true
}

// addUse adds the row use of a block's counts x to use, for the selected rows. The block must be the
// one that priceBlock was last called for.
func (c *integerProgram) addUse(at int, x []int, use []float64, some func(row int) bool) {
	for _, l := range c.links[at] {
		if some(l.row) {
			use[l.row] += rowUse(l.factor, x)
		}
	}
	for k, r := range c.runningRows[at] {
		if r >= 0 {
			use[r] += float64(min(x[k], c.priced.offerings[k].running+c.priced.offerings[k].switchable))
		}
	}
}

// rowUse returns the use of a row by counts x.
func rowUse(factor []float64, x []int) float64 {
	var sum float64
	for k, n := range x {
		sum += factor[k] * float64(n)
	}
	return sum
}

// unflatten returns flat counts by model, region and GPU.
func (c *integerProgram) unflatten(flat []int) [][][]int {
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

// offerIncumbent makes counts the incumbent when they satisfy every row and cost less.
func (c *integerProgram) offerIncumbent(x [][][]int) {
	if c.constraints.verify(x) != nil {
		return
	}
	if cost := c.p.Cost(x); cost < c.bestCost-roundingError(cost) {
		c.best, c.bestCost = cloneCounts(x), cost
	}
}

// repairCounts adds units to a point's counts until they satisfy the rows, those of the lowest cost for
// their effect on a row first, and passes the result to offerIncumbent. It cannot repair an upper limit,
// a row whose use every unit increases.
func (c *integerProgram) repairCounts(p *point) {
	x, use := slices.Clone(p.x), slices.Clone(p.use)
	for r, row := range c.rows {
		for !row.runningVMs && use[r] > row.rhs+relTolerance/2*math.Max(1, math.Abs(row.rhs)) {
			at, k, factor := c.cheapestUnit(r, x, use)
			if at < 0 {
				return
			}
			missing, b := int((use[r]-row.rhs)/-factor), &c.blocks[at].offerings[k]
			units := max(1, min(missing, b.running-x[at*c.gpus+k]), min(missing/repairSteps, c.unitsAtOnePrice(at, k, x, use)))
			units = min(units, b.max-x[at*c.gpus+k])
			x[at*c.gpus+k] += units
			for _, l := range c.links[at] {
				use[l.row] += l.factor[k] * float64(units)
			}
		}
	}
	c.offerIncumbent(c.unflatten(x))
}

// repairSteps is the number of steps in which repairCounts adds most of the units that a row requires.
// With fewer steps, a capacity may be used up before all coverage rows are satisfied.
const repairSteps = 64

// unitsAtOnePrice returns how many more units of an offering have the price of the next one and exceed neither
// the bounds of the block nor an upper limit.
func (c *integerProgram) unitsAtOnePrice(at, k int, x []int, use []float64) int {
	b, have := &c.blocks[at], x[at*c.gpus+k]
	free := b.max
	for _, n := range x[at*c.gpus : (at+1)*c.gpus] {
		free -= n
	}
	free = min(free, b.offerings[k].max-have)
	for _, s := range b.offerings[k].steps() {
		if s.end > have {
			free = min(free, s.end-have)
			break
		}
	}
	for _, l := range c.links[at] {
		if f := l.factor[k]; f > 0 {
			free = min(free, int((c.rows[l.row].rhs-use[l.row])/f))
		}
	}
	return free
}

// cheapestUnit finds the unit with the lowest price for its effect on row r that exceeds no upper limit;
// at is -1 where no unit can be added.
func (c *integerProgram) cheapestUnit(r int, x []int, use []float64) (at, offering int, factor float64) {
	at = -1
	lowest := math.Inf(1)
	i := c.rows[r].model
	if i < 0 {
		return at, 0, 0
	}
	c.work.spend(c.regions * c.gpus)
	for b := i * c.regions; b < (i+1)*c.regions; b++ {
		count := 0
		for _, n := range x[b*c.gpus : (b+1)*c.gpus] {
			count += n
		}
		for _, l := range c.links[b] {
			if l.row != r || count >= c.blocks[b].max {
				continue
			}
			for k, f := range l.factor {
				bo, n := &c.blocks[b].offerings[k], x[b*c.gpus+k]
				if f >= 0 || n >= bo.max || c.wouldExceedLimit(b, k, use) {
					continue
				}
				if price := (bo.cost(n+1) - bo.cost(n)) / -f; price < lowest {
					at, offering, factor, lowest = b, k, f, price
				}
			}
		}
	}
	return at, offering, factor
}

// wouldExceedLimit reports whether one more unit of an offering exceeds an upper limit.
func (c *integerProgram) wouldExceedLimit(at, k int, use []float64) bool {
	for _, l := range c.links[at] {
		if l.factor[k] > 0 && use[l.row]+l.factor[k] > c.rows[l.row].rhs {
			return true
		}
	}
	return false
}

// raiseBound records a proven lower bound.
func (c *integerProgram) raiseBound(bound float64) {
	c.bound = math.Max(c.bound, math.Min(bound, c.bestCost))
}

// provesGap reports whether a bound proves that the incumbent is within the requested gap of the
// optimum.
func (c *integerProgram) provesGap(bound float64) bool {
	return c.best != nil && bound >= c.bestCost-math.Max(c.gap*c.bestCost, costTolerance/2*math.Max(1e-3, c.bestCost))
}

// costLimit returns the cost that new counts must stay below to be useful.
func (c *integerProgram) costLimit() float64 {
	if c.best == nil {
		return c.maxCost + roundingError(c.maxCost)
	}
	return c.bestCost
}

func cloneCounts(x [][][]int) [][][]int {
	out := make([][][]int, len(x))
	for i := range x {
		out[i] = make([][]int, len(x[i]))
		for j := range x[i] {
			out[i][j] = append([]int(nil), x[i][j]...)
		}
	}
	return out
}
