package main

import (
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

	"skyserve/internal/controller/deploy"
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

// emulated emulates AWS and Google Cloud in this process. Its machines run their agents on this
// machine, each on its own loopback address.
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
	faults  *testcloud.Faults
}

// emulate starts the emulation; environment are additional variables of its machines.
func emulate(t *testing.T, environment ...string) *emulated {
	t.Helper()
	return emulateWith(t, machines.Options{Environment: environment})
}

// emulateWith starts the emulation with options for its machines.
func emulateWith(t *testing.T, o machines.Options) *emulated {
	t.Helper()
	e := &emulated{t: t, dir: t.TempDir()}
	e.program = filepath.Join(e.dir, "bin", "skyserve")
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(e.program), 0o755)
	}
	if err == nil {
		err = os.Symlink(self, e.program) // named skyserve, the test binary is the command: see TestMain
	}
	if err != nil {
		t.Fatal(err)
	}
	serve := func(h http.Handler) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	faults := &testcloud.Faults{DuringCall: func(c testcloud.Call) {
		e.mu.Lock()
		held := e.held
		e.mu.Unlock()
		if held != nil {
			held(c)
		}
	}}
	e.faults = faults
	e.Clouds = machines.New(machines.Options{
		Dir: e.dir, Program: e.program, Bootstrap: o.Bootstrap, Environment: append(e.environment(), o.Environment...),
		Regions: []string{"us-east-1", "eu-west-1"}, Project: "p", Faults: faults, ProgramOf: e.programOf(o.ProgramOf),
		OnEnded: func(name string, err error, log string) {
			if err != nil || t.Failed() {
				t.Logf("the machine %s (%v):\n%s", name, err, log)
			}
		},
	})
	e.aws, e.gce, e.names = e.AWS, e.Google, e.Route53
	if err := e.gce.RunGcloud(googleCommands(t)); err != nil {
		t.Fatal(err)
	}
	e.url, e.google = serve(e.AWSHandler()), serve(e.gce)
	e.zone = e.names.AddZone("example.com", false)
	t.Cleanup(e.Close)
	return e
}

// programOf returns what chooses the binary of machines: of with an empty result, or nil, means the current one.
func (e *emulated) programOf(of func(userData string) string) func(string) string {
	return func(userData string) string {
		if of != nil {
			if program := of(userData); program != "" {
				return program
			}
		}
		return e.program
	}
}

// googleCommands returns the commands of the docs that create the balancers' account of the service
// chat in the project p.
func googleCommands(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/clouds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, google, _ := strings.Cut(string(text), "\n### Google\n")
	return strings.NewReplacer("PROJECT", "p", "NUMBER", "987654321098", "AWS_ACCOUNT", testcloud.AWSAccount).Replace(google)
}

// skyserve runs the command and checks its exit code.
func (e *emulated) skyserve(code int, args ...string) string {
	e.t.Helper()
	cmd := e.command(args...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		e.t.Fatalf("skyserve %s: exit %d (%v), want %d\n%s", strings.Join(args, " "), got, err, code, out)
	}
	return string(out)
}

// document runs a command that prints JSON and decodes its standard output. The SDKs of the clouds may log
// warnings on standard error.
func (e *emulated) document(into any, args ...string) {
	e.t.Helper()
	cmd := e.command(args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		e.t.Fatalf("skyserve %s: %v\n%s%s", strings.Join(args, " "), err, out, log.String())
	}
}

// command returns the command with the user's environment.
func (e *emulated) command(args ...string) *exec.Cmd {
	cmd := exec.Command(e.program, args...)
	cmd.Env = append(e.environment(), "SKYSERVE_HOME="+filepath.Join(e.dir, "home"), "KEYS=key-of-a-client")
	return cmd
}

// environment returns the environment of a user with cloud credentials. Machines do not have these:
// each has the identity that its cloud assigns.
func (e *emulated) environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AWS_") || strings.HasPrefix(v, "GOOGLE_")
	}), "HOME="+e.dir, "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true", "GOOGLE_CLOUD_PROJECT=p")
}

// at appends the flags with the emulators' endpoints.
func (e *emulated) at(args ...string) []string {
	return append(args, "--endpoint-aws", e.url, "--endpoint-gcp", e.google)
}

// upOf writes a service.yaml and returns the arguments of up for it, without --yes.
func (e *emulated) upOf(text string) []string {
	e.t.Helper()
	return slices.Insert(e.localUpOf(text), 2, "--program", "http://127.0.0.1:1/skyserve#sha256="+strings.Repeat("0", 64))
}

