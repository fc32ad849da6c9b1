package tui

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// maxSpark is the maximum width of a sparkline: five minutes.
const maxSpark = 60

// regionSheet has one row per region.
func (s *screen) regionSheet() sheet {
	regions := regionsOf(s.snapshot)
	sh := sheet{noun: "region", columns: s.regionColumns(regions), empty: s.emptyService()}
	peak := 0.0
	if s.history != nil {
		peak = s.history.peak(regions, maxSpark)
	}
	for _, r := range regions {
		row := sheetRow{id: string(r.Name), cells: s.regionCells(r)}
		if s.history != nil {
			name := r.Name
			row.cells = append(row.cells, cellValue{role: roleAccent, draw: func(w int) string {
				return strings.TrimRight(s.history.spark(name, w, peak, s.theme.glyphs), " ")
			}})
		}
		sh.rows = append(sh.rows, row)
	}
	return sh
}

// regionColumns returns the columns of the list of regions.
func (s *screen) regionColumns(regions []*telemetry.RegionSnapshot) []sheetColumn {
	ready, p50, p90, fwd := "REPL", "TTFT50", "TTFT90", "FWD I/O"
	if s.width <= 0 || s.width >= fullWidth {
		ready, p50, p90, fwd = "REPLICAS", "TTFT P50", "TTFT P90", "FWD IN/OUT"
	}
	numberColumn := func(title string, minWidth, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: minWidth, right: true, dropRank: rank}, letter, word, true, false}
	}
	failed := sheetColumn{column{title: "ERR%", minWidth: 4, right: true, dropRank: 2, hidden: !slices.ContainsFunc(regions, s.fails)}, "B", "share of failed requests", true, false}
	ageRank := 10
	if s.anyStale(regions) { // the age of stale metrics is shown on narrow screens too
		ageRank = 2
	}
	columns := []sheetColumn{
		{column{title: "REGION", minWidth: 20, maxWidth: 28}, "N", "name", false, false},
		{column{title: "BALANCERS", minWidth: 13, maxWidth: 24}, "S", "state of the balancers", false, false},
		numberColumn(ready, 4, 1, "R", "ready replicas"),
		numberColumn("QUEUE", 6, 2, "U", "queue"),
		numberColumn("REQ/S", 5, 4, "E", "requests per second"),
		numberColumn("TOK/S", 5, 3, "T", "tokens per second"),
		numberColumn(p50, 6, 8, "F", "TTFT, median"),
		numberColumn(p90, 6, 7, "P", "TTFT, 90th percentile"),
		numberColumn("SLO MISS", 4, 7, "L", "SLO misses (TTFT)"),
		numberColumn("HIT", 4, 6, "H", "prefix hit rate"),
		failed,
		numberColumn(fwd, 7, 9, "O", "forwarded out"),
		numberColumn("RTT", 5, 11, "D", "round-trip time"),
		numberColumn("SEEN", 4, ageRank, "A", "time since the last report"),
	}
	if s.history != nil {
		columns = append(columns, sheetColumn{column: column{title: "TREND", minWidth: 8, maxWidth: maxSpark, dropRank: 8}})
	}
	return columns
}

// anyStale reports whether the metrics of any region are stale.
func (s *screen) anyStale(regions []*telemetry.RegionSnapshot) bool {
	for _, r := range regions {
		if ms, known := metricsAge(r); known && ms > staleAfter.Milliseconds() {
			return true
		}
	}
	return false
}

// longRegionName is the length from which a region's name is shortened.
const longRegionName = 12

// regionName returns a region's name. On a narrow screen it omits the cloud, unless another
// cloud has a region of the same place.
func (s *screen) regionName(name service.Region) string {
	if s.width <= 0 || s.width >= mediumWidth || len(name) <= longRegionName {
		return s.theme.text(string(name))
	}
	for i := range s.snapshot.Regions {
		if other := s.snapshot.Regions[i].Name; other != name && other.ShortName() == name.ShortName() {
			return s.theme.text(string(name))
		}
	}
	return s.theme.text(name.ShortName())
}

