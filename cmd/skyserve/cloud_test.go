package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/node"
	"skyserve/provision/fakecloud"
)

const cloudService = `
name: chat
models:
  - name: m
    engine: {kind: sim, speed: 100}
    gpus: [{type: L4}]
    regions: {"aws/eu-west-1": {min: 0, max: 0}}
regions:
  - name: aws/us-east-1
    balancers: 2
    capacity: [spot, on_demand]
  - name: aws/eu-west-1
balancer:
  auth: {keys_from: env:KEYS}
dns: {provider: route53, name: chat.example.com, zone: example.com}
`

// emulated is AWS in this process, whose machines run their agents on this one, each
// at a loopback address of its own.
type emulated struct {
	t       *testing.T
	aws     *fakecloud.AWS
	names   *fakecloud.Route53
	zone    string
	url     string
	dir     string
	program string
	mu      sync.Mutex
	running int
	agents  map[string]*os.Process // of machines, by their ids in the service
}

func emulate(t *testing.T) *emulated {
	t.Helper()
	e := &emulated{t: t, dir: t.TempDir(), aws: fakecloud.NewAWS(nil, "us-east-1", "eu-west-1"), names: fakecloud.NewRoute53(&fakecloud.Faults{})}
	e.zone = e.names.AddZone("example.com", false)
	e.program = filepath.Join(e.dir, "bin", "skyserve")
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(e.program), 0o755)
	}
	if err == nil {
		err = os.Symlink(self, e.program) // under this name the test binary is the command: see TestMain
	}
	if err != nil {
		t.Fatal(err)
	}
	e.aws.Address = func(n int) (public, private string) {
		ip := fmt.Sprintf("127.%d.%d.1", 100+os.Getpid()%100, n%256)
		return ip, ip
	}
	e.aws.Boot = e.boot
	names := e.names.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/2013-04-01/") {
			names.ServeHTTP(w, r)
			return
		}
		e.aws.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

// boot does what a machine's cloud-init has it do, less what needs a machine.
func (e *emulated) boot(m fakecloud.Booted) func() {
	var document struct {
		Files []struct{ Path, Content string } `yaml:"write_files"`
	}
	var config node.Config
	err := yaml.Unmarshal([]byte(m.UserData), &document)
	for _, f := range document.Files {
		if err == nil && f.Path == "/etc/skyserve/node.json" {
			err = json.Unmarshal([]byte(f.Content), &config)
		}
	}
	dir := filepath.Join(e.dir, m.ID)
	console, file := filepath.Join(dir, "console"), filepath.Join(dir, "node.json")
	config.Listen, config.Dir, config.Publish, config.Notices, config.Runner = m.Private+config.Listen, filepath.Join(dir, "state"), "console:"+console, "", "exec"
	var text []byte
	if err == nil {
		text, err = json.Marshal(config)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	var log bytes.Buffer
	cmd := exec.Command(e.program, "node", "--config", file)
	cmd.Stderr, cmd.Env = &log, append(os.Environ(), "PATH="+filepath.Dir(e.program)+":"+os.Getenv("PATH"))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.t.Errorf("booting %s: %v", m.ID, err)
		return func() {}
	}
	e.count(1)
	e.note(config.ID, cmd.Process)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { e.show(m.ID, console, stop) })
	off := sync.OnceFunc(func() {
		close(stop)
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || e.t.Failed() {
			e.t.Logf("the machine %s (%v):\n%s", m.ID, err, log.String())
		}
		wg.Wait()
		e.count(-1)
	})
	e.t.Cleanup(off)
	return func() { go off() } // the cloud does not wait
}

// show brings what a machine writes to its console to the cloud.
func (e *emulated) show(id, console string, stop chan struct{}) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for shown := 0; ; {
		if text, err := os.ReadFile(console); err == nil && len(text) > shown {
			e.aws.Print(id, string(text[shown:]))
			shown = len(text)
		}
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
	}
}

func (e *emulated) count(by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running += by
}

func (e *emulated) note(id string, agent *os.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.agents == nil {
		e.agents = map[string]*os.Process{}
	}
	e.agents[id] = agent
}

func (e *emulated) machines() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

// skyserve runs the command as its user does.
func (e *emulated) skyserve(code int, args ...string) string {
	e.t.Helper()
	cmd := e.command(args...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		e.t.Fatalf("skyserve %s: exit %d (%v), want %d\n%s", strings.Join(args, " "), got, err, code, out)
	}
	return string(out)
}

// command is the command with its user's environment.
func (e *emulated) command(args ...string) *exec.Cmd {
	cmd := exec.Command(e.program, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") }),
		"SKYSERVE_HOME="+filepath.Join(e.dir, "home"), "HOME="+e.dir, "KEYS=key-of-a-client",
		"AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true")
	return cmd
}

// A service comes up in two regions of AWS with a name, answers in both (one has no
// replica of its own), is left alone by a second up, repaired by a third, and leaves
// nothing when it goes.
func TestAServiceInACloud(t *testing.T) {
	e := emulate(t)
	file := filepath.Join(e.dir, "service.yaml")
	if err := os.WriteFile(file, []byte(cloudService), 0o600); err != nil {
		t.Fatal(err)
	}
	up := []string{"up", file, "--endpoint-aws", e.url, "--program", "http://127.0.0.1:1/skyserve#sha256=" + strings.Repeat("0", 64)}
	if out := e.skyserve(exitUsage, up...); !strings.Contains(out, "--yes") || !strings.Contains(out, "spot g6.xlarge in us-east-1") || e.machines() != 0 {
		t.Fatalf("without a terminal or --yes: %d machines\n%s", e.machines(), out)
	}
	first := e.skyserve(exitOK, append(up, "--yes")...)
	if e.machines() != 4 {
		t.Fatalf("%d machines\n%s", e.machines(), first)
	}
	for _, place := range []string{"us-east-1", "eu-west-1"} {
		base := endpointIn(first, place)
		if base == "" {
			t.Fatalf("no endpoint of %s in\n%s", place, first)
		}
		within(t, "a chat in "+place, func() error { return chatAt(base, "key-of-a-client") })
		if err := chatAt(base, "another key"); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("with another key: %v", err)
		}
	}
	if got := e.names.Answers(e.zone, "chat.example.com", "us-east-1"); len(got) == 0 {
		t.Error("the name leads nowhere")
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	e.lookAt(file)
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "firewall-us-east-1-balancer") || !strings.Contains(out, "us-east-1-0 ready") {
		t.Errorf("the third up:\n%s", out)
	}
	if s := e.status(); s.State != fleet.StateReady {
		t.Errorf("repaired: %+v", s)
	}
	if out := e.skyserve(exitOK, "down", "chat", "--yes", "--endpoint-aws", e.url); !strings.Contains(out, "left over: 0") {
		t.Errorf("down:\n%s", out)
	}
	within(t, "the machines are gone", func() error {
		if n := e.machines(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	if got := e.names.Answers(e.zone, "chat.example.com", "us-east-1"); len(got) != 0 {
		t.Errorf("the name still leads to %v", got)
	}
	if out := e.skyserve(exitOK, "gc", "--region", "aws/us-east-1", "--region", "aws/eu-west-1", "--endpoint-aws", e.url); !strings.Contains(out, "nothing is left over") {
		t.Errorf("gc:\n%s", out)
	}
}

// endpointIn finds the endpoint of a region in what up printed.
func endpointIn(out, place string) string {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == place {
			return f[1]
		}
	}
	return ""
}

// chatAt asks a balancer for an answer.
func chatAt(base, key string) error {
	req, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", strings.NewReader(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}
