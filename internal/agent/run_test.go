package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// getBody returns the response of a test unit; empty if there is none.
func getBody(t *testing.T, addr, path string) string {
	t.Helper()
	resp, err := localClient.Get("http://" + addr + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

func TestExecRestartsPrograms(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := &Exec{Dir: t.TempDir()}
	defer e.Close()
	at := testkit.FreeAddr()
	u := Unit{Name: "engine", Args: []string{self}, Env: map[string]string{envUnit: at, "RESPONSE": "env"}, Secrets: map[string]string{"RESPONSE": "hunter2"}}
	start := func(u Unit) bool {
		t.Helper()
		started, err := e.Start(t.Context(), u, nil)
		if err != nil {
			t.Fatal(err)
		}
		return started
	}
	if !start(u) {
		t.Error("not started")
	}
	testkit.Eventually(t, "the unit responds with its secret", func() bool { return getBody(t, at, "/") == "hunter2" })
	first := getBody(t, at, "/pid")
	if start(u) {
		t.Error("a running unit was restarted")
	}
	getBody(t, at, "/exit")
	testkit.Eventually(t, "the unit is restarted", func() bool { pid := getBody(t, at, "/pid"); return pid != "" && pid != first })

	u.Env = map[string]string{envUnit: at}
	u.Secrets = map[string]string{"RESPONSE": "other"}
	if !start(u) {
		t.Error("a changed unit was not restarted")
	}
	testkit.Eventually(t, "the unit responds with its new secret", func() bool { return getBody(t, at, "/") == "other" })
	if state, err := e.Inspect(t.Context(), u, 5); err != nil || !state.Running {
		t.Errorf("%+v (%v)", state, err)
	}
	if names, err := e.Names(t.Context()); err != nil || !slices.Equal(names, []string{"engine"}) {
		t.Errorf("%v (%v)", names, err)
	}
	if err := e.Stop(t.Context(), "engine"); err != nil || getBody(t, at, "/") != "" {
		t.Errorf("still running (%v)", err)
	}
	for _, bad := range []Unit{{Name: "x", Args: []string{"no-such-program"}}, {Name: "x", Image: "vllm/vllm-openai"}} {
		if _, err := e.Start(t.Context(), bad, nil); err == nil {
			t.Errorf("%+v was started", bad)
		}
	}
}

func TestExecReportsExitReason(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	e := &Exec{Dir: t.TempDir()}
	defer e.Close()
	u := Unit{Name: "engine", Args: []string{sh, "-c", "echo out of memory >&2; exit 7"}}
	if _, err := e.Start(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the unit has exited", func() bool {
		state, err := e.Inspect(t.Context(), u, 1)
		return err == nil && !state.Running && state.Reason == "exit status 7" && slices.Equal(state.Lines, []string{"out of memory"})
	})
}

// A program that has just started and does not handle SIGHUP yet survives a reload.
func TestExecReloadDoesNotEndStartingProgram(t *testing.T) {
	e := &Exec{Dir: t.TempDir()}
	defer e.Close()
	u := Unit{Name: "balancer", Args: []string{"sh", "-c", "kill -HUP $$; echo survived; exec sleep 1000"}}
	if _, err := e.Start(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the program has run", func() bool {
		state, err := e.Inspect(t.Context(), u, 1)
		return err == nil && (state.Restarts > 0 || slices.Equal(state.Lines, []string{"survived"}))
	})
	if state, err := e.Inspect(t.Context(), u, 1); err != nil || !state.Running || state.Restarts > 0 {
		t.Errorf("after SIGHUP: %+v, %v", state, err)
	}
}

// fakeHost emulates systemctl and docker: it records calls, and what is running.
type fakeHost struct {
	mu      sync.Mutex
	calls   []string
	running map[string]string // containers with their labels
	active  map[string]bool   // units
	images  map[string]bool
	volumes []string
	broken  string    // the program whose calls fail
	full    bool      // the disk is full
	unit    [3]string // ActiveState, SubState and Result of its units
	state   string    // of its container, as in the output of docker inspect
}