// regionCells returns the cells of a region.
func (s *screen) regionCells(r *telemetry.RegionSnapshot) []cellValue {
	sign, state := s.theme.glyphs.balancersMark(r.Balancers)
	name := textCell(s.regionName(r.Name), roleAccent)
	if r.Name == s.focus {
		name.role = roleText
	}
	return []cellValue{
		name,
		textCell(sign+" "+s.theme.text(balancersState(r.Balancers)), state),
		readyCell(r),
		s.queuedCell(r),
		optionalCell(r.RequestsPerSecond, rate),
		optionalCell(r.OutputTokensPerSecond, rate),
		ttftCell(r.TTFT, func(p *telemetry.Percentiles) float64 { return p.P50 }),
		ttftCell(r.TTFT, func(p *telemetry.Percentiles) float64 { return p.P90 }),
		s.missCell(r),
		optionalCell(r.PrefixHitRate, percent),
		s.errorCell(r),
		numberCell(float64(r.ForwardedOut), count(r.ForwardedIn)+"/"+count(r.ForwardedOut), roleText),
		optionalCell(nearestRTT(r), func(ms *float64) string { return millis(*ms) }),
		s.ageCell(r),
	}
}

// ttftCell returns one percentile of the time to first token.
func ttftCell(p *telemetry.Percentiles, of func(*telemetry.Percentiles) float64) cellValue {
	if p == nil {
		return unknownCell()
	}
	return numberCell(of(p), millis(of(p)), roleText)
}

// maxMissShare is the share of first tokens after their target that SageServe allows: its
// targets are for the 95th percentile (section 2.2).
const maxMissShare = 0.05

// missCell returns the share of the first tokens of streamed IW-F requests that missed
// the TTFT target in the last seconds.
func (s *screen) missCell(r *telemetry.RegionSnapshot) cellValue {
	before := findRegion(s.rateBase.snapshot, r.Name)
	if before == nil {
		return unknownCell()
	}
	was := map[string]telemetry.ModelSnapshot{}
	for _, m := range before.Models {
		was[m.Model] = m
	}
	var all, late int64
	for _, m := range r.Models {
		if old := was[m.Model]; m.FirstTokens >= old.FirstTokens && m.SLOMisses >= old.SLOMisses {
			all, late = all+m.FirstTokens-old.FirstTokens, late+m.SLOMisses-old.SLOMisses
		}
	}
	if all == 0 {
		return unknownCell()
	}
	share := float64(late) / float64(all)
	v := numberCell(share, percent(&share), roleText)
	if share > maxMissShare {
		v.role = roleBad
	}
	return v
}

// errorShare returns the share of clients' requests that were answered with 429 or 5xx in the last seconds; without
// an earlier snapshot, since the balancers started. It is nil without requests.
func (s *screen) errorShare(r *telemetry.RegionSnapshot) *float64 {
	o := r.Outcomes
	if before := findRegion(s.rateBase.snapshot, r.Name); before != nil {
		if was := before.Outcomes; was.Served <= o.Served && was.Failed <= o.Failed && was.Limited <= o.Limited {
			o = telemetry.Outcomes{Served: o.Served - was.Served, Failed: o.Failed - was.Failed, Limited: o.Limited - was.Limited}
		}
	}
	all := o.Served + o.Failed + o.Limited
	if all == 0 {
		return nil
	}
	share := float64(o.Failed+o.Limited) / float64(all)
	return &share
}

// fails reports whether requests of a region failed.
func (s *screen) fails(r *telemetry.RegionSnapshot) bool {
	share := s.errorShare(r)
	return share != nil && *share > 0
}

// errorCell returns errorShare.
func (s *screen) errorCell(r *telemetry.RegionSnapshot) cellValue {
	share := s.errorShare(r)
	if share == nil {
		return unknownCell()
	}
	v := numberCell(*share, percent(share), roleText)
	if *share >= maxMissShare {
		v.role = roleBad
	}
	return v
}

