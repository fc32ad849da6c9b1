package tui

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/telemetry"
)

// Fetcher provides the snapshots of a dashboard; *SnapshotSource is one.
type Fetcher interface {
	// Fetch returns a snapshot and the address that it was fetched from.
	Fetch(ctx context.Context) (*telemetry.Snapshot, string, error)
	// String lists the addresses that Fetch tries.
	String() string
}

// FileError is a Fetcher's error about a recording that it reads or writes: the connection is not lost.
type FileError struct{ Err error }

func (e FileError) Error() string { return e.Err.Error() }
func (e FileError) Unwrap() error { return e.Err }

// Config configures a dashboard.
type Config struct {
	Fetcher  Fetcher
	Operator Operator      // nil = read-only: only snapshots are fetched
	Interval time.Duration // between two snapshots
	// ReplaySpeed is how many seconds of a recording pass in a second; 0 without a replay.
	ReplaySpeed float64
	// Theme is the initial theme; ThemeAuto becomes dark or light once the terminal has
	// reported its background.
	Theme Theme
	// Zone is the time zone of the times shown; nil keeps the zone of the snapshots.
	Zone *time.Location
	// Now is the clock, time.Now when nil.
	Now func() time.Time
}

// Model is the dashboard's Bubble Tea model. All I/O is in the commands that it returns.
type Model struct {
	ctx       context.Context
	cfg       Config
	screen    screen
	started   time.Time
	fetchedAt time.Time // when the last snapshot was received
	changedAt time.Time // of the snapshot that showed screen.change
	polls     int       // the number of the current poll; responses to earlier ones are ignored
	timeline  timeline
}

// Messages that the commands return.
type (
	snapshotMsg struct {
		poll     int
		snapshot *telemetry.Snapshot
		source   string
		err      error
		at       time.Time
	}
	pollMsg  struct{ poll int }
	clockMsg time.Time
)

// New returns a dashboard. It stops fetching when ctx ends.
func New(ctx context.Context, cfg Config) *Model {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Model{ctx: ctx, cfg: cfg, started: cfg.Now()}
	m.screen = newScreen(cfg.Theme)
	m.screen.history, m.screen.interactive, m.screen.readOnly = newHistory(cfg.ReplaySpeed), true, cfg.Operator == nil
	m.screen.link = link{source: cfg.Fetcher.String(), interval: cfg.Interval, replay: cfg.ReplaySpeed > 0}
	return m
}

// Init starts the first fetch and the clock.
func (m *Model) Init() tea.Cmd {
	return tea.Batch(m.fetch(), tick(), m.setTheme(m.cfg.Theme))
}

// setTheme changes the theme. ThemeAuto asks the terminal for its background: see setBackground.
func (m *Model) setTheme(t Theme) tea.Cmd {
	m.screen.theme = t
	if t.Name == ThemeAuto {
		return tea.RequestBackgroundColor
	}
	return nil
}

// fetch returns the command that fetches the next snapshot.
func (m *Model) fetch() tea.Cmd {
	m.polls++
	poll, ctx, cfg := m.polls, m.ctx, m.cfg
	return func() tea.Msg {
		s, source, err := cfg.Fetcher.Fetch(ctx)
		if s != nil && cfg.Zone != nil {
			s.At = s.At.In(cfg.Zone)
		}
		return snapshotMsg{poll, s, source, err, cfg.Now()}
	}
}

// tick returns the command that updates ages between snapshots.
func tick() tea.Cmd { return tea.Tick(time.Second, func(t time.Time) tea.Msg { return clockMsg(t) }) }

// pollAfter returns the command that starts the next poll after d.
func (m *Model) pollAfter(d time.Duration) tea.Cmd {
	poll := m.polls
	return tea.Tick(d, func(time.Time) tea.Msg { return pollMsg{poll} })
}

// Update handles one message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.update(msg)
	m.screen.reflow()
	return m, cmd
}

