package plan

import (
	"fmt"
	"math"
	"slices"
)

// DefaultEffort bounds a Solve without another bound: a few seconds on one core.
const DefaultEffort = 300_000_000

// SolveOptions bounds a Solve.
type SolveOptions struct {
	// Gap is the relative gap between cost and lower bound at which to stop; 0 requires a proof of
	// optimality.
	Gap float64
	// Effort bounds the counted work, which is the same on every machine; 0 = DefaultEffort.
	Effort int64
	// Interrupt, when not nil, is called from time to time; true stops the search with the best
	// result so far.
	Interrupt func() bool
}

// SolveStatus is how much is proven about a result.
type SolveStatus string

// The statuses, from the most to the least certain.
const (
	StatusOptimal    SolveStatus = "optimal"    // the cost is within the requested gap of the lower bound
	StatusInfeasible SolveStatus = "infeasible" // proven: no counts satisfy the rows
	StatusFeasible   SolveStatus = "feasible"   // counts were found; their gap is above the requested one, or a budget has cut them
	StatusUnknown    SolveStatus = "unknown"    // the search ended before any counts were found
)

// Solution is the solution of a Problem.
type Solution struct {
	// Counts are the planned counts by model, region and GPU; nil when there are none.
	Counts [][][]int
	// Objective is the cost of Counts, Bound a proven lower bound on the cost of any counts, Gap
	// (Objective-Bound)/Objective.
	Objective, Bound, Gap float64
	Status                SolveStatus
	// Infeasible describes the constraints that cannot be met.
	Infeasible []string
}

// Solve finds the cheapest counts: it minimises Cost. Every region must serve LocalShare of its own peak, every model
// its peak over all regions, and counts must be within capacity, min and max; Extras add constraints. It fails on a
// problem that Check rejects and on an invalid gap.
func Solve(p *Problem, o SolveOptions) (Solution, error) {
	if err := p.Check(); err != nil {
		return Solution{}, err
	}
	if !(o.Gap >= 0 && o.Gap < 1) {
		return Solution{}, fmt.Errorf("gap: must be at least 0 and below 1, got %g", o.Gap)
	}
	if o.Effort <= 0 {
		o.Effort = DefaultEffort
	}
	scaled, divisor := normalisePrices(p)
	s := newSolver(scaled, o)
	s.solveSubproblems()
	return s.solverResult(p, divisor)
}

// normalisePrices divides every price by the highest one, so that no tolerance depends on the currency, and
// returns the divisor.
func normalisePrices(p *Problem) (*Problem, float64) {
	divisor := p.greatestPrice()
	if divisor == 0 {
		return p, 1
	}
	out := *p
	out.PricePerHour, out.StartCostUSD = divided(p.PricePerHour, divisor), make([][]float64, len(p.StartCostUSD))
	for i, row := range p.StartCostUSD {
		out.StartCostUSD[i] = divided(row, divisor)
	}
	out.RegionPricePerHour, out.SwitchCostUSD = nil, nil
	for _, row := range p.RegionPricePerHour {
		out.RegionPricePerHour = append(out.RegionPricePerHour, divided(row, divisor))
	}
	for _, row := range p.SwitchCostUSD {
		each := make([]*float64, len(row))
		for k, v := range row {
			if v != nil {
				scaled := *v / divisor
				each[k] = &scaled
			}
		}
		out.SwitchCostUSD = append(out.SwitchCostUSD, each)
	}
	if p.Egress != nil {
		out.Egress = divided(p.Egress, divisor)
	}
	return &out, divisor
}

// greatestPrice returns the highest price of a replica's hour or start.
func (p *Problem) greatestPrice() float64 {
	var highest float64
	for i := range p.Models {
		for k := range p.GPUs {
			highest = math.Max(highest, p.StartCostUSD[i][k])
			for j := range p.Regions {
				highest = math.Max(highest, p.Price(j, k))
			}
		}
	}
	return highest
}

func divided(values []float64, by float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / by
	}
	return out
}

