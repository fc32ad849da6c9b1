package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// startingAgent is an agent of a replica with a clock, which runs nothing.
func startingAgent(t *testing.T) (a *Agent, setClock func(seconds int)) {
	t.Helper()
	now := at(0)
	a = &Agent{opts: Options{Name: identity.Name{Service: "chat", Role: identity.Replica, ID: "us-0"}, Dir: t.TempDir(), Now: func() time.Time { return now }}}
	a.starts.agentStartedAt = now
	return a, func(seconds int) { now = at(seconds) }
}

// check records a check of the engine.
func (a *Agent) check(phase Phase, state UnitState) Status {
	a.mu.Lock()
	a.phase = phase
	a.recordCheck(phase, observedUnit{Unit{Name: "engine"}, state})
	a.mu.Unlock()
	return a.Status()
}

// A replica reports the phases of its first start, and those of later starts without its boot.
func TestAgentReportsPhases(t *testing.T) {
	a, clock := startingAgent(t)
	if s := a.Status(); s.Start != nil || s.Failure != nil {
		t.Errorf("before its enrolment: %+v", s)
	}
	clock(20)
	a.reportProgress(Progress{Phase: PhasePreparing, Reason: "checking the GPU driver"})
	a.reportProgress(Progress{Phase: PhaseImage, ActivePhases: []Step{{Name: telemetry.StartImage}}})
	clock(50)
	if got, want := a.Status().Start.Summary(), "image 30s"; got != want {
		t.Errorf("pulling: %q, want %q", got, want)
	}
	a.recordUnitStart("engine")
	clock(60)
	a.check(PhaseWeights, UnitState{Running: true, Lines: []string{"Loading safetensors checkpoint shards: 100% Completed"}})
	clock(70)
	a.check(PhaseStarting, UnitState{Running: true, Lines: []string{"Model loading took 14.9888 GiB and 6.1 seconds"}})
	clock(80)
	if got, want := a.check(PhaseStarting, UnitState{Running: true, Lines: []string{"GET /health"}}).Start.Summary(), "warmup 10s"; got != want {
		t.Errorf("warming up: %q, want %q", got, want)
	}
	clock(90)
	a.check(PhaseReady, UnitState{})
	clock(500)
	ready := "ready in 1m30s: enrolment 20s, image 30s, load 20s, warmup 20s"
	if got := a.check(PhaseFailed, UnitState{Reason: "exited"}).Start.Summary(); got != ready {
		t.Errorf("later: %q, want %q", got, ready)
	}
	a.recordUnitStart("engine")
	clock(510)
	if got, want := a.check(PhaseReady, UnitState{}).Start.Summary(), "ready in 10s: load 10s"; got != want {
		t.Errorf("another start: %q, want %q", got, want)
	}
}

// stateRunner is a runner whose units have one state.
type stateRunner struct {
	fakeRunner
	state UnitState
}

func (r *stateRunner) Inspect(context.Context, Unit, int) (UnitState, error) { return r.state, nil }

// The reason of a program that exits is its error, not the hint or the lines around it. The last line of a program that
// runs is named as such: it may have nothing to do with the reason.
func TestReasonIsTheError(t *testing.T) {
	port := []string{"level=INFO msg=starting", "error: listening on 127.0.0.1:45102: address already in use", "hint: choose another with --admin"}
	for name, tt := range map[string]struct {
		state UnitState
		want  string
	}{
		"exited":                {UnitState{Reason: "exit status 1", Restarts: 1, Lines: port}, "exit status 1, restart count 1: listening on 127.0.0.1:45102: address already in use"},
		"starts again":          {UnitState{Running: true, Restarts: 1, Lines: port}, "no response to the readiness probe, restart count 1; last line of its log: listening on 127.0.0.1:45102: address already in use"},
		"only a hint":           {UnitState{Reason: "exit status 2", Lines: []string{"unknown model", "hint: see --help"}}, "exit status 2: unknown model"},
		"loads after its start": {UnitState{Running: true, Lines: append(port, "loading")}, "no response to the readiness probe; last line of its log: loading"},
		"no log":                {UnitState{Reason: "exit status 1"}, "exit status 1"},
	} {
		a, _ := startingAgent(t)
		a.opts.Runner = &stateRunner{state: tt.state}
		if s, _, _ := a.checkUnit(t.Context(), Unit{Name: "balancer", ReadinessURL: "http://127.0.0.1:1/readyz"}); s.Reason != tt.want {
			t.Errorf("%s: got %q, want %q", name, s.Reason, tt.want)
		}
	}
}

// The alerts of a controller are the reason why it is not ready, so its log is not quoted.
func TestAlertsReplaceLogInReason(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(telemetry.HealthAlerts{Alerts: []telemetry.Alert{{Kind: telemetry.AlertStore, Message: "no majority"}}})
	}))
	defer server.Close()
	a, _ := startingAgent(t)
	a.opts.Runner = &stateRunner{state: UnitState{Running: true, Lines: []string{"level=INFO msg=\"store connected\""}}}
	s, _, _ := a.checkUnit(t.Context(), Unit{Name: "controller", ReadinessURL: server.URL})
	if want := "readiness probe returned HTTP status 503"; s.Reason != want || len(s.Alerts) != 1 {
		t.Errorf("got %q with %+v, want %q", s.Reason, s.Alerts, want)
	}
}

