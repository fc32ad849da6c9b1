package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// segment is a piece of a line that is shown whole or not at all.
type segment struct {
	text  string
	paint paint
}

// segments joins the pieces that fit into width; the first is cut if need be.
func (t *Theme) segments(w int, between string, pieces ...segment) (line string, used int) {
	var b strings.Builder
	for _, p := range pieces {
		if p.text == "" {
			continue
		}
		if used == 0 && w > 0 {
			p.text = t.cut(p.text, w)
		}
		n := width(p.text)
		if used > 0 {
			n += width(between)
		}
		if w > 0 && used+n > w {
			break
		}
		if used > 0 {
			b.WriteString(t.muted.over(between))
		}
		b.WriteString(p.paint.over(p.text))
		used += n
	}
	return b.String(), used
}

// header is the first line: the service in sum, and the time of the figures.
func (s *screen) header() []string {
	t := totalsOf(s.snapshot)
	clock := s.clock()
	room := 0
	if s.width > 0 {
		room = max(s.width-width(clock.text)-2, 1)
	}
	ready := segment{fmt.Sprintf("%d/%d ready", t.ready, t.replicas), paint{}}
	if t.ready < t.replicas {
		ready.paint = s.theme.warn
	}
	left, used := s.theme.segments(room, "  ",
		segment{orUnknown(s.theme.text(s.snapshot.Service)), s.theme.title},
		ready,
		segment{"queued " + count(int64(t.queued)), paint{}},
		segment{rate(t.requests) + " req/s", paint{}},
		segment{rate(t.tokens) + " tok/s", paint{}},
		segment{plural(len(s.snapshot.Regions), "region"), s.theme.muted},
	)
	if s.width <= 0 {
		return []string{left + "  " + clock.paint.over(clock.text)}
	}
	gap := s.width - used - width(clock.text)
	if gap < 1 {
		return []string{left}
	}
	return []string{left + strings.Repeat(" ", gap) + clock.paint.over(clock.text)}
}

// clock is the time of the figures, or the word for why they stand still.
func (s *screen) clock() segment {
	switch {
	case s.link.err != "":
		return segment{"LOST " + age(s.since), s.theme.alarm}
	case s.then != nil:
		return segment{"PAST " + s.snapshot.At.Format("15:04:05"), s.theme.alarm}
	case s.paused:
		return segment{"PAUSED " + age(s.since), s.theme.alarm}
	case s.since > staleAfter+2*s.link.interval:
		return segment{"LATE " + age(s.since), s.theme.warn}
	case s.snapshot.At.IsZero():
		return segment{unknown, s.theme.muted}
	}
	return segment{s.snapshot.At.Format("15:04:05"), s.theme.muted}
}

// note is the second line: what matters most beside the figures.
func (s *screen) note() []string {
	if s.link.err != "" {
		text := fmt.Sprintf(" connection lost: %s; trying again, figures are %s old ", s.theme.text(s.link.err), age(s.since))
		return []string{s.theme.alarm.over(s.fit(text))}
	}
	if s.toast.text != "" {
		p := s.theme.title
		if s.toast.bad {
			p = s.theme.alarm
		}
		return []string{p.over(s.fit(s.theme.text(s.toast.text)))}
	}
	notes := append([]segment{s.alertNote(), s.changeNote()}, s.planNotes()...)
	line, _ := s.theme.segments(s.width, " "+s.theme.glyphs.separator+" ", append(notes, s.donationNote(), s.eventNote())...)
	if line == "" {
		return nil
	}
	return []string{line}
}

// fit cuts text to the screen's width.
func (s *screen) fit(text string) string {
	if s.width <= 0 {
		return text
	}
	return s.theme.cut(text, s.width)
}

// change is the last change of a replica's state that the screen saw.
type change struct {
	region   service.Region
	replica  string
	from, to service.ReplicaState // "" = it was not there
	reason   string
	ago      time.Duration
}

// changeNote says what changed last.
func (s *screen) changeNote() segment {
	c := s.change
	if c.replica == "" || s.then != nil {
		return segment{}
	}
	text := age(c.ago) + " ago: " + c.words(s.theme.glyphs)
	if c.reason != "" {
		text += ": " + c.reason
	}
	return segment{s.theme.text(text), paint{}}
}

// alertNote is the worst alert, and how many more there are.
func (s *screen) alertNote() segment {
	alerts := s.snapshot.Alerts
	if len(alerts) == 0 {
		return segment{}
	}
	text, p := alerts[0].Line(), s.theme.warn
	if alerts[0].Severity == telemetry.SeverityCritical {
		p = s.theme.alarm
	}
	if more := len(alerts) - 1; more > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, more)
	}
	return segment{s.theme.text(text), p}
}

// planNotes say what the last proposal would change, which loads left their
// forecasts, and which peaks are expected.
func (s *screen) planNotes() []segment {
	left := segment{s.theme.text(s.snapshot.LeftLine()), s.theme.warn}
	plan := segment{s.theme.text(s.snapshot.PlanLine(s.snapshot.At.Location())), s.theme.muted}
	peak := segment{s.theme.text(s.snapshot.PeakLine()), s.theme.muted}
	return []segment{left, plan, peak}
}

// eventNote says what the strategy did last.
func (s *screen) eventNote() segment {
	return segment{s.theme.text(strings.Join(s.snapshot.EventLines(s.snapshot.At.Location(), 1), "")), paint{}}
}

