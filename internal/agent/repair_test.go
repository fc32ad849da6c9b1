package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// The state of a container is shown to operators, and decides whether the agent restarts it.
func TestContainerStates(t *testing.T) {
	for state, want := range map[string]UnitState{
		"running 0 false 0 ":     {Running: true},
		"running 0 false 7 ":     {Running: true, Restarts: 7},
		"restarting 1 false 12 ": {Reason: "container restarting, exit code 1", Restarts: 12},
		"exited 137 true 0 ":     {Reason: "container exited, exit code 137, out of memory", NeedsStart: true},
		"created 128 false 0 nvidia-container-cli: device error: GPU is lost": {
			Reason: "container created, exit code 128, nvidia-container-cli: device error: GPU is lost", NeedsStart: true,
		},
	} {
		m, s := newFakeHost(t)
		m.running["skyserve-engine"], m.state = "f1", state
		want.Lines = []string{"two"}
		got, err := s.Inspect(t.Context(), container, 1)
		if err != nil || got.Running != want.Running || got.Reason != want.Reason || got.Restarts != want.Restarts || got.NeedsStart != want.NeedsStart || !slices.Equal(got.Lines, want.Lines) {
			t.Errorf("%q: got %+v (%v), want %+v", state, got, err, want)
		}
	}
	_, s := newFakeHost(t)
	if seen, err := s.Inspect(t.Context(), container, 1); err == nil || !seen.NeedsStart {
		t.Errorf("without a container: %+v (%v)", seen, err)
	}
}

// The error of a failed program contains its stderr, for nvidia-smi its stdout.
func TestCallErrorQuotesOutput(t *testing.T) {
	for script, want := range map[string]string{
		"echo data; echo why >&2; exit 3":                  "sh -c: exit status 3: why",
		"echo 'Unable to determine: GPU is lost'; exit 15": "sh -c: exit status 15: Unable to determine: GPU is lost",
	} {
		if _, err := (&System{}).call(t.Context(), "sh", "-c", script); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// On a full disk, unused images are removed and the pull is retried.
func TestFullDiskPrunesImages(t *testing.T) {
	m, s := newFakeHost(t)
	m.full = true
	if started, err := s.Start(t.Context(), container, func(Progress) {}); err != nil || !started {
		t.Errorf("started %v (%v) after %q", started, err, m.calls)
	}
	if !slices.Contains(m.calls, "docker image prune --all --force") {
		t.Errorf("called %q", m.calls)
	}
}

// A program replaces a container of the same name, and the reverse.
func TestProgramReplacesContainer(t *testing.T) {
	m, s := newFakeHost(t)
	program := Unit{Name: "engine", Args: []string{"/usr/local/bin/skyserve", "engine"}}
	for i, u := range []Unit{container, program, container} {
		if started, err := s.Start(t.Context(), u, func(Progress) {}); err != nil || !started {
			t.Fatalf("step %d: started %v (%v)", i, started, err)
		}
		if isContainer := len(m.running) == 1; isContainer == s.isProgram("engine") || isContainer != (u.Image != "") {
			t.Errorf("step %d: containers %v, program %v", i, m.running, s.isProgram("engine"))
		}
	}
}

// newAgent returns an agent that is not running.
func newAgent(t *testing.T, runner Runner) *Agent {
	t.Helper()
	w := newTestService(t)
	a, err := New(Options{Name: replicaName, Owner: w.authority.Owner(), Dir: t.TempDir(), Publisher: &fakePublisher{}, Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A container that Docker does not restart, for instance after a GPU failure, is restarted by the
// agent. While the restart fails, the status contains the reason.
func TestLostContainerIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newFakeHost(t)
		a := newAgent(t, s)
		runs := func() (n int) {
			m.update(func() {
				n = strings.Count(strings.Join(m.calls, "\n"), "docker run ")
			})
			return n
		}
		ctx, cancel := context.WithCancel(t.Context())
		a.desired = Deployment{Revision: "1", Units: []Unit{container}}
		go a.runDeployment(ctx)
		m.update(func() { m.state = "running 0 false 0 " })
		advance(time.Hour)
		if s := a.Status(); s.Phase != PhaseReady || runs() != 1 {
			t.Errorf("at first: %+v after %d starts", s, runs())
		}
		m.update(func() { m.state = "restarting 1 false 4 " })
		advance(time.Hour)
		if s := a.Status(); s.Phase != PhaseFailed || s.Reason != "engine: container restarting, exit code 1, restart count 4: two" || runs() != 1 {
			t.Errorf("while Docker restarts it: %+v after %d starts", s, runs())
		}
		m.update(func() { m.state, m.broken, m.running["skyserve-engine"] = "exited 1 false 4 ", "nvidia-smi", "lost" })
		advance(repairDelay / 2)
		if s := a.Status(); !strings.HasPrefix(s.Reason, "engine: container exited, exit code 1") {
			t.Errorf("before the repair: %+v", s)
		}
		advance(time.Hour)
		if s := a.Status(); s.Phase != PhaseFailed || !strings.HasPrefix(s.Reason, "starting engine: checking the GPU driver: ") {
			t.Errorf("while the driver fails: %+v", s)
		}
		m.update(func() { m.state, m.broken = "running 0 false 0 ", "" })
		advance(time.Minute)
		if s := a.Status(); s.Phase != PhaseReady || runs() != 2 {
			t.Errorf("after the repair: %+v after %d starts", s, runs())
		}
		cancel()
		synctest.Wait()
	})
}

// Files that a deployment no longer contains are removed, such as the keys of a controller that
// moved to another machine.
func TestStaleFilesAreRemoved(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{}
	m, o := w.boot(t.TempDir(), runner, func(o *Options) { o.Name.Role = identity.Balancer }), w.operator()
	m.Name.Role = identity.Balancer
	with := func(revision string, units ...Unit) Deployment { return Deployment{Revision: revision, Units: units} }
	balancer := Unit{Name: "balancer", Args: []string{"x"}, Files: map[string]string{"balancer/config.yaml": "a", "balancer/old": "b"}}
	controller := Unit{Name: "controller", Args: []string{"x"}, Files: map[string]string{"controller/issuer.pem": "secret"}}
	if _, err := o.Ensure(t.Context(), m.Target, with("1", balancer, controller)); err != nil {
		t.Fatal(err)
	}
	paths := func() []string {
		files, err := filepath.Glob(filepath.Join(m.agent.opts.Dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range files {
			files[i] = filepath.Base(f)
		}
		return files
	}
	testkit.Eventually(t, "the files exist", func() bool { return slices.Equal(paths(), []string{"config.yaml", "old", "issuer.pem"}) })
	delete(balancer.Files, "balancer/old")
	if err := os.WriteFile(m.agent.path("controller/store"), nil, 0o600); err != nil { // a file that a unit created itself
		t.Fatal(err)
	}
	if _, err := o.Ensure(t.Context(), m.Target, with("2", balancer)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "stale files are removed", func() bool { return slices.Equal(paths(), []string{"config.yaml", "store"}) })
}
