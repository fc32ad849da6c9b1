package tui

import (
	"cmp"
	"slices"
)

// role is the meaning of a text; a theme maps it to a colour.
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

// paint returns the theme's paint for a role.
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

// sheet is the content of a list: columns, and rows in their default order.
type sheet struct {
	noun    string // the name of one row, in the singular
	columns []sheetColumn
	rows    []sheetRow
	empty   []string // the text shown while there are no rows
}

// sheetColumn is a column that rows can be sorted by.
type sheetColumn struct {
	column
	letter string // the capital that sorts by it, "" = none
	help   string // its name in the help
	// descending makes the default direction descending, as for numbers.
	descending bool
	// hideIfUniform omits the column from narrow screens while it is the same in all rows.
	hideIfUniform bool
}

// sheetRow is one row. Text from outside must have passed through Theme.text.
type sheetRow struct {
	id      string // stable across snapshots
	cells   []cellValue
	details []string // details shown below the list while the row is selected
}

// cellValue is one cell: its text and its sort key. Numeric cells sort by num, others by text;
// unknown numbers come last in either direction.
type cellValue struct {
	text    string
	role    role
	numeric bool
	known   bool
	num     float64
	// draw, if not nil, draws the cell for a width in place of text.
	draw func(w int) string
}

// textFor returns the cell's text for a width.
func (v *cellValue) textFor(w int) string {
	if v.draw != nil {
		return v.draw(w)
	}
	return v.text
}

// textCell returns a text cell, sorted in natural order.
func textCell(text string, r role) cellValue { return cellValue{text: text, role: r} }

// numberCell returns a numeric cell with its formatted text.
func numberCell(num float64, text string, r role) cellValue {
	return cellValue{text: text, role: r, numeric: true, known: true, num: num}
}

// unknownCell returns the cell of an unknown number.
func unknownCell() cellValue { return cellValue{text: unknown, role: roleMuted, numeric: true} }

// optionalCell returns the cell of a number that may be unknown, formatted by write.
func optionalCell[T int | int64 | float64](p *T, write func(*T) string) cellValue {
	if p == nil {
		return unknownCell()
	}
	return numberCell(float64(*p), write(p), roleText)
}

// compare compares two cells of a column.
func (v cellValue) compare(w cellValue, descending bool) int {
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
	if descending {
		return -c
	}
	return c
}

// sheetOrder is the column that a sheet is sorted by, -1 for its default order, and
// whether that column's default direction is reversed.
type sheetOrder struct {
	column  int
	reverse bool
}

// pick sorts by a column; picking the current column reverses its direction.
func (o sheetOrder) pick(column int) sheetOrder {
	return sheetOrder{column, column == o.column && !o.reverse}
}

// descending reports whether the greatest value comes first.
func (o sheetOrder) descending(s *sheet) bool { return s.columns[o.column].descending != o.reverse }

// matching returns the indices of the rows that match a filter, sorted.
func (s *sheet) matching(f filter, o sheetOrder) []int {
	var rows []int
	for i := range s.rows {
		if len(f) == 0 || f.matches(s.rows[i].texts()...) {
			rows = append(rows, i)
		}
	}
	if o.column < 0 || o.column >= len(s.columns) {
		return rows
	}
	falling := o.descending(s)
	slices.SortStableFunc(rows, func(a, b int) int {
		return s.rows[a].cells[o.column].compare(s.rows[b].cells[o.column], falling)
	})
	return rows
}

// texts returns all texts of a row.
func (r *sheetRow) texts() []string {
	texts := make([]string, 0, len(r.cells)+len(r.details))
	for _, c := range r.cells {
		texts = append(texts, c.text)
	}
	return append(texts, r.details...)
}

// uniform reports whether all rows have the same text in a column.
func (s *sheet) uniform(i int) bool {
	for k := range s.rows {
		if s.rows[k].cells[i].text != s.rows[0].cells[i].text {
			return false
		}
	}
	return true
}

// repeats reports whether two rows have the same text in a column.
func (s *sheet) repeats(i int) bool {
	seen := map[string]bool{}
	for k := range s.rows {
		seen[s.rows[k].cells[i].text] = true
	}
	return len(seen) < len(s.rows)
}

// distinctWidth returns the width from which different texts in a column look different: they are cut at their end.
func (s *sheet) distinctWidth(i int) int {
	var texts []string
	for k := range s.rows {
		texts = append(texts, s.rows[k].cells[i].text)
	}
	return distinctWidth(texts)
}

// fitColumns returns the sheet's columns for a width, each at most as wide as its widest cell.
func (s *sheet) fitColumns(w int) []column {
	columns := make([]column, len(s.columns))
	for i, c := range s.columns {
		columns[i] = c.column
		columns[i].hidden = c.hidden || c.hideIfUniform && w > 0 && w < fullWidth && s.uniform(i)
		longest := 0
		for k := range s.rows {
			if cell := &s.rows[k].cells[i]; cell.draw != nil {
				longest = c.maxWidth
			} else {
				longest = max(longest, width(cell.text))
			}
		}
		columns[i].minWidth = min(longest, max(c.minWidth, 1))
		if names := i == 0 || c.hideIfUniform && !s.uniform(i) && s.repeats(0); names && !c.right && c.maxWidth > 0 {
			// It tells rows apart, such as the region, and the model where a region has several.
			columns[i].minWidth, columns[i].dropRank = max(columns[i].minWidth, min(s.distinctWidth(i), c.maxWidth)), 0
		}
		if c.right { // a truncated number would be a different number
			columns[i].minWidth = max(longest, c.minWidth)
		}
		if c.maxWidth == 0 || longest < c.maxWidth {
			columns[i].maxWidth = longest
		}
	}
	return columns
}
