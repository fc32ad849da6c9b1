package tui

import "strings"

// column is one column of a table. Its width is between minWidth and maxWidth.
type column struct {
	title    string
	mark     string // after the title: the symbol of the sort order
	minWidth int
	maxWidth int
	right    bool // right-aligned, as numbers are
	dropRank int  // columns of a higher rank are omitted first
	hidden   bool // omitted at any width
}

// titleWidth returns the minimum width that shows the title in full.
func (c column) titleWidth() int { return max(c.minWidth, width(c.title)+width(c.mark)) }

// grid is a set of columns fitted into a width.
type grid struct {
	columns []column
	widths  []int // 0 = omitted
	gap     int
}

// Screen widths from which a table shows more.
const (
	mediumWidth = 110 // region names include the cloud, the reason column is always shown
	fullWidth   = 150 // titles are not abbreviated, every replica shows its model
)

// fullWidth returns the width at which all columns but the last have their maximum
// width.
func (g *grid) fullWidth() int {
	sum := g.total()
	for i, c := range g.columns[:len(g.columns)-1] {
		if g.widths[i] > 0 {
			sum += max(c.maxWidth-g.widths[i], 0)
		}
	}
	return sum
}

// fitGrid omits the columns of the highest rank until the others fit into width, then
// widens columns from left to right. A width of 0 or less is unlimited. The gap between
// columns is two cells if they all fit comfortably, else one.
func fitGrid(columns []column, width int) grid {
	g := grid{columns: columns, widths: make([]int, len(columns)), gap: 2}
	for i, c := range columns {
		switch {
		case c.hidden:
		case width <= 0:
			g.widths[i] = max(c.titleWidth(), c.maxWidth)
		default:
			g.widths[i] = c.titleWidth()
		}
	}
	if width <= 0 {
		return g
	}
	if g.fullWidth() > width {
		g.gap = 1
	}
	for g.total() > width && g.dropOne() {
	}
	g.stretch(width)
	return g
}

// total returns the width of all included columns and their gaps.
func (g *grid) total() int {
	sum := 0
	for _, w := range g.widths {
		if w > 0 {
			sum += w + g.gap
		}
	}
	return sum - g.gap
}

// dropOne omits the column of the highest rank; the first column is kept.
func (g *grid) dropOne() bool {
	worst := -1
	for i := 1; i < len(g.columns); i++ {
		if g.widths[i] > 0 && (worst < 0 || g.columns[i].dropRank >= g.columns[worst].dropRank) {
			worst = i
		}
	}
	if worst < 0 {
		g.widths[0] = 0
		return false
	}
	g.widths[worst] = 0
	return true
}

// stretch distributes the remaining width to the columns below their maximum width.
func (g *grid) stretch(width int) {
	if g.widths[0] == 0 { // the terminal is narrower than any column
		g.widths[0] = max(width, 0)
		return
	}
	rest := width - g.total()
	for i, c := range g.columns {
		if g.widths[i] == 0 || rest <= 0 {
			continue
		}
		more := min(rest, max(c.maxWidth-g.widths[i], 0))
		g.widths[i] += more
		rest -= more
	}
}

// line draws one line: cell returns a column's text and paint for a width.
func (g *grid) line(t *Theme, cell func(i, width int) (string, paint)) string {
	var b strings.Builder
	gap := 0 // spaces not yet written, to avoid trailing spaces
	for i, w := range g.widths {
		if w == 0 {
			continue
		}
		s, p := cell(i, w)
		s = t.cut(s, w)
		n := w - width(s)
		if g.columns[i].right {
			gap += n
			n = 0
		}
		if s != "" {
			b.WriteString(strings.Repeat(" ", gap))
			b.WriteString(p.apply(s))
			gap = 0
		}
		gap += n + g.gap
	}
	return b.String()
}

// at returns the column that covers cell x of a line, -1 for none.
func (g *grid) at(x int) int {
	from := 0
	for i, w := range g.widths {
		if w == 0 {
			continue
		}
		if x >= from && x < from+w {
			return i
		}
		from += w + g.gap
	}
	return -1
}
