package plan

import (
	"fmt"
	"strings"
)

// constraintChecker checks counts quickly during the search. It lists the coverage of each model once, as rows
// over sets of regions. Verify makes the final check.
type constraintChecker struct {
	p      *Problem
	covers [][]coverage // by model
}

func newConstraintChecker(p *Problem) *constraintChecker {
	r := &constraintChecker{p: p}
	sets := p.reachSets()
	for i := range p.Models {
		r.covers = append(r.covers, p.covers(i, sets))
	}
	return r
}

// verify returns an error for the first row that x violates.
func (r *constraintChecker) verify(x [][][]int) error {
	for i := range r.p.Models {
		if err := r.verifyModel(i, x[i]); err != nil {
			return err
		}
	}
	return r.p.verifyCapacity(x)
}

// verifyModel returns an error for the first row that x, the counts of model i, violates.
func (r *constraintChecker) verifyModel(i int, x [][]int) error {
	p := r.p
	if err := p.verifyCounts(i, x); err != nil {
		return err
	}
	for _, c := range r.covers[i] {
		var served float64
		for j := range p.Regions {
			if c.regions.has(j) {
				served += p.Throughput(i, x[j])
			}
		}
		if !meetsNeed(served, c.need) {
			return fmt.Errorf("%s over %s: serves %g of %g tokens per second", p.Models[i], p.nameCover(c), served, c.need)
		}
	}
	return nil
}

// nameCover names the regions of a coverage row.
func (p *Problem) nameCover(c coverage) string {
	if c.regions.size() == len(p.Regions) {
		return "all regions"
	}
	if c.lost >= 0 && c.regions.size() == len(p.Regions)-1 {
		return "all regions except " + p.Regions[c.lost]
	}
	var names []string
	for j, name := range p.Regions {
		if c.regions.has(j) {
			names = append(names, name)
		}
	}
	name := strings.Join(names, ", ")
	if name == "" {
		name = "no region"
	}
	if c.lost >= 0 {
		name += " except " + p.Regions[c.lost]
	}
	return name
}
