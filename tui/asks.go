package tui

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// How much data the views fetch from the operator, and how often.
const (
	requestLimit = 200
	loadEvery    = 30 * time.Second // the load is counted per minute
	logLines     = 500
)

// Messages that the fetching commands return.
type (
	requestsMsg struct {
		requests []Request
		err      error
		at       time.Time
	}
	loadMsg struct {
		load []LoadSeries
		err  error
		at   time.Time
	}
	textMsg struct {
		kind panelKind
		id   string
		text string
		err  error
	}
)

// asked is the data received from the operator, and which fetches are in flight.
type asked struct {
	requests    []Request
	requestsErr string
	requestsAt  time.Time
	held        bool // newer requests are not shown while a row is selected
	load        []LoadSeries
	loadErr     string
	loadAt      time.Time

	askingRequests, askingLoad, askingText bool
}

// ask fetches what the current view shows beyond the snapshot; nil if nothing is due.
func (m *Model) ask() tea.Cmd {
	s, op := &m.screen, m.cfg.Operator
	if op == nil || s.paused {
		return nil
	}
	var cmds []tea.Cmd
	if s.view == viewRequests && !s.asked.askingRequests {
		s.asked.askingRequests = true
		cmds = append(cmds, m.asking(func(ctx context.Context) tea.Msg {
			requests, err := op.Requests(ctx, requestLimit)
			return requestsMsg{requests, err, m.cfg.Now()}
		}))
	}
	if s.view == viewForecast && !s.asked.askingLoad && (s.asked.loadAt.IsZero() || m.cfg.Now().Sub(s.asked.loadAt) >= loadEvery) {
		s.asked.askingLoad = true
		cmds = append(cmds, m.asking(func(ctx context.Context) tea.Msg {
			load, err := op.Load(ctx)
			return loadMsg{load, err, m.cfg.Now()}
		}))
	}
	if s.panel.kind == panelLogs && !s.asked.askingText {
		cmds = append(cmds, m.askText())
	}
	return tea.Batch(cmds...)
}

// askTimeout is the timeout of one fetch from the operator.
const askTimeout = 10 * time.Second

// asking returns a command that calls the operator with a timeout.
func (m *Model) asking(question func(context.Context) tea.Msg) tea.Cmd {
	ctx := m.ctx
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return question(ctx)
	}
}

// tookRequests handles a response with the newest requests.
func (m *Model) tookRequests(msg requestsMsg) {
	a := &m.screen.asked
	a.askingRequests, a.requestsErr = false, ""
	if msg.err != nil {
		a.requestsErr = briefly(msg.err)
		return
	}
	if _, reading := m.screen.lists[viewRequests].current(); reading && len(a.requests) > 0 {
		a.held = true // keep the list still while the user reads it
		return
	}
	a.requests, a.requestsAt, a.held = msg.requests, msg.at, false
}

// tookLoad handles a response with the recent load.
func (m *Model) tookLoad(msg loadMsg) {
	a := &m.screen.asked
	a.askingLoad, a.loadErr, a.loadAt = false, "", msg.at
	if msg.err != nil {
		a.loadErr = briefly(msg.err)
		return
	}
	a.load = msg.load
}

// tookText handles a response with the text of a panel, if that panel is still open.
func (m *Model) tookText(msg textMsg) {
	s := &m.screen
	s.asked.askingText = false
	if s.panel.kind != msg.kind || s.panel.id != msg.id {
		return
	}
	s.panel.take(msg.text, msg.err)
	s.panel.scroll(0, s.panelRoom())
}

// openAsked opens a panel whose text is fetched from the operator.
func (m *Model) openAsked(p panel) tea.Cmd {
	if m.cfg.Operator == nil {
		m.say("this dashboard is read-only", true)
		return nil
	}
	p.waiting = true
	m.screen.panel = p
	return m.askText()
}

// askText fetches the text of the open panel.
func (m *Model) askText() tea.Cmd {
	s, op := &m.screen, m.cfg.Operator
	p, columns := s.panel, max(s.width, leastWidth)
	s.asked.askingText = true
	return m.asking(func(ctx context.Context) tea.Msg {
		var text string
		var err error
		switch p.kind {
		case panelSpec:
			text, err = op.Spec(ctx)
		case panelStory:
			text, err = op.Story(ctx, p.id, columns)
		case panelLogs:
			var lines []string
			lines, err = op.Logs(ctx, p.id, logLines)
			text = strings.Join(lines, "\n")
		default:
			err = fmt.Errorf("fetching panel text: unknown kind %d", p.kind)
		}
		return textMsg{p.kind, p.id, text, err}
	})
}

func (m *Model) openSpec() tea.Cmd {
	return m.openAsked(panel{kind: panelSpec, title: "service.yaml"})
}

func (m *Model) openStory(id string) tea.Cmd {
	return m.openAsked(panel{kind: panelStory, title: "request " + id, id: id})
}

func (m *Model) openLogs(id string) tea.Cmd {
	return m.openAsked(panel{kind: panelLogs, title: "logs of " + id, id: id, tail: true})
}
