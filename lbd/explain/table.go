package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/lbd/core"
)

// column is one column of the table of candidates.
type column struct {
	title string
	cell  func(c *core.ConsideredTarget) string
	// needed reports whether the column has information about a candidate; nil = always.
	needed func(c *core.ConsideredTarget) bool
	// rank is the priority for hiding the column when the page is too narrow: the highest is hidden
	// first. 0 is never hidden.
	rank int
}

// columns returns all columns except the mark and the name, in order.
func columns(promptBytes int) []column {
	return []column{
		{"SCORE", score, func(c *core.ConsideredTarget) bool { return c.Score.Known }, 0},
		{"PEER", func(c *core.ConsideredTarget) string { return yes(c.Peer) }, func(c *core.ConsideredTarget) bool { return c.Peer }, 1},
		{"MATCH", func(c *core.ConsideredTarget) string { return percent(c.MatchBytes, promptBytes) }, nil, 0},
		{"OUT", func(c *core.ConsideredTarget) string { return fmt.Sprint(c.Outstanding) }, nil, 0},
		{"PEND", func(c *core.ConsideredTarget) string { return maybe(c.Pending.Known, "%d", c.Pending.Value) }, nil, 2},
		{"QUEUED", func(c *core.ConsideredTarget) string { return maybe(c.Peer, "%d", c.Queued) }, func(c *core.ConsideredTarget) bool { return c.Queued > 0 }, 3},
		{"KV", func(c *core.ConsideredTarget) string { return maybe(c.KV.Known, "%.0f%%", 100*c.KV.Value) }, nil, 4},
		{"HELD", func(c *core.ConsideredTarget) string { return fmt.Sprint(c.HeldRequests) }, func(c *core.ConsideredTarget) bool { return c.HeldRequests > 0 }, 3},
		{"SEEN", func(c *core.ConsideredTarget) string { return age(c.Age) }, nil, 5},
		{"AVAIL", func(c *core.ConsideredTarget) string { return yes(c.Available) }, nil, 0},
	}
}

// legend explains the column titles that are not obvious.
var legend = map[string]string{
	"SCORE":  "SCORE cost in seconds (estimated time of the request plus the delay it causes to others), lowest first",
	"MATCH":  "MATCH expected prefix hit",
	"OUT":    "OUT outstanding, sent there by this balancer",
	"PEND":   "PEND pending at the engine",
	"QUEUED": "QUEUED queued at the peer",
	"KV":     "KV memory used",
	"HELD":   "HELD requests waiting for it",
	"SEEN":   "SEEN time since its last load report",
	"AVAIL":  "AVAIL accepts another request",
}

// Widths of a candidate's name: the minimum after shortening, and the width for which other columns
// are hidden.
const (
	minNameWidth       = 8
	preferredNameWidth = 14
)

// writeCandidates writes the table of the candidates: those with a score sorted by it, then the others
// in their order. The chosen one is marked with a star.
func (p *page) writeCandidates(d *core.Decision, chosen string) {
	if len(d.Considered) == 0 {
		return
	}
	rows := slices.Clone(d.Considered)
	slices.SortStableFunc(rows, func(a, b core.ConsideredTarget) int {
		if !a.Score.Known || !b.Score.Known {
			return -compareBool(a.Score.Known, b.Score.Known)
		}
		return cmp.Compare(a.Score.Value, b.Score.Value)
	})
	const indent = "    "
	t := newTable(rows, chosen, d.PromptBytes, p.width-len(indent))
	for _, line := range t.lines {
		p.writeLine("%s%s", indent, line)
	}
	p.shown, p.dropped = append(p.shown, t.shown...), append(p.dropped, t.dropped...)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// table contains the formatted candidates, and the titles of the shown and hidden columns.
type table struct {
	lines          []string
	shown, dropped []string
}

func newTable(rows []core.ConsideredTarget, chosen string, promptBytes, width int) table {
	name := len("CANDIDATE")
	for i := range rows {
		name = max(name, len(rows[i].ID))
	}
	shown := slices.DeleteFunc(columns(promptBytes), func(c column) bool {
		return c.needed != nil && !slices.ContainsFunc(rows, func(r core.ConsideredTarget) bool { return c.needed(&r) })
	})
	cells := make([][]string, len(shown))
	for i, c := range shown {
		cells[i] = []string{c.title}
		for j := range rows {
			cells[i] = append(cells[i], c.cell(&rows[j]))
		}
	}
	spare := func() int {
		remaining := width - len("* ")
		for _, c := range cells {
			remaining -= 1 + widest(c)
		}
		return remaining
	}
	t := table{}
	for spare() < min(name, preferredNameWidth) {
		worst := 0
		for i := range shown {
			if shown[i].rank > shown[worst].rank {
				worst = i
			}
		}
		if shown[worst].rank == 0 {
			break
		}
		t.dropped = append(t.dropped, shown[worst].title)
		shown, cells = slices.Delete(shown, worst, worst+1), slices.Delete(cells, worst, worst+1)
	}
	name = min(name, max(spare(), minNameWidth))
	for _, c := range shown {
		t.shown = append(t.shown, c.title)
	}
	t.lines = layout(rows, chosen, name, cells)
	return t
}

// layout joins marks, names and cells into lines.
func layout(rows []core.ConsideredTarget, chosen string, name int, cells [][]string) []string {
	lines := make([]string, 0, len(rows)+1)
	for j := range len(rows) + 1 {
		mark, first := " ", "CANDIDATE"
		if j > 0 {
			first = rows[j-1].ID
			if first == chosen {
				mark = "*"
			}
		}
		line := fmt.Sprintf("%s %-*s", mark, name, shorten(first, name))
		for _, c := range cells {
			line += fmt.Sprintf(" %*s", widest(c), c[j])
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

func widest(cells []string) int {
	w := 0
	for _, c := range cells {
		w = max(w, len(c))
	}
	return w
}

// shorten removes the middle of a name, because names of replicas differ at the ends.
func shorten(name string, width int) string {
	if len(name) <= width {
		return name
	}
	remaining := (width - 1) / 2
	return name[:remaining] + "~" + name[len(name)-(width-1-remaining):]
}

// writeLegend explains the columns of all tables of the page.
func (p *page) writeLegend() {
	if len(p.shown) == 0 {
		return
	}
	words := []string{"* chosen", "- no value"}
	for _, c := range columns(0) {
		if l := legend[c.title]; l != "" && slices.Contains(p.shown, c.title) {
			words = append(words, l)
		}
	}
	p.writeLine("")
	p.writeWrapped("", "  ", strings.Join(words, "; ")+".")
	if len(p.dropped) > 0 {
		slices.Sort(p.dropped)
		p.writeWrapped("", "  ", "Columns hidden at this width: "+strings.Join(slices.Compact(p.dropped), ", ")+".")
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// maybe formats a figure, or a dash if it is unknown.
func maybe(known bool, format string, v any) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func score(c *core.ConsideredTarget) string { return maybe(c.Score.Known, "%.3f", c.Score.Value) }

// age formats the age of a report in a few characters.
func age(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	}
	return fmt.Sprintf("%.0fm", d.Minutes())
}
