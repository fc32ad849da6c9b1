package tui

import (
	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
)

// key takes one keystroke.
func (m *Model) key(msg tea.KeyPressMsg) tea.Cmd {
	s, k := &m.screen, m.screen.keys
	switch {
	case s.prompt.open:
		return s.promptKey(msg)
	case key.Matches(msg, k.Quit):
		return tea.Quit
	case key.Matches(msg, k.Suspend):
		return tea.Suspend
	case key.Matches(msg, k.Help):
		s.help, s.helpOffset = !s.help, 0
	case key.Matches(msg, k.Back):
		s.back()
	case key.Matches(msg, k.Pause):
		return m.pause()
	case key.Matches(msg, k.Refresh):
		if !s.paused {
			return m.fetch()
		}
	case key.Matches(msg, k.Theme):
		s.theme = s.theme.next()
	case key.Matches(msg, k.Filter):
		s.help = false
		s.prompt = openPrompt(s.table.filter)
	default:
		s.move(msg)
	}
	return nil
}

// move takes a keystroke that moves about.
func (s *screen) move(msg tea.KeyPressMsg) {
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
			s.step(step.rows)
			return
		}
	}
	if !s.help {
		s.arrange(msg)
	}
}

// pageRows is how many rows a page key moves.
func (s *screen) pageRows() int {
	if s.help {
		return s.helpRoom() - 1
	}
	return s.table.page() - 1
}

// step moves by n rows in what is on the screen.
func (s *screen) step(n int) {
	if s.help {
		s.scrollHelp(n)
		return
	}
	s.table.move(n)
}

// arrange takes a keystroke that changes which replicas are shown or how they
// are sorted.
func (s *screen) arrange(msg tea.KeyPressMsg) {
	switch {
	case key.Matches(msg, s.keys.NextRegion):
		s.cycleFocus(1)
	case key.Matches(msg, s.keys.PreviousRegion):
		s.cycleFocus(-1)
	case key.Matches(msg, s.keys.Region):
		s.toggleFocus()
	case key.Matches(msg, s.keys.Sort):
		s.table.order = sortOrder{key: (s.table.order.key + 1) % sortKeys}
	}
	for i, b := range s.keys.SortBy {
		if key.Matches(msg, b) {
			s.table.order = s.table.order.pick(sortKey(i))
		}
	}
}

// cycleFocus shows the next region alone; past the last one all are shown.
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
	s.focus = names[(at+step+len(names))%len(names)]
	s.table.offset = 0
}

// toggleFocus shows the selected replica's region alone, or all again.
func (s *screen) toggleFocus() {
	r, ok := s.table.current()
	switch {
	case s.focus != "":
		s.focus = ""
	case ok:
		s.focus = r.region.Name
	default:
		s.cycleFocus(1)
	}
}

// back takes back the last thing that narrowed the screen.
func (s *screen) back() {
	switch {
	case s.help:
		s.help = false
	case s.table.filter != "":
		s.table.filter = ""
	case s.focus != "":
		s.focus = ""
	default:
		s.table.unselect()
	}
}

// pause holds the figures, or goes on at once.
func (m *Model) pause() tea.Cmd {
	m.screen.paused = !m.screen.paused
	if m.screen.paused {
		return nil
	}
	return m.fetch()
}
