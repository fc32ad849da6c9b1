package eval

import (
	"cmp"
	"fmt"
	"io"

	"skyserve/plan/chart"
)

// WriteSageHTML writes reports as one self-contained HTML page: for each report a table, and for each
// model its replicas over time.
func WriteSageHTML(out io.Writer, reports []*SageReport) error {
	var names []string
	for _, r := range reports {
		names = append(names, r.Scenario)
	}
	p := newPage(names)
	for _, r := range reports {
		r.addTo(p)
	}
	return p.Write(out)
}

// addTo adds a report to the page.
func (r *SageReport) addTo(p *chart.Page) {
	p.Put("<section>\n<h1>{}</h1>\n<p>{}</p>\n<p>{}</p>\n", r.Scenario, r.Title, r.basis())
	p.Put("<div class=\"wide\"><table class=\"strategies\">\n<thead><tr>")
	header, rows := r.table()
	for _, h := range header {
		p.Put("<th>{}</th>", h)
	}
	p.Put("</tr></thead>\n<tbody>")
	for _, row := range rows {
		p.Put("<tr>")
		for _, cell := range row {
			p.Put("<td>{}</td>", cell)
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody></table></div>\n")
	for _, n := range r.notes() {
		p.Put("<p>{}</p>\n", n)
	}
	for m := range r.Constants.Models {
		r.addReplicaChart(p, m)
	}
	p.Put("</section>\n")
}

// addReplicaChart adds a chart of a model's replicas over time with each strategy.
func (r *SageReport) addReplicaChart(p *chart.Page, model int) {
	name, hours := r.Constants.Models[model].Model, r.Constants.DurationHours
	plot := chart.Plot{Title: name + ": replicas over time", Height: 205, X: chart.Scale{High: hours}, Y: chart.Scale{High: 1}}
	var keys []chart.LegendEntry
	for k := range r.series {
		c := &r.series[k]
		line := chart.Line{Class: fmt.Sprintf("strategy c%d", k%5)}
		for i, n := range c.count(model) {
			line.Points = append(line.Points, chart.Point{X: c.moments[i].At.Hours(), Y: float64(n)})
			plot.Y.High = max(plot.Y.High, float64(n))
		}
		plot.Lines = append(plot.Lines, line)
		keys = append(keys, chart.LegendEntry{Class: line.Class, Text: cmp.Or(c.label, c.strategy)})
	}
	plot.YTicks = wholeMarks(plot.Y, 5)
	plot.XTicks = plot.X.Ticks(6, func(v float64) string { return plain(v) + " h" })
	p.Put("<figure>\n<h2>{}: replicas over time, all regions, seed {}</h2>\n", name, r.Rows[0].Seed)
	p.PutLegend(keys...)
	plot.Put(p)
	p.Put("</figure>\n")
}

// count returns the replicas of a model at each sample, over all its endpoints.
func (c *sageSeries) count(model int) []int {
	out := make([]int, len(c.moments))
	for i := range c.moments {
		for k := range c.moments[i].Endpoints {
			if c.models[k] == model {
				out[i] += c.moments[i].Endpoints[k].Instances
			}
		}
	}
	return out
}