// readyCell returns how many replicas are ready, of how many; donated ones do not count.
func readyCell(r *telemetry.RegionSnapshot) cellValue {
	ready, n := readyCount(r.Replicas), len(r.Replicas)-donatedCount(r.Replicas)
	v := numberCell(float64(ready), strconv.Itoa(ready)+"/"+strconv.Itoa(n), roleText)
	switch {
	case ready == 0 && n > 0:
		v.role = roleBad
	case ready < n:
		v.role = roleWarn
	}
	return v
}

// queuedCell returns the queue length with a sign for its change.
func (s *screen) queuedCell(r *telemetry.RegionSnapshot) cellValue {
	change := 0
	if before := findRegion(s.previous, r.Name); before != nil {
		change = r.Queued - before.Queued
	}
	v := numberCell(float64(r.Queued), count(int64(r.Queued))+s.theme.trend(change), roleText)
	if change > 0 {
		v.role = roleWarn
	}
	return v
}

// ageCell returns the age of a region's metrics, highlighted when they are stale.
func (s *screen) ageCell(r *telemetry.RegionSnapshot) cellValue {
	ms, known := metricsAge(r)
	if !known {
		return unknownCell()
	}
	v := numberCell(float64(ms), maybeAge(&ms, s.sinceFetch), roleMuted)
	if ms > staleAfter.Milliseconds() {
		v.role = roleWarn
	}
	return v
}

// flow is the traffic that one region forwards to another.
type flow struct {
	from, to service.Region
	rate     float64 // requests per second; 0 while unknown
	total    int64
}

// flows returns the traffic forwarded between regions, busiest first. Pairs of regions
// without forwarded requests are omitted.
func (s *screen) flows() []flow {
	var flows []flow
	for _, r := range regionsOf(s.snapshot) {
		for _, f := range r.ForwardedTo {
			if f.Requests > 0 {
				flows = append(flows, flow{r.Name, f.Region, s.flowRate(r.Name, f), f.Requests})
			}
		}
	}
	slices.SortStableFunc(flows, func(a, b flow) int {
		if a.rate != b.rate {
			return sign(int((b.rate - a.rate) * 1e6))
		}
		return sign(int(b.total - a.total))
	})
	return flows
}

// flowRate returns a flow's requests per second over the last seconds; 0 after a reset of
// its counter.
func (s *screen) flowRate(from service.Region, f telemetry.Flow) float64 {
	before := findRegion(s.rateBase.snapshot, from)
	if before == nil {
		return 0
	}
	seconds := s.snapshot.At.Sub(s.rateBase.snapshot.At).Seconds()
	for _, old := range before.ForwardedTo {
		if old.Region == f.Region && seconds > 0 && f.Requests >= old.Requests {
			return float64(f.Requests-old.Requests) / seconds
		}
	}
	return 0
}

// flowTitle is the title of the flows. Balancers count the total from their start.
const flowTitle = "FORWARDED"

// flowLines draws the flows between regions in at most n lines.
func (s *screen) flowLines(t *Theme, w, n int) []string {
	flows := s.flows()
	if len(flows) == 0 || n < 2 {
		return nil
	}
	top := 0.0
	for _, f := range flows {
		top = max(top, f.rate)
	}
	nameOf, counts := s.flowName, width(flowLine("", "", "", 0)+"  ")
	names := widestFlow(flows, nameOf)
	if names > w-counts { // the counts matter more than the clouds, and than the end of a name
		nameOf = func(f flow) string { return f.from.ShortName() + " " + t.glyphs.arrow + " " + f.to.ShortName() }
		names = min(widestFlow(flows, nameOf), max(w-counts, len(flowTitle)))
	}
	lines := []string{t.heading.apply(t.cut(flowLine(flowTitle, "REQ/S", "TOTAL", names), w))}
	for _, f := range flows[:min(len(flows), n-1)] {
		text := flowLine(t.cut(t.text(nameOf(f)), names), rate(&f.rate), count(f.total), names) + "  "
		line := t.cut(text, w)
		if available := min(w-width(text), 20); available > 2 && top > 0 {
			line += t.accent.apply(strings.Repeat(t.glyphs.heavy, int(f.rate/top*float64(available)+0.5)))
		}
		lines = append(lines, line)
	}
	if hidden := len(flows) - len(lines) + 1; hidden > 0 {
		lines[len(lines)-1] = t.muted.apply(t.cut(fmt.Sprintf("+ %d more", hidden+1), w))
	}
	return lines
}

