package tui

import "strings"

// meanings explains what the figures are, since a title has no room for it.
var meanings = [][2]string{
	{"-", "unknown: nobody reported it"},
	{"repl", "replicas that are ready, of all"},
	{"queue", "requests that the balancers hold"},
	{"pend, run", "waiting at the replica; in its running batch"},
	{"out", "sent by the balancer and not yet finished"},
	{"req/s, tok/s", "arrivals and output tokens of the last 10 s"},
	{"ttft50, ttft90", "time to first token of the last minute"},
	{"late", "share of first tokens after the target of IW-F, last 10 s"},
	{"hit", "share of prompt tokens found in the prefix cache"},
	{"in/out", "requests forwarded from and to other regions"},
	{"age", "how old the figures are"},
	{"trend", "tok/s, 5 s a cell, one scale for all regions"},
	{"match", "share of a prompt thought to be cached at its target"},
}

// helpLine is a line of help; titles are painted.
type helpLine struct {
	text  string
	title bool
}

// helpLines is the help screen: the keys from the one KeyMap, the signs and
// the figures, in as many columns as fit.
func (s *screen) helpLines() []string {
	var blocks [][]helpLine
	for _, g := range s.keys.Groups() {
		items := make([][2]string, len(g.Keys))
		for i, k := range g.Keys {
			items[i] = [2]string{k.Help().Key, k.Help().Desc}
		}
		blocks = append(blocks, helpBlock(g.Title, items))
	}
	blocks = append(blocks, helpBlock("Sorting the "+viewNames[s.view]+" (twice: turned round)", append([][2]string{{s.keys.Sort.Help().Key, s.keys.Sort.Help().Desc}}, s.pane().letters()...)))
	blocks = append(blocks, helpBlock("Figures", meanings), helpBlock("Signs", s.signs()))
	return s.inColumns(blocks)
}

// helpWindow is the part of the help that is in sight.
func (s *screen) helpWindow() []string {
	lines := s.helpLines()
	return lines[min(s.helpOffset, len(lines)):]
}

// helpRoom is the number of help lines that the screen holds.
func (s *screen) helpRoom() int { return max(s.height-2, 1) }

// scrollHelp moves the help by n lines.
func (s *screen) scrollHelp(n int) {
	most := max(len(s.helpLines())-s.helpRoom(), 0)
	s.helpOffset = min(max(s.helpOffset+n, 0), most)
}

// signs lists the states with their signs.
func (s *screen) signs() [][2]string {
	g := s.theme.glyphs
	return [][2]string{
		{g.ready, "ready"},
		{g.coming, "being brought up"},
		{g.trouble, "not ready; balancers partly gone"},
		{g.failed, "failed, interrupted, unreachable"},
		{g.leaving, "draining, shutting down"},
		{g.lent, "donated"},
		{g.up + " " + g.down, "more, fewer than before"},
		{g.changed, "a state that is new"},
		{g.mark, "marked for an order"},
	}
}

// helpBlock is a titled list of keys or signs with what they mean.
func helpBlock(title string, items [][2]string) []helpLine {
	keys := 0
	for _, it := range items {
		keys = max(keys, width(it[0]))
	}
	lines := []helpLine{{title, true}}
	for _, it := range items {
		lines = append(lines, helpLine{pad(it[0], keys, false) + "  " + it[1], false})
	}
	return lines
}

// inColumns sets blocks under one another as long as the screen's height
// allows, then begins a column to the right, and below where no width is left.
func (s *screen) inColumns(blocks [][]helpLine) []string {
	var columns [][]helpLine
	for _, b := range blocks {
		last := len(columns) - 1
		if last >= 0 && len(columns[last])+1+len(b) < s.helpRoom() {
			columns[last] = append(append(columns[last], helpLine{}), b...)
			continue
		}
		columns = append(columns, b)
	}
	var lines []string
	for len(columns) > 0 {
		n := s.fittingColumns(columns)
		lines = append(append(lines, ""), s.sideBySide(columns[:n])...)
		columns = columns[n:]
	}
	return lines
}

// columnGap parts two columns of help.
const columnGap = 3

// fittingColumns is how many of the columns stand side by side, at least one.
func (s *screen) fittingColumns(columns [][]helpLine) int {
	n, used := 1, widest(columns[0])
	for n < len(columns) && used+columnGap+widest(columns[n]) <= s.width {
		used += columnGap + widest(columns[n])
		n++
	}
	return n
}

// sideBySide joins columns line by line.
func (s *screen) sideBySide(columns [][]helpLine) []string {
	rows := 0
	for _, c := range columns {
		rows = max(rows, len(c))
	}
	lines := make([]string, rows)
	for i := range lines {
		line, used, at := "", 0, 0
		for _, c := range columns {
			if i < len(c) && c[i].text != "" {
				line += strings.Repeat(" ", at-used) + s.helpText(c[i])
				used = at + width(c[i].text)
			}
			at += widest(c) + columnGap
		}
		lines[i] = s.fit(line)
	}
	return lines
}

func (s *screen) helpText(l helpLine) string {
	if l.title {
		return s.theme.heading.over(l.text)
	}
	return l.text
}

// widest is the width of the longest line.
func widest(lines []helpLine) int {
	w := 0
	for _, l := range lines {
		w = max(w, width(l.text))
	}
	return w
}
