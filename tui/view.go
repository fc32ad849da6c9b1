package tui

import (
	"maps"
	"slices"
)

// view identifies a view of the dashboard: one tab, opened with its own key.
type view int

// The views, in the order of their keys.
const (
	viewOverview view = iota
	viewReplicas
	viewRequests
	viewForecast
	viewPlan
	viewDonations
	viewBatches
	viewEvents
	viewModels
	viewTenants
	viewCost
	views // the number of views
)

// viewNames are the names of the views, on tabs and as commands.
var viewNames = [views]string{"overview", "replicas", "requests", "forecast", "plan", "donations", "batches", "events", "models", "tenants", "cost"}

// shortNames are the names on the tabs of narrow terminals.
var shortNames = [views]string{"over", "repl", "req", "fcst", "plan", "don", "batch", "evts", "model", "tenant", "cost"}

// viewKeys are the keys of the views.
var viewKeys = [views]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "$"}

// pane is a list that scrolls and whose rows can be filtered, sorted and marked: a list of
// a sheet, or the table of replicas.
type pane interface {
	SetSize(width, height int)
	Render(t *Theme) []string
	moveSelection(n int)
	visibleRows() int
	unselect()
	selection() (id string, ok bool)
	filterText() string
	setFilter(text string)
	counts() (shown, n int)
	noun() string
	toggleMark()
	targetIDs() []string
	sortNext()
	sortBy(letter string) bool
	sortHelp() [][2]string
	click(x, y int) (again bool)
}

// pane returns the list of the current view.
func (s *screen) pane() pane {
	if s.view == viewReplicas {
		return &s.table
	}
	return &s.lists[s.view]
}

// setView switches to a view.
func (s *screen) setView(v view) {
	s.view = v
	s.help, s.panel, s.openedFrom = false, panel{}, nil
}

// fillLists builds the sheet of the current view from the snapshot. The sheets of other
// views are built when they are opened.
func (s *screen) fillLists() {
	switch s.view {
	case viewOverview:
		s.lists[viewOverview].setSheet(s.regionSheet())
	case viewRequests:
		s.lists[viewRequests].setSheet(s.requestSheet())
	case viewForecast:
		s.lists[viewForecast].setSheet(s.forecastSheet())
	case viewPlan:
		s.lists[viewPlan].setSheet(s.planSheet())
	case viewDonations:
		s.lists[viewDonations].setSheet(s.donationSheet())
	case viewBatches:
		s.lists[viewBatches].setSheet(s.batchSheet())
	case viewEvents:
		s.lists[viewEvents].setSheet(s.eventSheet())
	case viewModels:
		s.lists[viewModels].setSheet(s.modelSheet())
	case viewTenants:
		s.lists[viewTenants].setSheet(s.tenantSheet())
	case viewCost:
		s.lists[viewCost].setSheet(s.costSheet())
	}
}

// naturalKeys returns the keys of a map in natural order: us-2 before us-10.
func naturalKeys[V any](set map[string]V) []string {
	return slices.SortedFunc(maps.Keys(set), compareNatural)
}

// tabs returns the line of tabs. Colour and brackets mark the current view.
func (s *screen) tabs() string {
	names := viewNames
	if s.width > 0 && width(tabsText(names, s.view)) > s.width {
		names = shortNames
	}
	line := ""
	for i, name := range names {
		text, p := tabText(view(i), name, s.view), s.theme.muted
		if view(i) == s.view {
			p = s.theme.title
		}
		if i > 0 {
			line += " "
		}
		line += p.apply(text)
	}
	return s.fit(line)
}

// tabText returns the text of one tab.
func tabText(v view, name string, current view) string {
	text := viewKeys[v] + " " + name
	if v == current {
		return "[" + text + "]"
	}
	return text
}

// tabsText returns the text of all tabs, without colour.
func tabsText(names [views]string, current view) string {
	line := ""
	for i, name := range names {
		if i > 0 {
			line += " "
		}
		line += tabText(view(i), name, current)
	}
	return line
}

// tabAt returns the view whose tab covers column x of the line; ok is false for none.
func (s *screen) tabAt(x int) (v view, ok bool) {
	names := viewNames
	if s.width > 0 && width(tabsText(names, s.view)) > s.width {
		names = shortNames
	}
	at := 0
	for i, name := range names {
		w := width(tabText(view(i), name, s.view))
		if x >= at && x < at+w {
			return view(i), true
		}
		at += w + 1
	}
	return 0, false
}
