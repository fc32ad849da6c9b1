package plan

import (
	"slices"
	"testing"
)

// The best feasible counts are kept when a cheaper move leads to infeasible counts.
func TestAnnealingKeepsFeasibleCounts(t *testing.T) {
	const row = 0
	c := &integerProgram{
		p: &Problem{}, models: 1, regions: 1, gpus: 1,
		links: [][]link{{{row, []float64{-1}}}},
		rows:  []couplingRow{{rhs: -2, model: -1}}, // at least two units
	}
	candidates := [][]candidate{{{x: []int{2}, cost: 2, use: []float64{-2}}, {x: []int{0}, cost: 0, use: []float64{0}}}}
	a := c.newAnnealing(&point{y: []float64{0}}, candidates, violationPenalty, 1)
	a.recompute()
	change, costChange := a.moveCost(0, 1)
	if change >= 0 {
		t.Fatalf("the move to infeasible counts must be cheaper with its penalty, got a change of %g", change)
	}
	a.applyMove(0, 1, costChange)
	a.recordBest()
	if !slices.Equal(a.best, []int{0}) || a.bestCost != 2 {
		t.Errorf("best candidates %v of cost %g, want [0] of cost 2", a.best, a.bestCost)
	}
}
