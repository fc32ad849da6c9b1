package plan

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// WriteTable writes the proposal for people: one line per change, the reasons below it, then costs
// and assumptions.
func (p Proposal) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	if p.Status == StatusInfeasible {
		fmt.Fprintln(&b, "No plan satisfies all constraints:")
		writeList(&b, p.Infeasible)
	}
	if len(p.Changes) > 0 {
		if _, err := b.WriteTo(w); err != nil { // the table is written to w itself, which may be a terminal with colours
			return err
		}
		if err := p.writeChanges(w); err != nil {
			return err
		}
		p.writeReasons(&b)
	}
	p.writeCosts(&b)
	if len(p.OverBudget) > 0 {
		fmt.Fprintf(&b, "\nCut by the budget of $%.2f/h for all machines:\n", p.BudgetPerHour)
		writeList(&b, p.OverBudget)
	}
	if len(p.Assumed) > 0 {
		fmt.Fprintln(&b, "\nAssumed:")
		writeList(&b, p.Assumed)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeList(b *bytes.Buffer, lines []string) {
	for _, l := range lines {
		fmt.Fprintf(b, "  - %s\n", l)
	}
}

func (p Proposal) writeChanges(w io.Writer) error {
	t := printable.NewTable(w)
	t.Fit(printable.Fitting{Optional: []string{"DONATE", "RECLAIM", "CAPACITY TOK/S", "PEAK TOK/S"}}) // the reasons name these figures, or their totals in the region
	t.Row("MODEL", "REGION", "GPU", "CURRENT", "CHANGE", "PLANNED", "PEAK TOK/S", "CAPACITY TOK/S", "UTILISATION", "DONATE", "RECLAIM")
	for _, c := range p.Changes {
		used := "-"
		if c.Utilisation != nil {
			used = fmt.Sprintf("%.0f%%", 100**c.Utilisation)
		}
		change := "0"
		if c.Delta != 0 {
			change = fmt.Sprintf("%+d", c.Delta)
		}
		t.Row(
			c.Model, c.Region, c.offering(), strconv.Itoa(c.Current), change, strconv.Itoa(c.Planned), fmt.Sprintf("%.0f", c.PlannedPeakTPS),
			fmt.Sprintf("%.0f", c.CapacityTPS), used, strconv.Itoa(c.Donate), strconv.Itoa(c.Reclaim),
		)
	}
	return t.Flush()
}

// offering returns the GPU and its capacity type, without the default on demand.
func (c ReplicaChange) offering() string {
	if c.CapacityType == nil || *c.CapacityType == string(service.CapacityOnDemand) {
		return c.GPU
	}
	return c.GPU + " " + *c.CapacityType
}

// writeAligned writes rows as a table.
func writeAligned(b *bytes.Buffer, rows [][]string) {
	t := printable.NewTable(b)
	for _, row := range rows {
		t.Row(row...)
	}
	_ = t.Flush() // a buffer has no errors
}

// writeReasons writes the reason of every change, with the model's name where there are several
// models.
func (p Proposal) writeReasons(b *bytes.Buffer) {
	fmt.Fprintln(b, "\nWhy (tokens are uncached prompt tokens):")
	one := true
	for _, c := range p.Changes {
		one = one && c.Model == p.Changes[0].Model
	}
	for _, c := range p.Changes {
		name := []string{c.Region, c.offering()}
		if !one {
			name = append([]string{c.Model}, name...)
		}
		fmt.Fprintf(b, "  - %s: %s\n", strings.Join(name, " "), c.Reason)
	}
}

func (p Proposal) writeCosts(b *bytes.Buffer) {
	fmt.Fprintln(b)
	if n, t := p.CostPerHour.Current, p.CostPerHour.Planned; n != nil && t != nil {
		fmt.Fprintf(b, "Cost per hour: current $%.2f, planned $%.2f", *n, *t)
		if p.BudgetPerHour > 0 {
			fmt.Fprintf(b, "; budget of all machines: $%.2f", p.BudgetPerHour)
		}
		fmt.Fprintln(b)
	}
	fmt.Fprintf(b, "Plan: %s", p.Status)
	if p.TotalCostUSD != nil && p.LowerBoundUSD != nil && p.Gap != nil {
		fmt.Fprintf(b, ", cost $%.2f for one hour, including start-up costs, lower bound $%.2f (gap %.2g %%)", *p.TotalCostUSD, *p.LowerBoundUSD, 100**p.Gap)
		if t := p.CostPerHour.Planned; t != nil && *t == 0 && *p.TotalCostUSD > 0 {
			b.WriteString("; no machine is billed: this cost only compares plans, at the prices under Assumed")
		} else if p.costsLessThanBilled() {
			b.WriteString("; the cost per hour is higher: Assumed has the reason")
		}
	}
	if p.SolveMillis > 0 {
		fmt.Fprintf(b, ", solved in %.3g ms", p.SolveMillis)
	}
	if p.Horizon != nil {
		fmt.Fprintf(b, "; horizon %s", *p.Horizon)
	}
	if p.At != nil {
		fmt.Fprintf(b, " from %s", p.At.Format("2006-01-02 15:04 MST"))
	}
	if p.Forecaster != nil {
		fmt.Fprintf(b, ", forecast by %s", *p.Forecaster)
	}
	fmt.Fprintln(b)
}