// update changes the host while an agent uses it.
func (m *fakeHost) update(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

// show emulates systemctl show. Properties are in systemd's order, those of the service before
// those of the unit, independent of the requested order.
func (m *fakeHost) show(args []string) string {
	var b strings.Builder
	for _, p := range []string{"Restart=always", "Result=" + m.unit[2], "NRestarts=3", "ActiveState=" + m.unit[0], "SubState=" + m.unit[1]} {
		key, value, _ := strings.Cut(p, "=")
		if !slices.ContainsFunc(args, func(a string) bool {
			return slices.Contains(strings.Split(strings.TrimPrefix(a, "--property="), ","), key)
		}) {
			continue
		}
		if !slices.Contains(args, "--value") {
			b.WriteString(key + "=")
		}
		b.WriteString(value + "\n")
	}
	return b.String()
}

func (m *fakeHost) call(_ context.Context, program string, args ...string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := strings.Join(append([]string{program}, args...), " ")
	m.calls = append(m.calls, line)
	if program == m.broken {
		return "", errors.New(program + " is broken")
	}
	last := args[len(args)-1]
	switch {
	case program == "systemctl" && args[0] == "is-active":
		if m.active[last] {
			return "active\n", nil
		}
		return "inactive\n", errors.New("exit status 3")
	case program == "systemctl" && args[0] == "restart":
		m.active[last] = true
	case program == "systemctl" && args[0] == "disable":
		delete(m.active, last)
	case program == "systemctl" && args[0] == "show":
		return m.show(args[1:]), nil
	case program == "docker" && args[0] == "ps" && args[1] == "--all":
		return strings.Join(slices.Sorted(func(yield func(string) bool) {
			for name := range m.running {
				if !yield(name) {
					return
				}
			}
		}), "\n"), nil
	case program == "docker" && args[0] == "ps":
		return m.running["skyserve-engine"] + "\n", nil
	case program == "docker" && args[0] == "image" && args[1] == "inspect":
		if !m.images[last] {
			return "", errors.New("no such image")
		}
	case program == "docker" && args[0] == "pull":
		if m.full {
			return "", errors.New("docker pull: exit status 1: write /var/lib/docker/tmp/x: no space left on device")
		}
		m.images[last] = true
	case program == "docker" && args[0] == "image" && args[1] == "prune":
		m.full = false
	case program == "docker" && args[0] == "run":
		m.running["skyserve-engine"] = strings.TrimPrefix(args[slices.Index(args, "--label")+1], labelHash+"=")
	case program == "docker" && args[0] == "volume" && args[1] == "ls":
		return strings.Join(m.volumes, "\n"), nil
	case program == "docker" && args[0] == "volume" && args[1] == "rm":
		m.volumes = slices.DeleteFunc(m.volumes, func(name string) bool { return name == last })
	case program == "docker" && args[0] == "rm":
		delete(m.running, last)
	case program == "docker" && args[0] == "inspect":
		if m.running[last] == "" {
			return "", errors.New("no such object")
		}
		return cmp.Or(m.state, "exited 137 true 0 ") + "\n", nil
	case program == "sh":
		return "one\ntwo\n", nil
	}
	return "", nil
}

func newFakeHost(t *testing.T) (*fakeHost, *System) {
	t.Helper()
	m := &fakeHost{running: map[string]string{}, active: map[string]bool{}, images: map[string]bool{}, unit: [3]string{"activating", "auto-restart", "oom-kill"}}
	dir := t.TempDir()
	units := filepath.Join(dir, "units")
	if err := os.Mkdir(units, 0o700); err != nil {
		t.Fatal(err)
	}
	return m, &System{Dir: dir, UnitDir: units, Call: m.call}
}

var container = Unit{
	Name: "engine", Image: "vllm/vllm-openai:v0.11.0", Args: []string{"--model", "m"}, Port: 8000, GPUs: true, CacheDir: "/root/.cache/huggingface",
	Env: map[string]string{"A": "1"}, Secrets: map[string]string{"HF_TOKEN": "hunter2"}, ImmutableHash: "f1",
}

func TestSystemRunsContainers(t *testing.T) {
	m, s := newFakeHost(t)
	var reported []string
	report := func(p Progress) { reported = append(reported, fmt.Sprintf("%s %s", p.Phase, p.Reason)) }
	if started, err := s.Start(t.Context(), container, report); err != nil || !started {
		t.Fatal(started, err)
	}
	if want := []string{"preparing checking the GPU driver", "image vllm/vllm-openai:v0.11.0"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q", reported)
	}
	run := m.calls[len(m.calls)-1]
	want := "docker run --detach --name skyserve-engine --label skyserve.fixed=f1 --restart unless-stopped --publish 127.0.0.1:8000:8000 --env-file " +
		s.envFile("engine") + " --log-driver json-file --log-opt max-size=20m --log-opt max-file=2 --cap-drop ALL --security-opt no-new-privileges --pids-limit 32768 --gpus all --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --ulimit nofile=1048576 --volume " + s.Dir + "/cache:/root/.cache/huggingface vllm/vllm-openai:v0.11.0 --model m"
	if run != want {
		t.Errorf("ran\n%s\nwant\n%s", run, want)
	}
	if text, err := os.ReadFile(s.envFile("engine")); err != nil || string(text) != "A=1\nHF_TOKEN=hunter2\n" {
		t.Errorf("variables %q (%v)", text, err)
	}
	if strings.Contains(strings.Join(m.calls, "\n"), "hunter2") {
		t.Error("a command line contains a secret")
	}
	if started, err := s.Start(t.Context(), container, report); err != nil || started {
		t.Errorf("started again: %v (%v)", started, err)
	}
	state, err := s.Inspect(t.Context(), container, 1)
	if err != nil || state.Running || state.Reason != "container exited, exit code 137, out of memory" || !slices.Equal(state.Lines, []string{"two"}) {
		t.Errorf("%+v (%v)", state, err)
	}
	if names, err := s.Names(t.Context()); err != nil || !slices.Equal(names, []string{"engine"}) {
		t.Errorf("%v (%v)", names, err)
	}
	if err := s.Stop(t.Context(), "engine"); err != nil || len(m.running) > 0 {
		t.Errorf("stopped: %v (%v)", m.running, err)
	}
	if _, err := os.Stat(s.envFile("engine")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its secrets still exist (%v)", err)
	}
	m.broken = "nvidia-smi"
	if _, err := s.Start(t.Context(), container, report); err == nil || !strings.HasPrefix(err.Error(), "checking the GPU driver: ") {
		t.Errorf("without a driver: %v", err)
	}
}

// A container with weights in a bucket starts after their download, and mounts them read-only.
func TestSystemFetchesWeightsFirst(t *testing.T) {
	m, s := newFakeHost(t)
	u := container
	u.Weights = &Weights{Source: "s3://models/llama", MountPath: "/weights"}
	var into string
	failing := errors.New("no route")
	s.FetchBucket = func(_ context.Context, from, dir string, report func(telemetry.ByteCount)) error {
		report(telemetry.ByteCount{Done: 1e9, Total: 2e9})
		into = dir
		return failing
	}
	var reported []string
	report := func(p Progress) { reported = append(reported, fmt.Sprintf("%s %s", p.Phase, p.Reason)) }
	ran := func() bool { return strings.HasPrefix(m.calls[len(m.calls)-1], "docker run ") }
	if started, err := s.Start(t.Context(), u, report); !errors.Is(err, failing) || started || ran() {
		t.Errorf("without its weights: started %v, ran %v (%v)", started, ran(), err)
	}
	failing = nil
	if started, err := s.Start(t.Context(), u, report); err != nil || !started || !strings.Contains(m.calls[len(m.calls)-1], " --volume "+into+":/weights:ro ") {
		t.Errorf("started %v by %s (%v)", started, m.calls[len(m.calls)-1], err)
	}
	if !slices.Contains(reported, "weights 1.0 of 2.0 GB") || !strings.HasPrefix(into, s.Dir+"/weights/") {
		t.Errorf("reported %q, fetched into %s", reported, into)
	}
	for _, wrong := range []Weights{{Source: "http://x/y", MountPath: "/weights"}, {Source: "gs://x", MountPath: "/weights"}, {Source: "s3://x/y", MountPath: "weights"}, {Source: "s3://x/y", MountPath: "/a:/b"}} {
		u.Weights = &wrong
		if err := (Deployment{Units: []Unit{u}}).Check(); err == nil || !strings.Contains(err.Error(), "weights must be ") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func TestSystemRunsPrograms(t *testing.T) {
	m, s := newFakeHost(t)
	u := Unit{Name: "balancer", Args: []string{"/usr/local/bin/skyserve", "lb", "--config", `a "b" %h $x`}, Secrets: map[string]string{"SKYSERVE_PEER_TOKEN": `a"b$c\d`}, ImmutableHash: "f1"}
	if started, err := s.Start(t.Context(), u, nil); err != nil || !started {
		t.Fatal(started, err)
	}
	if started, err := s.Start(t.Context(), u, nil); err != nil || started {
		t.Errorf("started again: %v (%v)", started, err)
	}
	want := []string{
		"docker ps --all --filter label=skyserve.fixed --format {{.Names}}",
		"systemctl daemon-reload", "systemctl enable skyserve-balancer", "systemctl restart skyserve-balancer", "systemctl is-active skyserve-balancer",
	}
	if !slices.Equal(m.calls, want) {
		t.Errorf("called %q", m.calls)
	}
	text, err := os.ReadFile(s.unitFile("balancer"))
	if err != nil || !strings.Contains(string(text), `ExecStart="/usr/local/bin/skyserve" "lb" "--config" "a \"b\" %%h $$x"`) || strings.Contains(string(text), `c\d`) {
		t.Errorf("unit %s (%v)", text, err)
	}
	if env, err := os.ReadFile(s.envFile("balancer")); err != nil || string(env) != `SKYSERVE_PEER_TOKEN="a\"b\$c\\d"`+"\n" {
		t.Errorf("variables %s (%v)", env, err)
	}
	// After a failure between writing the file and the start, the next attempt starts it.
	m.broken = "systemctl"
	u.ImmutableHash = "f2"
	if _, err := s.Start(t.Context(), u, nil); err == nil {
		t.Error("no error for a failed start")
	}
	m.broken = ""
	if started, err := s.Start(t.Context(), u, nil); err != nil || !started {
		t.Errorf("started after the failure: %v (%v)", started, err)
	}
	if err := s.Reload(t.Context(), "balancer"); err != nil || m.calls[len(m.calls)-1] != "systemctl reload skyserve-balancer" {
		t.Errorf("reloading called %q (%v)", m.calls[len(m.calls)-1], err)
	}
	if state, err := s.Inspect(t.Context(), u, 1); err != nil || state.Running || state.Reason != "ActiveState=activating SubState=auto-restart Result=oom-kill" || state.Restarts != 3 || state.NeedsStart {
		t.Errorf("%+v (%v)", state, err)
	}
	m.unit = [3]string{"active", "running", "success"}
	if state, err := s.Inspect(t.Context(), u, 1); err != nil || !state.Running {
		t.Errorf("running unit: %+v (%v)", state, err)
	}
	if names, err := s.Names(t.Context()); err != nil || !slices.Equal(names, []string{"balancer"}) {
		t.Errorf("%v (%v)", names, err)
	}
	if err := s.Stop(t.Context(), "balancer"); err != nil || s.isProgram("balancer") {
		t.Errorf("the unit still exists (%v)", err)
	}
	for _, file := range []string{s.envFile("balancer"), s.startedFile("balancer")} {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s still exists (%v)", file, err)
		}
	}
	if _, err := s.Start(t.Context(), Unit{Name: "node", Args: []string{"x"}}, nil); err == nil {
		t.Error("a unit may use the agent's name")
	}
}

func TestPhaseFromEngineLog(t *testing.T) {
	for line, want := range map[string]Phase{
		"INFO 11-20 weight_utils.py:304] Time spent downloading weights for m: 41.2 seconds":        PhaseWeights,
		"Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.2it/s]":       PhaseWeights,
		"INFO gpu_model_runner.py:1875] Starting to load model meta-llama/Llama-3.1-8B-Instruct...": PhaseWeights,
		"[2025-11-20 10:00:00] Load weight begin. avail mem=21.60 GB":                               PhaseWeights,
		"INFO gpu_model_runner.py: Graph capturing finished in 20 secs, took 0.55 GiB":              PhaseStarting,
		"": PhaseStarting,
	} {
		if got := phaseOf([]string{line}); got != want {
			t.Errorf("%q: phase %s, want %s", line, got, want)
		}
	}
}

// The status of a unit contains its readiness response: why it is not ready, or remarks of a
// ready unit.
func TestReadinessResponses(t *testing.T) {
	for name, c := range map[string]struct {
		status       int
		kind, body   string
		remark, want string
	}{
		"ok":         {200, "text/plain; charset=utf-8", "ok\n", "", ""},
		"a remark":   {200, "text/plain", "ok\nwarning: the disk\x1b[31m is full\nwarning: more\n", "warning: the disk [31m is full; warning: more", ""},
		"an engine":  {200, "application/json", `{"ok":1}`, "", ""},
		"other text": {200, "text/plain", "healthy", "", ""},
		"reason":     {503, "text/plain", "critical: no space left\n", "", "readiness probe returned HTTP status 503: critical: no space left"},
		"no reason":  {503, "text/html", "<p>", "", "readiness probe returned HTTP status 503"},
		"long":       {503, "text/plain", strings.Repeat("x", 1<<20), "", "readiness probe returned HTTP status 503: " + strings.Repeat("x", 2048)},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		remark, _, err := checkReadyURL(t.Context(), server.URL, "")
		if got := fmt.Sprint(err); remark != c.remark || c.want == "" && err != nil || c.want != "" && got != c.want {
			t.Errorf("%s: got %q and %v", name, remark, err)
		}
		server.Close()
	}
}

// The status of a controller contains its alerts with their fields, whether or not it is ready.
func TestReadinessResponseWithAlerts(t *testing.T) {
	alert := telemetry.Alert{Severity: telemetry.SeverityCritical, Kind: telemetry.AlertStore, Message: "warning: no space left", NextStep: "free disk space"}
	for status, want := range map[int]string{http.StatusOK: "", http.StatusServiceUnavailable: "readiness probe returned HTTP status 503"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.Header.Get("Accept"), "application/json") {
				t.Errorf("it accepts %q", r.Header.Get("Accept"))
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(telemetry.HealthAlerts{Alerts: []telemetry.Alert{alert}})
		}))
		phase, reason, alerts := readinessPhase(t.Context(), Unit{ReadinessURL: server.URL}, nil)
		if (phase == PhaseReady) != (status == http.StatusOK) || reason != want || len(alerts) != 1 || alerts[0] != alert {
			t.Errorf("%d: got %s %q, %+v", status, phase, reason, alerts)
		}
		server.Close()
	}
}

