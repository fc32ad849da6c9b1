package eval

import (
	_ "embed"

	"skyserve/internal/page"
)

// pageHead is the page up to its body; {} is the names of the scenarios, each after a space.
//
//go:embed page.head.html
var pageHead string

// star marks the policy that leads.
const star = `<span class="star">★</span>`

// markup is the page of several reports.
func markup(views []view) string {
	var p page.Page
	names := ""
	for _, v := range views {
		names += " " + v.Name
	}
	p.Put(pageHead, names)
	for _, v := range views {
		v.put(&p)
	}
	p.Put("</body>\n</html>\n")
	return p.String()
}

// put adds a report.
func (v view) put(p *page.Page) {
	p.Put("<section>\n<h1>{}</h1>\n<p>{}</p>\n<p>{}</p>\n", v.Name, v.Title, v.Basis)
	p.PutIf(v.Headline != "", "<p class=\"headline\">{}</p>\n", v.Headline)
	v.putTable(p)
	if v.Compares || v.Oracle {
		p.Put(`<p class="key">`)
		p.PutIf(v.Compares, `<span>`+star+` most output of the policies that can be run</span><span><b>bold</b> best of its column</span>`)
		p.PutIf(v.Oracle, `<span><i>oracle</i> knows what no balancer can: what throughput to measure against, not a policy to run</span>`)
		p.Put("</p>\n")
	}
	p.PutIf(v.Note != "", "<p class=\"note\">paper: {}</p>\n", v.Note)
	v.putClaims(p)
	p.Put("<div class=\"charts\">\n")
	for _, c := range v.Charts {
		c.put(p)
	}
	p.Put("</div>\n")
	if v.Courses != nil {
		v.Courses.put(p)
	}
	p.Put("</section>\n")
}

