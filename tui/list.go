package tui

import (
	"strings"
)

// list is the pane that shows a sheet. It scrolls to keep the selected row visible, and
// keeps selection, marks, order and filter from one sheet to the next.
type list struct {
	width, height int // height counts the title

	order    sheetOrder
	filter   string
	sheet    sheet
	shown    []int // rows of the sheet, filtered and sorted
	selected int   // index into shown; -1 = none
	id       string
	offset   int // first visible row
	marks    marks
}

// newList returns an empty list.
func newList() list { return list{selected: -1, order: sheetOrder{column: -1}} }

// SetSize sets the size of the pane.
func (l *list) SetSize(width, height int) {
	l.width, l.height = width, height
	l.scroll()
}

// setSheet replaces the sheet and keeps the selected row selected. If that row no longer exists,
// the row now in its position is selected.
func (l *list) setSheet(s sheet) {
	l.sheet = s
	l.shown = s.matching(parseFilter(l.filter), l.order)
	l.marks.retain(func(id string) bool {
		for i := range s.rows {
			if s.rows[i].id == id {
				return true
			}
		}
		return false
	})
	switch at := l.indexOf(l.id); {
	case l.selected < 0 || len(l.shown) == 0:
		l.selected = -1
	case at >= 0:
		l.selected = at
	default:
		l.selectRow(l.selected)
	}
	l.scroll()
}

// indexOf returns the index of the shown row of that id, -1 if it is not shown.
func (l *list) indexOf(id string) int {
	for i, r := range l.shown {
		if l.sheet.rows[r].id == id {
			return i
		}
	}
	return -1
}

// selectRow selects the i-th shown row, or the nearest.
func (l *list) selectRow(i int) {
	if len(l.shown) == 0 {
		l.selected = -1
		return
	}
	l.selected = min(max(i, 0), len(l.shown)-1)
	l.id = l.sheet.rows[l.shown[l.selected]].id
	l.scroll()
}

// moveSelection moves the selection by n rows; the first move selects the first visible row.
func (l *list) moveSelection(n int) {
	if l.selected < 0 {
		l.selectRow(l.offset + max(n-1, 0))
		return
	}
	l.selectRow(l.selected + n)
}

// unselect clears the selection.
func (l *list) unselect() { l.selected, l.offset = -1, 0 }

// visibleRows returns the number of visible rows.
func (l *list) visibleRows() int {
	if l.height <= 0 {
		return len(l.shown)
	}
	return max(l.height-1, 0)
}

// selection returns the id of the selected row.
func (l *list) selection() (id string, ok bool) {
	r, ok := l.current()
	return r.id, ok
}

// scroll keeps the selection visible and leaves no empty lines below the last row.
func (l *list) scroll() {
	if l.selected >= 0 {
		l.offset = min(max(l.offset, l.selected-l.visibleRows()+1), l.selected)
	}
	l.offset = max(min(l.offset, len(l.shown)-l.visibleRows()), 0)
}

// current returns the selected row; ok is false when none is selected.
func (l *list) current() (r sheetRow, ok bool) {
	if l.selected < 0 || l.selected >= len(l.shown) {
		return r, false
	}
	return l.sheet.rows[l.shown[l.selected]], true
}

// targetIDs returns the ids of the marked rows, or of the selected row if none is marked.
func (l *list) targetIDs() []string {
	r, ok := l.current()
	return l.marks.targetIDs(r.id, ok)
}

// filterText and setFilter get and set the filter as the user typed it.
func (l *list) filterText() string     { return l.filter }
func (l *list) setFilter(text string)  { l.filter = text }
func (l *list) counts() (shown, n int) { return len(l.shown), len(l.sheet.rows) }
func (l *list) noun() string           { return l.sheet.noun }

// toggleMark marks or unmarks the selected row.
func (l *list) toggleMark() {
	if r, ok := l.current(); ok {
		l.marks.toggle(r.id)
	}
}

// sortNext sorts by the next sortable column.
func (l *list) sortNext() {
	for range l.sheet.columns {
		l.order = sheetOrder{column: (l.order.column + 1) % len(l.sheet.columns)}
		if l.sheet.columns[l.order.column].letter != "" {
			return
		}
	}
}

// sortBy sorts by the column of that letter; false if there is none.
func (l *list) sortBy(letter string) bool {
	for i, c := range l.sheet.columns {
		if c.letter == letter && letter != "" {
			l.order = l.order.pick(i)
			return true
		}
	}
	return false
}

// sortHelp returns the letters and names of the sortable columns.
func (l *list) sortHelp() [][2]string {
	var letters [][2]string
	for _, c := range l.sheet.columns {
		if c.letter != "" {
			letters = append(letters, [2]string{c.letter, c.help})
		}
	}
	return letters
}

// click handles a click on a line of the pane: on the title it sorts, on a row it selects
// the row. It reports whether that row was already selected.
func (l *list) click(x, y int) (again bool) {
	if y == 0 {
		g := l.grid(nil)
		if i := g.at(x - margin); i >= 0 {
			l.sortBy(l.sheet.columns[i].letter)
		}
		return false
	}
	g, line := l.grid(nil), y-1
	more := l.moreLines(&g)
	for at := l.offset; at < len(l.shown); at++ {
		if more != nil {
			line -= more[at]
		}
		if line--; line < 0 {
			again = at == l.selected
			l.selectRow(at)
			break
		}
	}
	return again
}

