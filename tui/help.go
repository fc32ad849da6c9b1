package tui

import (
	"slices"
	"strings"
)

// columnHelp is the meaning of a column, or of several.
type columnHelp struct {
	titles, meaning string
	views           []view // that have it; nil = all
}

// columnsHelp explains the columns of the views.
var columnsHelp = []columnHelp{
	{"-", "unknown or none", nil},
	{"balancers", "their state; READY 1/2 = one of two is ready", []view{viewOverview}},
	{"replicas, repl", "ready replicas / all replicas without donated ones", []view{viewOverview, viewModels, viewCost}},
	{"queue", "requests queued at the balancers", []view{viewOverview, viewModels}},
	{"pending, pend", "requests waiting in the engine", []view{viewReplicas, viewCost}},
	{"running, run", "requests in the engine's running batch", []view{viewReplicas, viewCost}},
	{"outstanding, outst", "requests sent to the replica, not finished", []view{viewReplicas}},
	{"req/s, tok/s", "arriving requests and output tokens per second, last 10 s", []view{viewOverview, viewReplicas}},
	{"ttft p50, p90", "time to first token, last minute", []view{viewOverview, viewModels, viewTenants}},
	{"err%", "share of failures, last 10 s; of a region: 429 and 5xx to clients; of a replica: failed attempts", []view{viewOverview, viewReplicas}},
	{"req/s", "requests that ended per second, last minute", []view{viewModels, viewTenants}},
	{"err%", "share of these requests that failed (429 and 5xx), last minute", []view{viewModels, viewTenants}},
	{"slo miss", "share of streamed requests of the tier fast with a TTFT later than its target, in the 10 s before the snapshot; the share in an alert is of one model, and up to a second older", []view{viewOverview}},
	{"hit", "share of prompt tokens cached (prefix hit rate), last minute", []view{viewOverview, viewReplicas, viewModels, viewTenants}},
	{"fwd in/out, forward", "requests forwarded from / to other regions since the balancers started", []view{viewOverview}},
	{"forwarded", "requests from one region to another: per second, and in total since the sending balancers started", []view{viewOverview}},
	{"rtt", "round-trip time from the queried balancer", []view{viewOverview}},
	{"gpu%, vram, temp", "from nvidia-smi: GPU utilisation, memory used, highest temperature in Celsius", []view{viewReplicas, viewCost}},
	{"version, uptime (up)", "version of the engine; time since the replica became ready; - until its agent has reported them", []view{viewReplicas}},
	{"seen", "time since the last report arrived", []view{viewOverview, viewReplicas}},
	{"draining", "receives no new requests, those in flight end (cordoned); a drained replica stays in this state until undrained", []view{viewReplicas}},
	{"trend", "tok/s, 5 s per cell (fast replay: times --speed), same scale for all regions", []view{viewOverview}},
	{"target", "the replica; after an arrow, the balancer to which the request is forwarded", []view{viewRequests}},
	{"match", "share of the prompt expected to be cached at the target", []view{viewRequests}},
	{"tier", "fast, normal: interactive; deferred: not interactive (IW-F, IW-N, NIW in JSON, metrics and traces)", []view{viewRequests}},
	{"e2e", "time from the arrival of a request to its end", []view{viewRequests, viewModels, viewTenants}},
	{"now", "load of the last completed minute of the clock, without deferred requests, in uncached prompt tok/s", []view{viewForecast}},
	{"next, 90% interval", "forecast of the next step, and its prediction interval", []view{viewForecast}},
	{"peak p95", "highest load of the forecast period, 95th percentile", []view{viewForecast}},
	{"capacity", "load that the ready replicas can serve", []view{viewForecast}},
	{"used at peak", "peak p95 / capacity; above 100%, other regions can serve the remainder; plans are for the median peak (p50), not for p95", []view{viewForecast}},
	{"deviation", "load / earlier forecast, for how long; burst: at least 2x", []view{viewForecast}},
	{"actor", "who or what made the change, as in 'skyserve events'; observed: a state change that this dashboard saw", []view{viewEvents}},
	{"current, $/h", "without replicas that are draining, shutting down, interrupted or failed, which plans do not count", []view{viewPlan}},
	{"capacity", "capacity type, such as on_demand or spot; screens narrower than 150 columns show it if the rows differ", []view{viewPlan}},
	{"determined by", "the limits that prevent fewer or more replicas; local demand: load that a region must serve itself", []view{viewPlan}},
	{"revenue", "autoscale.donate_price x time donated", []view{viewDonations}},
	{"req/s, due in, ends in", "requests done per second, last minute; time to the deadline of a batch; expected time to its end; - in its first 5 s", []view{viewBatches}},
	{"deferred, interactive", "queued requests: those of the tier deferred, and all others", []view{viewBatches}},
	{"deferred wait for", "what releases them; maximum wait: balancer.deferred_wait_percent of the time to their deadline", []view{viewBatches}},
	{"prompt/s, output/s", "prompt and output tokens per second, last minute", []view{viewModels, viewTenants}},
	{"charged $/h", "what the usage costs tenants per hour by models[].price, at the rates of the last minute", []view{viewModels, viewTenants}},
	{"$/h", "price of the replica's machine", []view{viewReplicas}},
	{"$/h", "price of the replicas' machines, without those of donated replicas", []view{viewCost}},
	{"$/1M tok", "price of the replicas per million prompt and output tokens, at the rates of the last minute", []view{viewCost}},
	{"used", "load / capacity of the ready replicas", []view{viewCost}},
	{"load, headroom", "load: uncached prompt tok/s of all requests that ended in the last 60 s, also deferred ones; headroom: unused capacity of the ready replicas, same unit", []view{viewCost}},
}

