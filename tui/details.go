package tui

import (
	"strings"

	"skyserve/internal/telemetry"
)

// aboveList returns the lines above the current list, at most available of them.
func (s *screen) aboveList(available int) []string {
	var lines []string
	switch s.view {
	case viewReplicas:
		for _, b := range s.focusedBalancers() {
			lines = append(lines, s.balancerLine(&s.theme, b))
		}
	case viewRequests:
		if s.data.requestsErr != "" && len(s.data.requests) > 0 {
			lines = []string{s.theme.bad.apply(s.fit("update failed: " + s.theme.text(s.data.requestsErr)))}
		}
	case viewForecast:
		if len(s.snapshot.Forecast) > 0 {
			lines = []string{s.theme.muted.apply(s.fit("load and capacity in uncached prompt tok/s"))}
		}
	case viewPlan:
		lines = s.abovePlan()
	case viewDonations:
		lines = s.aboveDonations()
	case viewBatches:
		lines = s.aboveBatches()
	case viewCost:
		lines = s.aboveCost()
	}
	return lines[:min(len(lines), available)]
}

// focusedBalancers returns the balancers of the focused region, nil if all are shown.
func (s *screen) focusedBalancers() []telemetry.BalancerSnapshot {
	if r := findRegion(s.snapshot, s.focus); r != nil {
		return r.Balancers
	}
	return nil
}

// belowHeights returns the minimum and maximum height of the part below the current list; it
// is omitted when maxHeight is 0.
func (s *screen) belowHeights() (minHeight, maxHeight int) {
	switch s.view {
	case viewOverview:
		if len(s.snapshot.Regions) == 0 {
			return 0, 0
		}
		return minOverview, s.height
	case viewForecast:
		if s.plotted() != nil && s.width >= minPlotWidth {
			return minPlot + 3, maxPlot
		}
	case viewReplicas:
		if _, ok := s.table.current(); ok {
			return 2, 2 + maxChart
		}
		if s.width >= chartFromWidth {
			return 0, maxChart
		}
	case viewPlan:
		if n := len(s.assumptions()); n > 0 {
			return 2, 6 + n
		}
		fallthrough
	default:
		if r, ok := s.lists[s.view].current(); ok && len(r.details) > 0 {
			return 3, 2 + len(r.details)*2
		}
	}
	return 0, 0
}

// belowList draws the part below the current list in n lines.
func (s *screen) belowList(t *Theme, n int) []string {
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
		if r, ok := s.lists[s.view].current(); ok {
			lines = s.rowDetails(t, r, n)
		}
		if s.view == viewPlan {
			lines = append(append(lines, ""), s.assumptions()...)
		}
	}
	return lines[:min(len(lines), max(n, 0))]
}

// rowDetails returns the details of the selected row in at most n lines.
func (s *screen) rowDetails(t *Theme, r sheetRow, n int) []string {
	lines := []string{t.muted.apply(strings.Repeat(t.glyphs.rule, s.width))}
	for i, text := range r.details {
		for _, line := range wrap(text, s.width) {
			if i == 0 {
				line = t.accent.apply(line)
			}
			lines = append(lines, line)
		}
	}
	return lines[:min(len(lines), n)]
}

// belowReplicas returns the details of the selected replica and, where lines are left,
// the chart of the load.
func (s *screen) belowReplicas(t *Theme, n int) []string {
	var lines []string
	if _, ok := s.table.current(); ok {
		lines = s.detail(t, min(n, 2))
	}
	if rest := n - len(lines); rest > minChart && s.width >= chartFromWidth {
		return append(s.chart(t, rest), lines...)
	}
	for len(lines) < n {
		lines = append([]string{""}, lines...)
	}
	return lines
}

// rowText returns the full text of a row: every column, then the details that the list
// does not show.
func (s *screen) rowText(r sheetRow) []string {
	var lines []string
	columns := s.lists[s.view].sheet.columns
	for i, c := range r.cells {
		lines = append(lines, pad(strings.ToLower(columns[i].title), 16, false)+c.text)
	}
	lines = append(lines, "")
	for _, m := range r.details {
		lines = append(lines, wrap(m, s.width)...)
	}
	return lines
}
