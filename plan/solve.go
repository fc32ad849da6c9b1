package plan

import (
	"fmt"
	"math"
)

// DefaultEffort bounds a Solve that states no other bound: some seconds of one
// core.
const DefaultEffort = 300_000_000

// Options bounds a Solve.
type Options struct {
	// Gap is the relative gap between cost and proven bound at which to stop; 0
	// asks for proof of the optimum.
	Gap float64
	// Effort bounds the counted work, the same on every machine; 0 =
	// DefaultEffort.
	Effort int64
	// Interrupt, when it is not nil, is asked now and then whether to stop with
	// what is known. A bound on time is the caller's: it makes answers differ
	// between machines.
	Interrupt func() bool
}

// Status says what is known of a result.
type Status string

// The statuses, from the most to the least known.
const (
	StatusOptimal    Status = "optimal"    // the cost is within the asked gap of a proven bound
	StatusInfeasible Status = "infeasible" // proven: no counts satisfy the rows
	StatusFeasible   Status = "feasible"   // counts were found, their gap is larger than asked
	StatusUnknown    Status = "unknown"    // effort ran out before any counts were found
)

// Result is the answer to a Problem.
type Result struct {
	// X is the counts to have, by model, region and GPU; nil when there are none.
	X [][][]int
	// Objective is their cost, Bound a proven lower bound of any counts' cost,
	// Gap (Objective-Bound)/Objective.
	Objective, Bound, Gap float64
	Status                Status
	// Infeasible says in words what cannot be satisfied.
	Infeasible []string
}

// Solve finds the cheapest counts: sum of alpha*x + sigma*max(0, x-n), with
// every region carrying epsilon of its own peak, every model its peak over all
// regions, and counts within capacity, min and max. It fails only on a problem
// that Check refuses. The rows and the cost of what it returns are computed
// again from the problem itself.
func Solve(p *Problem, o Options) (Result, error) {
	if err := p.Check(); err != nil {
		return Result{}, err
	}
	if !(o.Gap >= 0 && o.Gap < 1) {
		return Result{}, fmt.Errorf("gap: must be at least 0 and below 1, got %g", o.Gap)
	}
	if o.Effort <= 0 {
		o.Effort = DefaultEffort
	}
	scaled, unit := scale(p)
	s := newSolver(scaled, o)
	s.run()
	return s.result(p, unit)
}

// scale divides every price by the greatest one, so that no tolerance depends
// on the currency, and says what it divided by.
func scale(p *Problem) (*Problem, float64) {
	unit := p.greatestPrice()
	if unit == 0 {
		return p, 1
	}
	out := *p
	out.Alpha, out.Sigma = divided(p.Alpha, unit), make([][]float64, len(p.Sigma))
	for i, row := range p.Sigma {
		out.Sigma[i] = divided(row, unit)
	}
	out.RegionAlpha, out.Switch = nil, nil
	for _, row := range p.RegionAlpha {
		out.RegionAlpha = append(out.RegionAlpha, divided(row, unit))
	}
	for _, row := range p.Switch {
		each := make([]*float64, len(row))
		for k, v := range row {
			if v != nil {
				scaled := *v / unit
				each[k] = &scaled
			}
		}
		out.Switch = append(out.Switch, each)
	}
	if p.Egress != nil {
		out.Egress = divided(p.Egress, unit)
	}
	return &out, unit
}

// greatestPrice is the greatest price of a replica's hour or start.
func (p *Problem) greatestPrice() float64 {
	var unit float64
	for i := range p.Models {
		for k := range p.GPUs {
			unit = math.Max(unit, p.Sigma[i][k])
			for j := range p.Regions {
				unit = math.Max(unit, p.Price(j, k))
			}
		}
	}
	return unit
}

func divided(values []float64, by float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / by
	}
	return out
}

// solver is the state of one Solve.
type solver struct {
	p     *Problem
	o     Options
	work  effort
	rules *rules
	// capacities are those that several models together could exceed.
	capacities []capRow
	// useful is the greatest count of a cell that an irreducible solution has.
	useful [][][]int

	best     [][][]int
	bestCost float64
	bound    float64
	wrong    []string
	silent   bool // what conflicts is not asked for
}

// capRow is a capacity that several models together could exceed.
type capRow struct{ region, gpu, capacity int }

func newSolver(p *Problem, o Options) *solver {
	s := &solver{p: p, o: o, work: effort{left: o.Effort, stop: o.Interrupt}, rules: newRules(p), bestCost: math.Inf(1)}
	s.useful = make([][][]int, len(p.Models))
	for i := range p.Models {
		s.useful[i] = make([][]int, len(p.Regions))
		for j := range p.Regions {
			s.useful[i][j] = make([]int, len(p.GPUs))
			for k := range p.GPUs {
				need := math.Max(p.LocalNeed(i, j), p.GlobalNeed(i))
				s.useful[i][j][k] = mostUseful(need, p.Theta[i][k], limit(p.Min, i, j, 0), total(p.MinTotal, i, 0))
			}
		}
	}
	s.findCapacities()
	return s
}

// findCapacities keeps the capacities that can bind.
func (s *solver) findCapacities() {
	for j := range s.p.Regions {
		for k := range s.p.GPUs {
			capacity := limit(s.p.Capacity, j, k, unlimited)
			most := 0
			for i := range s.p.Models {
				most += min(s.useful[i][j][k], capacity)
			}
			if capacity < unlimited && most > capacity {
				s.capacities = append(s.capacities, capRow{j, k, capacity})
			}
		}
	}
}

