package plan

import (
	"fmt"
	"math"
)

// ColumnNames are the names of the columns that WriteLP and WriteMPS write, in
// the order in which the LP file's objective has them.
func (p *Problem) ColumnNames() []string {
	var out []string
	for _, c := range p.columns() {
		out = append(out, c.name)
	}
	return out
}

// Counts turns the values of the columns that WriteLP and WriteMPS name into
// counts by model, region and GPU; a column left out is 0. It fails on a value
// that is no whole number of 0 or more.
func (p *Problem) Counts(columns map[string]float64) ([][][]int, error) {
	x := make([][][]int, len(p.Models))
	for i := range x {
		x[i] = make([][]int, len(p.Regions))
		for j := range x[i] {
			x[i][j] = make([]int, len(p.GPUs))
		}
	}
	var err error
	p.eachCell(func(i, j, k int) {
		for _, kind := range []string{"s", "t", "a"} {
			name := column(kind, i, j, k)
			v := columns[name]
			n := math.Round(v)
			if !(math.Abs(v-n) <= 1e-5 && n >= 0 && n <= maxCount) && err == nil {
				err = fmt.Errorf("%s: want a whole number of 0 to %d, got %g", name, maxCount, v)
			}
			x[i][j][k] += int(n)
		}
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// Assess is the Result of counts that come from elsewhere with a bound of
// their cost: rows and cost are computed from the problem itself. It fails when
// a row is broken.
func (p *Problem) Assess(x [][][]int, bound, gap float64) (Result, error) {
	if err := p.Verify(x); err != nil {
		return Result{}, err
	}
	return p.assessed(x, bound, gap), nil
}
