package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// segment is a part of a line that is shown in full or not at all.
type segment struct {
	text  string
	paint paint
}

// segments joins the segments that fit into width w; only the first may be truncated.
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
			b.WriteString(t.muted.apply(between))
		}
		b.WriteString(p.paint.apply(p.text))
		used += n
	}
	return b.String(), used
}

// header returns the first line: totals of the service, and the time of the snapshot.
func (s *screen) header() []string {
	t := totalsOf(s.snapshot)
	clock := s.clockSegment()
	available := 0
	if s.width > 0 {
		available = max(s.width-width(clock.text)-2, 1)
	}
	ready := segment{fmt.Sprintf("%d/%d replicas ready", t.ready, t.replicas), paint{}}
	if t.ready < t.replicas {
		ready.paint = s.theme.warn
	}
	left, used := s.theme.segments(available, "  ",
		segment{orUnknown(s.theme.text(s.snapshot.Service)), s.theme.title},
		s.alertCount(),
		ready,
		segment{"queued " + count(int64(t.queued)), paint{}},
		segment{rate(t.requests) + " req/s", paint{}},
		segment{rate(t.tokens) + " output tok/s", paint{}},
		segment{printable.Count(len(s.snapshot.Regions), "region"), s.theme.muted},
	)
	if s.width <= 0 {
		return []string{left + "  " + clock.paint.apply(clock.text)}
	}
	gap := s.width - used - width(clock.text)
	if gap < 1 {
		return []string{left}
	}
	return []string{left + strings.Repeat(" ", gap) + clock.paint.apply(clock.text)}
}

// alertCount returns the number of alerts with the sign and the colour of the most severe one.
func (s *screen) alertCount() segment {
	critical := 0
	for _, a := range s.snapshot.Alerts {
		if a.Severity == telemetry.SeverityCritical {
			critical++
		}
	}
	switch n := len(s.snapshot.Alerts); {
	case critical > 0:
		return segment{fmt.Sprintf("%s %d critical", s.theme.glyphs.failed, critical), s.theme.alarm}
	case n > 0:
		return segment{s.theme.glyphs.warning + " " + printable.Count(n, "alert"), s.theme.warn}
	}
	return segment{}
}

// clockSegment returns the time of the snapshot, or the reason why it is not current.
func (s *screen) clockSegment() segment {
	switch {
	case s.pastFrame != nil:
		return segment{"HISTORY " + s.snapshot.At.Format("15:04:05"), s.theme.alarm}
	case s.link.err != "" && s.link.file:
		return segment{"NO UPDATES " + age(s.sinceFetch), s.theme.alarm}
	case s.link.err != "":
		return segment{"DISCONNECTED " + age(s.sinceFetch), s.theme.alarm}
	case s.paused:
		return segment{"PAUSED " + age(s.sinceFetch), s.theme.alarm}
	case s.sinceFetch > staleAfter+2*s.link.interval:
		return segment{"STALE " + age(s.sinceFetch), s.theme.warn}
	case s.snapshot.At.IsZero():
		return segment{unknown, s.theme.muted}
	}
	return segment{s.snapshot.At.Format("15:04:05"), s.theme.muted}
}

// note returns the lines below the tabs: an error, the result of an action, or alerts and notices.
func (s *screen) note() []string {
	if s.link.err != "" {
		problem, data := "connection lost", "data"
		if s.link.file {
			problem = "no new data"
		}
		if s.pastFrame != nil {
			data = "the newest data"
		}
		text := fmt.Sprintf(" %s, retrying; %s is %s old: %s ", problem, data, age(s.sinceFetch), s.theme.text(s.link.err))
		return []string{s.theme.alarm.apply(s.fit(text))}
	}
	if s.toast.shown() != "" {
		p := s.theme.title
		if s.toast.bad || s.toast.failures != "" {
			p = s.theme.alarm
		}
		lines := s.toastLines()
		for i := range lines {
			lines[i] = p.apply(s.fit(lines[i]))
		}
		return lines
	}
	notes := append([]segment{s.alertNote(), s.changeNote()}, s.planNotes()...)
	line, _ := s.theme.segments(s.width, " "+s.theme.glyphs.separator+" ", append(notes, s.donationNote(), s.eventNote(), segment{s.theme.text(s.snapshot.ControlLine()), s.theme.muted})...)
	if line == "" {
		return nil
	}
	return []string{line}
}

