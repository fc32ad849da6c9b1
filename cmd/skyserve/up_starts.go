package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// startView is what `up` shows about machines that start. Its methods get the time.
type startView struct {
	machines map[string]*startedMachine
	// changed are the machines whose phase changed since their last line, in the order of the changes.
	changed []string
	// lines may be printed now; the number grows with time, see maxLines.
	lines  float64
	filled time.Time
}

// startedMachine is a machine with its last status.
type startedMachine struct {
	provision.Object
	status     agent.Status
	observedAt time.Time
	phase      string // of its last status, without figures
	hasStarted bool   // it was not ready at its first status
}

const (
	// maxLines is the number of lines that a start may print at once: few machines never reach it.
	// Beyond it, linesPerSecond lines are printed, which contain several machines each.
	maxLines       = 20
	linesPerSecond = 4.0 / 60
	// maxRows is the number of machines drawn on a terminal.
	maxRows = 12
)

func newStartView(now time.Time) *startView {
	return &startView{machines: map[string]*startedMachine{}, lines: maxLines, filled: now}
}

// observe records the status of a machine.
func (v *startView) observe(now time.Time, o provision.Object, s agent.Status) {
	m := v.machines[o.ID]
	if m == nil {
		m = &startedMachine{hasStarted: s.Phase != agent.PhaseReady}
		v.machines[o.ID] = m
	}
	if s.Phase == agent.PhaseDraining {
		m.hasStarted = true
	}
	s.Start = s.Start.WithBoot(o.Started)
	if s.Start == nil && s.Phase == agent.PhaseWaiting && o.Kind == provision.KindReplica {
		s.Start = telemetry.BootingStart(o.Started, now)
	}
	m.Object, m.status, m.observedAt = o, s, now
	if phase := phaseKey(s); phase != m.phase {
		m.phase = phase
		if !slices.Contains(v.changed, o.ID) {
			v.changed = append(v.changed, o.ID)
		}
	}
}

// phaseKey returns the phase of a machine without figures and texts that change while it lasts.
func phaseKey(s agent.Status) string {
	switch {
	case s.Phase == agent.PhaseReady:
		return string(s.Phase)
	case s.Failure != nil && s.Failure.Permanent:
		return "failed: " + string(s.Failure.Kind)
	case s.Phase == agent.PhaseWaiting:
		reason, _, _ := strings.Cut(s.Reason, ":")
		return "waiting " + reason
	}
	key := string(s.Phase)
	if s.Start != nil {
		for _, p := range s.Start.Running() {
			key += " " + string(p.Name)
		}
	}
	return key
}

// dueLines returns the lines to print now: one for each machine whose phase changed, or one for all of
// them where more lines would be too many.
func (v *startView) dueLines(now time.Time) []string {
	v.lines = min(maxLines, v.lines+now.Sub(v.filled).Seconds()*linesPerSecond)
	v.filled = now
	if len(v.changed) == 0 || v.lines < 1 {
		return nil
	}
	lines := make([]string, len(v.changed))
	for i, id := range v.changed {
		lines[i] = id + " " + v.machines[id].text(now)
	}
	if float64(len(lines)) > v.lines {
		lines = []string{strings.Join(lines, "; ")}
	}
	v.changed, v.lines = nil, v.lines-float64(len(lines))
	return lines
}

// allowLine lets dueLines return a line: at the end of a wait, it contains the phases that were held back.
func (v *startView) allowLine() { v.lines = max(1, v.lines) }

// start returns the record of a machine's start at a time after its last status; nil if unknown.
func (m *startedMachine) start(now time.Time) *telemetry.Start {
	if m.status.Start == nil || m.status.Start.Ready {
		return m.status.Start
	}
	more := max(0, now.Sub(m.observedAt)).Seconds()
	s := *m.status.Start
	s.Seconds, s.Phases = s.Seconds+more, slices.Clone(s.Phases)
	for i := range s.Phases {
		if s.Phases[i].Running {
			s.Phases[i].Seconds += more
		}
	}
	return &s
}

