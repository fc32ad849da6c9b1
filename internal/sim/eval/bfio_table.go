package eval

import (
	"fmt"
	"io"

	"skyserve/internal/printable"
)

// bfioColumn is a table column: its heading and how it formats the rows of one policy, one row per
// seed.
type bfioColumn struct {
	head string
	cell func(rows bfioRows) string
}

// bfioRows are the rows of one policy on one case, one row per seed.
type bfioRows []BFIORow

// meanOf returns the mean over the seeds.
func (rows bfioRows) meanOf(get func(*BFIORow) float64) float64 {
	values := make([]float64, 0, len(rows))
	for i := range rows {
		values = append(values, get(&rows[i]))
	}
	return mean(values)
}

// WriteTable prints means over the seeds in the units of the paper's table, with the paper's values in
// brackets.
func (r *BFIOReport) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", r.Scenario, r.Title); err != nil {
		return err
	}
	if r.Capacity > 0 {
		if _, err := fmt.Fprintf(w, "utilisation 1 = FCFS throughput in overload, %.1f requests per second\n", r.Capacity); err != nil {
			return err
		}
	}
	t := printable.NewTable(w)
	var cells []string
	for _, c := range r.columns {
		cells = append(cells, c.head)
	}
	t.Row(cells...)
	for from := 0; from < len(r.Rows); {
		to := from + 1
		for to < len(r.Rows) && r.Rows[to].Seed > r.Rows[to-1].Seed {
			to++
		}
		cells = cells[:0]
		for _, c := range r.columns {
			cells = append(cells, c.cell(r.Rows[from:to]))
		}
		t.Row(cells...)
		from = to
	}
	return t.Flush()
}

// meanColumn formats the mean over the seeds.
func meanColumn(head, format string, get func(*BFIORow) float64) bfioColumn {
	return bfioColumn{head, func(rows bfioRows) string { return fmt.Sprintf(format, rows.meanOf(get)) }}
}

// paperColumn is a meanColumn that adds the paper's value in brackets.
func paperColumn(head, format string, get func(*BFIORow) float64, paper func(*BFIOPaper) float64) bfioColumn {
	return bfioColumn{head, func(rows bfioRows) string {
		text := fmt.Sprintf(format, rows.meanOf(get))
		if p := rows[0].Paper; p != nil {
			text += " (" + fmt.Sprintf(format, paper(p)) + ")"
		}
		return text
	}}
}

// policyColumns identify the policy and its parameters.
func policyColumns() []bfioColumn {
	return []bfioColumn{
		{"POLICY", func(rows bfioRows) string { return rows[0].Policy }},
		{"H", func(rows bfioRows) string { return fmt.Sprint(rows[0].H) }},
		{"WAIT BOUND", func(rows bfioRows) string {
			if rows[0].WaitBound == 0 {
				return "-"
			}
			return fmt.Sprint(rows[0].WaitBound)
		}},
	}
}

func imbalanceColumn() bfioColumn {
	return paperColumn("IMBALANCE 1e4 TOK", "%.2f", func(r *BFIORow) float64 { return r.Imbalance / 1e4 }, func(p *BFIOPaper) float64 { return p.Imbalance / 1e4 })
}

func throughputColumn() bfioColumn {
	return paperColumn("THROUGHPUT 1e4 TOK/S", "%.2f", func(r *BFIORow) float64 { return r.Throughput / 1e4 }, func(p *BFIOPaper) float64 { return p.Throughput / 1e4 })
}

func tpotColumn() bfioColumn {
	return paperColumn("TPOT 1e-2 S", "%.2f", func(r *BFIORow) float64 { return r.TPOT / 10 }, func(p *BFIOPaper) float64 { return p.TPOT / 10 })
}

func energyColumn() bfioColumn {
	return paperColumn("ENERGY KJ", "%.0f", func(r *BFIORow) float64 { return r.Energy }, func(p *BFIOPaper) float64 { return p.Energy })
}

func idleColumn() bfioColumn {
	return meanColumn("BARRIER IDLE", "%.1f%%", func(r *BFIORow) float64 { return 100 * r.Idle })
}

func decisionColumn() bfioColumn {
	return meanColumn("DECISION P50", "%.0f us", func(r *BFIORow) float64 { return r.Decision.P50 })
}

func table1Columns() []bfioColumn {
	return append(policyColumns(), imbalanceColumn(), throughputColumn(), tpotColumn(), energyColumn(), idleColumn(),
		meanColumn("MAX WAIT", "%.0f", func(r *BFIORow) float64 { return float64(r.MaxWait) }),
		decisionColumn())
}

// openColumns are the columns of open-loop scenarios. dispatch adds a column that shows whether
// requests are bound on arrival.
func openColumns(dispatch bool) []bfioColumn {
	columns := []bfioColumn{meanColumn("UTILISATION", "%.2f", func(r *BFIORow) float64 { return r.Utilisation })}
	if dispatch {
		columns = append(columns, bfioColumn{"DISPATCH", func(rows bfioRows) string { return rows[0].Dispatch }})
	}
	wait := func(head string, get func(*BFIORow) float64) bfioColumn { return meanColumn(head, "%.0f ms", get) }
	columns = append(columns, policyColumns()...)
	return append(columns, imbalanceColumn(), idleColumn(), throughputColumn(), tpotColumn(),
		wait("WAIT MEAN", func(r *BFIORow) float64 { return r.Wait.Mean }),
		wait("P90", func(r *BFIORow) float64 { return r.Wait.P90 }),
		wait("MAX", func(r *BFIORow) float64 { return r.Wait.Max }),
		energyColumn(), decisionColumn())
}

func driftColumns() []bfioColumn {
	columns := []bfioColumn{meanColumn("DRIFT TOK/STEP", "%.2f", func(r *BFIORow) float64 { return *r.Drift })}
	columns = append(columns, policyColumns()...)
	return append(columns, imbalanceColumn(), ratioColumn(), idleColumn(), throughputColumn(), tpotColumn(), decisionColumn())
}

// ratioColumn shows how many times smaller the imbalance is than that of FCFS.
func ratioColumn() bfioColumn {
	return meanColumn("BELOW FCFS", "%.1fx", func(r *BFIORow) float64 { return *r.Ratio })
}

func scaleColumns() []bfioColumn {
	whole := func(head string, get func(*BFIORow) int) bfioColumn {
		return bfioColumn{head, func(rows bfioRows) string { return fmt.Sprint(get(&rows[0])) }}
	}
	columns := []bfioColumn{
		whole("WORKERS", func(r *BFIORow) int { return r.Workers }),
		whole("SLOTS", func(r *BFIORow) int { return r.Slots }),
	}
	columns = append(columns, policyColumns()[:2]...)
	return append(columns, imbalanceColumn(), ratioColumn(),
		bfioColumn{"OVER SQRT(B LN G)", func(rows bfioRows) string {
			if rows[0].Policy == "fcfs" {
				return "-"
			}
			return fmt.Sprintf("%.2f", rows.meanOf(func(r *BFIORow) float64 { return *r.Ratio / r.theory() }))
		}},
		idleColumn(), decisionColumn())
}
