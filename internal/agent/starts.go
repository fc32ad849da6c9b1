package agent

import (
	"slices"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
)

// startState is what an agent records about the starts of a replica. Agent.mu guards it.
type startState struct {
	// agentStartedAt is the time when the agent began to run on a machine that is not enrolled; zero once the first start
	// has begun.
	agentStartedAt time.Time
	timer          *startTimer // nil before the first start
	failure        *Failure
	// unit is the unit whose restarts are counted. lastRestarts is its count at the last check, baseRestarts that
	// at its start, or at the first check after it was last ready; hasBaseline is false until then.
	unit                       string
	lastRestarts, baseRestarts int
	hasBaseline                bool
}

// loadedPhrases are phrases in the logs of engines after they have loaded the weights: of vLLM, then of
// SGLang. They are assumed; without one of them the warm-up counts as loading.
var loadedPhrases = []string{"model loading took", "loading weights took", "torch.compile takes", "capturing cuda graph", "graph capturing", "load weight end", "capture cuda graph"}

// loadedLines is the number of last log lines that are searched for a phrase: enough to find it soon after it was
// logged, and too few to reach an earlier start of the same container.
const loadedLines = 20

// hasLoaded reports whether the log of an engine shows that it has loaded the weights.
func hasLoaded(lines []string) bool {
	return slices.ContainsFunc(lines[max(0, len(lines)-loadedLines):], func(line string) bool {
		line = strings.ToLower(line)
		return slices.ContainsFunc(loadedPhrases, func(words string) bool { return strings.Contains(line, words) })
	})
}

// observedUnit is a unit with its observed state; the zero value is none.
type observedUnit struct {
	Unit
	state UnitState
}

// begin begins a start, unless one is in progress.
func (s *startState) begin(now time.Time) {
	if s.timer == nil || !s.timer.ready.IsZero() {
		s.timer = newStartTimer(now, s.agentStartedAt)
	}
	s.agentStartedAt = time.Time{}
}

// forgetFailure forgets the failure of an earlier deployment, with its start.
func (s *startState) forgetFailure() {
	if s.failure != nil {
		s.failure, s.timer = nil, nil
	}
}

// countRestarts returns the restarts of a unit since its start, or since the first check after it was last
// ready. Those before the agent first saw the unit do not count.
func (s *startState) countRestarts(name string, restarts int) int {
	switch {
	case s.unit != name || !s.hasBaseline:
		s.unit, s.baseRestarts, s.hasBaseline = name, restarts, true
	case restarts < s.lastRestarts: // another container
		s.baseRestarts = 0
	}
	s.lastRestarts = restarts
	return restarts - s.baseRestarts
}

// record returns the record of the last start, and the current failure.
func (s *startState) record(now time.Time) (*telemetry.Start, *Failure) {
	if s.timer == nil {
		return nil, s.failure
	}
	return s.timer.record(now), s.failure
}

// recordsStarts reports whether the machine is a replica, whose starts take minutes.
func (a *Agent) recordsStarts() bool { return a.opts.Name.Role == identity.Replica }

// linesToRead returns how many lines of a unit's log a check reads: few for a ready replica, whose log is
// not searched for causes.
func (a *Agent) linesToRead() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase == PhaseReady || !a.recordsStarts() {
		return tailLines
	}
	return classifiedLines
}

// reportProgress records the progress of preparing a unit.
func (a *Agent) reportProgress(p Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase, a.reason = p.Phase, p.Reason
	if a.recordsStarts() {
		now := a.opts.Now()
		a.starts.begin(now)
		a.starts.timer.setRunning(now, p.ActivePhases...)
	}
}

// recordUnitStart records that a unit was started and loads.
func (a *Agent) recordUnitStart(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.recordsStarts() {
		now := a.opts.Now()
		a.starts.begin(now)
		a.version, a.versionRead = "", false
		a.starts.timer.setRunning(now, Step{Name: telemetry.StartLoad})
	}
	a.starts.failure = nil
	a.starts.unit, a.starts.lastRestarts, a.starts.baseRestarts, a.starts.hasBaseline = name, 0, 0, true
}

// recordFailedStart records that units could not be started.
func (a *Agent) recordFailedStart(message string, attempts int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase, a.reason = PhaseFailed, message
	if !a.recordsStarts() {
		return
	}
	if a.starts.timer != nil {
		a.starts.timer.setRunning(a.opts.Now()) // nothing is in progress until the next attempt
	}
	a.starts.failure = ClassifyFailure(Evidence{PrepareError: message, Attempts: attempts, DiskFree: a.diskFree()})
}

// recordCheck records a check of the units; u is the first that is not ready. The caller holds the lock.
func (a *Agent) recordCheck(phase Phase, u observedUnit) {
	s, now := &a.starts, a.opts.Now()
	if phase == PhaseReady {
		if s.timer != nil && s.timer.ready.IsZero() {
			s.timer.finish(now)
		}
		s.failure, s.hasBaseline = nil, false
		return
	}
	before := s.lastRestarts
	restarts := s.countRestarts(u.Name, u.state.Restarts)
	if s.timer != nil && s.timer.ready.IsZero() {
		switch {
		case !u.state.Running:
			s.timer.setRunning(now)
		case hasLoaded(u.state.Lines), s.timer.isRunning(telemetry.StartWarmup) && u.state.Restarts == before:
			s.timer.setRunning(now, Step{Name: telemetry.StartWarmup})
		default:
			s.timer.setRunning(now, Step{Name: telemetry.StartLoad})
		}
	}
	if !a.recordsStarts() && !isPortInUse(u.state.Lines) { // the other causes are those of engines
		s.failure = nil
		return
	}
	e := Evidence{Attempts: restarts, Lines: u.state.Lines, DiskFree: a.diskFree()}
	if !u.state.Running {
		e.ExitReason, e.ExitCode = u.state.Reason, u.state.ExitCode
	}
	s.failure = keepCause(s.failure, ClassifyFailure(e), u.state.Running)
}

// isPortInUse reports whether the last error of a log is that of a port that is in use.
func isPortInUse(lines []string) bool {
	kind, _, _ := causeOf(Evidence{Lines: []string{errorLine(lines)}})
	return kind == FailurePortInUse
}

// keepCause returns the newer failure. If it has no known cause, it keeps the earlier one's: the log of
// another attempt may have displaced the lines with the cause. While the engine runs again, the message
// stays that of its last exit.
func keepCause(earlier, newer *Failure, isRunning bool) *Failure {
	if earlier == nil || newer == nil || hasCause(newer) {
		return newer
	}
	if !hasCause(earlier) {
		if isRunning {
			newer.Message, newer.Lines = earlier.Message, earlier.Lines
		}
		return newer
	}
	kept := *earlier
	kept.Attempts = newer.Attempts
	kept.Permanent = isPermanentFailure(kept.Kind, Evidence{Attempts: kept.Attempts})
	return &kept
}

// hasCause reports whether the cause of a failure is known.
func hasCause(f *Failure) bool { return f.Kind != FailureUnknown && f.Kind != FailureCrashLoop }

// diskFree returns the free space of the agent's disk; nil = unknown.
func (a *Agent) diskFree() *uint64 {
	free, err := atomicfile.FreeBytes(a.opts.Dir)
	if err != nil {
		return nil
	}
	return &free
}

// maskSecrets masks the secrets of a deployment's units in an error.
func (d Deployment) maskSecrets(text string) string {
	for _, u := range d.Units {
		text = u.maskSecrets(text)
	}
	return text
}