// donationNote says how many replicas are lent, and what that earns.
func (s *screen) donationNote() segment {
	n := len(s.snapshot.Donations)
	if n == 0 {
		return segment{}
	}
	text := plural(n, "replica") + " donated"
	if earns := s.snapshot.EarnsPerHour(); earns > 0 {
		text += fmt.Sprintf(", $%.2f/h", earns)
	}
	return segment{text, s.theme.muted}
}

// balancerLine is one balancer of the region that is shown alone.
func (s *screen) balancerLine(t *Theme, b telemetry.BalancerSnapshot) string {
	sign, role := t.glyphs.balancerMark(b.State)
	rtt := ""
	if b.RTTMillis != nil {
		rtt = "rtt " + millis(*b.RTTMillis)
	}
	line, _ := t.segments(max(s.width-margin, 1), "  ",
		segment{t.text(b.ID), paint{}},
		segment{sign + " " + t.text(b.State), t.paint(role)},
		segment{t.text(b.Endpoint), paint{}},
		segment{rtt, t.muted},
		segment{"age " + maybeAge(&b.AgeMillis, s.since), t.muted},
		segment{t.text(b.Reason), t.muted},
	)
	return strings.Repeat(" ", margin) + line
}

// detail is all about the selected replica in n lines.
func (s *screen) detail(t *Theme, n int) []string {
	r, ok := s.table.current()
	if !ok || n == 0 {
		return nil
	}
	where := strings.Join([]string{r.replica.ID, string(r.region.Name), orUnknown(r.replica.Model), orUnknown(r.replica.GPU), orUnknown(r.replica.URL)}, "  ")
	why := string(r.replica.State)
	if reason := reasonOf(r.replica); reason != "" {
		why += ": " + reason
	}
	if n == 1 {
		return []string{t.accent.over(s.fit(t.text(why + "  " + where)))}
	}
	return []string{t.accent.over(s.fit(t.text(where))), s.fit(t.text(why))}
}

// footer is the last line: the filter being typed, or keys and the source.
func (s *screen) footer(n int) []string {
	if n == 0 || !s.live {
		return nil
	}
	if s.prompt.open {
		return []string{s.promptLine()}
	}
	if s.help {
		line, _ := s.theme.segments(s.width, "  ", segment{"? or esc closes", s.theme.muted}, segment{"j, k scroll", s.theme.muted})
		return []string{line}
	}
	pieces := []segment{}
	if text := s.filterText(); text != "" && s.snapshot != nil {
		pieces = append(pieces, segment{"filter: " + s.theme.text(text) + " (" + s.passed() + ")", s.theme.title})
	}
	if s.focus != "" {
		pieces = append(pieces, segment{"only " + s.theme.text(string(s.focus)), s.theme.title})
	}
	if n := len(s.marked()); n > 0 {
		pieces = append(pieces, segment{strconv.Itoa(n) + " marked", s.theme.title})
	}
	for _, hint := range s.hints() {
		pieces = append(pieces, segment{hint, s.theme.muted})
	}
	left, used := s.theme.segments(s.width, "  ", pieces...)
	right := s.theme.text(s.link.source)
	if s.link.interval > 0 {
		right += " every " + s.link.interval.String()
	}
	if gap := s.width - used - width(right); gap >= 2 {
		return []string{left + strings.Repeat(" ", gap) + s.theme.muted.over(right)}
	}
	return []string{left}
}

// passed is how much of what is in front passes the filter.
func (s *screen) passed() string {
	shown, n := s.pane().counts()
	if s.panel.open() {
		shown, n = len(s.panel.passing()), len(s.panel.lines)
	}
	return strconv.Itoa(shown) + " of " + strconv.Itoa(n)
}

// hints are the keys that matter most where the user is.
func (s *screen) hints() []string {
	if s.panel.open() {
		return []string{"esc closes", "j, k scroll", "/ filter", "q quit"}
	}
	hints := []string{"? help", "q quit", "/ filter", ": command"}
	if s.then != nil {
		return append([]string{"< > step", "esc now"}, hints...)
	}
	switch s.view {
	case viewOverview:
		return append(hints, "enter replicas", "< past", "p pause")
	case viewReplicas:
		return append(hints, "enter details", "d drain", "o donate", "l logs", "tab region")
	case viewRequests:
		return append(hints, "enter explain", "tab region", "p pause")
	case viewPlan:
		return append(hints, "a apply", "enter details")
	case viewDonations:
		return append(hints, "c call back", "enter replica")
	}
	return append(hints, "tab region", "s sort", "p pause")
}

// connecting is the screen before the first snapshot.
func (s *screen) connecting() []string {
	lines := []string{s.theme.title.over(s.fit("connecting to " + s.theme.text(s.link.source) + " " + s.theme.glyphs.ellipsis))}
	if s.link.err != "" {
		lines = append(lines, "", s.theme.warn.over(s.fit(s.theme.text(s.link.err))),
			s.fit("trying again for "+age(s.link.waited)+" now; 'skyserve status' says whether the service is up"))
	}
	return append(lines, "", s.theme.muted.over(s.fit("q leaves")))
}

// emptyService is the body while a service has no region.
func (s *screen) emptyService() []string {
	return []string{
		s.fit("no regions yet: the balancer answers and knows of none"),
		s.theme.muted.over(s.fit("'skyserve status' says what is being brought up")),
	}
}
