package plan

// The course of a bound by regions.
const (
	regionStart   = 0.02 // of the greatest price: how far above the relaxation the first search looks
	regionReach   = 2.0  // and the last
	regionOptions = 400  // of a block
)

// regionBound is the bound at p with the capacities of every region kept to the
// unit, not priced: regions are joined by the models' coverage alone, whose
// prices stay. Where coverage is worth nothing it is exact, and its counts are
// offered.
func (c *coupling) regionBound(p *point, in box) (bound float64) {
	pack := &knapsack{work: &c.work}
	x := clone3(c.counts(p.x))
	whole := true
	for j := range c.regions {
		more, counts := c.aboveBlocks(p, in, j, pack)
		bound += more
		for i := range counts {
			x[i][j] = counts[i]
		}
		whole = whole && counts != nil
	}
	if whole {
		c.offer(x)
	}
	return p.value + bound
}

// aboveBlocks is how much more than its blocks apart region j costs at least at
// p, and the counts of that cost, nil where only a bound was found.
func (c *coupling) aboveBlocks(p *point, in box, j int, pack *knapsack) (more float64, counts [][]int) {
	for d := regionStart; d <= regionReach; d *= widen {
		options := make([][]option, c.models)
		for i := range options {
			var complete bool
			if options[i], complete = c.pool(p, in, i*c.regions+j, d, regionOptions); !complete {
				return more, nil
			}
		}
		if !c.packRegion(p, j, options, pack) {
			return more, nil
		}
		picked, least, done := pack.solve(d)
		if !done {
			return more, nil
		}
		if more = least; picked == nil {
			continue
		}
		for i, n := range picked {
			counts = append(counts, options[i][pack.items[i][n].tag].x)
		}
		return more, counts
	}
	return more, nil
}

// packRegion gives the knapsack region j's capacities and the blocks' options.
func (c *coupling) packRegion(p *point, j int, options [][]option, pack *knapsack) bool {
	pack.begin(c.models)
	fields := make([]int, c.gpus)
	for k, row := range c.links[j].capacity {
		fields[k] = -1
		if row < 0 || p.y[row] == 0 && c.mostOf(options, k) <= int(c.rows[row].right) {
			continue
		}
		fields[k] = len(pack.caps)
		if !pack.hold(int(c.rows[row].right), p.y[row]) {
			return false
		}
	}
	for i := range options {
		for n, o := range options[i] {
			if use, ok := pack.use(o.x, fields); ok {
				pack.items[i] = append(pack.items[i], pick{o.excess, use, n})
			}
		}
	}
	return true
}

// mostOf is how much of GPU k blocks use together at most.
func (c *coupling) mostOf(options [][]option, k int) int {
	sum := 0
	for i := range options {
		most := 0
		for _, o := range options[i] {
			most = max(most, o.x[k])
		}
		sum += most
	}
	return sum
}
