package bfio

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Row is one line of Table 1: a policy, what it reached, and what the paper says.
type Row struct {
	Policy    string // fcfs, jsq or bf-io
	H         int    // window, steps; of bf-io
	WaitBound int    // steps; 0 is none
	Figures   Figures
	// Paper holds the printed figures, of which there are imbalance, throughput,
	// TPOT and energy (in Linear and Sublinear alike); nil where there are none.
	Paper *Figures
}

// printed is what Table 1 prints for a row, in SI units.
func printed(imbalance, throughput, tpot, kilojoules float64) *Figures {
	joules := kilojoules * 1e3
	return &Figures{Imbalance: imbalance * 1e4, Throughput: throughput * 1e4, TPOT: tpot * 1e-2, Linear: joules, Sublinear: joules}
}

// Rows lists what Table 1 compares, without figures: the paper's four rows, H = 20,
// which does as well as 80, and both windows with a bound on the wait, without
// which long prompts starve.
func Rows() []Row {
	return []Row{
		{Policy: "fcfs", Paper: printed(27.9, 8.00, 1.42, 396)},
		{Policy: "jsq", Paper: printed(28.2, 7.99, 1.42, 396)},
		{Policy: "bf-io", H: 0, Paper: printed(2.92, 9.03, 1.26, 386)},
		{Policy: "bf-io", H: 20},
		{Policy: "bf-io", H: 80, Paper: printed(1.65, 9.13, 1.25, 383)},
		{Policy: "bf-io", H: 0, WaitBound: 200},
		{Policy: "bf-io", H: 20, WaitBound: 200},
	}
}

// Table replays every row of Table 1.
func Table(scenario Scenario) []Row {
	rows := Rows()
	for i := range rows {
		rows[i].Replay(scenario, func(p Policy) Policy { return p })
	}
	return rows
}

// Replay fills in the row's figures. Every decision is made by what around
// returns, which can measure or watch the row's own policy.
func (r *Row) Replay(scenario Scenario, around func(Policy) Policy) {
	options := Defaults(r.H)
	options.WaitBound = r.WaitBound
	policy := Policy(new(Solver).Solve)
	switch r.Policy {
	case "fcfs":
		policy = FCFS()
	case "jsq":
		policy = JSQ()
	}
	r.Figures = NewSim(scenario, options).Run(around(policy))
}

// WriteTable prints rows in the units of Table 1, the paper's figure in brackets.
func WriteTable(w io.Writer, rows []Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "policy\tH\twait bound\timbalance 1e4 tok\tthroughput 1e4 tok/s\tTPOT 1e-2 s\tlinear kJ\tsublinear kJ\tbarrier idle\tmax wait, steps")
	for _, r := range rows {
		f, paper := r.Figures, r.Paper
		if paper == nil {
			paper = &Figures{}
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t%d\n", r.Policy, r.H, r.WaitBound,
			beside(f.Imbalance, paper.Imbalance, 1e4, 2), beside(f.Throughput, paper.Throughput, 1e4, 2),
			beside(f.TPOT, paper.TPOT, 1e-2, 2), beside(f.Linear, paper.Linear, 1e3, 0),
			beside(f.Sublinear, paper.Sublinear, 1e3, 0), 100*f.BarrierIdle, f.MaxWait)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// beside is a figure in its unit and, where the paper has one, the paper's.
func beside(got, paper, unit float64, digits int) string {
	if paper == 0 {
		return fmt.Sprintf("%.*f", digits, got/unit)
	}
	return fmt.Sprintf("%.*f (%.*f)", digits, got/unit, digits, paper/unit)
}
