package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// StartPhaseName names a phase of a replica's start.
type StartPhaseName string

// The phases, in their usual order. Images and weights are downloaded at the same time.
const (
	StartBoot      StartPhaseName = "boot"      // from the launch of the machine until its agent runs
	StartEnrolment StartPhaseName = "enrolment" // until it receives its deployment
	StartImage     StartPhaseName = "image"     // the image is pulled
	StartWeights   StartPhaseName = "weights"   // weights and adapters are downloaded to the machine
	StartLoad      StartPhaseName = "load"      // the engine starts and loads the weights
	StartWarmup    StartPhaseName = "warmup"    // the engine compiles and measures, until it is ready
)

// ByteCount counts the bytes of a download.
type ByteCount struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// StartPhase is a phase of a start.
type StartPhase struct {
	Name      StartPhaseName `json:"name"`
	StartedAt time.Time      `json:"started_at"`
	// Seconds is its duration so far. The times of several attempts are added.
	Seconds float64 `json:"seconds"`
	// Running is true while the phase is in progress.
	Running bool `json:"running"`
	// Bytes counts the bytes of a download; nil = unknown.
	Bytes *ByteCount `json:"bytes"`
}

// Start is the record of a replica's last start. Phases that were not necessary are missing.
type Start struct {
	StartedAt time.Time `json:"started_at"`
	// Seconds is the time until the replica was ready, or so far.
	Seconds float64      `json:"seconds"`
	Ready   bool         `json:"ready"`
	Phases  []StartPhase `json:"phases"`
}

// WithBoot returns the record of a machine's first start with the phase "boot" since its launch. Other
// starts, and launches in the future by the clock of the machine, are returned unchanged.
func (s *Start) WithBoot(launched time.Time) *Start {
	if s == nil || launched.IsZero() || len(s.Phases) == 0 || s.Phases[0].Name != StartEnrolment {
		return s
	}
	boot := s.StartedAt.Sub(launched)
	if boot < 0 {
		return s
	}
	whole := *s
	whole.StartedAt, whole.Seconds = launched, s.Seconds+boot.Seconds()
	whole.Phases = slices.Concat([]StartPhase{{Name: StartBoot, StartedAt: launched, Seconds: boot.Seconds()}}, s.Phases)
	return &whole
}

// BootingStart returns the record of a machine whose agent does not respond yet.
func BootingStart(launched, now time.Time) *Start {
	if launched.IsZero() || now.Before(launched) {
		return nil
	}
	s := now.Sub(launched).Seconds()
	return &Start{StartedAt: launched, Seconds: s, Phases: []StartPhase{{Name: StartBoot, StartedAt: launched, Seconds: s, Running: true}}}
}

// Running returns the phases in progress.
func (s *Start) Running() (phases []StartPhase) {
	for _, p := range s.Phases {
		if p.Running {
			phases = append(phases, p)
		}
	}
	return phases
}

// Summary returns the record in one line: of a start in progress the current phases, such as "image
// 3m10s, weights 41 % of 16.1 GB"; of a completed one all, such as "ready in 5m0s: boot 1m2s, load 3m58s".
func (s *Start) Summary() string {
	if s == nil {
		return ""
	}
	phases, prefix := s.Running(), ""
	if s.Ready || len(phases) == 0 {
		phases, prefix = s.Phases, "after "+seconds(s.Seconds)+": "
	}
	if s.Ready {
		prefix = "ready in " + seconds(s.Seconds) + ": "
	}
	texts := make([]string, len(phases))
	for i, p := range phases {
		texts[i] = p.String()
	}
	return prefix + strings.Join(texts, ", ")
}

// String returns the name of a phase with its duration, and the progress of a running download.
func (p StartPhase) String() string {
	text := string(p.Name) + " " + seconds(p.Seconds)
	if b := p.Bytes; p.Running && b != nil && b.Total > 0 {
		text += fmt.Sprintf(" %d %% of %s", 100*b.Done/b.Total, gigabytes(b.Total))
	}
	return text
}

// seconds formats a duration in whole seconds.
func seconds(s float64) string {
	return (time.Duration(s) * time.Second).String()
}

// gigabytes formats a number of bytes.
func gigabytes(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }

// startTimer measures the phases of one start. Its methods get the time, which never decreases.
type startTimer struct {
	begun, ready time.Time // ready is zero until the replica is ready
	phases       []timedPhase
}

// timedPhase is a phase; since is when it began to run, zero while it does not run.
type timedPhase struct {
	name         StartPhaseName
	begun, since time.Time
	elapsed      time.Duration // of earlier attempts
	bytes        *ByteCount
}

// newStartTimer begins a start. arrived is when the agent of a machine that is enrolled for this start
// began to run; zero for later starts.
func newStartTimer(now, arrived time.Time) *startTimer {
	t := &startTimer{begun: now}
	if !arrived.IsZero() && !arrived.After(now) {
		t.begun = arrived
		t.phases = []timedPhase{{name: StartEnrolment, begun: arrived, elapsed: now.Sub(arrived)}}
	}
	return t
}

// run records the phases that are in progress from now on. All others end.
func (t *startTimer) run(now time.Time, steps ...Step) {
	for i := range t.phases {
		p := &t.phases[i]
		if !p.since.IsZero() && !slices.ContainsFunc(steps, func(s Step) bool { return s.Name == p.name }) {
			p.elapsed, p.since = p.elapsed+now.Sub(p.since), time.Time{}
		}
	}
	for _, s := range steps {
		p := t.phase(now, s.Name)
		if p.since.IsZero() {
			p.since = now
		}
		p.bytes = cmp.Or(s.Bytes, p.bytes)
	}
}

// phase returns the phase of a name, which begins now unless it exists.
func (t *startTimer) phase(now time.Time, name StartPhaseName) *timedPhase {
	i := slices.IndexFunc(t.phases, func(p timedPhase) bool { return p.name == name })
	if i < 0 {
		i, t.phases = len(t.phases), append(t.phases, timedPhase{name: name, begun: now})
	}
	return &t.phases[i]
}

// isRunning reports whether a phase is in progress.
func (t *startTimer) isRunning(name StartPhaseName) bool {
	return slices.ContainsFunc(t.phases, func(p timedPhase) bool { return p.name == name && !p.since.IsZero() })
}

// finish ends the start: the replica is ready.
func (t *startTimer) finish(now time.Time) {
	t.run(now)
	t.ready = now
}

// record returns the record of the start.
func (t *startTimer) record(now time.Time) *Start {
	s := &Start{StartedAt: t.begun, Ready: !t.ready.IsZero(), Phases: []StartPhase{}}
	if s.Ready {
		now = t.ready
	}
	s.Seconds = now.Sub(t.begun).Seconds()
	for _, p := range t.phases {
		total := p.elapsed
		if !p.since.IsZero() {
			total += now.Sub(p.since)
		}
		s.Phases = append(s.Phases, StartPhase{Name: p.name, StartedAt: p.begun, Seconds: total.Seconds(), Running: !p.since.IsZero(), Bytes: p.bytes})
	}
	return s
}
