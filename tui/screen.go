package tui

import (
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// screen holds everything that a frame is drawn from. Update changes it and then calls
// reflow; Render only reads it.
type screen struct {
	width, height int // height 0 = as high as needed, width 0 as wide
	theme         Theme
	keys          KeyMap

	snapshot, previous *telemetry.Snapshot
	rateBase           frame    // some seconds before the snapshot, to compute rates
	pastFrame          *frame   // the past frame that is shown, nil = live
	history            *history // nil = a single frame without sparklines
	sinceFetch         time.Duration

	link        link
	paused      bool
	focus       service.Region // "" = all regions
	prompt      prompt
	help        bool
	helpOffset  int
	panel       panel
	dialog      dialog
	toast       toast
	change      change
	observed    []observedChange // changes of replicas, oldest first
	interactive bool             // interactive: keys are handled
	mouseOff    bool
	readOnly    bool // there is no operator
	data        operatorData
	prices      prices

	view       view
	openedFrom *openedFrom // nil = the view was opened by its key
	table      table
	lists      [views]list
}

// link is the state of the connection that snapshots are fetched over.
type link struct {
	source   string        // the admin URL in use, or those being tried
	err      string        // why the last attempt failed, "" if it succeeded
	file     bool          // it is a FileError: the connection is not lost
	interval time.Duration // between two snapshots
	replay   bool          // the source is a recording, which is not polled
	waited   time.Duration // since the first attempt to connect
}

// Render draws the regions and replicas of a snapshot as text of at most width x height
// cells, with lines separated by "\n". If previous is not nil, values carry a sign for
// their change since then. A width or height of 0 is unlimited. Render is deterministic.
func Render(snapshot, previous *telemetry.Snapshot, width, height int, theme Theme) string {
	s := newScreen(theme)
	s.width, s.height, s.snapshot, s.previous = width, height, snapshot, previous
	s.prices, s.table.previous = pricesOf(snapshot), previous
	s.reflow()
	return s.Render()
}

// newScreen returns an empty screen that is not interactive.
func newScreen(theme Theme) screen {
	s := screen{theme: theme, keys: NewKeyMap(), table: table{selected: -1}}
	for i := range s.lists {
		s.lists[i] = newList()
	}
	return s
}

// layout is the number of lines of each part of the screen. 0 = the part is omitted.
type layout struct {
	header, tabs, note, above, pane, below, dialog, footer int
}

// Minimum screen heights at which each part is shown.
const (
	footerFrom = 6
	noteFrom   = 8
	tabsFrom   = 10
	aboveFrom  = 16
)

// layout divides the height: the parts above and below the list get the lines that they
// need as long as the list keeps enough of its own.
func (s *screen) layout() layout {
	l := layout{header: 1, dialog: len(s.dialogLines())}
	if s.height <= 0 {
		return layout{header: 1, note: len(s.note())}
	}
	if s.height >= footerFrom && s.interactive {
		l.footer = 1
	}
	if s.height >= noteFrom {
		l.note = len(s.toastLines())
	}
	if s.height >= tabsFrom && s.interactive {
		l.tabs = 1
	}
	l.dialog = min(l.dialog, max(s.height-2, 0))
	available := max(s.height-l.header-l.tabs-l.note-l.dialog-l.footer, 0)
	if s.height >= aboveFrom {
		l.above = min(len(s.aboveList(available)), available/3)
	}
	l.below = s.belowLines(available - l.above)
	l.pane = available - l.above - l.below
	return l
}

// paneTop returns the first line of the list.
func (s *screen) paneTop(l layout) int { return l.header + l.tabs + l.note + l.above }

// belowLines returns how many of the available lines the part below the list gets: those that the
// rows leave free, and no more than it can use.
func (s *screen) belowLines(available int) int {
	minHeight, maxHeight := s.belowHeights()
	if maxHeight == 0 {
		return 0
	}
	rows, _ := s.pane().counts()
	if s.view == viewReplicas {
		rows = len(s.table.lines)
	}
	spare := max(available-rows-1, 0)
	switch {
	case spare >= minHeight:
		return min(spare, maxHeight)
	case available < minHeight*2:
		return 0
	}
	return min(minHeight, available/2, maxHeight)
}

// reflow updates the panes after a change of data or size.
func (s *screen) reflow() {
	if s.snapshot == nil {
		return
	}
	if findRegion(s.snapshot, s.focus) == nil {
		s.focus = ""
	}
	if s.view == viewReplicas || !s.interactive {
		s.table.since, s.table.at, s.table.prices = s.sinceFetch, s.snapshot.At, s.prices
		s.table.width = s.width
		s.table.setRegions(regionsOf(s.snapshot), s.focus)
		s.refreshReplica()
	}
	s.fillLists()
	l := s.layout()
	if !s.interactive {
		s.table.SetSize(s.width, s.staticTableHeight())
		return
	}
	s.pane().SetSize(s.width, l.pane)
	if s.panel.open() {
		s.panel.width = s.width
		s.panel.scroll(0, s.panelHeight())
	}
}

// staticTableHeight returns the height of the table of replicas below the regions on a static
// page; 0 is unlimited.
func (s *screen) staticTableHeight() int {
	if s.height <= 0 {
		return 0
	}
	return max(s.height-1-s.layout().note-s.staticRegionsHeight()-1, 1)
}

// staticRegionsHeight returns the height of the regions on a static page, including their title.
func (s *screen) staticRegionsHeight() int {
	n := len(s.snapshot.Regions) + 1
	if s.height > 0 {
		n = min(n, max(s.height*2/5, 2))
	}
	return n
}

// Render draws the screen.
func (s *screen) Render() string {
	switch {
	case s.snapshot == nil:
		return s.fill(s.connecting(), s.footer(min(s.height, 1)))
	case s.help:
		return s.fill(append(s.header(), s.helpWindow()...), s.footer(1))
	case !s.interactive:
		return s.fill(s.staticPage(), nil)
	}
	l := s.layout()
	lines := s.header()
	if l.tabs > 0 {
		lines = append(lines, s.tabs())
	}
	if l.note > 0 {
		lines = append(append(lines, s.note()...), "")[:len(lines)+l.note]
	}
	lines = append(lines, s.body(l)...)
	available := max(s.height-l.dialog-l.footer, 0)
	for len(lines) < available {
		lines = append(lines, "")
	}
	lines = append(lines[:min(len(lines), available)], s.dialogLines()[:l.dialog]...)
	return s.fill(lines, s.footer(l.footer))
}

// dataTheme returns the theme that data is drawn in: dimmed while the connection is lost.
func (s *screen) dataTheme() Theme {
	if s.link.err != "" {
		return s.theme.dimmed()
	}
	return s.theme
}

// body draws the current view, or the panel over it.
func (s *screen) body(l layout) []string {
	if s.panel.open() {
		return s.panel.Render(&s.theme, s.width, s.panelHeight()+1)
	}
	if len(s.snapshot.Regions) == 0 && s.view <= viewReplicas {
		return s.emptyService()
	}
	th := s.dataTheme()
	lines := s.aboveList(l.above + l.pane + l.below)
	lines = lines[:min(len(lines), l.above)]
	if l.pane > 0 {
		list := s.pane().Render(&th)
		for len(list) < l.pane {
			list = append(list, "")
		}
		lines = append(lines, list[:l.pane]...)
	}
	return append(lines, s.belowList(&th, l.below)...)
}

// panelHeight returns how many lines of a panel fit on the screen.
func (s *screen) panelHeight() int {
	l := s.layout()
	return max(l.above+l.pane+l.below-1, 1)
}

// staticPage draws the service on one static page: its regions, then its replicas.
func (s *screen) staticPage() []string {
	lines := append(s.header(), s.note()...)
	if len(s.snapshot.Regions) == 0 {
		return append(lines, s.emptyService()...)
	}
	th := s.dataTheme()
	regions := s.lists[viewOverview]
	regions.SetSize(s.width, 0)
	if n := s.staticRegionsHeight(); s.height > 0 {
		regions.SetSize(s.width, n)
	}
	lines = append(append(lines, regions.Render(&th)...), "")
	return append(lines, s.table.Render(&th)...)
}

// minWidth is the width below which all lines are truncated to the screen.
const minWidth = 24

// fill joins the lines to a frame of the screen's height, with the footer at the bottom.
// Lines that do not fit are omitted.
func (s *screen) fill(lines, footer []string) string {
	if s.width > 0 && s.width < minWidth {
		for i := range lines {
			lines[i] = s.fit(lines[i])
		}
	}
	if s.height > 0 {
		available := max(s.height-len(footer), 0)
		lines = lines[:min(len(lines), available)]
		for len(lines) < available && len(footer) > 0 {
			lines = append(lines, "")
		}
	}
	return strings.Join(append(lines, footer...), "\n")
}