func (m *Model) update(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.screen.width, m.screen.height = msg.Width, msg.Height
	case tea.BackgroundColorMsg:
		m.setBackground(msg.IsDark())
	case snapshotMsg:
		return m.receiveSnapshot(msg)
	case pollMsg:
		if msg.poll == m.polls && !m.screen.paused {
			return m.fetch()
		}
	case clockMsg:
		m.updateAges(m.cfg.Now())
		return tick()
	case tea.KeyPressMsg:
		return m.handleKey(msg)
	case tea.PasteMsg:
		if m.screen.prompt.open {
			m.screen.prompt.insert(msg.Content)
			m.screen.promptEdited()
		}
	case tea.MouseClickMsg:
		return m.click(msg)
	case tea.MouseWheelMsg:
		m.wheel(msg)
	case requestsMsg:
		m.receiveRequests(msg)
	case loadMsg:
		m.receiveLoad(msg)
	case deploymentMsg:
		m.receiveDeployment(msg)
	case textMsg:
		m.receiveText(msg)
	case actionDoneMsg:
		return m.receiveActionResult(msg)
	case shellMsg:
		return m.runShell(msg)
	case shellDoneMsg:
		m.receiveShellEnd(msg)
	}
	return nil
}

// setBackground replaces ThemeAuto by the theme for the terminal's background.
func (m *Model) setBackground(dark bool) {
	if m.screen.theme.Name != ThemeAuto {
		return
	}
	name := ThemeLight
	if dark {
		name = ThemeDark
	}
	m.screen.theme = mustTheme(NewTheme(name, m.screen.theme.glyphs.ascii))
}

// retryAfter is the minimum time between two attempts while no address responds.
const retryAfter = time.Second

// retryIn returns the backoff after a failed fetch.
func retryIn(interval time.Duration) time.Duration { return max(interval, retryAfter) }

// receiveSnapshot handles the result of a fetch and schedules the next.
func (m *Model) receiveSnapshot(msg snapshotMsg) tea.Cmd {
	if msg.poll != m.polls || m.screen.paused {
		return nil
	}
	s := &m.screen
	if msg.err != nil {
		s.link.err, s.link.file = shortError(msg.err), errors.As(msg.err, new(FileError))
		m.updateAges(msg.at)
		return m.pollAfter(retryIn(m.cfg.Interval))
	}
	changes := findChanges(m.newestSnapshot(), msg.snapshot)
	if c, ok := mostSevere(changes); ok {
		s.change, m.changedAt = c, msg.snapshot.At
	}
	s.recordChanges(msg.snapshot.At, changes)
	s.history.addSnapshot(msg.snapshot)
	m.timeline.addSnapshot(msg.snapshot, msg.at)
	if s.pastFrame == nil {
		m.goLive()
	}
	s.link.source, s.link.err = msg.source, ""
	m.fetchedAt = msg.at
	m.updateAges(msg.at)
	return tea.Batch(m.pollAfter(m.cfg.Interval), m.fetchViewData())
}

// newestSnapshot returns the newest snapshot received; nil before the first.
func (m *Model) newestSnapshot() *telemetry.Snapshot {
	if n := len(m.timeline.frames); n > 0 {
		return m.timeline.frames[n-1].snapshot
	}
	return nil
}

// updateAges updates all ages to now.
func (m *Model) updateAges(now time.Time) {
	s := &m.screen
	s.link.waited = now.Sub(m.started)
	s.sinceFetch = now.Sub(m.fetchedAt)
	if newest := m.newestSnapshot(); newest != nil { // not by the clock: a recording plays at another speed, and ends
		s.change.ago = max(0, newest.At.Sub(m.changedAt))
		if !s.link.replay {
			s.change.ago += s.sinceFetch
		}
	}
	shownFor := toastDuration
	if s.toast.bad {
		shownFor = errorDuration
	}
	if now.Sub(s.toast.at) > shownFor {
		s.toast = toast{failures: s.toast.failures}
	}
}

// View draws the frame.
func (m *Model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	v.WindowTitle = "skyserve top"
	if !m.screen.mouseOff {
		v.MouseMode = tea.MouseModeCellMotion
	}
	if m.screen.width <= 0 || m.screen.height <= 0 {
		return v
	}
	v.SetContent(m.screen.Render())
	if m.screen.snapshot != nil {
		v.WindowTitle += " " + clean(m.screen.snapshot.Service)
	}
	if p := m.screen.prompt; p.open && m.screen.height >= footerFrom {
		_, column := m.screen.promptView()
		v.Cursor = tea.NewCursor(column, m.screen.height-1)
	}
	return v
}