// moreLines returns for each shown row how many lines its last column gets beyond the first, of those that the rows
// leave free; nil = none.
func (l *list) moreLines(g *grid) []int {
	last, free := len(g.columns)-1, l.height-1-len(l.shown)
	if free <= 0 || g.widths[last] == 0 || g.columns[last].right {
		return nil
	}
	more := make([]int, len(l.shown))
	for i, r := range l.shown {
		cell := &l.sheet.rows[r].cells[last]
		if cell.draw == nil && !hasLongWord(cell.text, g.widths[last]) {
			more[i] = min(len(wrap(cell.text, g.widths[last]))-1, free)
			free -= more[i]
		}
	}
	return more
}

// grid fits the columns into the width. If t is not nil, the title of the sorted column
// carries the symbol of the sort order.
func (l *list) grid(t *Theme) grid {
	columns := l.sheet.fitColumns(l.width)
	if o := l.order; t != nil && o.column >= 0 && o.column < len(columns) {
		columns[o.column].mark = t.orderMark(o.descending(&l.sheet))
	}
	available := 0
	if l.width > 0 {
		available = max(l.width-margin, 1)
	}
	return fitGrid(columns, available)
}

// orderMark returns the symbol of a sort order.
func (t *Theme) orderMark(descending bool) string {
	if descending {
		return t.glyphs.descending
	}
	return t.glyphs.ascending
}

// Render draws the title and the visible rows, or the text for an empty sheet.
func (l *list) Render(t *Theme) []string {
	if len(l.sheet.rows) == 0 {
		return t.emptyText(l.sheet.empty, l.width, l.height)
	}
	g := l.grid(t)
	lines := []string{strings.Repeat(" ", margin) + g.line(t, func(i, _ int) (string, paint) {
		return g.columns[i].title + g.columns[i].mark, t.heading
	})}
	more := l.moreLines(&g)
	for i := l.offset; i < len(l.shown) && i < l.offset+l.visibleRows(); i++ {
		n := 0
		if more != nil {
			n = more[i]
		}
		lines = append(lines, l.rowLines(t, &g, i, n)...)
	}
	if len(l.shown) == 0 && l.visibleRows() > 0 {
		lines = append(lines, t.muted.apply(t.cut("  no "+l.sheet.noun+" matches the filter", max(l.width, minWidth))))
	}
	return lines
}

// rowLines draws the i-th shown row, with more lines for the rest of its last column.
func (l *list) rowLines(t *Theme, g *grid, i, more int) []string {
	r, last := &l.sheet.rows[l.shown[i]], len(g.columns)-1
	var rest []string // of the last column
	if more > 0 {
		rest = wrap(r.cells[last].text, g.widths[last])
		if len(rest) > more+1 {
			rest = append(rest[:more], t.cut(strings.Join(rest[more:], " "), g.widths[last]))
		}
	}
	draw := func(t *Theme, line int) string {
		return g.line(t, func(c, w int) (string, paint) {
			text := r.cells[c].textFor(w)
			if c == last && rest != nil {
				text = rest[line]
			} else if line > 0 {
				text = ""
			}
			return text, t.paint(r.cells[c].role)
		})
	}
	bare := Theme{glyphs: t.glyphs}
	var lines []string
	for line := range more + 1 {
		before, painted := "  ", " "+l.marks.paintedSymbol(t, r.id)
		if line == 0 {
			before = t.glyphs.cursor + l.marks.symbol(t, r.id)
		} else {
			painted = before
		}
		if i == l.selected {
			lines = append(lines, t.selected.apply(pad(before+draw(&bare, line), l.width, false)))
			continue
		}
		lines = append(lines, painted+draw(t, line))
	}
	return lines
}

// emptyText draws the text of an empty pane: the first line normal, the others muted.
func (t *Theme) emptyText(lines []string, w, h int) []string {
	var out []string
	for i, text := range lines {
		for _, line := range wrap(text, w) {
			if w > 0 {
				line = t.cut(line, w) // a long word
			}
			if i > 0 {
				line = t.muted.apply(line)
			}
			out = append(out, line)
		}
	}
	if h > 0 {
		out = out[:min(len(out), h)]
	}
	return out
}

// marks is the set of marked rows, by id.
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

// retain removes the marks of rows that no longer exist.
func (m *marks) retain(exists func(id string) bool) {
	for id := range m.ids {
		if !exists(id) {
			delete(m.ids, id)
		}
	}
}

// symbol returns the symbol of a marked row, or a space.
func (m *marks) symbol(t *Theme, id string) string {
	if m.ids[id] {
		return t.glyphs.mark
	}
	return " "
}

// paintedSymbol returns the symbol of a marked row in colour, or a space.
func (m *marks) paintedSymbol(t *Theme, id string) string {
	if !m.ids[id] {
		return " "
	}
	return t.accent.apply(t.glyphs.mark)
}

// targetIDs returns the marked ids in natural order, or the selected one if none is marked.
func (m *marks) targetIDs(selected string, ok bool) []string {
	if len(m.ids) > 0 {
		return naturalKeys(m.ids)
	}
	if ok {
		return []string{selected}
	}
	return nil
}