// widestFlow returns the width of the longest name of a flow, at least that of the title.
func widestFlow(flows []flow, nameOf func(flow) string) int {
	names := len(flowTitle)
	for _, f := range flows {
		names = max(names, width(nameOf(f)))
	}
	return names
}

// flowLine formats one line of the flows.
func flowLine(name, rate, total string, names int) string {
	return pad(name, names, false) + "  " + pad(rate, 5, true) + "  " + pad(total, 6, true)
}

// flowName returns a flow's two regions.
func (s *screen) flowName(f flow) string {
	return s.regionName(f.from) + " " + s.theme.glyphs.arrow + " " + s.regionName(f.to)
}

// problemsTitle is the heading of the problems: alerts, and machines that start, drain or have failed.
const problemsTitle = "ALERTS AND NOT READY"

// alertLines lists problems in at most n lines: balancers and replicas that are not
// ready, alerts, and loads that deviate from their forecasts.
func (s *screen) alertLines(t *Theme, w, n int) []string {
	problems := s.problems()
	if n < 2 {
		return nil
	}
	if len(problems) == 0 {
		return []string{t.heading.apply(t.cut(problemsTitle, w)), t.good.apply(t.cut(t.glyphs.ready+" none; all machines are ready", w))}
	}
	lines := []string{t.heading.apply(t.cut(problemsTitle, w))}
	shown := min(len(problems), n-1)
	spare := n - 1 - len(problems) // lines for the next steps of the first ones
	for _, p := range problems[:shown] {
		ownLine := p.next != "" && spare > 0
		if ownLine {
			spare--
		}
		drawn := p.lines(t, w, !ownLine, spare)
		spare -= len(drawn) - 1
		lines = append(lines, drawn...)
		if ownLine {
			for i, line := range wrap(p.next, w-4) {
				mark := t.glyphs.arrow
				if i > 0 {
					mark = strings.Repeat(" ", width(mark))
					if spare--; spare < 0 {
						break
					}
				}
				lines = append(lines, t.muted.apply(t.cut("  "+mark+" "+line, w)))
			}
		}
	}
	if hidden := len(problems) - shown; hidden > 0 {
		lines[len(lines)-1] = t.muted.apply(t.cut(fmt.Sprintf("+ %d more", hidden+1), w))
	}
	return lines
}

// lines draws a problem, with its next step or without: in one line, and more for the rest of its reason.
func (p problem) lines(t *Theme, w int, withNext bool, more int) []string {
	head, reason := p.sign+" "+p.subject, p.reason
	if withNext {
		reason = strings.Trim(reason+"; "+p.next, "; ")
	}
	reason = strings.Join(strings.Fields(reason), " ")
	lines := []string{t.paint(p.role).apply(t.cut(head, w))}
	available := w - width(head) - 2
	if reason == "" {
		return lines
	}
	if available >= minReasonWidth {
		first := reason
		if more > 0 && !hasLongWord(reason, available) {
			first = wrap(reason, available)[0]
		}
		lines[0] += "  " + t.muted.apply(t.cut(first, available))
		if width(first) <= available {
			reason = strings.TrimSpace(strings.TrimPrefix(reason, first))
		} else {
			reason = ""
		}
	}
	for _, line := range wrap(reason, w-2) {
		if more--; more < 0 || line == "" {
			break
		}
		lines = append(lines, t.muted.apply("  "+t.cut(line, w-2)))
	}
	return lines
}

// problem is one line of the alerts.
type problem struct {
	sign    string
	role    role
	subject string
	reason  string
	next    string // the next step; "" = none
	rank    int
}

