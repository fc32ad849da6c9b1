package tui

import (
	tea "charm.land/bubbletea/v2"
)

// wheelRows is how many rows one step of the mouse wheel scrolls.
const wheelRows = 3

// wheel scrolls.
func (m *Model) wheel(msg tea.MouseWheelMsg) {
	switch msg.Button {
	case tea.MouseWheelUp:
		m.screen.scrollBy(-wheelRows)
	case tea.MouseWheelDown:
		m.screen.scrollBy(wheelRows)
	}
}

// click handles a mouse click: on a tab it opens the view, on a title it sorts, on a row it
// selects the row, and on the selected row it opens it.
func (m *Model) click(msg tea.MouseClickMsg) tea.Cmd {
	s := &m.screen
	if msg.Button != tea.MouseLeft || s.snapshot == nil || s.help || s.panel.open() || s.dialog.open() || s.prompt.open {
		return nil
	}
	l := s.layout()
	if l.tabs > 0 && msg.Y == l.header {
		if v, ok := s.tabAt(msg.X); ok {
			return m.openView(v)
		}
		return nil
	}
	if top := s.paneTop(l); msg.Y >= top && msg.Y < top+l.pane && s.pane().click(msg.X, msg.Y-top) {
		return m.openSelection()
	}
	return nil
}
