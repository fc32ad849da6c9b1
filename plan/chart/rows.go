package chart

import "unicode/utf8"

// BarChart is a drawing with one row per subject and values along one scale.
type BarChart struct {
	X     Scale
	Ticks []Tick
	Limit float64 // a line across all rows; none at 0
	Rows  []BarRow
}

// BarRow is a subject: its name with a note, its measured value, and the values it is compared with.
type BarRow struct {
	Class, Name, Note string
	Star              bool
	Value, Tip        string // at the right end, and as a tooltip of the row
	Box               *Box   // nil where there is no measurement
	Comparisons       []Comparison
}

// Box is a bar from From to To with whiskers from Low to High, none where they are
// equal, and a line across it at Middle, none at 0.
type Box struct{ From, To, Low, High, Middle float64 }

// Comparison is a value that a row is compared with: a reference, or a span that a paper claims, where
// From and To are equal for a single number.
type Comparison struct {
	Reference bool
	From, To  float64
	Tip       string
}

// maxShortName is the number of letters that fit beside a drawing at the usual width.
const maxShortName = 26

// Star is the symbol of a leading subject.
const Star = `<span class="star">★</span>`

// Put adds the drawing to a page.
func (r BarChart) Put(page *Page) {
	page.Put(`<div class="rows`)
	for _, row := range r.Rows {
		if utf8.RuneCountInString(row.Name+", "+row.Note) > maxShortName {
			page.Put(" long")
			break
		}
	}
	page.Put("\">\n<svg class=\"back\" aria-hidden=\"true\">")
	for _, m := range r.Ticks {
		page.Put(`<line class="grid" x1="{}%" x2="{}%" y2="100%"/>`, r.X.At(m.Value), r.X.At(m.Value))
	}
	page.PutIf(r.Limit != 0, `<line class="limit" x1="{}%" x2="{}%" y2="100%"/>`, r.X.At(r.Limit), r.X.At(r.Limit))
	page.Put("</svg>\n")
	for _, row := range r.Rows {
		row.put(page, r.X)
	}
	page.Put(`<div class="row ticks" aria-hidden="true"><span class="label"></span><svg class="strip">`)
	for _, m := range r.Ticks {
		page.Put(`<text x="{}%" y="15" text-anchor="middle">{}</text>`, r.X.At(m.Value), m.Text)
	}
	page.Put("</svg><span class=\"value\"></span></div>\n</div>\n")
}

func (r *BarRow) put(page *Page, x Scale) {
	page.Put(`<div class="row {}"><span class="label" title="{}, {}">`, r.Class, r.Name, r.Note)
	page.PutIf(r.Star, Star+" ")
	page.Put(`{}<span class="soft">, {}</span></span><svg class="strip" role="img"><title>{}`, r.Name, r.Note, r.Tip)
	for _, o := range r.Comparisons {
		page.Put("; {}", o.Tip)
	}
	page.Put(`</title><rect width="100%" height="26" opacity="0"/>`)
	if b := r.Box; b != nil {
		from, low, high := x.At(b.From), x.At(b.Low), x.At(b.High)
		page.Put(`<rect class="box" x="{}%" y="5" width="{}%" height="16"/>`, from, tenth(x.At(b.To)-from))
		page.PutIf(b.Middle != 0, `<line class="median" x1="{}%" x2="{}%" y1="5" y2="21"/>`, x.At(b.Middle), x.At(b.Middle))
		if b.Low < b.High {
			const whisker = `<line class="whisker" x1="{}%" x2="{}%" y1="{}" y2="{}"/>`
			page.Put(whisker+whisker+whisker, low, high, 13, 13, low, low, 8, 18, high, high, 8, 18)
		}
	}
	for _, o := range r.Comparisons {
		o.put(page, x.At(o.From), x.At(o.To))
	}
	page.Put("</svg><span class=\"value\">{}</span></div>\n", r.Value)
}

func (o *Comparison) put(page *Page, from, to float64) {
	if o.Reference {
		page.Put(`<svg x="{}%"><title>{}</title><path class="reference" d="M0 7l5 6l-5 6l-5-6z"/></svg>`, from, o.Tip)
		return
	}
	const claim = `<path class="claim" d="M-5 0h10l-5 7z"/></svg>`
	page.Put(`<svg x="{}%"><title>{}</title>`+claim, from, o.Tip)
	page.PutIf(from != to, `<line class="claimed" x1="{}%" x2="{}%" y1="1" y2="1"/><svg x="{}%">`+claim, from, to, to)
}
