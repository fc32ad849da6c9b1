package agent

import (
	"cmp"
	"slices"
	"time"

	"skyserve/internal/telemetry"
)

// startTimer measures the phases of one start. Its methods get the time, which never decreases.
type startTimer struct {
	begun, ready time.Time // ready is zero until the replica is ready
	phases       []timedPhase
}

// timedPhase is a phase. runningSince is zero while the phase is not in progress.
type timedPhase struct {
	name                telemetry.StartPhaseName
	begun, runningSince time.Time
	elapsed             time.Duration // of earlier attempts
	bytes               *telemetry.ByteCount
}

// newStartTimer begins a start. agentStartedAt is startState.agentStartedAt: zero, except for the first start after
// the enrolment.
func newStartTimer(now, agentStartedAt time.Time) *startTimer {
	t := &startTimer{begun: now}
	if !agentStartedAt.IsZero() && !agentStartedAt.After(now) {
		t.begun = agentStartedAt
		t.phases = []timedPhase{{name: telemetry.StartEnrolment, begun: agentStartedAt, elapsed: now.Sub(agentStartedAt)}}
	}
	return t
}

// setRunning records the phases that are in progress from now on. All others end.
func (t *startTimer) setRunning(now time.Time, steps ...Step) {
	for i := range t.phases {
		p := &t.phases[i]
		if !p.runningSince.IsZero() && !slices.ContainsFunc(steps, func(s Step) bool { return s.Name == p.name }) {
			p.elapsed, p.runningSince = p.elapsed+now.Sub(p.runningSince), time.Time{}
		}
	}
	for _, s := range steps {
		p := t.phase(now, s.Name)
		if p.runningSince.IsZero() {
			p.runningSince = now
		}
		p.bytes = cmp.Or(s.Bytes, p.bytes)
	}
}

// phase returns the phase of a name, which begins now unless it exists.
func (t *startTimer) phase(now time.Time, name telemetry.StartPhaseName) *timedPhase {
	i := slices.IndexFunc(t.phases, func(p timedPhase) bool { return p.name == name })
	if i < 0 {
		i, t.phases = len(t.phases), append(t.phases, timedPhase{name: name, begun: now})
	}
	return &t.phases[i]
}

// isRunning reports whether a phase is in progress.
func (t *startTimer) isRunning(name telemetry.StartPhaseName) bool {
	return slices.ContainsFunc(t.phases, func(p timedPhase) bool { return p.name == name && !p.runningSince.IsZero() })
}

// finish ends the start: the replica is ready.
func (t *startTimer) finish(now time.Time) {
	t.setRunning(now)
	t.ready = now
}

// record returns the record of the start.
func (t *startTimer) record(now time.Time) *telemetry.Start {
	s := &telemetry.Start{StartedAt: t.begun, Ready: !t.ready.IsZero(), Phases: []telemetry.StartPhase{}}
	if s.Ready {
		now = t.ready
	}
	s.Seconds = now.Sub(t.begun).Seconds()
	for _, p := range t.phases {
		total := p.elapsed
		if !p.runningSince.IsZero() {
			total += now.Sub(p.runningSince)
		}
		s.Phases = append(s.Phases, telemetry.StartPhase{Name: p.name, StartedAt: p.begun, Seconds: total.Seconds(), Running: !p.runningSince.IsZero(), Bytes: p.bytes})
	}
	return s
}
