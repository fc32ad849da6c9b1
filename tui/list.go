package tui

import (
	"strings"
)

// list is the pane that shows a sheet: it scrolls so that the selected row stays in
// sight, and keeps its selection, marks, order and filter from one sheet to the next.
type list struct {
	width, height int // height counts the title

	order    sheetOrder
	filtered string
	sheet    sheet
	shown    []int // rows of the sheet, filtered and sorted
	selected int   // index into shown; -1 = none
	id       string
	offset   int // first row in sight
	marks    marks
}

// newList is an empty list.
func newList() list { return list{selected: -1, order: sheetOrder{column: -1}} }

// SetSize says how much room the pane has.
func (l *list) SetSize(width, height int) {
	l.width, l.height = width, height
	l.scroll()
}

// set takes a new sheet and finds the selected row in it again; where it is gone,
// whichever took its place is selected.
func (l *list) set(s sheet) {
	l.sheet = s
	l.shown = s.selected(parseFilter(l.filtered), l.order)
	l.marks.keep(func(id string) bool {
		for i := range s.rows {
			if s.rows[i].id == id {
				return true
			}
		}
		return false
	})
	switch at := l.find(l.id); {
	case l.selected < 0 || len(l.shown) == 0:
		l.selected = -1
	case at >= 0:
		l.selected = at
	default:
		l.selectRow(l.selected)
	}
	l.scroll()
}

// find is where the row of that id is shown, -1 where it is not.
func (l *list) find(id string) int {
	for i, r := range l.shown {
		if l.sheet.rows[r].id == id {
			return i
		}
	}
	return -1
}

// selectRow selects the i-th row that is shown, or the nearest.
func (l *list) selectRow(i int) {
	if len(l.shown) == 0 {
		l.selected = -1
		return
	}
	l.selected = min(max(i, 0), len(l.shown)-1)
	l.id = l.sheet.rows[l.shown[l.selected]].id
	l.scroll()
}

// move moves the selection by n rows; the first move selects what is on top.
func (l *list) move(n int) {
	if l.selected < 0 {
		l.selectRow(l.offset + max(n-1, 0))
		return
	}
	l.selectRow(l.selected + n)
}

// unselect gives the selection up.
func (l *list) unselect() { l.selected, l.offset = -1, 0 }

// page is the number of rows in sight.
func (l *list) page() int {
	if l.height <= 0 {
		return len(l.shown)
	}
	return max(l.height-1, 0)
}

// selection is the id of the selected row.
func (l *list) selection() (id string, ok bool) {
	r, ok := l.current()
	return r.id, ok
}

// scroll keeps the selection in sight and the last row at the bottom.
func (l *list) scroll() {
	if l.selected >= 0 {
		l.offset = min(max(l.offset, l.selected-l.page()+1), l.selected)
	}
	l.offset = max(min(l.offset, len(l.shown)-l.page()), 0)
}

// current is the selected row; ok is false when none is.
func (l *list) current() (r sheetRow, ok bool) {
	if l.selected < 0 || l.selected >= len(l.shown) {
		return r, false
	}
	return l.sheet.rows[l.shown[l.selected]], true
}

// chosen is the ids of the marked rows, or of the selected one where none is marked.
func (l *list) chosen() []string {
	r, ok := l.current()
	return l.marks.chosen(r.id, ok)
}

// filterText and setFilter are the filter in force, as it was typed.
func (l *list) filterText() string     { return l.filtered }
func (l *list) setFilter(text string)  { l.filtered = text }
func (l *list) counts() (shown, n int) { return len(l.shown), len(l.sheet.rows) }
func (l *list) noun() string           { return l.sheet.noun }

// toggle marks the selected row, or takes its mark away.
func (l *list) toggle() {
	if r, ok := l.current(); ok {
		l.marks.toggle(r.id)
	}
}

// sortNext sorts by the next column that can be sorted by.
func (l *list) sortNext() {
	for range l.sheet.columns {
		l.order = sheetOrder{column: (l.order.column + 1) % len(l.sheet.columns)}
		if l.sheet.columns[l.order.column].letter != "" {
			return
		}
	}
}

// sortBy sorts by the column of that letter; false where there is none.
func (l *list) sortBy(letter string) bool {
	for i, c := range l.sheet.columns {
		if c.letter == letter && letter != "" {
			l.order = l.order.pick(i)
			return true
		}
	}
	return false
}

