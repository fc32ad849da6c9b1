// Package page writes pages of HTML in which every value is escaped. It stands in
// for the standard library's templates, which look methods up by name: a program that
// does so carries every method of everything it links, which for cloud SDKs is tens
// of megabytes.
package page

import (
	"fmt"
	"html"
	"strings"
)

// Page is a page as it is written; the zero value is empty.
type Page struct {
	text strings.Builder
}

// Put adds markup in which each {} stands for the next value, as fmt prints it and
// escaped for text and for attributes in double quotes. The markup is written by the
// caller, never by a user; too few or too many values are an error of the caller's
// that panics.
func (p *Page) Put(markup string, values ...any) {
	parts := strings.Split(markup, "{}")
	if len(parts) != len(values)+1 {
		panic(fmt.Sprintf("page: %d values for %d places in %q", len(values), len(parts)-1, markup))
	}
	for i, part := range parts {
		p.text.WriteString(part)
		if i < len(values) {
			p.text.WriteString(html.EscapeString(fmt.Sprint(values[i])))
		}
	}
}

// PutIf is Put where a condition holds.
func (p *Page) PutIf(holds bool, markup string, values ...any) {
	if holds {
		p.Put(markup, values...)
	}
}

// String is the page.
func (p *Page) String() string { return p.text.String() }
