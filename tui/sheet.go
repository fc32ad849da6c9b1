package tui

import (
	"cmp"
	"slices"
)

// role is what a text means; a theme says how that looks.
type role uint8

// The roles of texts.
const (
	roleText role = iota
	roleMuted
	roleGood
	roleWarn
	roleBad
	roleAccent
	roleTitle
)

// paint is how a theme paints a role.
func (t *Theme) paint(r role) paint {
	switch r {
	case roleMuted:
		return t.muted
	case roleGood:
		return t.good
	case roleWarn:
		return t.warn
	case roleBad:
		return t.bad
	case roleAccent:
		return t.accent
	case roleTitle:
		return t.title
	}
	return paint{}
}

// sheet is what a list shows: columns, and rows in their natural order.
type sheet struct {
	noun    string // one row is called so
	columns []sheetColumn
	rows    []sheetRow
	empty   []string // what is said while there is no row
}

// sheetColumn is a column that rows can be sorted by.
type sheetColumn struct {
	column
	letter string // the capital that sorts by it, "" = none
	word   string // what it is called in the help
	// falling says that the greatest stands on top at first, as figures do.
	falling bool
	// quiet leaves the column out of a screen that is not wide while all rows agree.
	quiet bool
}

// sheetRow is one row. Texts of others in it are drawable: see Theme.text.
type sheetRow struct {
	id    string // stays the same from one snapshot to the next
	cells []value
	more  []string // what the list has no room for, shown below it while selected
}

// value is one cell: what is drawn, and what it is sorted by. Words are sorted by
// their text, figures by num; a figure that is unknown comes last either way.
type value struct {
	text    string
	role    role
	numeric bool
	known   bool
	num     float64
	// draw, where there is one, draws the cell for a width instead of text.
	draw func(w int) string
}

// in is the cell's text for a width.
func (v *value) in(w int) string {
	if v.draw != nil {
		return v.draw(w)
	}
	return v.text
}

// word is a text that is sorted as people do.
func word(text string, r role) value { return value{text: text, role: r} }

// figure is a number with the text that stands for it.
func figure(num float64, text string, r role) value {
	return value{text: text, role: r, numeric: true, known: true, num: num}
}

// noFigure is a number that nobody reported.
func noFigure() value { return value{text: unknown, role: roleMuted, numeric: true} }

// figureOf is a number that may be unknown, written by write.
func figureOf[T int | int64 | float64](p *T, write func(*T) string) value {
	if p == nil {
		return noFigure()
	}
	return figure(float64(*p), write(p), roleText)
}

// compare orders two cells of a column.
func (v value) compare(w value, falling bool) int {
	var c int
	switch {
	case v.numeric && v.known != w.known:
		if v.known {
			return -1
		}
		return 1
	case v.numeric:
		c = cmp.Compare(v.num, w.num)
	default:
		c = compareNatural(v.text, w.text)
	}
	if falling {
		return -c
	}
	return c
}

// sheetOrder is the column that a sheet is sorted by, -1 for its natural order, and
// whether that column's usual direction is turned round.
type sheetOrder struct {
	column  int
	reverse bool
}

// pick sorts by a column; the one in use is turned round.
func (o sheetOrder) pick(column int) sheetOrder {
	return sheetOrder{column, column == o.column && !o.reverse}
}

// falling reports whether the greatest comes first.
func (o sheetOrder) falling(s *sheet) bool { return s.columns[o.column].falling != o.reverse }

// selected lists the rows that pass a filter, in order.
func (s *sheet) selected(f filter, o sheetOrder) []int {
	var rows []int
	for i := range s.rows {
		if len(f) == 0 || f.matches(s.rows[i].texts()...) {
			rows = append(rows, i)
		}
	}
	if o.column < 0 || o.column >= len(s.columns) {
		return rows
	}
	falling := o.falling(s)
	slices.SortStableFunc(rows, func(a, b int) int {
		return s.rows[a].cells[o.column].compare(s.rows[b].cells[o.column], falling)
	})
	return rows
}

// texts is all that a row says.
func (r *sheetRow) texts() []string {
	texts := make([]string, 0, len(r.cells)+len(r.more))
	for _, c := range r.cells {
		texts = append(texts, c.text)
	}
	return append(texts, r.more...)
}

// agreed reports whether all rows say the same in a column.
func (s *sheet) agreed(i int) bool {
	for k := range s.rows {
		if s.rows[k].cells[i].text != s.rows[0].cells[i].text {
			return false
		}
	}
	return true
}

// fitted is the sheet's columns for a width, each as wide as its widest cell asks for.
func (s *sheet) fitted(w int) []column {
	columns := make([]column, len(s.columns))
	for i, c := range s.columns {
		columns[i] = c.column
		columns[i].out = c.out || c.quiet && w > 0 && w < wideEnough && s.agreed(i)
		most := 0
		for k := range s.rows {
			if cell := &s.rows[k].cells[i]; cell.draw != nil {
				most = c.most
			} else {
				most = max(most, width(cell.text))
			}
		}
		columns[i].least = min(most, max(c.least, 1))
		if c.right { // a figure that is cut is another figure
			columns[i].least = max(most, c.least)
		}
		if c.most == 0 || most < c.most {
			columns[i].most = most
		}
	}
	return columns
}