// localUpOf is upOf for a service without machines in clouds.
func (e *emulated) localUpOf(text string) []string {
	e.t.Helper()
	file := filepath.Join(e.dir, "service.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
	return e.at("up", file)
}

// ended waits until no machine is running.
func (e *emulated) ended() {
	e.t.Helper()
	within(e.t, "the machines are gone", func() error {
		if n := e.RunningAgents(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
}

func TestServiceInEachCloud(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
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

// plainHTTPWarning is part of the warning about a service without TLS.
const plainHTTPWarning = "public port: plain HTTP"

// A service without TLS is rejected before anything is launched, unless it sets insecure.
func TestUpRejectsPublicPlainHTTP(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(cloudService, "  insecure: true\n", "", 1)
	out := e.skyserve(exitUsage, append(e.upOf(text), "--yes")...)
	for _, want := range []string{"balancer.tls: is required", "aws/us-east-1 would serve plain HTTP on the public internet", "insecure: true"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if got := e.skyserve(exitUsage, "validate", filepath.Join(e.dir, "service.yaml")); !strings.Contains(got, "balancer.tls: is required") {
		t.Errorf("validate:\n%s", got)
	}
	if out := e.skyserve(exitOK, append(e.upOf(cloudService), "--dry-run")...); !strings.Contains(out, plainHTTPWarning) {
		t.Errorf("no plain HTTP warning in up --dry-run:\n%s", out)
	}
}

// status and down work for a service that was deployed before plain HTTP required insecure: true.
// down fails if the stored file cannot be read.
func TestDownWithOutdatedServiceFile(t *testing.T) {
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
	if out := e.skyserve(exitUsage, e.at("down", "chat", "--yes")...); !strings.Contains(out, "modules: unknown key") || e.RunningAgents() != 4 {
		t.Errorf("down with a file that cannot be read: %d machines run\n%s", e.RunningAgents(), out)
	}
	replace("  insecure: true\n", "")
	if out := e.skyserve(exitOK, e.at("status", "chat")...); !strings.Contains(out, "lb-us-east-1-0") || !strings.Contains(out, plainHTTPWarning) {
		t.Errorf("status of an older file:\n%s", out)
	}
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down of an older file:\n%s", out)
	}
	e.ended()
}

// testService deploys a service with a name in two regions, one of them without replicas. Both
// respond, a second up changes nothing, and down deletes everything.
func testService(t *testing.T, text string, replicas, other service.Region, machine, near string) {
	e := emulate(t)
	up := e.upOf(text)
	if out := e.skyserve(exitUsage, up...); !strings.Contains(out, "--yes") || !strings.Contains(out, "spot "+machine+" in "+replicas.ShortName()) || e.RunningAgents() != 0 {
		t.Fatalf("without a terminal or --yes: %d machines\n%s", e.RunningAgents(), out)
	}
	first := e.skyserve(exitOK, append(up, "--yes")...)
	if e.RunningAgents() != 4 {
		t.Fatalf("%d machines\n%s", e.RunningAgents(), first)
	}
	if got := strings.Count(first, plainHTTPWarning); got != 2 { // with the changes, and with the endpoints
		t.Errorf("up printed the plain HTTP warning %d times, want 2\n%s", got, first)
	}
	for _, place := range []string{replicas.ShortName(), other.ShortName()} {
		base := endpointIn(first, place)
		if base == "" {
			t.Fatalf("no endpoint of %s in\n%s", place, first)
		}
		within(t, "a chat in "+place, func() error { return chatAt(base, "key-of-a-client") })
		if err := chatAt(base, "another key"); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("with another key: %v", err)
		}
	}
	if got := e.names.ResolveName(e.zone, "chat.example.com", near); len(got) == 0 {
		t.Error("the name resolves to no balancer")
	}
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	if out := e.skyserve(exitUsage, "load", "chat"); !strings.Contains(out, "run on machines in clouds") || !strings.Contains(out, "pass --target") {
		t.Errorf("load without targets:\n%s", out)
	}
	if replicas.Cloud() == service.CloudAWS {
		e.repairManualChanges(up)
	}
	if out := e.skyserve(exitOK, e.at("down", "chat", "--yes")...); !strings.Contains(out, " is down; ") {
		t.Errorf("down:\n%s", out)
	}
	e.ended()
	if got := e.names.ResolveName(e.zone, "chat.example.com", near); len(got) != 0 {
		t.Errorf("the name still resolves to %v", got)
	}
	if out := e.skyserve(exitOK, e.at("gc", "--region", string(replicas), "--region", string(other))...); !strings.Contains(out, "no orphaned resources") {
		t.Errorf("gc:\n%s", out)
	}
}

// repairManualChanges checks status and logs of a service in AWS, which modify some resources, and
// repairs them with up.
func (e *emulated) repairManualChanges(up []string) {
	e.t.Helper()
	e.checkStatus(up[1])
	if out := e.skyserve(exitOK, append(up, "--yes")...); !strings.Contains(out, "firewall-us-east-1-balancer") || !strings.Contains(out, "lb-eu-west-1-0 ready") {
		e.t.Errorf("the third up:\n%s", out)
	}
	if s := e.status(); s.State != deploy.StateReady {
		e.t.Errorf("repaired: %+v", s)
	}
}

// endpointIn returns the endpoint of a region in the output of up.
func endpointIn(out, place string) string {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == place {
			return f[1]
		}
	}
	return ""
}

// chatAt sends a chat request to a balancer.
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
