package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Effort of the search for conflicts: of one proof, and of all.
const (
	proofEffort    = 3_000_000
	conflictEffort = 60_000_000
)

// demand is a constraint that can be removed: a limit, or a model with all that it requires.
type demand struct {
	kind demandKind
	a, b int
}

type demandKind int

const (
	modelDemand demandKind = iota
	capacityDemand
	maxDemand
	maxTotalDemand
)

// demands lists the constraints of a problem that can be removed.
func (p *Problem) demands() []demand {
	var out []demand
	for i := range p.Models {
		out = append(out, demand{kind: modelDemand, a: i})
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			if limit(p.Capacity, j, k, unlimited) < unlimited {
				out = append(out, demand{capacityDemand, j, k})
			}
		}
	}
	for i := range p.Models {
		for j := range p.Regions {
			if limit(p.Max, i, j, unlimited) < unlimited {
				out = append(out, demand{maxDemand, i, j})
			}
		}
		if total(p.MaxTotal, i, unlimited) < unlimited {
			out = append(out, demand{kind: maxTotalDemand, a: i})
		}
	}
	return out
}

// only returns the problem with only these constraints.
func (p *Problem) only(kept []demand) *Problem {
	q := *p
	has := func(kind demandKind, a, b int) bool { return slices.Contains(kept, demand{kind, a, b}) }
	q.Rho, q.Capacity, q.Max = slices.Clone(p.Rho), cloneLimits(p.Capacity), cloneLimits(p.Max)
	q.Min, q.MinTotal, q.MaxTotal = cloneLimits(p.Min), slices.Clone(p.MinTotal), slices.Clone(p.MaxTotal)
	for j, row := range q.Capacity {
		for k := range row {
			if !has(capacityDemand, j, k) {
				row[k] = nil
			}
		}
	}
	for i := range p.Models {
		for j := range p.Regions {
			if q.Max != nil && !has(maxDemand, i, j) {
				q.Max[i][j] = nil
			}
		}
		if q.MaxTotal != nil && !has(maxTotalDemand, i, 0) {
			q.MaxTotal[i] = nil
		}
		if !has(modelDemand, i, 0) {
			q.silence(i)
		}
	}
	return &q
}

// silence removes the load and the minimums of model i.
func (p *Problem) silence(i int) {
	rows := make([][]float64, len(p.Regions))
	for j := range rows {
		rows[j] = make([]float64, len(p.Rho[i][j]))
	}
	p.Rho[i] = rows
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

// conflict returns a minimal set of constraints that cannot be met together: without any one of
// them the others can. It is a deletion filter over shrinking groups. A constraint whose removal is
// not decided within the effort stays in the set.
func (p *Problem) conflict(work int64) []demand {
	kept := p.demands()
	for group := (len(kept) + 1) / 2; group >= 1; group /= 2 {
		for from := 0; from < len(kept) && work > 0; {
			rest := slices.Delete(slices.Clone(kept), from, min(from+group, len(kept)))
			if p.only(rest).provenInfeasible(&work) {
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
	s := p.silently(0.5)
	*work -= proofEffort - s.work.left
	return s.wrong != nil
}

// silently solves a problem within the effort of one proof, without reasons.
func (p *Problem) silently(gap float64) *solver {
	s := newSolver(p, Options{Gap: gap, Effort: proofEffort})
	s.silent = true
	s.run()
	return s
}

// giveReasons records which constraints conflict.
func (c *programme) giveReasons() {
	if c.wrong = []string{"no counts satisfy all constraints together"}; !c.silent {
		c.wrong = []string{c.p.conflictInWords(c.p.conflict(min(conflictEffort, c.given)))}
	}
}

// conflictInWords names the limits in conflict and the models that exceed them.
func (p *Problem) conflictInWords(set []demand) string {
	var limits, models []string
	for _, d := range set {
		switch d.kind {
		case modelDemand:
			models = append(models, p.Models[d.a])
		case capacityDemand:
			limits = append(limits, fmt.Sprintf("%s has a capacity of %d %s", p.Regions[d.a], *p.Capacity[d.a][d.b], p.GPUs[d.b]))
		case maxDemand:
			limits = append(limits, fmt.Sprintf("%s is limited to %d replicas in %s", p.Models[d.a], *p.Max[d.a][d.b], p.Regions[d.b]))
		case maxTotalDemand:
			limits = append(limits, fmt.Sprintf("%s is limited to %d replicas over all regions", p.Models[d.a], *p.MaxTotal[d.a]))
		}
	}
	verb := "need"
	if len(models) == 1 {
		verb = "needs"
	}
	needs := fmt.Sprintf("%s %s more than that", strings.Join(models, ", "), verb)
	if least, has := p.leastThere(set); least > has {
		needs = fmt.Sprintf("%s %s at least %d there", strings.Join(models, ", "), verb, least)
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

// leastThere returns the minimum number of replicas that the constraints require on the capacities
// among them, and the sum of these capacities.
func (p *Problem) leastThere(set []demand) (least, has int) {
	q := p.only(slices.DeleteFunc(slices.Clone(set), func(d demand) bool { return d.kind == capacityDemand }))
	q.Switch, q.Egress, q.CapacityType = nil, nil, nil
	q.Sigma, q.RegionAlpha = make([][]float64, len(p.Models)), make([][]float64, len(p.Regions))
	for i := range q.Sigma {
		q.Sigma[i] = make([]float64, len(p.GPUs))
	}
	for j := range q.RegionAlpha {
		q.RegionAlpha[j] = make([]float64, len(p.GPUs))
	}
	for _, d := range set {
		if d.kind == capacityDemand {
			q.RegionAlpha[d.a][d.b] = 1
			has += *p.Capacity[d.a][d.b]
		}
	}
	return int(q.silently(0).bound + 0.999), has
}