// maxToastLines is the maximum number of lines of a message.
const maxToastLines = 3

// toastLines returns the lines of the message, more than one only if it is shown on a screen that is high enough.
func (s *screen) toastLines() []string {
	text := s.theme.text(s.toast.shown())
	if s.height < aboveFrom || s.link.err != "" {
		return []string{text}
	}
	lines := wrap(text, s.width)
	if len(lines) > maxToastLines {
		lines = append(lines[:maxToastLines-1], strings.Join(lines[maxToastLines-1:], " "))
	}
	return lines
}

// fit truncates text to the screen's width.
func (s *screen) fit(text string) string {
	if s.width <= 0 {
		return text
	}
	return s.theme.cut(text, s.width)
}

// change is a change of a replica's state between two snapshots.
type change struct {
	region   service.Region
	replica  string
	from, to service.ReplicaState // "" = the replica did not exist
	// movedFrom is another region whose balancer listed the replica before; "" = none
	movedFrom service.Region
	reason    string
	ago       time.Duration
}

// changeNote returns the most recent change of a replica.
func (s *screen) changeNote() segment {
	c := s.change
	if c.replica == "" || s.pastFrame != nil {
		return segment{}
	}
	text := age(c.ago) + " ago: " + c.describe(s.theme.glyphs)
	if c.reason != "" {
		text += ": " + c.reason
	}
	return segment{s.theme.text(text), paint{}}
}

// alertNote returns the most severe alert, and how many more there are.
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
		text = fmt.Sprintf("%s (+%d more)", text, more)
	}
	return segment{s.theme.text(text), p}
}

// planNotes returns the loads that deviate from their forecasts, the changes of the last
// plan, and the forecast peaks.
func (s *screen) planNotes() []segment {
	deviation := segment{s.theme.text(s.snapshot.DeviationLine()), s.theme.warn}
	plan := segment{s.theme.text(s.snapshot.PlanLine(s.snapshot.At.Location())), s.theme.muted}
	peak := segment{s.theme.text(s.snapshot.PeakLine()), s.theme.muted}
	return []segment{deviation, plan, peak}
}

// eventNote returns the last event of the scaling strategy.
func (s *screen) eventNote() segment {
	return segment{s.theme.text(strings.Join(s.snapshot.EventLines(s.snapshot.At.Location(), 1), "")), paint{}}
}

// donationNote returns how many replicas are donated, and their earnings.
func (s *screen) donationNote() segment {
	n := len(s.snapshot.Donations)
	if n == 0 {
		return segment{}
	}
	text := printable.Count(n, "replica") + " donated"
	if earns := s.snapshot.RevenuePerHour(); earns > 0 {
		text += fmt.Sprintf(", revenue $%.2f/h", earns)
	}
	return segment{text, s.theme.muted}
}

// balancerLine draws one balancer of the focused region.
func (s *screen) balancerLine(t *Theme, b telemetry.BalancerSnapshot) string {
	sign, role := t.glyphs.balancerMark(b.State)
	rtt := ""
	if b.RTTMillis != nil {
		rtt = "rtt " + millis(*b.RTTMillis)
	}
	line, _ := t.segments(max(s.width-margin, 1), "  ",
		segment{t.text(b.ID), paint{}},
		segment{sign + " " + t.text(string(b.State)), t.paint(role)},
		segment{t.text(b.Endpoint), paint{}},
		segment{rtt, t.muted},
		segment{"seen " + maybeAge(&b.AgeMillis, s.sinceFetch), t.muted},
		segment{t.text(b.Reason), t.muted},
	)
	return strings.Repeat(" ", margin) + line
}

// detail draws the details of the selected replica in n lines.
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
		return []string{t.accent.apply(s.fit(t.text(why + "  " + where)))}
	}
	return []string{t.accent.apply(s.fit(t.text(where))), s.fit(t.text(why))}
}

