package tui

import (
	"fmt"
	"strings"

	"skyserve/internal/telemetry"
)

// above is what stands above the list in front, in at most room lines.
func (s *screen) above(room int) []string {
	var lines []string
	switch s.view {
	case viewReplicas:
		for _, b := range s.focusedBalancers() {
			lines = append(lines, s.balancerLine(&s.theme, b))
		}
	case viewRequests:
		if s.asked.held {
			lines = []string{s.theme.muted.over(s.fit("held at " + s.asked.requestsAt.In(s.snapshot.At.Location()).Format("15:04:05") + " while a request is selected; esc goes on"))}
		}
		if s.asked.requestsErr != "" && len(s.asked.requests) > 0 {
			lines = []string{s.theme.bad.over(s.fit("not new: " + s.theme.text(s.asked.requestsErr)))}
		}
	case viewPlan:
		lines = s.abovePlan()
	case viewDonations:
		lines = s.aboveDonations()
	}
	return lines[:min(len(lines), room)]
}

// focusedBalancers are the balancers of the region that is shown alone.
func (s *screen) focusedBalancers() []telemetry.BalancerSnapshot {
	if r := findRegion(s.snapshot, s.focus); r != nil {
		return r.Balancers
	}
	return nil
}

// belowWants is the least and the most lines of what stands below the list in front;
// none where most is 0.
func (s *screen) belowWants() (least, most int) {
	switch s.view {
	case viewOverview:
		if len(s.snapshot.Regions) == 0 {
			return 0, 0
		}
		return leastOverview, s.height
	case viewForecast:
		if s.plotted() != nil && s.width >= leastPlotWidth {
			return leastPlot + 3, mostPlot
		}
	case viewReplicas:
		if _, ok := s.table.current(); ok {
			return 2, 2 + mostChart
		}
		if s.width >= chartFromWidth {
			return 0, mostChart
		}
	default:
		if r, ok := s.lists[s.view].current(); ok && len(r.more) > 0 {
			return 3, 2 + len(r.more)*2
		}
	}
	return 0, 0
}

// below draws what stands below the list in front, in n lines.
func (s *screen) below(t *Theme, n int) []string {
	var lines []string
	switch {
	case n <= 0:
	case s.view == viewOverview:
		lines = s.belowOverview(t, n)
	case s.view == viewForecast:
		lines = s.belowForecast(t, n)
	case s.view == viewReplicas:
		lines = s.belowReplicas(t, n)
	default:
		r, _ := s.lists[s.view].current()
		lines = s.rowBelow(t, r, n)
	}
	return lines[:min(len(lines), max(n, 0))]
}

// rowBelow is all about the selected row.
func (s *screen) rowBelow(t *Theme, r sheetRow, n int) []string {
	lines := []string{t.muted.over(strings.Repeat(t.glyphs.rule, s.width))}
	for i, text := range r.more {
		for _, line := range wrap(text, s.width) {
			if i == 0 {
				line = t.accent.over(line)
			}
			lines = append(lines, line)
		}
	}
	return lines[:min(len(lines), n)]
}

// belowReplicas is all about the selected replica, and the load over time where
// lines are left.
func (s *screen) belowReplicas(t *Theme, n int) []string {
	var lines []string
	if _, ok := s.table.current(); ok {
		lines = s.detail(t, min(n, 2))
	}
	if rest := n - len(lines); rest > leastChart && s.width >= chartFromWidth {
		return append(s.chart(t, rest), lines...)
	}
	for len(lines) < n {
		lines = append([]string{""}, lines...)
	}
	return lines
}

// rowStory is a row in words: every column, then what the list has no room for.
func (s *screen) rowStory(r sheetRow) []string {
	var lines []string
	columns := s.lists[s.view].sheet.columns
	for i, c := range r.cells {
		lines = append(lines, pad(strings.ToLower(columns[i].title), 16, false)+c.text)
	}
	lines = append(lines, "")
	for _, m := range r.more {
		lines = append(lines, wrap(m, s.width)...)
	}
	return lines
}

// replicaStory is a replica in words: every figure with what it means, and the
// requests that went there last.
func (s *screen) replicaStory(r row) []string {
	rep := r.replica
	lines := []string{
		"region          " + string(r.region.Name),
		"model           " + orUnknown(rep.Model),
		"GPU             " + orUnknown(rep.GPU),
		"url             " + orUnknown(rep.URL),
		"state           " + strings.TrimSuffix(string(rep.State)+": "+reasonOf(rep), ": "),
		"pending         " + maybeCount(rep.Pending) + "  wait inside the engine",
		"running         " + maybeCount(rep.Running) + "  in its batch",
		fmt.Sprintf("outstanding     %d  sent by the balancer and not yet finished", rep.Outstanding),
		"KV memory       " + percent(rep.KV),
		"prefix hits     " + percent(rep.PrefixHitRate),
		"output tokens   " + rate(rep.OutputTokensPerSecond) + " a second",
		"last report     " + maybeAge(rep.AgeMillis, s.since) + " ago",
	}
	if usd, known := s.prices.of(r); known {
		lines = append(lines, fmt.Sprintf("price           $%.2f an hour", usd))
	}
	for _, d := range s.snapshot.Donations {
		if d.Replica == rep.ID {
			lines = append(lines, fmt.Sprintf("donated         %s, earning $%.2f an hour", age(s.snapshot.At.Sub(d.Since)), d.EarnsPerHour))
		}
	}
	lines = append(lines, "", "requests that went there last (view 3 keeps them new):")
	n := 0
	for i := range s.asked.requests {
		if q := &s.asked.requests[i]; q.Target == rep.ID {
			lines = append(lines, fmt.Sprintf("  %s  %-9s %s  %s", q.At.In(s.snapshot.At.Location()).Format("15:04:05"), q.State, q.Request, q.Why))
			n++
		}
	}
	if n == 0 {
		lines = append(lines, "  none that is known")
	}
	return lines
}
