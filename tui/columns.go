package tui

import "strings"

// column is one column of a table. Its width lies between least and most.
type column struct {
	title string
	mark  string // after the title: the sign of the sort order
	least int
	most  int
	right bool // figures stand right, words left
	rank  int  // the greater, the sooner it is left out
	out   bool // left out whatever the width
}

// narrowest is the least width that shows the title in full.
func (c column) narrowest() int { return max(c.least, width(c.title)+width(c.mark)) }

// grid is columns fitted into a width.
type grid struct {
	columns []column
	widths  []int // 0 = left out
	gap     int
}

// Widths of the screen that change how much a table says.
const (
	roomy      = 110 // regions keep their cloud, reasons their column even while it is empty
	wideEnough = 150 // titles are written out, every replica names its model
)

// comfortable is the width at which all columns but the last, which takes what
// it gets, can be as wide as they like.
func (g *grid) comfortable() int {
	sum := g.total()
	for i, c := range g.columns[:len(g.columns)-1] {
		if g.widths[i] > 0 {
			sum += max(c.most-g.widths[i], 0)
		}
	}
	return sum
}

// fitGrid leaves out the columns of the greatest rank until the rest fits into
// width, then gives what is left to the columns from left to right. A width of
// 0 or less is unlimited. Columns stand two cells apart where there is room.
func fitGrid(columns []column, width int) grid {
	g := grid{columns: columns, widths: make([]int, len(columns)), gap: 2}
	for i, c := range columns {
		switch {
		case c.out:
		case width <= 0:
			g.widths[i] = max(c.narrowest(), c.most)
		default:
			g.widths[i] = c.narrowest()
		}
	}
	if width <= 0 {
		return g
	}
	if g.comfortable() > width {
		g.gap = 1
	}
	for g.total() > width && g.dropOne() {
	}
	g.stretch(width)
	return g
}

// total is the width of all columns that are in, with their gaps.
func (g *grid) total() int {
	sum := 0
	for _, w := range g.widths {
		if w > 0 {
			sum += w + g.gap
		}
	}
	return sum - g.gap
}

// dropOne leaves out the column of the greatest rank; the first column stays.
func (g *grid) dropOne() bool {
	worst := -1
	for i := 1; i < len(g.columns); i++ {
		if g.widths[i] > 0 && (worst < 0 || g.columns[i].rank >= g.columns[worst].rank) {
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

// stretch hands the width that is left to the columns that can use it.
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
		more := min(rest, max(c.most-g.widths[i], 0))
		g.widths[i] += more
		rest -= more
	}
}

// has reports whether the column of that title is in.
func (g *grid) has(title string) bool {
	for i, c := range g.columns {
		if c.title == title {
			return g.widths[i] > 0
		}
	}
	return false
}

// line draws one line: cell gives a column's text, with its paint, for a width.
func (g *grid) line(t *Theme, cell func(i, width int) (string, paint)) string {
	var b strings.Builder
	gap := 0 // spaces owed, so that no line ends in them
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
			b.WriteString(p.over(s))
			gap = 0
		}
		gap += n + g.gap
	}
	return b.String()
}

// at is the column that covers the cell x of a line, -1 for none.
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