// footer returns the last line: the prompt while it is open, else key hints and the source.
func (s *screen) footer(n int) []string {
	if n == 0 || !s.interactive {
		return nil
	}
	if s.prompt.open {
		return []string{s.promptLine()}
	}
	if s.help {
		line, _ := s.theme.segments(s.width, "  ", segment{"?/esc close", s.theme.muted}, segment{"j/k scroll", s.theme.muted}, segment{s.helpPosition(), s.theme.muted})
		return []string{line}
	}
	pieces := []segment{}
	if text := s.filterText(); text != "" && s.snapshot != nil {
		pieces = append(pieces, segment{"filter: " + s.theme.text(text) + " (" + s.filterCounts() + ")", s.theme.title})
	}
	if s.focus != "" {
		pieces = append(pieces, segment{"region: " + s.theme.text(string(s.focus)), s.theme.title})
	}
	if n := len(s.markedIDs()); n > 0 {
		pieces = append(pieces, segment{strconv.Itoa(n) + " marked", s.theme.title})
	}
	for _, hint := range s.hints() {
		pieces = append(pieces, segment{hint, s.theme.muted})
	}
	left, used := s.theme.segments(s.width, "  ", pieces...)
	right := s.theme.text(s.link.source)
	if s.link.interval > 0 && !s.link.replay {
		right += " every " + s.link.interval.String()
	}
	if gap := s.width - used - width(right); gap >= 2 {
		return []string{left + strings.Repeat(" ", gap) + s.theme.muted.apply(right)}
	}
	return []string{left}
}

// filterCounts returns how many rows or lines match the filter, of how many.
func (s *screen) filterCounts() string {
	shown, n := s.pane().counts()
	if s.panel.open() {
		shown, n = len(s.panel.matchingLines()), len(s.panel.lines)
	}
	return strconv.Itoa(shown) + " of " + strconv.Itoa(n)
}

// hints returns the most useful keys of the current view or panel: those that work for the selected row.
func (s *screen) hints() []string {
	if s.panel.open() {
		return []string{"esc close", "j/k scroll", "/ filter", "q quit"}
	}
	hints := []string{"? help", "q quit", "/ filter", ": command"}
	if s.pastFrame != nil {
		return append([]string{"</> step", "esc live"}, hints...)
	}
	switch s.view {
	case viewOverview:
		return append(append(hints, s.openHint("replicas")...), "< history", "p pause")
	case viewReplicas:
		return append(append(hints, s.replicaHints()...), "tab region")
	case viewRequests:
		return append(append(hints, s.openHint("explain")...), "tab region", "p pause")
	case viewPlan:
		if s.accepts(VerbApply) {
			hints = append(hints, "a apply")
		}
		return append(hints, s.openHint("details")...)
	case viewDonations:
		if s.accepts(VerbReclaim) {
			hints = append(hints, "c reclaim")
		}
		return append(hints, s.openHint("replica")...)
	case viewModels, viewCost:
		return append(append(hints, s.openHint("replicas")...), "tab region", "p pause")
	}
	return append(hints, "tab region", "z sort", "p pause")
}

// openHint returns the hint of enter, or without a selected row of how to select one; none in an empty list.
func (s *screen) openHint(what string) []string {
	if _, ok := s.pane().selection(); ok {
		return []string{"enter " + what}
	}
	if shown, _ := s.pane().counts(); shown > 0 {
		return []string{"j/k select"}
	}
	return nil
}

// replicaHints returns the keys that work for the selected or marked replicas.
func (s *screen) replicaHints() []string {
	var hints []string
	if _, ok := s.pane().selection(); !ok {
		hints = append(hints, "j/k select")
	} else {
		hints = append(hints, "d describe")
		if !s.readOnly && s.data.deployment.isHere() {
			hints = append(hints, "l logs", "s shell")
		}
	}
	for _, h := range []struct {
		verb Verb
		hint string
	}{{VerbDrain, "x drain"}, {VerbUndrain, "u undrain"}, {VerbDonate, "o donate"}, {VerbReclaim, "c reclaim"}} {
		if s.accepts(h.verb) {
			hints = append(hints, h.hint)
		}
	}
	return hints
}

// connecting returns the lines shown before the first snapshot.
func (s *screen) connecting() []string {
	lines := []string{s.theme.title.apply(s.fit("connecting to " + s.theme.text(s.link.source) + " " + s.theme.glyphs.ellipsis))}
	if s.link.err != "" {
		retrying := "retrying for " + age(s.link.waited)
		if !s.link.file {
			retrying += "; run 'skyserve status' to check whether the service is up"
		}
		lines = append(lines, "", s.theme.warn.apply(s.fit(s.theme.text(s.link.err))), s.fit(retrying))
	}
	return lines
}

// emptyService returns the body while the snapshot has no regions.
func (s *screen) emptyService() []string {
	return []string{
		s.fit("No regions yet: the balancer is reachable but reports none"),
		s.theme.muted.apply(s.fit("run 'skyserve status' to see what is starting")),
	}
}