// putTable adds the table of policies.
func (v view) putTable(p *page.Page) {
	p.Put("<div class=\"wide\" role=\"region\" aria-label=\"Figures of {}\" tabindex=\"0\"><table class=\"policies\">\n", v.Name)
	p.Put(`<thead><tr><th scope="col">policy<small>push, layout</small></th>`)
	for _, c := range v.Columns {
		p.Put(`<th scope="col">{}<small>{}</small></th>`, c.Name, c.Unit)
	}
	p.Put("</tr></thead>\n<tbody>\n")
	for _, r := range v.Rows {
		p.Put(`<tr class="{}"><th scope="row">{}`, r.Style(), r.Policy)
		p.PutIf(r.Leader, " "+star)
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

// putClaims adds the paper's figures beside ours, where there are any.
func (v view) putClaims(p *page.Page) {
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

// put adds a chart.
func (c *policyChart) put(p *page.Page) {
	p.Put("<figure")
	p.PutIf(c.Wide, ` class="across"`)
	p.Put(">\n<h2>{}</h2>\n<p class=\"key\">", c.Title)
	for _, l := range c.Legend {
		p.Put("<span>{}</span>", l)
	}
	p.Put("</p>\n<div class=\"plot")
	p.PutIf(c.Long, " long")
	p.Put("\">\n<svg class=\"back\" aria-hidden=\"true\">")
	for _, t := range c.Ticks {
		p.Put(`<line class="grid" x1="{}%" x2="{}%" y2="100%"/>`, t.X, t.X)
	}
	p.PutIf(c.Oracle != 0, `<line class="limit" x1="{}%" x2="{}%" y2="100%"/>`, c.Oracle, c.Oracle)
	p.Put("</svg>\n")
	for i := range c.Rows {
		c.Rows[i].put(p)
	}
	p.Put(`<div class="row ticks" aria-hidden="true"><span class="label"></span><svg class="strip">`)
	for _, t := range c.Ticks {
		p.Put(`<text x="{}%" y="15" text-anchor="middle">{}</text>`, t.X, t.Label)
	}
	p.Put("</svg><span class=\"value\"></span></div>\n</div>\n</figure>\n")
}

// put adds a policy's row of a chart.
func (r *chartRow) put(p *page.Page) {
	p.Put(`<div class="row {}"><span class="label" title="{}, {}">`, r.Style(), r.Policy, r.Push)
	p.PutIf(r.Leader, star+" ")
	p.Put(`{}<span class="soft">, {}</span></span><svg class="strip" role="img"><title>{}</title><rect width="100%" height="26" opacity="0"/>`, r.Policy, r.Push, r.Tip)
	if b := r.Box; b != nil {
		p.Put(`<line class="whisker" x1="{}%" x2="{}%" y1="13" y2="13"/><rect class="box" x="{}%" y="5" width="{}%" height="16"/>`, b.P10, b.P90, b.P25, b.Wide())
		p.Put(`<line class="median" x1="{}%" x2="{}%" y1="5" y2="21"/>`, b.P50, b.P50)
		putEnds(p, b.P10, b.P90)
	}
	if b := r.Bar; b != nil {
		p.Put(`<rect class="box" y="5" width="{}%" height="16"/>`, b.Width)
		if b.Spread() {
			p.Put(`<line class="whisker" x1="{}%" x2="{}%" y1="13" y2="13"/>`, b.Lo, b.Hi)
			putEnds(p, b.Lo, b.Hi)
		}
	}
	for _, m := range r.Marks {
		m.put(p)
	}
	p.Put("</svg><span class=\"value\">{}</span></div>\n", r.Value)
}

// putEnds adds the ends of whiskers.
func putEnds(p *page.Page, ends ...float64) {
	for _, x := range ends {
		p.Put(`<line class="whisker" x1="{}%" x2="{}%" y1="8" y2="18"/>`, x, x)
	}
}

// put adds a mark.
func (m mark) put(p *page.Page) {
	if m.Reference {
		p.Put(`<svg x="{}%"><title>{}</title><path class="reference" d="M0 7l5 6l-5 6l-5-6z"/></svg>`, m.From, m.Tip)
		return
	}
	const claim = `<path class="claim" d="M-5 0h10l-5 7z"/></svg>`
	p.Put(`<svg x="{}%"><title>{}</title>`+claim, m.From, m.Tip)
	if m.Wide() != 0 {
		p.Put(`<line class="claimed" x1="{}%" x2="{}%" y1="1" y2="1"/><svg x="{}%">`+claim, m.From, m.To, m.To)
	}
}

// coursesKey says what the lines and areas of the load over time are.
const coursesKey = `<p class="key"><span><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><line class="run" x2="26" y1="5" y2="5" stroke="currentColor"/></svg>` +
	`requests in the engines of a region, waiting or running</span>` +
	`<span><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><rect class="held" y="2" width="26" height="8" stroke="currentColor" fill="currentColor"/></svg>held by its balancers</span>` +
	`<span><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><rect class="warm" width="26" height="10"/></svg>warm-up</span></p>
`

// put adds the load over time.
func (c *courses) put(p *page.Page) {
	p.Put("<figure class=\"courses\">\n<h2>Load over time</h2>\n<p class=\"key\">")
	for i, name := range c.Regions {
		p.Put(`<span><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><line class="run r{}" x2="26" y1="5" y2="5"/></svg>{}</span>`, i, name)
	}
	p.Put("<span class=\"soft\">one scale for all panels, seed {}</span></p>\n"+coursesKey, c.Seed)
	if len(c.Events) > 0 {
		p.Put(`<p class="key">`)
		for _, e := range c.Events {
			p.Put(`<span><b class="badge`)
			p.PutIf(e.Surge, " of-surge")
			p.Put(`">{}</b>{}</span>`, e.Number, e.Text)
		}
		p.Put("</p>\n")
	}
	p.Put("<div class=\"panels\">\n")
	for i := range c.Panels {
		c.putPanel(p, &c.Panels[i])
	}
	p.Put("</div>\n</figure>\n")
}

// putPanel adds one policy's load over time.
func (c *courses) putPanel(p *page.Page, of *panel) {
	p.Put(`<div class="{}"><h3><span>{}<span class="soft">, {}</span></span>`, of.Style(), of.Policy, of.Push)
	p.PutIf(of.Leader, star)
	p.Put("<span class=\"soft end\">{}</span></h3>\n<svg class=\"panel\" viewBox=\"0 0 {} {}\" role=\"img\"><title>{}</title>\n", of.Speed(), c.Width, c.Height, of.Tip)
	p.Put(`<rect width="{}" height="{}" opacity="0"/>`, c.Width, c.Height)
	for _, t := range c.Counts {
		p.Put(`<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" dx="-6" dy="4" text-anchor="end">{}</text>`, c.Left, c.Right, t.X, t.X, c.Left, t.X, t.Label)
	}
	for _, t := range c.Times {
		p.Put(`<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="middle">{}</text>`, t.X, t.X, c.Top, c.Bottom, t.X, c.TimeY, t.Label)
	}
	p.PutIf(c.Warmth() != 0, `<rect class="warm" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>`, c.Left, c.Top, c.Warmth(), c.Tall(), c.WarmTip)
	for _, e := range c.Events {
		c.putEvent(p, e)
	}
	p.Put("\n<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">", c.Left, c.Top, c.Inner(), c.Tall(), c.GridWide, c.GridHigh)
	for _, l := range of.Lines {
		class := "run"
		if l.Held {
			class = "held"
		}
		p.Put(`<path class="{} r{}" d="{}"/>`, class, l.Region, l.Path)
	}
	p.Put("</svg>\n</svg></div>\n")
}

// putEvent adds what happened meanwhile.
func (c *courses) putEvent(p *page.Page, e courseEvent) {
	class := "fault"
	if e.Surge {
		class = "surge"
	}
	p.Put(`<g class="{}"><title>{}</title><rect class="during" x="{}" y="{}" width="{}" height="{}"/>`, class, e.Text, e.X, c.Top, e.Wide, c.Tall())
	p.Put(`<rect x="{}" y="{}" width="{}" height="{}" rx="2"/>`, e.Lane.X, e.Lane.Y, e.Lane.Wide, e.Lane.High)
	p.Put(`<text class="number" x="{}" y="{}" text-anchor="middle">{}</text></g>`, e.Lane.Middle, e.Lane.Foot, e.Number)
}
