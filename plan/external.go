package plan

import (
	"fmt"
	"math"
)

// ColumnNames returns the names of the columns that WriteLP and WriteMPS write, in the order of the
// LP file's objective.
func (p *Problem) ColumnNames() []string {
	var out []string
	for _, c := range p.columns() {
		out = append(out, c.name)
	}
	return out
}

// CountsFromColumns converts values of the columns named by WriteLP and WriteMPS to counts by
// model, region and GPU. An absent column is 0. It fails on a value that is not a whole number of 0
// or more.
func (p *Problem) CountsFromColumns(columns map[string]float64) ([][][]int, error) {
	x := make([][][]int, len(p.Models))
	for i := range x {
		x[i] = make([][]int, len(p.Regions))
		for j := range x[i] {
			x[i][j] = make([]int, len(p.GPUs))
		}
	}
	var err error
	p.eachCount(func(i, j, k int) {
		for _, kind := range []string{"s", "t", "a"} {
			name := columnName(kind, i, j, k)
			v := columns[name]
			n := math.Round(v)
			if !(math.Abs(v-n) <= 1e-5 && n >= 0 && n <= maxCount) && err == nil {
				err = fmt.Errorf("%s: must be a whole number from 0 to %d, got %g", name, maxCount, v)
			}
			x[i][j][k] += int(n)
		}
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// AssessExternal returns the Solution of counts from another solver. bound is that solver's lower
// bound on the cost of any counts; the status is optimal if the relative gap between cost and bound is at most gap.
// The cost is computed from the problem itself. It fails on counts that violate a constraint.
func (p *Problem) AssessExternal(x [][][]int, bound, gap float64) (Solution, error) {
	if err := p.Verify(x); err != nil {
		return Solution{}, err
	}
	return p.assessed(x, bound, gap), nil
}
