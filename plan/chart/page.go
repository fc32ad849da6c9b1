package chart

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"
)

// Page builds an HTML page in which every value is escaped; the zero value is empty. It replaces
// the standard library's templates, which resolve methods by name: a program that does so
// keeps every method of everything it links, which for cloud SDKs is tens of megabytes.
type Page struct {
	text strings.Builder
}

// pageHead is a page up to its title, and pageStyle the style of all pages and drawings.
const pageHead = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<title>{}</title>
<style>
`

//go:embed page.css
var pageStyle string

// NewPage starts a page, with style added to the style of all pages.
func NewPage(title, style string) *Page {
	var p Page
	p.Put(pageHead, title)
	p.text.WriteString(pageStyle + style + "</style>\n</head>\n<body>\n")
	return &p
}

// Put adds markup in which each {} is replaced by the next value, formatted by fmt and escaped for
// text and for attributes in double quotes. The markup must come from the program, never from a
// user. Put panics when the number of values does not match.
func (p *Page) Put(markup string, values ...any) {
	parts := strings.Split(markup, "{}")
	if len(parts) != len(values)+1 {
		panic(fmt.Sprintf("chart: %d values for %d places in %q", len(values), len(parts)-1, markup))
	}
	for i, part := range parts {
		p.text.WriteString(part)
		if i < len(values) {
			p.text.WriteString(html.EscapeString(fmt.Sprint(values[i])))
		}
	}
}

// PutIf calls Put when holds is true.
func (p *Page) PutIf(holds bool, markup string, values ...any) {
	if holds {
		p.Put(markup, values...)
	}
}

// LegendEntry is an entry of a legend: how something is drawn, and its text. Without a class it is only
// text.
type LegendEntry struct {
	Class  string
	Area   bool // an area instead of a line
	Number int  // of a Span, instead of a line
	Text   string
}

// PutLegend adds a legend.
func (p *Page) PutLegend(keys ...LegendEntry) {
	p.Put(`<p class="key">`)
	for _, k := range keys {
		p.Put("<span>")
		switch {
		case k.Number > 0:
			p.Put(`<b class="badge {}">{}</b>`, k.Class, k.Number)
		case k.Class != "":
			path := "M0 5H26"
			if k.Area {
				path = "M0 1H26V9H0Z"
			}
			p.Put(`<svg class="plot" viewBox="0 0 26 10" aria-hidden="true"><path class="{}" d="{}"/></svg>`, k.Class, path)
		}
		p.Put("{}</span>", k.Text)
	}
	p.Put("</p>\n")
}

// Write ends the page and writes it.
func (p *Page) Write(w io.Writer) error {
	p.Put("</body>\n</html>\n")
	if _, err := io.WriteString(w, p.text.String()); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
