package plan

import (
	_ "embed"

	"skyserve/plan/chart"
)

// pageStyle is added to the style of all pages.
//
//go:embed page.css
var pageStyle string

// markup returns the page; its Write method adds the end.
func (v pageView) markup() *chart.Page {
	p := chart.NewPage("Capacity plan of "+v.Service, pageStyle)
	p.Put("<h1>Capacity plan of {}</h1>\n<p class=\"when\">{}</p>\n", v.Service, v.When)
	failed := ""
	if len(v.Proposal.Infeasible) > 0 {
		failed = " failed"
	}
	p.Put(`<p class="headline{}">{}`, failed, v.Headline)
	p.PutIf(v.Status != v.Headline, "<small>{}</small>", v.Status)
	p.Put("</p>\n")
	putList(p, "Unmet constraints", v.Proposal.Infeasible)
	putList(p, "Cut by the budget of "+dollars(v.Proposal.BudgetPerHour)+" per hour for all machines", v.Proposal.OverBudget)
	p.Put("<ul class=\"tiles\">\n")
	for _, t := range v.Tiles {
		p.Put("<li><span>{}</span><b>{}</b><span>{}</span></li>\n", t.Name, t.Value, t.Note)
	}
	p.Put("</ul>\n")
	v.putChanges(p)
	v.putCharts(p)
	v.putBinding(p)
	putList(p, "Assumptions", v.Proposal.Assumed)
	return p
}

// putList adds a heading and a list of sentences, if there are any.
func putList(p *chart.Page, heading string, sentences []string) {
	if len(sentences) == 0 {
		return
	}
	p.Put("<h2>{}</h2>\n<ul class=\"list\">", heading)
	for _, s := range sentences {
		p.Put("<li>{}</li>", s)
	}
	p.Put("</ul>\n")
}

// changesHead is the head of the table of changes, without the optional last column.
const changesHead = `<h2>Changes</h2>
<div class="wide" role="region" aria-label="Changes" tabindex="0"><table class="changes">
<thead><tr><th scope="col">region<small>model</small></th><th scope="col" class="text">runs on</th><th scope="col">current</th>` +
	`<th scope="col">change</th><th scope="col">planned</th><th scope="col">peak<small>tokens/s</small></th>` +
	`<th scope="col">planned capacity<small>tokens/s</small></th><th scope="col">region utilisation<small>at peak</small></th>`

// putChanges adds the table of changes, if there are rows.
func (v pageView) putChanges(p *chart.Page) {
	if len(v.Rows) == 0 {
		return
	}
	columns := 8
	p.Put(changesHead)
	if v.Billed {
		columns = 9
		p.Put(`<th scope="col">$/h</th>`)
	}
	p.Put("</tr></thead>\n<tbody>\n")
	for _, r := range v.Rows {
		p.Put(`<tr class="{}"><th scope="row">{}<small>{}</small></th>`, r.Class(), r.Region, r.Model)
		p.Put(`<td class="text" data-name="runs on"><span>{}`, r.Offering)
		p.PutIf(r.CapacityName != "", " <small>{}</small>", r.CapacityName)
		p.Put(`</span></td><td data-name="current">{}</td><td class="sign" data-name="change">{}</td><td data-name="planned">{}</td>`, r.Current, r.ChangeText, r.Planned)
		p.Put(`<td data-name="peak, tokens/s"><span>{}`, r.Peak)
		p.PutIf(r.PeakTime != "", " <small>{}</small>", r.PeakTime)
		p.Put(`</span></td><td data-name="planned capacity, tokens/s">{}</td><td data-name="region utilisation at peak">{}</td>`, r.PlannedCapacity, r.UtilisationText)
		p.PutIf(v.Billed, `<td data-name="$/h">{}</td>`, r.CostChangeText)
		p.Put("</tr>\n<tr class=\"{} why\"><td colspan=\"{}\">{}</td></tr>\n", r.Class(), columns, r.Reason)
	}
	p.Put("</tbody>\n</table></div>\n")
}

// putCharts adds a chart for each load curve, if there are any.
func (v pageView) putCharts(p *chart.Page) {
	if len(v.Charts) == 0 {
		return
	}
	p.Put("<h2>Load and capacity</h2>\n")
	p.PutLegend(chartLegend...)
	p.Put("<div class=\"charts\">\n")
	for _, c := range v.Charts {
		c.putFigure(p)
	}
	p.Put("</div>\n")
}

// putFigure adds a chart.
func (c loadChart) putFigure(p *chart.Page) {
	p.Put("<figure>\n<figcaption><b>{}</b> <span>{}</span><br/><span", c.Region, c.Model)
	p.PutIf(c.AboveCapacity, ` class="short"`)
	p.Put(">{}", c.Summary)
	p.PutIf(c.AboveCapacity, " (above current capacity)")
	p.Put("</span></figcaption>\n")
	c.Put(p)
	p.Put("</figure>\n")
}

// putBinding adds the binding constraints, if there are any.
func (v pageView) putBinding(p *chart.Page) {
	if len(v.Binding) == 0 {
		return
	}
	p.Put("<h2>Binding constraints</h2>\n<ul class=\"list\">")
	for _, h := range v.Binding {
		p.Put("<li><b>{}</b>", h.Name)
		p.PutIf(h.Meaning != "", ` <span class="soft">({})</span>`, h.Meaning)
		before := ": "
		for _, place := range h.Locations {
			p.Put("{}{}", before, place)
			before = "; "
		}
		p.Put("</li>")
	}
	p.Put("</ul>\n")
}
