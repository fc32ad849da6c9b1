package main

import (
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

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/machines"
	"skyserve/internal/testkit"
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
  insecure: true
dns: {provider: route53, name: chat.example.com, zone: example.com}
`

// emulated is AWS and Google Cloud in this process, whose machines run their agents on
// this one, each at a loopback address of its own.
type emulated struct {
	*machines.Clouds
	t       *testing.T
	aws     *testcloud.AWS
	gce     *testcloud.GCE
	names   *testcloud.Route53
	zone    string
	url     string // of AWS
	google  string // of Google Cloud
	dir     string
	program string
	mu      sync.Mutex
	held    func(testcloud.Call) // called while a call is in flight; nil = nothing is
}

func emulate(t *testing.T) *emulated {
	t.Helper()
	e := &emulated{t: t, dir: t.TempDir()}
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
	serve := func(h http.Handler) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	faults := &testcloud.Faults{Hold: func(c testcloud.Call) {
		e.mu.Lock()
		held := e.held
		e.mu.Unlock()
		if held != nil {
			held(c)
		}
	}}
	e.Clouds = machines.New(machines.Options{
		Dir: e.dir, Program: e.program, Environment: e.environment(),
		Regions: []string{"us-east-1", "eu-west-1"}, Project: "p", Faults: faults,
		Ended: func(name string, err error, log string) {
			if err != nil || t.Failed() {
				t.Logf("the machine %s (%v):\n%s", name, err, log)
			}
		},
	})
	e.aws, e.gce, e.names = e.AWS, e.Google, e.Names
	if err := e.gce.Gcloud(googleCommands(t)); err != nil {
		t.Fatal(err)
	}
	e.url, e.google = serve(e.Amazon()), serve(e.gce)
	e.zone = e.names.AddZone("example.com", false)
	t.Cleanup(e.Close)
	return e
}

// googleCommands are those by which the docs have the account of balancers of the service chat
// made, in the project p.
func googleCommands(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, google, _ := strings.Cut(string(text), "\n### Google\n")
	return strings.ReplaceAll(google, "PROJECT", "p")
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

// environment is that of a user who has credentials of the clouds. Machines have none of
// them: each has the identity that its own cloud gives it.
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
		if n := e.Running(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
}

func TestAServiceInACloud(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it takes minutes with the detector on, and goes ways that others go")
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

// plainHTTPTold is what people are told of a service without TLS.
const plainHTTPTold = "public port: plain HTTP"

// A service without TLS that does not say so is refused before anything is made.
func TestUpRefusesPlainHTTPToTheWorld(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(cloudService, "  insecure: true\n", "", 1)
	out := e.skyserve(exitUsage, append(e.upOf(text), "--yes")...)
	for _, want := range []string{"balancer.tls: is missing", "aws/us-east-1 would serve plain HTTP on the public internet", "insecure: true"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if got := e.skyserve(exitUsage, "validate", filepath.Join(e.dir, "service.yaml")); !strings.Contains(got, "balancer.tls: is missing") {
		t.Errorf("validate:\n%s", got)
	}
	if out := e.skyserve(exitOK, append(e.upOf(cloudService), "--dry-run")...); !strings.Contains(out, plainHTTPTold) {
		t.Errorf("up --dry-run does not say it:\n%s", out)
	}
}

// A service that was brought up before plain HTTP had to be asked for is still shown and
// removed; one whose kept file cannot be read is not taken for one without machines.
func TestAServiceWhoseFileIsOlderThanItsRules(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.skyserve(exitOK, append(e.upOf(cloudService), "--yes")...)
	file := filepath.Join(e.dir, "home", "services", "chat", "service.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, with string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, with, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("models:", "modules:")
	if out := e.skyserve(exitUsage, e.at("down", "chat", "--yes")...); !strings.Contains(out, "modules: unknown key") || e.Running() != 4 {
		t.Errorf("down with a file that cannot be read: %d machines run\n%s", e.Running(), out)
	}
	replace("  insecure: true\n", "")
	if out := e.skyserve(exitOK, e.at("status", "chat")...); !strings.Contains(out, "lb-us-east-1-0") || !strings.Contains(out, plainHTTPTold) {
		t.Errorf("status of an older file:\n%s", out)
	}
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, "left over: 0") {
		t.Errorf("down of an older file:\n%s", out)
	}
	e.ended()
}

// testService: a service comes up in two regions with a name, answers in both (one has
// no replica of its own), is left alone by a second up, and leaves nothing when it goes.
func testService(t *testing.T, text string, replicas, other service.Region, machine, near string) {
	e := emulate(t)
	up := e.upOf(text)
	if out := e.skyserve(exitUsage, up...); !strings.Contains(out, "--yes") || !strings.Contains(out, "spot "+machine+" in "+replicas.Place()) || e.Running() != 0 {
		t.Fatalf("without a terminal or --yes: %d machines\n%s", e.Running(), out)
	}
	first := e.skyserve(exitOK, append(up, "--yes")...)
	if e.Running() != 4 {
		t.Fatalf("%d machines\n%s", e.Running(), first)
	}
	if got := strings.Count(first, plainHTTPTold); got != 2 { // in the plan, and beside the endpoints
		t.Errorf("up says %d times that the public port serves plain HTTP\n%s", got, first)
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
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "firewall-us-east-1-balancer") || !strings.Contains(out, "lb-eu-west-1-0 ready") {
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