// A balancer whose port is in use reports a permanent failure after a few restarts, and no other failure: it has no
// engine.
func TestBalancerReportsPortInUse(t *testing.T) {
	a, _ := startingAgent(t)
	a.opts.Name.Role = identity.Balancer
	port := []string{"error: listening on 127.0.0.1:45102: address already in use", "hint: choose another with --admin"}
	a.recordUnitStart("balancer")
	for restarts, permanent := range []bool{false, false, false, true} {
		s := a.check(PhaseFailed, UnitState{Reason: "exited", Restarts: restarts, Lines: port})
		if f := s.Failure; f == nil || f.Kind != FailurePortInUse || f.Permanent != permanent || f.Attempts != restarts || s.Start != nil || !slices.Equal(f.Lines, port[:1]) {
			t.Errorf("after %d restarts: %+v", restarts, s)
		}
	}
	if s := a.check(PhaseStarting, UnitState{Restarts: 5, Lines: []string{"error: no such file"}}); s.Failure != nil {
		t.Errorf("another failure: %+v", s.Failure)
	}
	if s := a.check(PhaseReady, UnitState{}); s.Failure != nil {
		t.Errorf("ready: %+v", s.Failure)
	}
}

// A machine without an engine records no starts.
func TestBalancersReportNoPhases(t *testing.T) {
	a, _ := startingAgent(t)
	a.opts.Name.Role = identity.Balancer
	a.reportProgress(Progress{Phase: PhasePreparing})
	a.recordUnitStart("balancer")
	a.recordFailedStart("starting balancer: no such file", 1)
	if s := a.check(PhaseStarting, UnitState{Restarts: 5}); s.Start != nil || s.Failure != nil {
		t.Errorf("%+v", s)
	}
}

func TestAgentReportsFailures(t *testing.T) {
	a, clock := startingAgent(t)
	clock(10)
	a.reportProgress(Progress{Phase: PhaseImage, ActivePhases: []Step{{Name: telemetry.StartImage}}})
	clock(20)
	a.recordFailedStart("starting engine: docker pull: manifest unknown", 2)
	clock(30)
	s := a.Status()
	if s.Failure == nil || s.Failure.Kind != FailureImageNotFound || !s.Failure.Permanent || s.Phase != PhaseFailed || s.Start.Summary() != "after 30s: enrolment 10s, image 10s" {
		t.Errorf("%+v, %+v, %s", s, s.Failure, s.Start.Summary())
	}
	a.starts.forgetFailure() // another deployment
	clock(40)
	a.recordUnitStart("engine")
	clock(50)
	if s := a.check(PhaseStarting, UnitState{Running: true}); s.Failure != nil || s.Start.Summary() != "load 10s" {
		t.Errorf("%+v, %s", s.Failure, s.Start.Summary())
	}
	for restarts, want := range []string{"unknown false", "unknown false", "unknown false", "crash_loop true"} {
		s := a.check(PhaseFailed, UnitState{Reason: "exited", Restarts: restarts})
		got := string(s.Failure.Kind) + map[bool]string{true: " true", false: " false"}[s.Failure.Permanent]
		if got != want {
			t.Errorf("after %d restarts: %s, want %s", restarts, got, want)
		}
	}
	if s := a.check(PhaseReady, UnitState{}); s.Failure != nil {
		t.Errorf("ready: %+v", s.Failure)
	}
	// An engine that has served restarts: its earlier restarts do not count, nor those of another container.
	if s := a.check(PhaseStarting, UnitState{Running: true, Restarts: 3}); s.Failure != nil {
		t.Errorf("restarted once after serving: %+v", s.Failure)
	}
	if s := a.check(PhaseStarting, UnitState{Running: true, Restarts: 5}); s.Failure.Permanent || s.Failure.Attempts != 2 {
		t.Errorf("restarted again: %+v", s.Failure)
	}
	if s := a.check(PhaseStarting, UnitState{Running: true, Restarts: 1}); s.Failure.Attempts != 1 {
		t.Errorf("another container: %+v", s.Failure)
	}
}

// What a check reports contains no secret, and as many lines as a cause requires.
func TestChecksMaskSecrets(t *testing.T) {
	u := Unit{Name: "engine", Args: []string{"x"}, ReadinessURL: "http://127.0.0.1:1/", Secrets: map[string]string{"HF_TOKEN": "hunter2hunter2"}}
	runner := &fakeRunner{units: map[string]Unit{"engine": u}, lines: map[string][]string{"engine": append(traceback("CUDA out of memory"), "token=hunter2hunter2")}}
	a, _ := startingAgent(t)
	a.opts.Runner = runner
	s, phase, state := a.checkUnit(t.Context(), u)
	if phase == PhaseReady || !strings.HasSuffix(s.Reason, masked) || len(state.Lines) != len(runner.lines["engine"]) || strings.Contains(strings.Join(state.Lines, s.Reason), "hunter2") {
		t.Errorf("%+v, %q", s, state.Lines)
	}
	a.phase = PhaseReady
	if n := a.linesToRead(); n != tailLines {
		t.Errorf("reads %d lines of a replica that serves", n)
	}
	d := Deployment{Units: []Unit{u}}
	if got := d.maskSecrets(errors.New("denied for hunter2hunter2").Error()); got != "denied for "+masked {
		t.Errorf("%s", got)
	}
}

func TestExecCountsRestarts(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	e := &Exec{Dir: t.TempDir()}
	defer e.Close()
	u := Unit{Name: "engine", Args: []string{sh, "-c", "exit 7"}}
	if _, err := e.Start(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the unit has restarted three times", func() bool {
		state, err := e.Inspect(t.Context(), u, 1)
		return err == nil && !state.Running && state.ExitCode == 7 && state.Restarts >= 3
	})
}
