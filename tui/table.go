package tui

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// table is the pane with one line per replica, grouped by region. It scrolls to keep the
// selected replica visible; without a selection it does not scroll by itself.
type table struct {
	width, height int // height includes the title; 0 = unlimited

	order    sortOrder
	filter   string
	marks    marks               // by replica
	since    time.Duration       // since the snapshot was received
	at       time.Time           // of the snapshot
	previous *telemetry.Snapshot // the snapshot before, to mark changes; nil = none
	base     *telemetry.Snapshot // some seconds before, for the share of failed requests; nil = none
	prices   prices

	rows     []row
	all      int // number of replicas before filtering
	lines    []tableLine
	selected int    // index into rows; -1 = none
	key      rowKey // of the selected row, to find it in the next snapshot
	offset   int    // first visible line
}

// tableLine is one line below the title: a replica, or the heading of a region.
type tableLine struct {
	row    int // index into rows; -1 = the heading of region
	region *telemetry.RegionSnapshot
}

// SetSize sets the size of the pane; a height of 0 is unlimited.
func (t *table) SetSize(width, height int) {
	t.width, t.height = width, height
	t.scroll()
}

// setRegions replaces the rows and keeps the selected replica selected.
func (t *table) setRegions(regions []*telemetry.RegionSnapshot, focus service.Region) {
	t.all = 0
	for _, r := range focused(regions, focus) {
		t.all += len(r.Replicas)
	}
	t.rows = selectRows(regions, focus, t.filter, t.order, t.prices)
	t.lines = t.lines[:0]
	next := 0
	for _, r := range focused(regions, focus) {
		first := next
		for next < len(t.rows) && t.rows[next].region == r {
			next++
		}
		if next == first && t.filter != "" {
			continue
		}
		if len(regions) > 1 || next == first {
			t.lines = append(t.lines, tableLine{-1, r})
		}
		for i := first; i < next; i++ {
			t.lines = append(t.lines, tableLine{i, r})
		}
	}
	t.keepMarks(regions)
	t.reselect()
	t.scroll()
}

// keepMarks removes the marks of replicas that no longer exist.
func (t *table) keepMarks(regions []*telemetry.RegionSnapshot) {
	if len(t.marks.ids) == 0 {
		return
	}
	there := map[string]bool{}
	for _, r := range regions {
		for i := range r.Replicas {
			there[r.Replicas[i].ID] = true
		}
	}
	t.marks.retain(func(id string) bool { return there[id] })
}

// reselect keeps the selected replica selected. If it no longer exists, the one now in its
// position is selected.
func (t *table) reselect() {
	if t.selected < 0 || len(t.rows) == 0 {
		t.selected = -1
		return
	}
	for i, r := range t.rows {
		if r.key() == t.key {
			t.selected = i
			return
		}
	}
	t.selectRow(t.selected)
}

// selectRow selects row i, or the nearest.
func (t *table) selectRow(i int) {
	if len(t.rows) == 0 {
		t.selected = -1
		return
	}
	t.selected = min(max(i, 0), len(t.rows)-1)
	t.key = t.rows[t.selected].key()
	t.scroll()
}

// moveSelection moves the selection by n rows; the first move selects the first visible row.
func (t *table) moveSelection(n int) {
	if t.selected < 0 {
		t.selectRow(t.firstVisible() + max(n-1, 0))
		return
	}
	t.selectRow(t.selected + n)
}

// firstVisible returns the first visible row.
func (t *table) firstVisible() int {
	for _, l := range t.lines[min(t.offset, len(t.lines)):] {
		if l.row >= 0 {
			return l.row
		}
	}
	return 0
}

// unselect clears the selection.
func (t *table) unselect() { t.selected, t.offset = -1, 0 }

// visibleRows returns the number of visible lines below the title.
func (t *table) visibleRows() int {
	if t.height <= 0 {
		return len(t.lines)
	}
	return max(t.height-1, 0)
}

// scroll keeps the selection visible and leaves no empty lines below the last line.
func (t *table) scroll() {
	page := t.visibleRows()
	if at := t.lineOf(t.selected); at >= 0 {
		t.offset = max(t.offset, at-page+1)
		t.offset = min(t.offset, max(at-1, 0)) // leaves the top line to its region's heading
		if page == 1 {
			t.offset = at
		}
	}
	t.offset = max(min(t.offset, len(t.lines)-page), 0)
}

// lineOf returns the line of a row, -1 when it has none.
func (t *table) lineOf(row int) int {
	if row < 0 {
		return -1
	}
	for i, l := range t.lines {
		if l.row == row {
			return i
		}
	}
	return -1
}

// current returns the selected row; ok is false when none is selected.
func (t *table) current() (row, bool) {
	if t.selected < 0 || t.selected >= len(t.rows) {
		return row{}, false
	}
	return t.rows[t.selected], true
}

// margin is the width of the cursor and the mark before each row.
const margin = 2

// Render draws the title and the visible lines.
func (t *table) Render(th *Theme) []string {
	available := 0
	if t.width > 0 {
		available = max(t.width-margin, 1)
	}
	g := fitGrid(t.columns(th), available)
	lines := []string{strings.Repeat(" ", margin) + g.line(th, func(i, _ int) (string, paint) {
		return g.columns[i].title + g.columns[i].mark, th.heading
	})}
	page := t.visibleRows()
	for i := t.offset; i < len(t.lines) && i < t.offset+page; i++ {
		lines = append(lines, t.renderLine(th, &g, i))
	}
	return lines
}

// renderLine draws line i. The top line of a scrolled table is the heading of the region
// below it.
func (t *table) renderLine(th *Theme, g *grid, i int) string {
	l := t.lines[i]
	if l.row < 0 || i == t.offset && i > 0 && t.visibleRows() > 1 && t.lines[0].row < 0 {
		return t.heading(th, l.region, l.row >= 0)
	}
	r := t.rows[l.row]
	if l.row != t.selected {
		return " " + t.marks.paintedSymbol(th, r.replica.ID) + t.replicaLine(th, g, r)
	}
	bare := Theme{glyphs: th.glyphs}
	s := th.glyphs.cursor + t.marks.symbol(th, r.replica.ID) + t.replicaLine(&bare, g, r)
	return th.selected.apply(pad(s, t.width, false))
}

// hasColdModel reports whether a region reports a model that scales to zero and has no ready replica.
func hasColdModel(r *telemetry.RegionSnapshot) bool {
	return slices.ContainsFunc(r.Models, func(m telemetry.ModelSnapshot) bool { return m.Cold })
}

// heading draws the line above a region's replicas.
func (t *table) heading(th *Theme, r *telemetry.RegionSnapshot, continued bool) string {
	name, note := th.text(string(r.Name)), "no replicas"
	if n := len(r.Replicas); n > 0 {
		note = printable.Count(n, "replica") + ", " + strconv.Itoa(readyCount(r.Replicas)) + " ready"
	}
	if len(r.Replicas) == 0 && hasColdModel(r) {
		note += ", models start at their first request"
	}
	if model := t.commonModel(); model != "" && len(r.Replicas) > 0 {
		note += ", " + th.text(shortModel(model))
	}
	if continued {
		note += ", continued"
	}
	if t.width > 0 {
		name = th.cut(name, t.width)
		note = th.cut(note, max(t.width-width(name)-2, 0))
	}
	s := th.accent.apply(name)
	if note != "" {
		s += "  " + th.muted.apply(note)
	}
	if rest := t.width - width(name) - width(note) - 4; rest > 0 {
		s += "  " + th.muted.apply(strings.Repeat(th.glyphs.rule, rest))
	}
	return s
}