// A running unit is ready when its URL returns 200. Until then the status shows the last line of
// its log.
func TestStatusReportsUnitProgress(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{lines: map[string][]string{"engine": {"Loading weights took 3 s"}}}
	m, o := w.boot(t.TempDir(), runner), w.operator()
	ready := make(chan struct{})
	at := testkit.FreeAddr()
	d := Deployment{Revision: "1", Units: []Unit{{Name: "engine", Args: []string{"x"}, ReadinessURL: "http://" + at + "/ready"}}}
	if _, err := o.Ensure(t.Context(), m.Target, d); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the unit is loading", func() bool {
		s := m.agent.Status()
		return s.Phase == PhaseWeights && s.Reason == "engine: no response to the readiness probe; last line of its log: Loading weights took 3 s"
	})
	server := &http.Server{Addr: at, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-ready:
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	defer server.Close()
	go func() { _ = server.ListenAndServe() }()
	testkit.Eventually(t, "the status is 503", func() bool {
		return strings.Contains(m.agent.Status().Reason, "readiness probe returned HTTP status 503")
	})
	close(ready)
	testkit.Eventually(t, "the machine is ready", func() bool { return m.agent.Status().Phase == PhaseReady })
	if text, err := o.Logs(t.Context(), m.Target, "engine", 1); err != nil || string(text) != "Loading weights took 3 s\n" {
		t.Errorf("log: %q (%v)", text, err)
	}
	for _, unit := range []string{"other", "../engine"} {
		if _, err := o.Logs(t.Context(), m.Target, unit, 1); err == nil {
			t.Errorf("no error for the log of %q", unit)
		}
	}
}

func TestStatusReportsStartFailure(t *testing.T) {
	w, runner := newTestService(t), &fakeRunner{failing: errors.New("checking the GPU driver: no device")}
	m, o := w.boot(t.TempDir(), runner), w.operator()
	if _, err := o.Ensure(t.Context(), m.Target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the status shows the failure", func() bool {
		s := m.agent.Status()
		return s.Phase == PhaseFailed && s.Reason == "starting engine: checking the GPU driver: no device"
	})
}

// systemd restarts programs and the agent, with any exit code and without a limit.
func TestUnitsAreRestarted(t *testing.T) {
	_, s := newFakeHost(t)
	agent, err := os.ReadFile("../../templates/node.service")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a program": s.unitText(Unit{Name: "balancer", Args: []string{"/usr/local/bin/skyserve", "lb"}}),
		"the agent": string(agent),
	} {
		for _, want := range []string{"\nRestart=always\n", "\nStartLimitIntervalSec=0\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the unit of %s lacks %q:\n%s", name, want, text)
			}
		}
		for _, bad := range []string{"RestartPreventExitStatus", "SuccessExitStatus"} {
			if strings.Contains(text, bad) {
				t.Errorf("the unit of %s has %s", name, bad)
			}
		}
	}
}
