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
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/identity"
	"skyserve/internal/node"
	"skyserve/internal/service"
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

// emulated is AWS and Google Cloud in this process, whose machines run their agents on
// this one, each at a loopback address of its own.
type emulated struct {
	t       *testing.T
	aws     *fakecloud.AWS
	gce     *fakecloud.GCE
	names   *fakecloud.Route53
	zone    string
	url     string // of AWS
	google  string // of Google Cloud
	dir     string
	program string
	mu      sync.Mutex
	running int
	held    func(fakecloud.Call)   // called while a call is in flight; nil = nothing is
	agents  map[string]*os.Process // of machines, by their ids in the service
	insides string                 // the URL of what clouds tell their machines
	taken   map[string]bool        // machines that their cloud is about to take, by its ids
	advised map[string]bool        // machines that their cloud recommends to leave, likewise
}

func emulate(t *testing.T) *emulated {
	t.Helper()
	faults := &fakecloud.Faults{}
	e := &emulated{
		t: t, dir: t.TempDir(), names: fakecloud.NewRoute53(faults),
		aws: fakecloud.NewAWS(faults, "us-east-1", "eu-west-1"), gce: fakecloud.NewGCE("p", faults),
	}
	faults.Hold = func(c fakecloud.Call) {
		e.mu.Lock()
		held := e.held
		e.mu.Unlock()
		if held != nil {
			held(c)
		}
	}
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
	e.aws.Address, e.gce.Address = addresses(), addresses()
	e.aws.Boot = func(m fakecloud.Booted) func() {
		return e.boot(m, "GOOGLE_", func(_ identity.Name, text string) { e.aws.Print(m.ID, text) })
	}
	e.gce.Boot = func(m fakecloud.Booted) func() {
		return e.boot(m, "AWS_", func(name identity.Name, text string) {
			if fingerprint, found := node.FindLine(text, name); found {
				e.gce.SetGuestAttribute(m.ID, node.GuestAttributePath, fingerprint)
			}
		})
	}
	names := e.names.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/2013-04-01/") {
			names.ServeHTTP(w, r)
			return
		}
		e.aws.ServeHTTP(w, r)
	}))
	google := httptest.NewServer(e.gce)
	inside := httptest.NewServer(http.HandlerFunc(e.tellInside))
	t.Cleanup(server.Close)
	t.Cleanup(google.Close)
	t.Cleanup(inside.Close)
	e.url, e.google, e.insides = server.URL, google.URL, inside.URL
	return e
}

// tellInside is the metadata servers of all machines, each below its id.
func (e *emulated) tellInside(w http.ResponseWriter, r *http.Request) {
	id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	e.mu.Lock()
	taken, advised := e.taken[id], e.advised[id]
	e.mu.Unlock()
	switch {
	case path == "latest/api/token":
		fmt.Fprint(w, "token")
	case path == "latest/meta-data/spot/instance-action" && taken:
		fmt.Fprintf(w, `{"action":"terminate","time":%q}`, time.Now().Add(2*time.Minute).UTC().Format(time.RFC3339))
	case path == "latest/meta-data/events/recommendations/rebalance" && advised:
		fmt.Fprintf(w, `{"noticeTime":%q}`, time.Now().UTC().Format(time.RFC3339))
	case path == "computeMetadata/v1/instance/preempted":
		fmt.Fprint(w, strings.ToUpper(fmt.Sprint(taken)))
	default:
		http.NotFound(w, r)
	}
}

// networks counts the networks that addresses were given in, of which each has its own.
var networks atomic.Int32

// addresses is a network: it gives the nth machine an address.
func addresses() func(n int) (public, private string) {
	network := networks.Add(1)
	return func(n int) (public, private string) {
		ip := fmt.Sprintf("127.%d.%d.%d", 100+os.Getpid()%100, n%256, network)
		return ip, ip
	}
}

