package barrier

import (
	"math"

	"skyserve/lbd/bfio"
)

// PolicyRow is one line of a table: a policy, its results, and the paper's values.
type PolicyRow struct {
	Policy    string // fcfs, jsq or bf-io
	H         int    // window in steps, of bf-io
	WaitBound int    // steps; 0 is none
	Figures   StepMetrics
	Waits     []float64 // of the Sim, seconds
	// Paper holds the paper's values for imbalance, throughput, TPOT and energy (in both Linear and
	// Sublinear); nil if there are none.
	Paper *StepMetrics
}

// printed returns the values of a row in Table 1, in SI units.
func printed(imbalance, throughput, tpot, kilojoules float64) *StepMetrics {
	joules := kilojoules * 1e3
	return &StepMetrics{Imbalance: imbalance * 1e4, Throughput: throughput * 1e4, TPOT: tpot * 1e-2, Linear: joules, Sublinear: joules}
}

// Rows returns the rows of Table 1 without figures: the paper's four rows, H = 20, which performs as
// well as 80, and both windows with a bound on the wait, without which long prompts starve.
func Rows() []PolicyRow {
	return []PolicyRow{
		{Policy: "fcfs", Paper: printed(27.9, 8.00, 1.42, 396)},
		{Policy: "jsq", Paper: printed(28.2, 7.99, 1.42, 396)},
		{Policy: "bf-io", H: 0, Paper: printed(2.92, 9.03, 1.26, 386)},
		{Policy: "bf-io", H: 20},
		{Policy: "bf-io", H: 80, Paper: printed(1.65, 9.13, 1.25, 383)},
		{Policy: "bf-io", H: 0, WaitBound: 200},
		{Policy: "bf-io", H: 20, WaitBound: 200},
	}
}

// Run fills in the row's figures. around wraps the row's policy, for example to measure it.
func (r *PolicyRow) Run(scenario Scenario, around func(Policy) Policy) {
	options := bfio.Defaults(r.H)
	options.WaitBound = r.WaitBound
	if n := len(scenario.Growth); n > 0 {
		options.Drift = int64(math.Round(scenario.Drift()))
	}
	policy := Policy(new(bfio.Solver).Solve)
	switch r.Policy {
	case "fcfs":
		policy = FCFS()
	case "jsq":
		policy = JSQ()
	}
	sim := NewSim(scenario, options)
	r.Figures = sim.Run(around(policy))
	r.Waits = sim.Waits()
}
