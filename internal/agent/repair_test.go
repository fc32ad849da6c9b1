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

// What Docker says of a container is what people read, and whether the agent has to act.
func TestContainerStates(t *testing.T) {
	for state, want := range map[string]UnitState{
		"running 0 false 0 ":     {Running: true},
		"running 0 false 7 ":     {Running: true, Restarts: 7},
		"restarting 1 false 12 ": {Reason: "it is restarting, exit code 1", Restarts: 12},
		"exited 137 true 0 ":     {Reason: "it is exited, exit code 137, out of memory", Lost: true},
		"created 128 false 0 nvidia-container-cli: device error: GPU is lost": {
			Reason: "it is created, exit code 128, nvidia-container-cli: device error: GPU is lost", Lost: true,
		},
	} {
		m, s := newFakeHost(t)
		m.running["skyserve-engine"], m.state = "f1", state
		want.Lines = []string{"two"}
		got, err := s.Inspect(t.Context(), container, 1)
		if err != nil || got.Running != want.Running || got.Reason != want.Reason || got.Restarts != want.Restarts || got.Lost != want.Lost || !slices.Equal(got.Lines, want.Lines) {
			t.Errorf("%q: got %+v (%v), want %+v", state, got, err, want)
		}
	}
	_, s := newFakeHost(t)
	if seen, err := s.Inspect(t.Context(), container, 1); err == nil || !seen.Lost {
		t.Errorf("without a container: %+v (%v)", seen, err)
	}
}

// A program that fails tells why on stderr, and nvidia-smi on stdout.
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

// A disk that earlier images fill has room for another one.
func TestFullDiskPrunesImages(t *testing.T) {
	m, s := newFakeHost(t)
	m.full = true
	if started, err := s.Start(t.Context(), container, func(Phase, string) {}); err != nil || !started {
		t.Errorf("started %v (%v) after %q", started, err, m.calls)
	}
	if !slices.Contains(m.calls, "docker image prune --all --force") {
		t.Errorf("called %q", m.calls)
	}
}

// An engine that is a program where it was a container, or the other way round, takes the
// place of that one.
func TestProgramReplacesContainer(t *testing.T) {
	m, s := newFakeHost(t)
	program := Unit{Name: "engine", Args: []string{"/usr/local/bin/skyserve", "engine"}}
	for i, u := range []Unit{container, program, container} {
		if started, err := s.Start(t.Context(), u, func(Phase, string) {}); err != nil || !started {
			t.Fatalf("step %d: started %v (%v)", i, started, err)
		}
		if contained := len(m.running) == 1; contained == s.isProgram("engine") || contained != (u.Image != "") {
			t.Errorf("step %d: containers %v, a program: %v", i, m.running, s.isProgram("engine"))
		}
	}
}

// newAgent is an agent that does not run.
func newAgent(t *testing.T, runner Runner) *Agent {
	t.Helper()
	w := newTestService(t)
	a, err := New(Options{Name: replicaName, Owner: w.authority.Owner(), Dir: t.TempDir(), Publisher: &fakePublisher{}, Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A container that Docker gave up, as when a GPU fell off its bus, is started anew; why it
// cannot be is told for as long as that lasts.
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
		if s := a.Status(); s.Phase != PhaseFailed || s.Reason != "engine: it is restarting, exit code 1, started again 4 times: two" || runs() != 1 {
			t.Errorf("while Docker starts it again: %+v after %d starts", s, runs())
		}
		m.update(func() { m.state, m.broken, m.running["skyserve-engine"] = "exited 1 false 4 ", "nvidia-smi", "gone" })
		advance(repairDelay / 2)
		if s := a.Status(); !strings.HasPrefix(s.Reason, "engine: it is exited, exit code 1") {
			t.Errorf("at once: %+v", s)
		}
		advance(time.Hour)
		if s := a.Status(); s.Phase != PhaseFailed || !strings.HasPrefix(s.Reason, "starting engine: the GPU's driver: ") {
			t.Errorf("while the driver does not answer: %+v", s)
		}
		m.update(func() { m.state, m.broken = "running 0 false 0 ", "" })
		advance(time.Minute)
		if s := a.Status(); s.Phase != PhaseReady || runs() != 2 {
			t.Errorf("at last: %+v after %d starts", s, runs())
		}
		cancel()
		synctest.Wait()
	})
}

// What a machine is no longer to have, such as the keys of a controller that is now on
// another one, it has no longer.
func TestStaleFilesAreRemoved(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{}
	m, o := w.boot(t.TempDir(), runner, func(o *Options) { o.Name.Role = identity.Balancer }), w.operator()
	m.Name.Role = identity.Balancer
	with := func(revision string, units ...Unit) Deployment { return Deployment{Revision: revision, Units: units} }
	balancer := Unit{Name: "balancer", Args: []string{"x"}, Files: map[string]string{"balancer/config.yaml": "a", "balancer/old": "b"}}
	controller := Unit{Name: "controller", Args: []string{"x"}, Files: map[string]string{"controller/issuer.pem": "secret"}}
	if _, err := o.Ensure(t.Context(), m.Machine, with("1", balancer, controller)); err != nil {
		t.Fatal(err)
	}
	there := func() []string {
		files, err := filepath.Glob(filepath.Join(m.agent.opts.Dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range files {
			files[i] = filepath.Base(f)
		}
		return files
	}
	testkit.Eventually(t, "the files are there", func() bool { return slices.Equal(there(), []string{"config.yaml", "old", "issuer.pem"}) })
	delete(balancer.Files, "balancer/old")
	if err := os.WriteFile(m.agent.path("controller/store"), nil, 0o600); err != nil { // what a unit made itself
		t.Fatal(err)
	}
	if _, err := o.Ensure(t.Context(), m.Machine, with("2", balancer)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what is not wanted is gone", func() bool { return slices.Equal(there(), []string{"config.yaml", "store"}) })
}