// boot does what a machine's cloud-init has it do, less what needs a machine, with an
// identity of its own cloud: none of another, whose variables begin so. What the machine
// writes to its console is told to whoever listens.
func (e *emulated) boot(m fakecloud.Booted, another string, told func(name identity.Name, text string)) func() {
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
	config.Listen, config.Dir, config.Publish, config.Metadata, config.Runner = m.Private+config.Listen, filepath.Join(dir, "state"), "console:"+console, e.insides+"/"+m.ID, "exec"
	var text []byte
	if err == nil {
		text, err = json.Marshal(config)
	}
	if err == nil {
		err = os.RemoveAll(dir) // one that had this name before had another disk
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	var log bytes.Buffer
	cmd := exec.Command(e.program, "node", "--config", file)
	own := slices.DeleteFunc(e.environment(), func(v string) bool { return strings.HasPrefix(v, another) })
	cmd.Stderr, cmd.Env = &log, append(own, "PATH="+filepath.Dir(e.program)+":"+os.Getenv("PATH"))
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
	name := identity.Name{Service: config.Service, Role: config.Role, ID: config.ID}
	wg.Go(func() { show(console, stop, func(text string) { told(name, text) }) })
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

// show tells what a machine writes to its console.
func show(console string, stop chan struct{}, told func(text string)) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for shown := 0; ; {
		if text, err := os.ReadFile(console); err == nil && len(text) > shown {
			told(string(text[shown:]))
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

// command is the command as its user runs it.
func (e *emulated) command(args ...string) *exec.Cmd {
	cmd := exec.Command(e.program, args...)
	cmd.Env = append(e.environment(), "SKYSERVE_HOME="+filepath.Join(e.dir, "home"), "KEYS=key-of-a-client")
	return cmd
}

// environment is that of whoever has credentials of the clouds: a user, and a machine by
// its identity.
func (e *emulated) environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AWS_") || strings.HasPrefix(v, "GOOGLE_")
	}), "HOME="+e.dir, "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true", "GOOGLE_CLOUD_PROJECT=p")
}

// at is the flags by which the command finds the clouds.
func (e *emulated) at(args ...string) []string {
	return append(args, "--endpoint-aws", e.url, "--endpoint-gcp", e.google)
}

// upOf writes a service.yaml and gives the words that bring it up, less its user's yes.
func (e *emulated) upOf(text string) []string {
	e.t.Helper()
	file := filepath.Join(e.dir, "service.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
	return e.at("up", file, "--program", "http://127.0.0.1:1/skyserve#sha256="+strings.Repeat("0", 64))
}

// ended waits until no machine runs any more.
func (e *emulated) ended() {
	e.t.Helper()
	within(e.t, "the machines are gone", func() error {
		if n := e.machines(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
}

func TestAServiceInACloud(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		replicas, other string // the regions
		machine         string
		near            string // the region of AWS nearest to the replicas
	}{
		{"AWS", "aws/us-east-1", "aws/eu-west-1", "g6.xlarge", "us-east-1"},
		{"Google Cloud", "gcp/us-central1", "gcp/europe-west4", "g2-standard-4", "us-east-2"},
		{"both", "gcp/us-central1", "aws/eu-west-1", "g2-standard-4", "us-east-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := strings.NewReplacer("aws/us-east-1", tt.replicas, "aws/eu-west-1", tt.other).Replace(cloudService)
			testService(t, text, service.Region(tt.replicas), service.Region(tt.other), tt.machine, tt.near)
		})
	}
}

// testService: a service comes up in two regions with a name, answers in both (one has
// no replica of its own), is left alone by a second up, and leaves nothing when it goes.
func testService(t *testing.T, text string, replicas, other service.Region, machine, near string) {
	e := emulate(t)
	up := e.upOf(text)
	if out := e.skyserve(exitUsage, up...); !strings.Contains(out, "--yes") || !strings.Contains(out, "spot "+machine+" in "+replicas.Place()) || e.machines() != 0 {
		t.Fatalf("without a terminal or --yes: %d machines\n%s", e.machines(), out)
	}
	first := e.skyserve(exitOK, append(up, "--yes")...)
	if e.machines() != 4 {
		t.Fatalf("%d machines\n%s", e.machines(), first)
	}
	for _, place := range []string{replicas.Place(), other.Place()} {
		base := endpointIn(first, place)
		if base == "" {
			t.Fatalf("no endpoint of %s in\n%s", place, first)
		}
		within(t, "a chat in "+place, func() error { return chatAt(base, "key-of-a-client") })
		if err := chatAt(base, "another key"); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("with another key: %v", err)
		}
	}
	if got := e.names.Answers(e.zone, "chat.example.com", near); len(got) == 0 {
		t.Error("the name leads nowhere")
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	if replicas.Cloud() == service.CloudAWS {
		e.mendWhatWasChanged(up)
	}
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, "left over: 0") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if got := e.names.Answers(e.zone, "chat.example.com", near); len(got) != 0 {
		t.Errorf("the name still leads to %v", got)
	}
	if out := e.skyserve(exitOK, e.at("gc", "--region", string(replicas), "--region", string(other))...); !strings.Contains(out, "nothing is left over") {
		t.Errorf("gc:\n%s", out)
	}
}

// mendWhatWasChanged looks at a service in AWS with status and logs, changes some of it
// behind the service's back and brings it up again.
func (e *emulated) mendWhatWasChanged(up []string) {
	e.t.Helper()
	e.lookAt(up[1])
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "firewall-us-east-1-balancer") || !strings.Contains(out, "us-east-1-0 ready") {
		e.t.Errorf("the third up:\n%s", out)
	}
	if s := e.status(); s.State != fleet.StateReady {
		e.t.Errorf("repaired: %+v", s)
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