// columnsOf returns the columns of a view with their meanings.
func columnsOf(v view) (items [][2]string) {
	for _, c := range columnsHelp {
		if c.views == nil || slices.Contains(c.views, v) {
			items = append(items, [2]string{c.titles, c.meaning})
		}
	}
	return items
}

// helpLine is a line of the help; titles are highlighted.
type helpLine struct {
	text  string
	title bool
}

// helpLines returns the help: the keys of KeyMap, the columns of the view, its order, and the symbols; side by side as far as they fit.
func (s *screen) helpLines() []string {
	var blocks [][]helpLine
	for _, g := range s.keys.Groups() {
		items := make([][2]string, len(g.Keys))
		for i, k := range g.Keys {
			items[i] = [2]string{k.Help().Key, k.Help().Desc}
		}
		block := s.helpBlock(g.Title, items)
		for _, note := range g.Notes {
			block = append(block, helpLine{note, false})
		}
		blocks = append(blocks, block)
	}
	columns := s.helpBlock("Columns of "+viewNames[s.view], columnsOf(s.view)) // long lines: not beside others
	sort := s.helpBlock("Sort "+viewNames[s.view]+" (repeat to reverse)", append([][2]string{{s.keys.Sort.Help().Key, s.keys.Sort.Help().Desc}}, s.pane().sortHelp()...))
	return slices.Concat(s.inColumns(blocks), s.inColumns([][]helpLine{columns}), s.inColumns([][]helpLine{sort, s.helpBlock("Symbols", s.symbolHelp())}))
}

// helpWindow returns the visible part of the help.
func (s *screen) helpWindow() []string {
	lines := s.helpLines()
	return lines[min(s.helpOffset, len(lines)):]
}

// helpHeight returns how many lines of the help fit on the screen.
func (s *screen) helpHeight() int { return max(s.height-2, 1) }

// scrollHelp scrolls the help by n lines.
func (s *screen) scrollHelp(n int) {
	maxScroll := max(len(s.helpLines())-s.helpHeight(), 0)
	s.helpOffset = min(max(s.helpOffset+n, 0), maxScroll)
}

// helpPosition returns which lines of the help are visible; empty if all are.
func (s *screen) helpPosition() string {
	n := len(s.helpLines())
	if n <= s.helpHeight() {
		return ""
	}
	return position(s.helpOffset, s.helpHeight(), n)
}

// symbolHelp lists the symbols and their meanings.
func (s *screen) symbolHelp() [][2]string {
	g := s.theme.glyphs
	return [][2]string{
		{g.ready, "ready"},
		{g.starting, "starting"},
		{g.warning, "warning; not ready; some balancers unreachable"},
		{g.failed, "critical; failed, interrupted, unreachable"},
		{g.draining, "draining, shutting down"},
		{g.donated, "donated"},
		{g.up + " " + g.down, "increased, decreased since the last snapshot"},
		{g.changed, "state changed"},
		{g.mark, "marked"},
	}
}

// helpBlock returns a titled list of keys or symbols and their meanings. Meanings that do not fit on
// the screen continue on the next line.
func (s *screen) helpBlock(title string, items [][2]string) []helpLine {
	keys := 0
	for _, it := range items {
		keys = max(keys, width(it[0]))
	}
	lines := []helpLine{{title, true}}
	for _, it := range items {
		head := it[0]
		for _, part := range wrap(it[1], s.width-keys-2) {
			lines = append(lines, helpLine{pad(head, keys, false) + "  " + part, false})
			head = ""
		}
	}
	return lines
}

// inColumns stacks blocks while the screen's height allows, then starts a column to the
// right, and continues below when there is no width left.
func (s *screen) inColumns(blocks [][]helpLine) []string {
	var columns [][]helpLine
	for _, b := range blocks {
		last := len(columns) - 1
		if last >= 0 && len(columns[last])+1+len(b) < s.helpHeight() {
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

// columnGap is the gap between two columns of help, in cells.
const columnGap = 3

// fittingColumns returns how many of the columns fit side by side, at least one.
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
		return s.theme.heading.apply(l.text)
	}
	return l.text
}

// widest returns the width of the longest line.
func widest(lines []helpLine) int {
	w := 0
	for _, l := range lines {
		w = max(w, width(l.text))
	}
	return w
}
