package tui

import (
	"strings"
	"time"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
)

// handleKey handles one keystroke.
func (m *Model) handleKey(msg tea.KeyPressMsg) tea.Cmd {
	s := &m.screen
	switch {
	case msg.String() == "ctrl+c":
		return tea.Quit
	case s.dialog.open():
		return m.handleDialogKey(msg)
	case s.prompt.open:
		return m.promptKey(msg)
	}
	for v, binding := range s.keys.View {
		if key.Matches(msg, binding) {
			return m.openView(view(v))
		}
	}
	if cmd, taken := m.handleGlobalKey(msg); taken {
		return cmd
	}
	if cmd, taken := m.handleActionKey(msg); taken {
		return cmd
	}
	s.handleMoveKey(msg)
	return nil
}

// handleGlobalKey handles the keys that mean the same in every view.
func (m *Model) handleGlobalKey(msg tea.KeyPressMsg) (cmd tea.Cmd, taken bool) {
	s, k := &m.screen, m.screen.keys
	switch {
	case key.Matches(msg, k.Quit):
		return tea.Quit, true
	case key.Matches(msg, k.Suspend):
		return tea.Suspend, true
	case key.Matches(msg, k.Help):
		s.help, s.helpOffset = !s.help, 0
	case key.Matches(msg, k.Back):
		m.goBack()
	case key.Matches(msg, k.Open):
		return m.openSelection(), true
	case key.Matches(msg, k.Pause):
		return m.togglePause(), true
	case key.Matches(msg, k.Refresh):
		if s.paused {
			return nil, true
		}
		return tea.Batch(m.fetch(), m.fetchViewData()), true
	case key.Matches(msg, k.Theme):
		return m.setTheme(s.theme.next()), true
	case key.Matches(msg, k.Mouse):
		s.mouseOff = !s.mouseOff
	case key.Matches(msg, k.Filter):
		s.help = false
		s.prompt = openPrompt('/', s.filterText())
	case key.Matches(msg, k.Command):
		s.help = false
		s.prompt = openPrompt(':', "")
	default:
		return nil, m.handleTimeKey(msg)
	}
	return nil, true
}

// handleTimeKey handles the keys that step through the history.
func (m *Model) handleTimeKey(msg tea.KeyPressMsg) bool {
	k := m.screen.keys
	steps := []struct {
		binding key.Binding
		n       int
		minStep time.Duration
	}{{k.Earlier, -1, 0}, {k.Later, 1, 0}, {k.MuchEarlier, -1, time.Minute}, {k.MuchLater, 1, time.Minute}}
	for _, step := range steps {
		if key.Matches(msg, step.binding) {
			m.stepTime(step.n, step.minStep)
			return true
		}
	}
	return false
}

// filterText returns the filter of the open panel, else of the current list.
func (s *screen) filterText() string {
	if s.panel.open() {
		return s.panel.filter
	}
	return s.pane().filterText()
}

// setFilter sets the filter of the open panel, else of the current list.
func (s *screen) setFilter(text string) {
	if s.panel.open() {
		s.panel.filter = text
		return
	}
	s.pane().setFilter(text)
}

// handleMoveKey handles the keys that scroll or move the selection.
func (s *screen) handleMoveKey(msg tea.KeyPressMsg) {
	steps := []struct {
		binding key.Binding
		rows    int
	}{
		{s.keys.Up, -1},
		{s.keys.Down, 1},
		{s.keys.PageUp, -max(s.pageRows(), 1)},
		{s.keys.PageDown, max(s.pageRows(), 1)},
		{s.keys.Top, -1 << 30},
		{s.keys.Bottom, 1 << 30},
	}
	for _, step := range steps {
		if key.Matches(msg, step.binding) {
			s.scrollBy(step.rows)
			return
		}
	}
	if !s.help && !s.panel.open() {
		s.handleListKey(msg)
	}
}

// pageRows returns how many rows a page key moves.
func (s *screen) pageRows() int {
	switch {
	case s.help:
		return s.helpHeight() - 1
	case s.panel.open():
		return s.panelHeight() - 1
	}
	return s.pane().visibleRows() - 1
}

// scrollBy moves by n rows in the help, the open panel or the current list.
func (s *screen) scrollBy(n int) {
	switch {
	case s.help:
		s.scrollHelp(n)
	case s.panel.open():
		s.panel.scroll(n, s.panelHeight())
	default:
		s.pane().moveSelection(n)
	}
}

