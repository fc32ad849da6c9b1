package tui

import (
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// screen is everything that one picture is drawn from. Update changes it and
// then calls reflow; Render only reads it.
type screen struct {
	width, height int // height 0 = as high as needed, width 0 as wide
	theme         Theme
	keys          KeyMap

	snapshot, previous *telemetry.Snapshot
	history            *history // nil = a single picture: no sparkline
	since              time.Duration

	link       link
	paused     bool
	focus      service.Region // "" = all regions
	prompt     prompt
	help       bool
	helpOffset int
	change     change
	live       bool // keys are listened to

	overview overview
	table    table
}

// link is how the figures reach the screen.
type link struct {
	source   string        // the admin URL in use, or those that are tried
	err      string        // why the last attempt failed, "" when it did not
	interval time.Duration // between two snapshots
	waited   time.Duration // since the screen began to connect
}

// Render draws the snapshot as text of at most width x height cells, lines
// parted by "\n". previous, where there is one, gives figures a sign for where
// they go. A width or height of 0 means as much as needed. The same arguments
// always give the same text.
func Render(snapshot, previous *telemetry.Snapshot, width, height int, theme Theme) string {
	s := screen{width: width, height: height, theme: theme, snapshot: snapshot, previous: previous, table: table{selected: -1}}
	s.reflow()
	return s.Render()
}

// layout is how the height is shared out. Zero lines = the part is left out.
type layout struct {
	header, note, overview, balancers, gap, table, chart, detail, footer int
}

// Heights from which a part of the screen is worth its lines.
const (
	footerFrom    = 6
	noteFrom      = 10
	balancersFrom = 16
	gapFrom       = 18
	detailFrom    = 16
	wideDetail    = 30 // two lines of detail
)

// layout shares the height out: the overview gets what its regions need up to
// two fifths, the table the rest.
func (s *screen) layout() layout {
	regions := 0
	if s.snapshot != nil {
		regions = len(s.snapshot.Regions)
	}
	l := layout{header: 1, overview: s.overview.rows(regions)}
	if s.height <= 0 {
		return layout{header: 1, note: len(s.note()), overview: l.overview, gap: 1}
	}
	l.overview = min(l.overview, max(s.height*2/5, 2))
	if s.height < 4 {
		l.overview = 0
	}
	if s.height >= footerFrom && s.live {
		l.footer = 1
	}
	if s.height >= noteFrom {
		l.note = 1
	}
	if s.height >= balancersFrom {
		l.balancers = min(len(s.focusedBalancers()), max(s.height/6, 1))
	}
	if s.height >= gapFrom {
		l.gap = 1
	}
	if _, ok := s.table.current(); ok && s.height >= detailFrom {
		l.detail = 1
		if s.height >= wideDetail {
			l.detail = 2
		}
	}
	l.table = max(s.height-l.header-l.note-l.overview-l.balancers-l.gap-l.detail-l.footer, 0)
	if spare := l.table - 1 - len(s.table.lines); s.history != nil && spare > leastChart && s.width >= chartFromWidth {
		l.chart = min(spare, mostChart)
		l.table -= l.chart
	}
	return l
}

// focusedBalancers are the balancers of the region that is shown alone.
func (s *screen) focusedBalancers() []telemetry.BalancerSnapshot {
	if r := findRegion(s.snapshot, s.focus); r != nil {
		return r.Balancers
	}
	return nil
}

// reflow fits the panes to the figures and the size.
func (s *screen) reflow() {
	if s.snapshot == nil {
		return
	}
	regions := regionsOf(s.snapshot)
	if findRegion(s.snapshot, s.focus) == nil {
		s.focus = ""
	}
	s.table.setRegions(regions, s.focus)
	l := s.layout()
	s.overview.SetSize(s.width, l.overview)
	s.table.SetSize(s.width, l.table)
}

// Render draws the screen.
func (s *screen) Render() string {
	if s.snapshot == nil {
		return s.fill(s.connecting(), nil)
	}
	if s.help {
		return s.fill(append(s.header(), s.helpWindow()...), s.footer(1))
	}
	l := s.layout()
	lines := s.header()
	if l.note > 0 {
		lines = append(lines, s.note()...)
		for len(lines) < l.header+l.note {
			lines = append(lines, "")
		}
	}
	return s.fill(append(lines, s.body(l)...), s.footer(l.footer))
}

// body is the panes; figures that are no longer true are drawn dimmed.
func (s *screen) body(l layout) []string {
	th := s.theme
	if s.link.err != "" {
		th = th.dimmed()
	}
	if len(s.snapshot.Regions) == 0 {
		return s.emptyService()
	}
	var lines []string
	if l.overview > 0 {
		lines = s.overview.Render(&th, s.overviewFacts())
	}
	for _, b := range s.focusedBalancers()[:l.balancers] {
		lines = append(lines, s.balancerLine(&th, b))
	}
	for range l.gap {
		lines = append(lines, "")
	}
	if s.height > 0 && l.table == 0 {
		return lines
	}
	table := s.table.Render(&th, s.since)
	if s.height > 0 {
		for len(table) < l.table {
			table = append(table, "")
		}
	}
	lines = append(append(lines, table...), s.chart(&th, l.chart)...)
	return append(lines, s.detail(&th, l.detail)...)
}

// overviewFacts hands the overview what it draws.
func (s *screen) overviewFacts() overviewFacts {
	f := overviewFacts{
		regions: regionsOf(s.snapshot), previous: s.previous, history: s.history,
		since: s.since, focus: s.focus, current: s.focus,
	}
	if r, ok := s.table.current(); ok && f.current == "" {
		f.current = r.region.Name
	}
	return f
}

// leastWidth is the width below which lines are cut wherever they end.
const leastWidth = 24

// fill joins the lines to a frame as high as the screen, the footer at its
// bottom; what does not fit is left out.
func (s *screen) fill(lines, footer []string) string {
	if s.width > 0 && s.width < leastWidth {
		for i := range lines {
			lines[i] = s.fit(lines[i])
		}
	}
	if s.height > 0 {
		room := max(s.height-len(footer), 0)
		lines = lines[:min(len(lines), room)]
		for len(lines) < room && len(footer) > 0 {
			lines = append(lines, "")
		}
	}
	return strings.Join(append(lines, footer...), "\n")
}
