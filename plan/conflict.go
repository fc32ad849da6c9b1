package plan

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/printable"
)

// Effort of the search for conflicts: of one proof, and of all.
const (
	proofEffort    = 3_000_000
	conflictEffort = 60_000_000
)

// relaxable is a constraint that can be removed: a limit, or a model with all that it requires.
type relaxable struct {
	kind relaxableKind
	// a and b are indexes: region and GPU of a capacity, model and region of a max. For the other
	// kinds a is the model and b is 0.
	a, b int
}

type relaxableKind int

const (
	modelRelaxable relaxableKind = iota
	capacityRelaxable
	maxRelaxable
	maxTotalRelaxable
)

// relaxables lists the constraints of a problem that can be removed.
func (p *Problem) relaxables() []relaxable {
	var out []relaxable
	for i := range p.Models {
		out = append(out, relaxable{kind: modelRelaxable, a: i})
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			if limitOr(p.Capacity, j, k, unlimited) < unlimited {
				out = append(out, relaxable{capacityRelaxable, j, k})
			}
		}
	}
	for i := range p.Models {
		for j := range p.Regions {
			if limitOr(p.Max, i, j, unlimited) < unlimited {
				out = append(out, relaxable{maxRelaxable, i, j})
			}
		}
		if totalOr(p.MaxTotal, i, unlimited) < unlimited {
			out = append(out, relaxable{kind: maxTotalRelaxable, a: i})
		}
	}
	return out
}

// withOnly returns the problem with only the kept ones of its relaxable constraints.
func (p *Problem) withOnly(kept []relaxable) *Problem {
	q := *p
	has := func(kind relaxableKind, a, b int) bool { return slices.Contains(kept, relaxable{kind, a, b}) }
	q.LoadTPS, q.Capacity, q.Max = slices.Clone(p.LoadTPS), cloneLimits(p.Capacity), cloneLimits(p.Max)
	q.Min, q.MinTotal, q.MaxTotal = cloneLimits(p.Min), slices.Clone(p.MinTotal), slices.Clone(p.MaxTotal)
	for j, row := range q.Capacity {
		for k := range row {
			if !has(capacityRelaxable, j, k) {
				row[k] = nil
			}
		}
	}
	for i := range p.Models {
		for j := range p.Regions {
			if q.Max != nil && !has(maxRelaxable, i, j) {
				q.Max[i][j] = nil
			}
		}
		if q.MaxTotal != nil && !has(maxTotalRelaxable, i, 0) {
			q.MaxTotal[i] = nil
		}
		if !has(modelRelaxable, i, 0) {
			q.clearModelDemand(i)
		}
	}
	return &q
}

// clearModelDemand removes the load and the minimums of model i.
func (p *Problem) clearModelDemand(i int) {
	rows := make([][]float64, len(p.Regions))
	for j := range rows {
		rows[j] = make([]float64, len(p.LoadTPS[i][j]))
	}
	p.LoadTPS[i] = rows
	if p.Min != nil {
		p.Min[i] = make([]*int, len(p.Regions))
	}
	if p.MinTotal != nil {
		p.MinTotal[i] = nil
	}
}

func cloneLimits(rows [][]*int) [][]*int {
	out := slices.Clone(rows)
	for i := range out {
		out[i] = slices.Clone(out[i])
	}
	return out
}

// minimalConflict returns a minimal set of constraints that cannot be met together: without any one of
// them the others can. It is a deletion filter over shrinking groups. A constraint whose removal is
// not decided within the effort stays in the set.
func (p *Problem) minimalConflict(work int64) []relaxable {
	kept := p.relaxables()
	for group := (len(kept) + 1) / 2; group >= 1; group /= 2 {
		for from := 0; from < len(kept) && work > 0; {
			rest := slices.Delete(slices.Clone(kept), from, min(from+group, len(kept)))
			if p.withOnly(rest).provenInfeasible(&work) {
				kept = rest
			} else {
				from += group
			}
		}
	}
	return kept
}