// text returns the phase of a machine with its times.
func (m *startedMachine) text(now time.Time) string {
	s, start := m.status, m.start(now)
	plain := strings.TrimSpace(string(s.Phase) + " " + s.Reason)
	switch {
	case s.Phase == agent.PhaseReady && start != nil && start.Ready && m.hasStarted:
		return start.Summary()
	case s.Phase == agent.PhaseReady || s.Phase == agent.PhaseDraining || s.Phase == agent.PhaseInterrupted || start == nil:
		return plain
	case s.Failure != nil && s.Failure.Permanent:
		return "failed: " + s.Failure.String()
	case s.Phase == agent.PhaseWaiting:
		return plain + ", " + start.Summary()
	case len(start.Running()) == 0:
		return plain
	}
	return start.Summary()
}

// isSettled reports whether a machine is ready, or will not become ready.
func (m *startedMachine) isSettled() bool {
	return m.status.Phase == agent.PhaseReady || m.status.Failure != nil && m.status.Failure.Permanent
}

// starting returns the machines that are not settled, the slowest first: those in the earliest phase, of
// these the one that was launched first.
func (v *startView) starting() []*startedMachine {
	order := []telemetry.StartPhaseName{telemetry.StartBoot, telemetry.StartEnrolment, telemetry.StartImage, telemetry.StartWeights, telemetry.StartLoad, telemetry.StartWarmup}
	rank := func(m *startedMachine) int {
		first := 0 // it does not report phases yet
		if m.status.Start != nil {
			for _, p := range m.status.Start.Running() {
				if at := slices.Index(order, p.Name); first == 0 || at < first {
					first = at
				}
			}
		}
		return first
	}
	machines := slices.DeleteFunc(slices.Collect(maps.Values(v.machines)), (*startedMachine).isSettled)
	slices.SortFunc(machines, func(a, b *startedMachine) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return machines
}

// rows returns what a terminal shows: a row for each machine that starts, with a bar for a download, and a
// summary. Without such machines it is empty.
func (v *startView) rows(now time.Time) []string {
	machines := v.starting()
	if len(machines) == 0 {
		return nil
	}
	shown := machines[:min(len(machines), maxRows)]
	width := 0
	for _, m := range shown {
		width = max(width, len(m.ID))
	}
	var rows []string
	for _, m := range shown {
		row := fmt.Sprintf("%-*s  ", width, m.ID)
		if b := m.download(); b != nil {
			row += bar(float64(b.Done)/float64(b.Total)) + "  "
		}
		rows = append(rows, row+m.text(now))
	}
	settled := 0
	for _, m := range v.machines {
		if m.status.Phase == agent.PhaseReady {
			settled++
		}
	}
	last := fmt.Sprintf("%d of %d machines ready, slowest: %s", settled, len(v.machines), machines[0].ID)
	if hidden := len(machines) - len(shown); hidden > 0 {
		last += fmt.Sprintf(" (%d more not shown)", hidden)
	}
	return append(rows, last)
}

// download returns the bytes of a running download; nil without one.
func (m *startedMachine) download() *telemetry.ByteCount {
	if m.status.Start == nil {
		return nil
	}
	for _, p := range m.status.Start.Running() {
		if p.Bytes != nil && p.Bytes.Total > 0 {
			return p.Bytes
		}
	}
	return nil
}

// slowest returns the line about the replica that took longest of those that became ready; empty if none
// did.
func (v *startView) slowest() string {
	var last *startedMachine
	for _, id := range slices.Sorted(maps.Keys(v.machines)) {
		m := v.machines[id]
		if s := m.status.Start; m.hasStarted && m.Kind == provision.KindReplica && m.status.Phase == agent.PhaseReady && s != nil && s.Ready && (last == nil || s.Seconds > last.status.Start.Seconds) {
			last = m
		}
	}
	if last == nil {
		return ""
	}
	return "slowest replica: " + last.ID + " " + last.status.Start.Summary()
}