// problems returns all problems, most severe first.
func (s *screen) problems() []problem {
	var all []problem
	g := s.theme.glyphs
	alerted, kinds := map[string]bool{}, map[string]bool{}
	for _, a := range s.snapshot.Alerts {
		kinds[a.Kind] = true
		switch a.Kind { // their message has the state's reason
		case telemetry.AlertBalancer, telemetry.AlertReplica, telemetry.AlertEjection, telemetry.AlertInterruption:
			alerted[a.Object] = true
		}
	}
	for _, r := range regionsOf(s.snapshot) {
		if len(r.Balancers) == 0 {
			all = append(all, problem{g.warning, roleBad, s.regionName(r.Name) + " has no balancer", "", "", 0})
		}
		for _, b := range r.Balancers {
			if b.State != service.StateReady && !alerted[b.ID] {
				sign, role := g.balancerMark(b.State)
				all = append(all, problem{sign, role, s.theme.text(b.ID) + " " + s.theme.text(string(b.State)), s.theme.text(b.Reason), "", 0})
			}
		}
		for i := range r.Replicas {
			rep := &r.Replicas[i]
			if rep.State == service.StateReady || rep.State == service.StateDonated || alerted[rep.ID] {
				continue
			}
			sign, role := g.replicaMark(rep.State)
			all = append(all, problem{sign, role, s.theme.text(rep.ID) + " " + s.theme.text(string(rep.State)), s.theme.text(reasonOf(rep)), "", 1 + stateRank[rep.State]})
		}
	}
	for _, a := range s.snapshot.Alerts {
		sign, r, rank := g.warning, roleWarn, 1
		if a.Severity == telemetry.SeverityCritical {
			sign, r, rank = g.failed, roleBad, 0
		}
		all = append(all, problem{sign, r, s.theme.text(a.Subject()), s.theme.text(a.Message), s.theme.text(a.NextStep), rank})
	}
	for _, f := range s.snapshot.Forecast {
		if f.Deviation != "" && !kinds[telemetry.AlertForecast] {
			all = append(all, problem{g.warning, roleWarn, s.theme.text(f.Region.ShortName() + " deviates from its forecast"), s.theme.text(f.Deviation), "", 1})
		}
	}
	if p := s.snapshot.Plan; p != nil && p.Error != "" && !kinds[telemetry.AlertPlan] {
		all = append(all, problem{g.warning, roleWarn, "planning failed", s.theme.text(p.Error), "", 1})
	}
	slices.SortStableFunc(all, func(a, b problem) int { return a.rank - b.rank })
	return all
}

// minOverview is the minimum height of the part below the regions.
const minOverview = 5

// belowOverview draws the flows, the alerts and the chart of the load in n lines, flows and
// alerts side by side if the screen is wide enough.
func (s *screen) belowOverview(t *Theme, n int) []string {
	if n < 3 {
		return nil
	}
	lines := []string{""}
	flows := s.flowLines(t, s.overviewColumn(), min(8, n-1))
	if s.width >= mediumWidth && len(flows) > 0 {
		alerts := s.alertLines(t, s.width-s.overviewColumn()-columnGap, min(max(8, n/2), n-1))
		lines = append(lines, beside(flows, alerts, s.overviewColumn()+columnGap)...)
	} else {
		lines = append(lines, s.alertLines(t, s.width, min(max(n/2, 4), n-1))...)
		if rest := n - len(lines) - 1; rest >= 2 && len(flows) > 0 {
			lines = append(append(lines, ""), s.flowLines(t, s.width, min(8, rest))...)
		}
	}
	if rest := n - len(lines); rest > minChart && s.width >= chartFromWidth {
		lines = append(lines, s.chart(t, min(rest, maxTallChart))...)
	}
	return lines
}

// overviewColumn returns the width of the flows.
func (s *screen) overviewColumn() int {
	if s.width >= mediumWidth {
		return s.width/2 - columnGap
	}
	return s.width
}

// beside puts lines to the right of others, starting at column at.
func beside(left, right []string, at int) []string {
	var lines []string
	for i := range max(len(left), len(right)) {
		line := ""
		if i < len(left) {
			line = left[i]
		}
		if i < len(right) && right[i] != "" {
			line = padPainted(line, at) + right[i]
		}
		lines = append(lines, line)
	}
	return lines
}