// handleListKey handles the keys that change which rows are shown and how they are sorted.
func (s *screen) handleListKey(msg tea.KeyPressMsg) {
	switch {
	case key.Matches(msg, s.keys.NextRegion):
		s.cycleFocus(1)
	case key.Matches(msg, s.keys.PreviousRegion):
		s.cycleFocus(-1)
	case key.Matches(msg, s.keys.Sort):
		s.pane().sortNext()
	case key.Matches(msg, s.keys.Mark):
		s.pane().toggleMark()
		s.pane().moveSelection(1)
	default:
		s.pane().sortBy(msg.Text)
	}
}

// cycleFocus shows only the next region; after the last one all regions are shown.
func (s *screen) cycleFocus(step int) {
	if s.snapshot == nil {
		return
	}
	names := []service.Region{""}
	at := 0
	for i, r := range regionsOf(s.snapshot) {
		names = append(names, r.Name)
		if r.Name == s.focus {
			at = i + 1
		}
	}
	s.focusOn(names[(at+step+len(names))%len(names)])
}

// focusOn shows only one region; "" shows all.
func (s *screen) focusOn(name service.Region) {
	s.focus = name
	s.table.offset = 0
}

// initialFilter returns the filter with which the current list was opened.
func (s *screen) initialFilter() string {
	if s.openedFrom != nil && !s.panel.open() {
		return s.openedFrom.opened
	}
	return ""
}

// goBack closes or clears one thing: help, filter, panel, history, toast, marks, the view if it was opened from
// another one, region, selection, in this order.
func (m *Model) goBack() {
	s := &m.screen
	switch {
	case s.help:
		s.help = false
	case s.filterText() != s.initialFilter():
		s.setFilter(s.initialFilter())
	case s.panel.open():
		s.panel = panel{}
	case s.pastFrame != nil:
		m.goLive()
	case s.toast.shown() != "":
		s.toast = toast{}
	case len(s.markedIDs()) > 0:
		s.clearMarks()
	case s.openedFrom != nil:
		m.returnToView()
	case s.focus != "":
		s.focusOn("")
	default:
		s.pane().unselect()
	}
}

// togglePause pauses polling, or resumes it at once.
func (m *Model) togglePause() tea.Cmd {
	m.screen.paused = !m.screen.paused
	if m.screen.paused {
		return nil
	}
	m.goLive()
	return tea.Batch(m.fetch(), m.fetchViewData())
}

// openView switches to a view and fetches its data.
func (m *Model) openView(v view) tea.Cmd {
	m.screen.setView(v)
	return m.fetchViewData()
}

// openSelection opens the selected row.
func (m *Model) openSelection() tea.Cmd {
	s := &m.screen
	id, ok := s.pane().selection()
	switch {
	case s.help || s.panel.open():
		return nil
	case !ok:
		hint := "select a row with j or k"
		if shown, _ := s.pane().counts(); shown == 0 {
			hint = "there are no rows"
		}
		m.showToast("open: "+hint, true)
		return nil
	}
	switch s.view {
	case viewOverview:
		return m.openReplicas(service.Region(id), "")
	case viewReplicas:
		return m.openReplica()
	case viewRequests:
		if r, ok := s.selectedRequest(); ok {
			return m.openExplanation(r.Request)
		}
	case viewModels:
		return m.openReplicas(s.focus, exactFilter(id))
	case viewCost:
		region, model, _ := strings.Cut(id, " ")
		return m.openReplicas(service.Region(region), exactFilter(model))
	case viewDonations:
		cmd := m.openReplicas("", "")
		s.reflow() // lists the replicas, among which this one is selected
		s.table.selectID(id)
		return cmd
	default:
		r, _ := s.lists[s.view].current()
		s.openText(viewNames[s.view], s.rowText(r))
	}
	return nil
}

// openedFrom is the view from which another one was opened with enter.
type openedFrom struct {
	view   view
	focus  service.Region
	filter string // of the replicas, before
	opened string // of the replicas, when they were opened
}

// openReplicas opens the replicas of a region with a filter; esc returns to the current view.
func (m *Model) openReplicas(region service.Region, filter string) tea.Cmd {
	s := &m.screen
	from := openedFrom{s.view, s.focus, s.table.filter, filter}
	s.focusOn(region)
	s.table.filter = filter
	cmd := m.openView(viewReplicas)
	s.openedFrom = &from
	return cmd
}

// returnToView returns to the view from which the current one was opened.
func (m *Model) returnToView() {
	s := &m.screen
	from := *s.openedFrom
	s.setView(from.view)
	s.focusOn(from.focus)
	s.table.filter = from.filter
}

// openText opens a panel with the given lines.
func (s *screen) openText(title string, lines []string) {
	s.panel = panel{kind: panelText, title: title, lines: lines}
}
