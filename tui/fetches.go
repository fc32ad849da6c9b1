package tui

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
)

// How much data the views fetch from the operator, and how often.
const (
	requestLimit = 200
	loadEvery    = 30 * time.Second // the load is counted per minute
	deployEvery  = 30 * time.Second // another 'skyserve up' may change the service
	logLines     = 500
)

// Messages that the fetching commands return.
type (
	requestsMsg struct {
		requests []RequestRow
		err      error
		at       time.Time
	}
	loadMsg struct {
		load []LoadSeries
		err  error
		at   time.Time
	}
	deploymentMsg struct {
		spec *service.Spec
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

// operatorData is the data received from the operator, and which fetches are in flight.
type operatorData struct {
	requests    []RequestRow
	requestsErr string
	requestsAt  time.Time
	load        []LoadSeries
	loadErr     string
	loadAt      time.Time
	deployment  deployment
	deployedAt  time.Time // when the deployment was read

	fetchingRequests, fetchingLoad, fetchingText, fetchingDeployment bool
}

// fetchViewData fetches what the current view shows beyond the snapshot; nil if nothing is due.
func (m *Model) fetchViewData() tea.Cmd {
	s, op := &m.screen, m.cfg.Operator
	if op == nil || s.paused {
		return nil
	}
	var cmds []tea.Cmd
	if (s.view == viewRequests || s.panel.kind == panelReplica) && !s.data.fetchingRequests {
		s.data.fetchingRequests = true
		cmds = append(cmds, m.operatorCmd(func(ctx context.Context) tea.Msg {
			requests, err := op.Requests(ctx, requestLimit)
			return requestsMsg{requests, err, m.cfg.Now()}
		}))
	}
	if s.view == viewForecast && !s.data.fetchingLoad && (s.data.loadAt.IsZero() || m.cfg.Now().Sub(s.data.loadAt) >= loadEvery) {
		s.data.fetchingLoad = true
		cmds = append(cmds, m.operatorCmd(func(ctx context.Context) tea.Msg {
			load, err := op.Load(ctx)
			return loadMsg{load, err, m.cfg.Now()}
		}))
	}
	if !s.data.fetchingDeployment && (s.data.deployedAt.IsZero() || m.cfg.Now().Sub(s.data.deployedAt) >= deployEvery) {
		s.data.fetchingDeployment = true
		cmds = append(cmds, m.operatorCmd(func(ctx context.Context) tea.Msg {
			spec, err := op.Deployed(ctx)
			return deploymentMsg{spec, err, m.cfg.Now()}
		}))
	}
	if s.panel.kind == panelLogs && !s.data.fetchingText {
		cmds = append(cmds, m.fetchText())
	}
	return tea.Batch(cmds...)
}

// operatorTimeout is the timeout of one fetch from the operator.
const operatorTimeout = 10 * time.Second

// operatorCmd returns a command that calls the operator with a timeout.
func (m *Model) operatorCmd(call func(context.Context) tea.Msg) tea.Cmd {
	ctx := m.ctx
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
		defer cancel()
		return call(ctx)
	}
}

// receiveRequests handles a response with the newest requests.
func (m *Model) receiveRequests(msg requestsMsg) {
	a := &m.screen.data
	a.fetchingRequests, a.requestsErr = false, ""
	if msg.err != nil {
		a.requestsErr = shortError(msg.err)
		return
	}
	a.requests, a.requestsAt = msg.requests, msg.at
}

// receiveLoad handles a response with the recent load.
func (m *Model) receiveLoad(msg loadMsg) {
	a := &m.screen.data
	a.fetchingLoad, a.loadErr, a.loadAt = false, "", msg.at
	if msg.err != nil {
		a.loadErr = shortError(msg.err)
		return
	}
	a.load = msg.load
}

// receiveDeployment handles a response with the deployment of the service. After an error it is unknown: an action then
// fails with the reason.
func (m *Model) receiveDeployment(msg deploymentMsg) {
	a := &m.screen.data
	a.fetchingDeployment, a.deployedAt = false, msg.at
	a.deployment = deployment{msg.err == nil, msg.spec}
}

// receiveText handles a response with the text of a panel, if that panel is still open.
func (m *Model) receiveText(msg textMsg) {
	s := &m.screen
	s.data.fetchingText = false
	if s.panel.kind != msg.kind || s.panel.id != msg.id {
		return
	}
	s.panel.setText(msg.text, msg.err)
	s.panel.scroll(0, s.panelHeight())
}

// openFetched opens a panel whose text is fetched from the operator.
func (m *Model) openFetched(p panel) tea.Cmd {
	if m.cfg.Operator == nil {
		m.showToast("this dashboard is read-only", true)
		return nil
	}
	p.loading = true
	m.screen.panel = p
	return m.fetchText()
}

// fetchText fetches the text of the open panel.
func (m *Model) fetchText() tea.Cmd {
	s, op := &m.screen, m.cfg.Operator
	p, columns := s.panel, max(s.width, minWidth)
	s.data.fetchingText = true
	return m.operatorCmd(func(ctx context.Context) tea.Msg {
		var text string
		var err error
		switch p.kind {
		case panelSpec:
			text, err = op.Spec(ctx)
		case panelExplanation:
			text, err = op.Explain(ctx, p.id, columns)
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
	return m.openFetched(panel{kind: panelSpec, title: "service.yaml"})
}

func (m *Model) openExplanation(id string) tea.Cmd {
	return m.openFetched(panel{kind: panelExplanation, title: "routing decision", id: id})
}

func (m *Model) openLogs(id string) tea.Cmd {
	return m.openFetched(panel{kind: panelLogs, title: "logs of " + id, id: id, follow: true})
}