// solver is the state of one Solve. The prices of p are scaled.
type solver struct {
	p           *Problem
	gap         float64
	work        effort
	constraints *constraintChecker

	best        [][][]int
	bound       float64
	infeasible  []string
	skipReasons bool // skip the reasons of infeasibility
}

func newSolver(p *Problem, o SolveOptions) *solver {
	return &solver{p: p, gap: o.Gap, work: effort{remaining: o.Effort, interrupt: o.Interrupt}, constraints: newConstraintChecker(p)}
}

// solveSubproblems solves each independent subproblem as a program of its own.
func (s *solver) solveSubproblems() {
	parts := s.p.subproblems()
	programs := make([]*integerProgram, len(parts))
	for n, part := range parts {
		programs[n] = newIntegerProgram(s.p.restrictTo(part), s.gap, effort{})
		s.infeasible = append(s.infeasible, programs[n].explainInfeasibleModels()...)
	}
	if s.infeasible != nil {
		return
	}
	found := true
	x := cloneCounts(s.p.Current)
	for n, c := range programs {
		given := s.work.remaining / int64(len(parts)-n)
		c.work, c.skipReasons = s.work.split(given), s.skipReasons
		c.solveProgram()
		s.work.charge(&c.work, min(given, s.work.remaining))
		s.bound += c.bound
		if c.infeasible != nil {
			s.infeasible = c.infeasible
			return
		}
		if found = found && c.best != nil; !found {
			continue
		}
		for a, i := range parts[n].models {
			for b, j := range parts[n].regions {
				x[i][j] = c.best[a][b]
			}
		}
	}
	if found {
		s.best = x
	}
}

// subproblem is a subset of models in a subset of regions.
type subproblem struct{ models, regions []int }

// subproblems splits the problem into independent subproblems: sets of models that share neither a
// capacity that they could exceed together nor VMs that switch between them. If nothing couples regions
// either (LocalShare is 1, and neither Survive nor a bound over all regions is set), each region is a
// subproblem of its own.
func (p *Problem) subproblems() []subproblem {
	var all []int
	for j := range p.Regions {
		all = append(all, j)
	}
	var out []subproblem
	for _, models := range p.modelSets() {
		if p.LocalShare < 1 || p.Survive || p.MinTotal != nil || p.MaxTotal != nil {
			out = append(out, subproblem{models, all})
			continue
		}
		for _, j := range all {
			out = append(out, subproblem{models, []int{j}})
		}
	}
	return out
}

// modelSets returns the sets of models that rows couple.
func (p *Problem) modelSets() [][]int {
	of := make([]int, len(p.Models)) // by model: the first model of its set
	for i := range of {
		of[i] = i
	}
	join := func(users []int) {
		for _, i := range users {
			low, high := min(of[users[0]], of[i]), max(of[users[0]], of[i])
			for o := range of {
				if of[o] == high {
					of[o] = low
				}
			}
		}
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			_, users := p.modelsContending(j, k)
			join(users)
			if p.anyVMCanSwitch(j, k) {
				join(p.modelsSwitchingVMs(j, k))
			}
		}
	}
	var out [][]int
	for first := range of {
		var models []int
		for i := range of {
			if of[i] == first {
				models = append(models, i)
			}
		}
		if models != nil {
			out = append(out, models)
		}
	}
	return out
}

