package eval

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"time"

	"skyserve/internal/page"
	"skyserve/plan/chart"
)

// sageHead is the page up to its first section; {} is the names of the scenarios, each
// after a space.
//
//go:embed sage.head.html
var sageHead string

// WriteSageHTML writes reports as one page for a browser that needs nothing but
// itself: for each the table, and for each model its replicas over time.
func WriteSageHTML(out io.Writer, reports []*SageReport) error {
	names := ""
	for _, r := range reports {
		names += " " + r.Scenario
	}
	var p page.Page
	p.Put(sageHead, names)
	for _, r := range reports {
		v := sageView{Name: r.Scenario, Title: r.Title, Basis: r.basis(), Notes: r.notes()}
		v.Header, v.Rows = r.table()
		for m := range r.Constants.Models {
			v.Charts = append(v.Charts, r.chart(m))
		}
		v.put(&p)
	}
	p.Put("</body>\n</html>\n")
	if _, err := io.WriteString(out, p.String()); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// put adds a report.
func (v sageView) put(p *page.Page) {
	p.Put("<section>\n<h1>{}</h1>\n<p>{}</p>\n<p>{}</p>\n", v.Name, v.Title, v.Basis)
	p.Put("<div class=\"wide\"><table>\n<thead><tr>")
	for _, h := range v.Header {
		p.Put("<th>{}</th>", h)
	}
	p.Put("</tr></thead>\n<tbody>")
	for _, row := range v.Rows {
		p.Put("<tr>")
		for _, cell := range row {
			p.Put("<td>{}</td>", cell)
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody></table></div>\n")
	for _, n := range v.Notes {
		p.Put("<p>{}</p>\n", n)
	}
	for _, c := range v.Charts {
		c.put(p)
	}
	p.Put("</section>\n")
}

// put adds a chart.
func (c sageChart) put(p *page.Page) {
	p.Put("<h2>{}: replicas over time, all regions, seed 1</h2>\n<p class=\"key\">", c.Model)
	for _, l := range c.Lines {
		p.Put(`<span><svg viewBox="0 0 26 8" aria-hidden="true"><path class="{}" d="M0,4H26"/></svg>{}</span>`, l.Class, l.Name)
	}
	p.Put("</p>\n<svg viewBox=\"0 0 1000 240\" role=\"img\" aria-label=\"{}: replicas over time\">\n", c.Model)
	for _, t := range c.Counts {
		p.Put("<line class=\"axis\" x1=\"40\" x2=\"990\" y1=\"{}\" y2=\"{}\"/>", t.At, t.At)
		p.Put("<text x=\"34\" y=\"{}\" text-anchor=\"end\" dominant-baseline=\"middle\">{}</text>\n", t.At, t.Text)
	}
	for _, t := range c.Times {
		p.Put("<text x=\"{}\" y=\"236\" text-anchor=\"middle\">{}</text>\n", t.At, t.Text)
	}
	for _, l := range c.Lines {
		p.Put("<path class=\"{}\" d=\"{}\"/>\n", l.Class, l.Path)
	}
	p.Put("</svg>\n")
}

// sageView is a report as the page shows it.
type sageView struct {
	Name, Title, Basis string
	Header             []string
	Rows               [][]string
	Notes              []string
	Charts             []sageChart
}

// sageChart is a model's replicas over time under each strategy.
type sageChart struct {
	Model         string
	Lines         []sageLine
	Counts, Times []sageTick
}

type sageLine struct{ Name, Class, Path string }

type sageTick struct {
	At   float64
	Text string
}

// The plot in SVG units, inside a view of 1000 x 240.
const (
	sageLeft, sageRight = 40.0, 990.0
	sageTop, sageFoot   = 10.0, 215.0
)

func (r *SageReport) chart(model int) sageChart {
	out := sageChart{Model: r.Constants.Models[model].Model}
	counts := make([][]int, len(r.courses))
	most := 1
	for k := range r.courses {
		counts[k] = r.courses[k].count(model)
		for _, n := range counts[k] {
			most = max(most, n)
		}
	}
	length := time.Duration(r.Constants.DurationHours * float64(time.Hour))
	y := func(n int) float64 { return sageFoot - (sageFoot-sageTop)*float64(n)/float64(most) }
	x := func(at time.Duration) float64 { return sageLeft + (sageRight-sageLeft)*float64(at)/float64(length) }
	for k := range r.courses {
		c := &r.courses[k]
		points := make([]chart.Point, len(counts[k]))
		for i, n := range counts[k] {
			points[i] = chart.Point{X: chart.Tenth(x(c.moments[i].At)), Y: chart.Tenth(y(n))}
		}
		name := c.strategy
		if c.label != "" {
			name = c.label
		}
		out.Lines = append(out.Lines, sageLine{name, fmt.Sprintf("s%d", k%5), chart.Line(points)})
	}
	for _, v := range chart.Marks(float64(most), 5) {
		if v == math.Trunc(v) { // replicas are whole
			out.Counts = append(out.Counts, sageTick{y(int(v)), fmt.Sprint(v)})
		}
	}
	for k := range 7 {
		at := length * time.Duration(k) / 6
		out.Times = append(out.Times, sageTick{x(at), fmt.Sprintf("%.4g h", at.Hours())})
	}
	return out
}

// count is a model's replicas at each moment, over all its endpoints.
func (c *sageCourse) count(model int) []int {
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