// caseOf is model i as a case of its own: a capacity that it alone could
// exceed bounds its count, other capacities are left to the rows.
func (s *solver) caseOf(i int) *modelCase {
	p := s.p
	blocks := make([]block, len(p.Regions))
	for j := range blocks {
		b := block{need: p.LocalNeed(i, j), min: limit(p.Min, i, j, 0), max: limit(p.Max, i, j, unlimited), away: p.away(i, j)}
		b.closed = b.away.price > 0
		for k := range p.GPUs {
			c := class{stay: p.Price(j, k), start: p.Sigma[i][k], theta: p.Theta[i][k], n: p.N[i][j][k], hi: unlimited}
			if capacity := limit(p.Capacity, j, k, unlimited); capacity < s.useful[i][j][k] {
				c.hi = capacity
			}
			if c.theta == 0 {
				c.hi = 0 // the model does not run there
			}
			b.classes = append(b.classes, c)
		}
		blocks[j] = b
	}
	return newModelCase(blocks, p.GlobalNeed(i))
}

// run solves the models apart, and if that breaks a shared capacity, together.
func (s *solver) run() {
	cases := make([]*modelCase, len(s.p.Models))
	for i := range cases {
		cases[i] = s.caseOf(i)
		if wrong := cases[i].impossible(func(j int) string { return s.p.Regions[j] }); wrong != "" {
			s.wrong = append(s.wrong, fmt.Sprintf("%s %s", s.p.Models[i], wrong))
		}
	}
	if s.wrong != nil {
		return
	}
	if s.apart(cases) {
		return
	}
	c := newCoupling(s)
	c.run(s.firstPrices(c, cases))
}

// apart solves the models apart and reports whether that settles the problem:
// when no row joins them, or their counts keep those that do. A quick answer
// that breaks a row saves the search for the best one.
func (s *solver) apart(cases []*modelCase) bool {
	joined := s.joined()
	if !joined || s.quickFits(cases) {
		s.solveApart(cases)
	}
	return s.best != nil && s.done(s.bound) || !joined
}

// joined reports whether any row joins several models, or several regions of
// one in another way than SageServe's.
func (s *solver) joined() bool {
	p := s.p
	return len(s.capacities) > 0 || p.Switch != nil || p.MinTotal != nil || p.MaxTotal != nil || !p.plainCover()
}

// quickFits reports whether counts that are nearly the models' cheapest keep
// every row.
func (s *solver) quickFits(cases []*modelCase) bool {
	if s.p.Switch != nil {
		return false // the models' own costs leave out what a switch spares
	}
	x := make([][][]int, len(cases))
	for i, c := range cases {
		r := c.solve(&s.work, false)
		if x[i] = r.x; r.x == nil {
			return false
		}
	}
	return s.rules.verify(x) == nil
}

func (s *solver) solveApart(cases []*modelCase) {
	x := make([][][]int, len(cases))
	found := true
	s.bound = 0
	for i, c := range cases {
		var r modelResult
		s.work.lend(s.work.left/int64(len(cases)-i), func(work *effort) { r = c.solve(work, true) })
		x[i] = r.x
		found = found && r.x != nil
		s.bound += r.bound
	}
	if found {
		s.offer(x)
	}
}

// done reports whether a bound proves that the best counts cannot be improved
// on by more than the asked gap.
func (s *solver) done(bound float64) bool {
	return s.best != nil && bound >= s.bestCost-s.o.Gap*s.bestCost-slackOf(s.bestCost)
}

// firstPrices are prices of the models' coverage at which, without the other
// rows, the bound is greatest.
func (s *solver) firstPrices(c *coupling, cases []*modelCase) []float64 {
	y := make([]float64, len(c.rows))
	for i, m := range cases {
		best, _ := m.maximise(&s.work)
		if rows := c.links[i*c.regions].cover; best.x != nil && len(rows) > 0 {
			y[rows[0]] = best.mu * c.rows[rows[0]].unit
		}
	}
	return y
}

// offer takes counts as the best so far when they keep every row and cost less.
func (s *solver) offer(x [][][]int) bool {
	if s.rules.verify(x) != nil {
		return false
	}
	cost := s.p.Cost(x)
	if cost >= s.bestCost-slackOf(cost) {
		return false
	}
	s.best, s.bestCost = clone3(x), cost
	return true
}

func clone3(x [][][]int) [][][]int {
	out := make([][][]int, len(x))
	for i := range x {
		out[i] = make([][]int, len(x[i]))
		for j := range x[i] {
			out[i][j] = append([]int(nil), x[i][j]...)
		}
	}
	return out
}

// result states what was found in the prices of p, the problem as it was asked,
// which are unit times those of the solver's, and checks it once more.
func (s *solver) result(p *Problem, unit float64) (Result, error) {
	r := Result{Bound: s.bound * unit, Infeasible: s.wrong}
	switch {
	case s.wrong != nil:
		r.Status = StatusInfeasible
		return r, nil
	case s.best == nil:
		r.Status = StatusUnknown
		return r, nil
	}
	s.spread()
	if err := p.Verify(s.best); err != nil {
		return Result{}, fmt.Errorf("solving: the counts found break a row: %w", err)
	}
	s.bound = r.Bound
	return s.assessed(p), nil
}

// assessed is the result of the best counts, at the prices of p.
func (s *solver) assessed(p *Problem) Result {
	r := Result{X: s.best, Objective: p.Cost(s.best), Bound: s.bound, Status: StatusFeasible}
	// Beside the prices, a cost that small is what rounding leaves of 0.
	if slack := relTolerance * math.Max(r.Objective, 1e-3*p.greatestPrice()); r.Bound >= r.Objective-2*slack {
		r.Bound = r.Objective // the difference is rounding
	}
	if r.Objective > 0 {
		r.Gap = (r.Objective - r.Bound) / r.Objective
	}
	if r.Objective-r.Bound <= s.o.Gap*r.Objective {
		r.Status = StatusOptimal
	}
	return r
}