// restrictTo returns the subproblem of a part.
func (p *Problem) restrictTo(t subproblem) *Problem {
	out := *p
	out.Models, out.ReplicaTPS, out.StartCostUSD, out.SwitchCostUSD = selected(p.Models, t.models), selected(p.ReplicaTPS, t.models), selected(p.StartCostUSD, t.models), selected(p.SwitchCostUSD, t.models)
	out.MinTotal, out.MaxTotal = selected(p.MinTotal, t.models), selected(p.MaxTotal, t.models)
	out.Regions, out.Egress = selected(p.Regions, t.regions), selected(p.Egress, t.regions)
	out.Capacity, out.RegionPricePerHour, out.RTTMillis = selected(p.Capacity, t.regions), selected(p.RegionPricePerHour, t.regions), selected(p.RTTMillis, t.regions)
	for a, row := range out.RTTMillis {
		out.RTTMillis[a] = selected(row, t.regions)
	}
	out.Current, out.LoadTPS, out.Min, out.Max = selected(p.Current, t.models), selected(p.LoadTPS, t.models), selected(p.Min, t.models), selected(p.Max, t.models)
	for a := range t.models {
		out.Current[a], out.LoadTPS[a] = selected(out.Current[a], t.regions), selected(out.LoadTPS[a], t.regions)
		if p.Min != nil {
			out.Min[a] = selected(out.Min[a], t.regions)
		}
		if p.Max != nil {
			out.Max[a] = selected(out.Max[a], t.regions)
		}
	}
	return &out
}

// selected returns the selected entries; nil of nil.
func selected[T any](all []T, some []int) []T {
	if all == nil {
		return nil
	}
	out := make([]T, len(some))
	for at, i := range some {
		out[at] = all[i]
	}
	return out
}

// The schedule of a search.
const (
	fewCounts          = 400  // models x regions x GPUs up to which a problem is small: see integerProgram.small
	shortAscentSteps   = 250  // steps of the first ascent of a small problem
	longAscentSteps    = 1000 // steps of the first ascent otherwise
	extraAscentSteps   = 100  // steps of a later ascent
	modelAscentSteps   = 60   // steps of the ascent over whole models (relaxModels)
	modelLevel         = 2e-4 // first level of the ascent over whole models
	modelAscentDivisor = 5    // the ascent over whole models uses 1/modelAscentDivisor of the remaining effort
	searchEffortShare  = 0.6  // share of the effort reserved for the neighbourhood search
	maxRounds          = 40   // maximum rounds of the neighbourhood search
	firstEnumeration   = 2    // rounds without a better incumbent before all counts are enumerated
	lastEnumeration    = 7    // the same for the second and last enumeration
)

// solveProgram raises the lower bound and searches for cheaper counts until bound and cost are within
// the requested gap, the program is proven infeasible, the effort is spent or the maximum number of
// rounds is reached. For a small problem it also bounds whole models and enumerates all counts that may cost less
// than the incumbent, and it also ends after lastEnumeration rounds without a better incumbent.
func (c *integerProgram) solveProgram() {
	c.initialEffort = c.work.remaining
	a := c.newAscent(make([]float64, len(c.rows)), firstLevel)
	a.reservedEffort = int64(searchEffortShare * float64(c.work.remaining))
	if c.small() {
		a.runAscent(shortAscentSteps)
	} else {
		a.runAscent(longAscentSteps)
	}
	a.reservedEffort = 0
	switch {
	case c.unreachableLoad || c.best == nil && a.best.value > c.maxCost+roundingError(c.maxCost):
		c.explainConflict()
		return
	case math.IsInf(a.best.value, -1): // effort is spent
		return
	}
	if !c.provesGap(a.best.value) {
		c.bisectPrices(a.best)
	}
	c.raiseBound(a.best.value)
	if c.finished() || c.small() && c.raiseModelBound(a.best) {
		return
	}
	enumeratedAt := math.Inf(1) // cost of the incumbent at the last enumeration
	for round, idle := 0, 0; round < maxRounds && !c.finished(); round++ {
		before := c.bestCost
		c.anneal(a.best, round)
		if idle++; c.bestCost < before {
			idle = 0
		}
		switch {
		case c.small():
			if (idle == firstEnumeration || idle == lastEnumeration) && c.models > 1 && !c.finished() && (c.best == nil || c.bestCost < enumeratedAt) {
				enumeratedAt = c.bestCost
				c.closeGap(a.best)
			}
			if idle == lastEnumeration {
				return
			}
		case round%8 == 7 && !c.finished():
			a.level, a.stuck = math.Max(a.level, 1e-3), 0
			a.runAscent(extraAscentSteps)
			c.raiseBound(a.best.value)
		}
	}
}