// provenInfeasible reports whether a problem is proven infeasible within the effort of one proof.
func (p *Problem) provenInfeasible(work *int64) bool {
	s := p.solveWithoutReasons(0.5)
	*work -= proofEffort - s.work.remaining
	return s.infeasible != nil
}

// solveWithoutReasons solves a problem within the effort of one proof, without reasons.
func (p *Problem) solveWithoutReasons(gap float64) *solver {
	s := newSolver(p, SolveOptions{Gap: gap, Effort: proofEffort})
	s.skipReasons = true
	s.solveSubproblems()
	return s
}

// explainConflict records which constraints conflict.
func (c *integerProgram) explainConflict() {
	if c.infeasible = []string{"no counts satisfy all constraints together"}; !c.skipReasons {
		c.infeasible = []string{c.p.describeConflict(c.p.minimalConflict(min(conflictEffort, c.initialEffort)))}
	}
}

// describeConflict names the limits in conflict and the models that exceed them.
func (p *Problem) describeConflict(set []relaxable) string {
	var limits, models []string
	for _, d := range set {
		switch d.kind {
		case modelRelaxable:
			models = append(models, p.Models[d.a])
		case capacityRelaxable:
			limits = append(limits, fmt.Sprintf("%s has a capacity of %d %s", p.Regions[d.a], *p.Capacity[d.a][d.b], p.GPUs[d.b]))
		case maxRelaxable:
			limits = append(limits, fmt.Sprintf("%s is limited to %s in %s", p.Models[d.a], printable.Count(*p.Max[d.a][d.b], "replica"), p.Regions[d.b]))
		case maxTotalRelaxable:
			limits = append(limits, fmt.Sprintf("%s is limited to %s over all regions", p.Models[d.a], printable.Count(*p.MaxTotal[d.a], "replica")))
		}
	}
	verb := "need"
	if len(models) == 1 {
		verb = "needs"
	}
	needs := fmt.Sprintf("%s %s more than that", strings.Join(models, ", "), verb)
	if needed, has := p.minReplicasNeeded(set); needed > has {
		needs = fmt.Sprintf("%s %s at least %d there", strings.Join(models, ", "), verb, needed)
	}
	if len(limits) == 0 {
		needs = fmt.Sprintf("no counts satisfy the constraints of %s", strings.Join(models, ", "))
	}
	switch {
	case p.Survive && len(p.SurviveRegions) == 0:
		needs += ", after the loss of any one region"
	case p.Survive:
		needs += ", after the loss of " + strings.Join(p.SurviveRegions, " or ")
	}
	return strings.Join(append(limits, needs), "; ")
}

// minReplicasNeeded returns how many replicas the constraints of a set require, at least, in the regions and on the GPUs
// whose capacities are in the set (needed), and how many these capacities allow together (has).
func (p *Problem) minReplicasNeeded(set []relaxable) (needed, has int) {
	q := p.withOnly(slices.DeleteFunc(slices.Clone(set), func(d relaxable) bool { return d.kind == capacityRelaxable }))
	q.SwitchCostUSD, q.Egress, q.CapacityType = nil, nil, nil
	q.StartCostUSD, q.RegionPricePerHour = make([][]float64, len(p.Models)), make([][]float64, len(p.Regions))
	for i := range q.StartCostUSD {
		q.StartCostUSD[i] = make([]float64, len(p.GPUs))
	}
	for j := range q.RegionPricePerHour {
		q.RegionPricePerHour[j] = make([]float64, len(p.GPUs))
	}
	for _, d := range set {
		if d.kind == capacityRelaxable {
			q.RegionPricePerHour[d.a][d.b] = 1
			has += *p.Capacity[d.a][d.b]
		}
	}
	return int(q.solveWithoutReasons(0).bound + 0.999), has
}
