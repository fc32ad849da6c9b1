package eval

import (
	"fmt"

	"skyserve/internal/sim"
)

// column is the heading of a table column; the unit is below the name.
type column struct{ Name, Unit string }

// tableRow is the table row of an entry.
type tableRow struct {
	*entry
	Cells []cell
}

// cell is a value, and below it its standard deviation or its difference to the reference. Best marks
// the best value of a column.
type cell struct {
	Text, Below string
	Best        bool
}

// figure is a column that every run has.
type figure struct {
	column
	format string
	unit   float64
	better int // 1 if more is better, -1 if less is better, 0 if neither
	spread bool
	get    func(*sim.RunFigures) *float64
}

// percentile returns a getter for one percentile; it yields nil where nothing was measured.
func percentile(set func(*sim.RunFigures) *sim.Percentiles, which func(*sim.Percentiles) *float64) func(*sim.RunFigures) *float64 {
	return func(f *sim.RunFigures) *float64 {
		if p := set(f); p != nil {
			return which(p)
		}
		return nil
	}
}

func figures() []figure {
	ttft := func(f *sim.RunFigures) *sim.Percentiles { return f.TTFT }
	tpot := func(f *sim.RunFigures) *sim.Percentiles { return f.TPOT }
	e2e := func(f *sim.RunFigures) *sim.Percentiles { return f.E2E }
	p50 := func(p *sim.Percentiles) *float64 { return &p.P50 }
	p90 := func(p *sim.Percentiles) *float64 { return &p.P90 }
	return []figure{
		{column{"output", "tok/s"}, "%.0f", 1, 1, true, func(f *sim.RunFigures) *float64 { return &f.OutputTokensPerSecond }},
		{column{"TTFT P50", "s"}, "%.2f", 1000, -1, true, percentile(ttft, p50)},
		{column{"TTFT P90", "s"}, "%.2f", 1000, -1, true, percentile(ttft, p90)},
		{column{"TPOT P50", "ms"}, "%.0f", 1, -1, true, percentile(tpot, p50)},
		{column{"E2E P90", "s"}, "%.1f", 1000, -1, true, percentile(e2e, p90)},
		{column{"prefix hits", "%"}, "%.1f", 0.01, 1, true, func(f *sim.RunFigures) *float64 { return f.PrefixHitRate }},
		{column{"forwarded", "requests"}, "%.0f", 1, 0, false, func(f *sim.RunFigures) *float64 { return &f.Forwarded }},
		{column{"max queue wait", "s"}, "%.2f", 1000, 0, false, func(f *sim.RunFigures) *float64 { return &f.MaxWaitMillis }},
		{column{"imbalance", "max/min"}, "%.1f", 1, 0, false, func(f *sim.RunFigures) *float64 { return f.OutstandingMaxOverMin }},
		{column{"completed", "requests"}, "%.0f", 1, 0, false, func(f *sim.RunFigures) *float64 { return &f.Completed }},
		{column{"rejected", "requests"}, "%.0f", 1, 0, false, func(f *sim.RunFigures) *float64 { return &f.Rejected }},
	}
}

// cell formats the figure of an entry.
func (f *figure) cell(e *entry) cell {
	v := f.get(&e.Mean)
	if v == nil {
		return cell{Text: "-"}
	}
	c := cell{Text: fmt.Sprintf(f.format, *v/f.unit)}
	if !f.spread || e.Spread == nil {
		return c
	}
	if d := f.get(e.Spread); d != nil {
		c.Below = "±" + fmt.Sprintf(f.format, *d/f.unit)
	}
	return c
}

// table returns the columns besides the policy's own, and the rows.
func (l *lineup) table() ([]column, []tableRow) {
	var columns []column
	rows := make([]tableRow, len(l.entries))
	for i := range l.entries {
		rows[i].entry = &l.entries[i]
	}
	for _, f := range figures() {
		columns = append(columns, f.column)
		best := f.best(l.entries)
		for i := range rows {
			c := f.cell(rows[i].entry)
			c.Best = best != "" && c.Text == best && !rows[i].Oracle
			rows[i].Cells = append(rows[i].Cells, c)
		}
	}
	return l.addReferences(columns, rows)
}

// best returns the formatted best value of the runnable policies, or "" if all are equal.
func (f *figure) best(entries []entry) string {
	if f.better == 0 {
		return ""
	}
	var best, worst *float64
	for i := range entries {
		v := f.get(&entries[i].Mean)
		if v == nil || entries[i].Oracle {
			continue
		}
		if best == nil || float64(f.better)*(*v-*best) > 0 {
			best = v
		}
		if worst == nil || float64(f.better)*(*v-*worst) < 0 {
			worst = v
		}
	}
	if best == nil {
		return ""
	}
	text := fmt.Sprintf(f.format, *best/f.unit)
	if text == fmt.Sprintf(f.format, *worst/f.unit) {
		return ""
	}
	return text
}

// addReferences adds the reference columns if any policy has a reference and, where the
// plan requests it, the difference to the measured value.
func (l *lineup) addReferences(columns []column, rows []tableRow) ([]column, []tableRow) {
	known := false
	for i := range rows {
		known = known || rows[i].Reference != nil
	}
	if !known {
		return columns, rows
	}
	for i := range rows {
		speed, wait := cell{Text: "-"}, cell{Text: "-"}
		if ref := rows[i].Reference; ref != nil {
			speed.Text, wait.Text = fmt.Sprintf("%.0f", ref.OutputTokensPerSecond), fmt.Sprintf("%.2f", ref.TTFTP90Millis/1000)
			if l.report.paper {
				speed.Below = percent(rows[i].throughput()/ref.OutputTokensPerSecond - 1)
				if t := rows[i].Mean.TTFT; t != nil {
					wait.Below = percent(t.P90/ref.TTFTP90Millis - 1)
				}
			}
		}
		rows[i].Cells = append(rows[i].Cells, speed, wait)
	}
	return append(columns, column{"reference", "tok/s"}, column{"ref. TTFT P90", "s"}), rows
}