// closeGap raises the bound over whole models, then enumerates all counts that may cost less than the incumbent.
func (c *integerProgram) closeGap(p *point) {
	m := c.newAscent(c.zeroSlackPrices(p.y), modelLevel)
	m.relax, m.reservedEffort = c.relaxModels, c.work.remaining-c.work.remaining/modelAscentDivisor
	m.runAscent(modelAscentSteps)
	if m.best.value > c.bound-roundingError(c.bound) {
		copy(p.y, m.best.y)
	}
	c.raiseBound(m.best.value)
	if c.finished() || !c.relax(p) {
		return
	}
	bound, settled := c.enumerateAll(p)
	if settled && c.best == nil && !c.work.exhausted() {
		c.explainConflict()
		return
	}
	c.raiseBound(bound)
}

// raiseModelBound raises the bound by solving each model whole, and reports whether that finishes the
// program.
func (c *integerProgram) raiseModelBound(p *point) bool {
	gains, _, _ := c.boundWholeModels(p)
	bound := p.value
	for _, f := range gains {
		bound += f
	}
	if c.best == nil && bound > c.costLimit() && !c.work.exhausted() {
		c.explainConflict()
	}
	c.raiseBound(bound)
	return c.finished()
}

// zeroSlackPrices returns row prices y (see integerProgram) with 0 for the shared rows in which the incumbent leaves slack: at an
// optimum these prices are 0 (complementary slackness).
func (c *integerProgram) zeroSlackPrices(y []float64) []float64 {
	y = slices.Clone(y)
	if c.best == nil {
		return y
	}
	use := make([]float64, len(c.rows))
	for at := range c.blocks {
		for _, l := range c.links[at] {
			use[l.row] += rowUse(l.factor, c.best[at/c.regions][at%c.regions])
		}
	}
	for r, row := range c.rows {
		if row.model < 0 && !row.runningVMs && use[r] < row.rhs {
			y[r] = 0
		}
	}
	return y
}

// finished reports whether the gap is closed, the program is infeasible or the effort is spent.
func (c *integerProgram) finished() bool {
	return c.work.exhausted() || c.infeasible != nil || c.provesGap(c.bound)
}

// small reports whether the problem has few counts.
func (c *integerProgram) small() bool { return len(c.blocks)*c.gpus <= fewCounts }

// solverResult returns the solution of p, the problem before its prices were divided by divisor. It
// verifies the solution independently of the search.
func (s *solver) solverResult(p *Problem, divisor float64) (Solution, error) {
	r := Solution{Bound: s.bound * divisor, Infeasible: s.infeasible}
	switch {
	case s.infeasible != nil:
		r.Status = StatusInfeasible
		return r, nil
	case s.best == nil:
		r.Status = StatusUnknown
		return r, nil
	}
	s.redistribute()
	if err := p.Verify(s.best); err != nil {
		return Solution{}, fmt.Errorf("solving: the result of the solver violates a constraint, which is a defect of skyserve: %w; report it with the output of 'skyserve plan -o lp'", err)
	}
	return p.assessed(s.best, r.Bound, s.gap), nil
}

// assessed returns the result for counts with a proven lower bound.
func (p *Problem) assessed(x [][][]int, bound, gap float64) Solution {
	r := Solution{Counts: x, Objective: p.Cost(x), Bound: bound, Status: StatusFeasible}
	// For a cost near 0, the tolerance is a share of the prices instead of the cost.
	if slack := costTolerance * math.Max(r.Objective, 1e-3*p.greatestPrice()); r.Bound >= r.Objective-slack {
		r.Bound = r.Objective // the difference is rounding
	}
	if r.Objective > 0 {
		r.Gap = (r.Objective - r.Bound) / r.Objective
	}
	if r.Objective-r.Bound <= gap*r.Objective {
		r.Status = StatusOptimal
	}
	return r
}