// letters are the columns that can be sorted by, with what they are called.
func (l *list) letters() [][2]string {
	var letters [][2]string
	for _, c := range l.sheet.columns {
		if c.letter != "" {
			letters = append(letters, [2]string{c.letter, c.word})
		}
	}
	return letters
}

// click takes a click on a line of the pane: on its title it sorts, on a row it
// selects. It reports whether the row was selected before.
func (l *list) click(x, y int) (again bool) {
	if y == 0 {
		g := l.grid(nil)
		if i := g.at(x - margin); i >= 0 {
			l.sortBy(l.sheet.columns[i].letter)
		}
		return false
	}
	if at := l.offset + y - 1; at < len(l.shown) {
		again = at == l.selected
		l.selectRow(at)
	}
	return again
}

// grid fits the columns into the width. t adds the sign of the order, where there
// is one.
func (l *list) grid(t *Theme) grid {
	columns := l.sheet.fitted(l.width)
	if o := l.order; t != nil && o.column >= 0 && o.column < len(columns) {
		columns[o.column].mark = t.orderMark(o.falling(&l.sheet))
	}
	room := 0
	if l.width > 0 {
		room = max(l.width-margin, 1)
	}
	return fitGrid(columns, room)
}

// orderMark is the sign of a sort order.
func (t *Theme) orderMark(falling bool) string {
	if falling {
		return t.glyphs.descending
	}
	return t.glyphs.ascending
}

// Render draws the title and the rows in sight; what is said of an empty sheet in
// their place.
func (l *list) Render(t *Theme) []string {
	if len(l.sheet.rows) == 0 {
		return t.said(l.sheet.empty, l.width, l.height)
	}
	g := l.grid(t)
	lines := []string{strings.Repeat(" ", margin) + g.line(t, func(i, _ int) (string, paint) {
		return g.columns[i].title + g.columns[i].mark, t.heading
	})}
	for i := l.offset; i < len(l.shown) && i < l.offset+l.page(); i++ {
		lines = append(lines, l.line(t, &g, i))
	}
	if len(l.shown) == 0 && l.page() > 0 {
		lines = append(lines, t.muted.over(t.cut("  no "+l.sheet.noun+" passes the filter", max(l.width, leastWidth))))
	}
	return lines
}

// line draws the i-th row that is shown.
func (l *list) line(t *Theme, g *grid, i int) string {
	r := &l.sheet.rows[l.shown[i]]
	cursor := l.marks.sign(t, r.id)
	cell := func(t *Theme) func(int, int) (string, paint) {
		return func(c, w int) (string, paint) { return r.cells[c].in(w), t.paint(r.cells[c].role) }
	}
	if i != l.selected {
		return " " + l.marks.painted(t, r.id) + g.line(t, cell(t))
	}
	bare := Theme{glyphs: t.glyphs}
	return t.selected.over(pad(t.glyphs.cursor+cursor+g.line(&bare, cell(&bare)), l.width, false))
}

// said is lines of text where a pane has nothing to list: the first one loud.
func (t *Theme) said(lines []string, w, h int) []string {
	var out []string
	for i, line := range lines {
		if h > 0 && i >= h {
			break
		}
		if w > 0 {
			line = t.cut(line, w)
		}
		if i > 0 {
			line = t.muted.over(line)
		}
		out = append(out, line)
	}
	return out
}

// marks are the ids of rows that an order is for.
type marks struct{ ids map[string]bool }

func (m *marks) toggle(id string) {
	if m.ids == nil {
		m.ids = map[string]bool{}
	}
	if m.ids[id] {
		delete(m.ids, id)
		return
	}
	m.ids[id] = true
}

// keep drops the marks of rows that are gone.
func (m *marks) keep(exists func(id string) bool) {
	for id := range m.ids {
		if !exists(id) {
			delete(m.ids, id)
		}
	}
}

// sign is the sign of a row's mark, or a space.
func (m *marks) sign(t *Theme, id string) string {
	if m.ids[id] {
		return t.glyphs.mark
	}
	return " "
}

// painted is the sign of a row's mark in colour.
func (m *marks) painted(t *Theme, id string) string {
	if !m.ids[id] {
		return " "
	}
	return t.accent.over(t.glyphs.mark)
}

// chosen is the marked ids in their order, or the selected one where none is marked.
func (m *marks) chosen(selected string, ok bool) []string {
	if len(m.ids) > 0 {
		return sortedNaturally(m.ids)
	}
	if ok {
		return []string{selected}
	}
	return nil
}
