package eval

import (
	_ "embed"
	"fmt"
	"strings"

	"skyserve/plan/chart"
)

// pageStyle is the CSS of evaluation pages, added to the common style.
//
//go:embed page.css
var pageStyle string

// newPage returns an empty page for reports of scenarios.
func newPage(scenarios []string) *chart.Page {
	return chart.NewPage("skyserve sim "+strings.Join(scenarios, " "), pageStyle)
}

// addTo adds a report to the page.
func (v reportView) addTo(p *chart.Page) {
	p.Put("<section>\n<h1>{}</h1>\n<p>{}</p>\n<p>{}</p>\n", v.Name, v.Title, v.Basis)
	p.PutIf(v.Headline != "", "<p class=\"headline\">{}</p>\n", v.Headline)
	v.addTable(p)
	if v.Compares || v.Oracle {
		p.Put(`<p class="key">`)
		p.PutIf(v.Compares, `<span>`+chart.Star+` most output of the runnable policies</span><span><b>bold</b> best in column</span>`)
		p.PutIf(v.Oracle, `<span><i>oracle</i> uses information that no balancer has: a reference for comparison, not a policy and not a bound</span>`)
		p.Put("</p>\n")
	}
	p.PutIf(v.Note != "", "<p class=\"note\">paper: {}</p>\n", v.Note)
	v.addClaims(p)
	p.Put("<div class=\"charts\">\n")
	for _, c := range v.Charts {
		c.addTo(p)
	}
	p.Put("</div>\n")
	if v.LoadOverTime != nil {
		v.LoadOverTime.addTo(p)
	}
	p.Put("</section>\n")
}

// addTable adds the table of policies.
func (v reportView) addTable(p *chart.Page) {
	p.Put("<div class=\"wide\" role=\"region\" aria-label=\"Results of {}\" tabindex=\"0\"><table class=\"policies\">\n", v.Name)
	p.Put(`<thead><tr><th scope="col">policy<small>push, layout</small></th>`)
	for _, c := range v.Columns {
		p.Put(`<th scope="col">{}<small>{}</small></th>`, c.Name, c.Unit)
	}
	p.Put("</tr></thead>\n<tbody>\n")
	for _, r := range v.Rows {
		p.Put(`<tr class="{}"><th scope="row">{}`, r.Style(), r.Policy)
		p.PutIf(r.Leader, " "+chart.Star)
		p.Put(`<small>{}, {}</small></th>`, r.Push, r.Layout)
		for _, c := range r.Cells {
			p.Put("<td")
			p.PutIf(c.Best, ` class="top"`)
			p.Put(">{}", c.Text)
			p.PutIf(c.Below != "", "<small>{}</small>", c.Below)
			p.Put("</td>")
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody>\n</table></div>\n")
}

// addClaims adds the paper's claims with the measured values, if there are any.
func (v reportView) addClaims(p *chart.Page) {
	if len(v.Claims) == 0 {
		return
	}
	p.Put("<div class=\"wide\"><table class=\"claims\">\n<thead><tr>")
	for _, name := range v.ClaimHeader {
		p.Put(`<th scope="col">{}</th>`, name)
	}
	p.Put("</tr></thead>\n<tbody>\n")
	for _, cells := range v.Claims {
		p.Put("<tr>")
		for _, c := range cells {
			p.Put("<td>{}</td>", c)
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody>\n</table></div>\n")
}

// addTo adds a chart.
func (c *policyChart) addTo(p *chart.Page) {
	p.Put("<figure")
	p.PutIf(c.Wide, ` class="across"`)
	p.Put(">\n<h2>{}</h2>\n", c.Title)
	var keys []chart.LegendEntry
	for _, l := range c.Legend {
		keys = append(keys, chart.LegendEntry{Text: l})
	}
	p.PutLegend(keys...)
	c.Put(p)
	p.Put("</figure>\n")
}

// addTo adds the load over time.
func (c *loadSeries) addTo(p *chart.Page) {
	p.Put("<figure class=\"courses\">\n<h2>Load over time</h2>\n")
	var keys []chart.LegendEntry
	for i, name := range c.Regions {
		keys = append(keys, chart.LegendEntry{Class: regionClass("run", i), Text: name})
	}
	p.PutLegend(append(keys, chart.LegendEntry{Text: fmt.Sprintf("one scale for all panels, seed %d", c.Seed)})...)
	p.PutLegend(
		chart.LegendEntry{Class: "run", Text: "requests in the engines of a region, pending or running"},
		chart.LegendEntry{Class: "held", Area: true, Text: "queued at its balancers"},
		chart.LegendEntry{Class: "warm", Area: true, Text: "warm-up"},
	)
	keys = nil
	for _, e := range c.frame.Spans {
		if e.Number > 0 {
			keys = append(keys, chart.LegendEntry{Class: e.Class, Number: e.Number, Text: e.Title})
		}
	}
	if len(keys) > 0 {
		p.PutLegend(keys...)
	}
	p.Put("<div class=\"panels\">\n")
	for i := range c.Panels {
		of := &c.Panels[i]
		p.Put(`<div class="{}"><h3><span>{}<span class="soft">, {}</span></span>`, of.Style(), of.Policy, of.Push)
		p.PutIf(of.Leader, chart.Star)
		p.Put("<span class=\"soft end\">{}</span></h3>\n", fmt.Sprintf("%.0f tok/s", of.throughput()))
		of.Put(p)
		p.Put("</div>\n")
	}
	p.Put("</div>\n</figure>\n")
}
