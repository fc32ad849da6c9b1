package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// rehearse returns the arguments of a rehearsal of a service, with the flags in extra.
func (e *emulated) rehearse(text string, extra ...string) []string {
	up := e.upOf(text)
	return append(e.at("doctor", up[1], "--rehearse", "--yes", "--timeout", "60s", "--program", up[3]), extra...)
}

// checkNothingIsLeft checks that both clouds, the hosted zone and the state directory have nothing of a
// rehearsal.
func (e *emulated) checkNothingIsLeft(out string) {
	e.t.Helper()
	e.ended()
	if remaining := e.aws.RemainingResources(); len(remaining)+len(e.gce.Instances())+len(e.gce.Firewalls())+len(e.gce.Buckets())+len(e.names.RecordSets(e.zone)) > 0 {
		e.t.Errorf("remaining: %q, %+v, %+v, %q, %+v\n%s", remaining, e.gce.Instances(), e.gce.Firewalls(), e.gce.Buckets(), e.names.RecordSets(e.zone), out)
	}
	if services, err := filepath.Glob(filepath.Join(e.dir, "home", "services", "*")); err != nil || len(services) > 0 {
		e.t.Errorf("the state directory has %q, %v\n%s", services, err, out)
	}
}

// parsedReport is a part of the JSON document of a rehearsal.
type parsedReport struct {
	Passed bool
	Report string
	Steps  []struct{ Step, Result, Error string }
}

// reportIn returns the report of a rehearsal with -o json.
func reportIn(t *testing.T, out string) parsedReport {
	t.Helper()
	var d parsedReport
	start := strings.Index(out, `{"service"`)
	if start < 0 {
		t.Fatalf("no report in\n%s", out)
	}
	if err := json.NewDecoder(strings.NewReader(out[start:])).Decode(&d); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return d
}

// A rehearsal in both clouds passes every step, publishes the name, replaces the replicas, and leaves
// nothing. Its report contains every step, and neither account ids nor projects.
func TestRehearsalInBothClouds(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(cloudService, "aws/eu-west-1", "gcp/us-central1", 2)
	out := e.skyserve(exitCredentials, e.rehearse(text)...)
	if !strings.Contains(out, "gcloud iam service-accounts create skyserve-chat-rehearsal-lb") {
		t.Fatalf("without the account:\n%s", out)
	}
	e.checkNothingIsLeft(out)
	if err := e.gce.RunGcloud(out); err != nil { // run the printed commands
		t.Fatal(err)
	}
	file := filepath.Join(e.dir, "report.md")
	out = e.skyserve(exitOK, e.rehearse(text, "--dns", "--report", file)...)
	e.checkNothingIsLeft(out)
	for _, want := range []string{"published chat-rehearsal.example.com", "at most $0.06: $0.3262/h", "skyserve down chat-rehearsal", "all 14 steps passed", "report: " + file} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	report, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rehearsalSteps {
		if !strings.Contains(string(report), "| "+s.Name+" | "+s.Proves+" | passed | ") {
			t.Errorf("the report has no passed step %s:\n%s", s.Name, report)
		}
	}
	if calls := e.launches(); calls != 6 { // a balancer and two replicas in each cloud
		t.Errorf("%d launches, want 6\n%s", calls, out)
	}
}

// launches returns the number of machines that were launched: at AWS those that have a directory, since
// dry runs are calls too.
func (e *emulated) launches() int {
	inAWS, err := filepath.Glob(filepath.Join(e.dir, "i-*", "state"))
	if err != nil {
		e.t.Fatal(err)
	}
	return len(inAWS) + e.faults.CallCounts()["compute.instances.insert"]
}

// inAWS is a rehearsal of a service in one region of AWS.
func (e *emulated) inAWS(extra ...string) []string { return e.rehearse(oneRegion, extra...) }

// deny makes AWS reject an action with an error code.
func (e *emulated) deny(denied, code string) {
	e.aws.Configure(func() {
		e.aws.DenialCode = func(_, action string) string {
			if action == denied {
				return code
			}
			return ""
		}
	})
}

// Each failure is reported at its step, with the cause and the exit code, and everything is deleted.
func TestRehearsalReportsFailedStep(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	for name, tt := range map[string]struct {
		broken  string // command of machines that fails
		inject  func(e *emulated)
		timeout string
		step    string
		want    []string
		code    int
	}{
		"expired credentials": {
			inject: func(e *emulated) { e.deny("ec2:DescribeInstances", "ExpiredToken") },
			step:   "plan", want: []string{"ExpiredToken", "hint: log in again"}, code: exitCredentials,
		},
		"role denied": {
			inject: func(e *emulated) { e.deny("iam:CreateRole", "AccessDenied") },
			step:   "identities", want: []string{"permission denied for iam:CreateRole"}, code: exitCredentials,
		},
		"firewall denied": {
			inject: func(e *emulated) { e.deny("ec2:CreateSecurityGroup", "UnauthorizedOperation") },
			step:   "firewalls", want: []string{"permission denied for ec2:CreateSecurityGroup"}, code: exitCredentials,
		},
		"launch denied": {
			inject: func(e *emulated) { e.deny("ec2:RunInstances", "UnauthorizedOperation") },
			step:   "plan", want: []string{"permission denied for ec2:RunInstances"}, code: exitCredentials,
		},
		"image missing": {
			inject: func(e *emulated) { e.deny("ec2:RunInstances", "InvalidAMIID.NotFound") },
			step:   "plan", want: []string{"InvalidAMIID.NotFound"}, code: exitUsage,
		},
		"no capacity": {
			inject: func(e *emulated) { e.deny("ec2:RunInstances", "InsufficientInstanceCapacity") },
			step:   "machines", want: []string{"InsufficientInstanceCapacity"}, code: exitFailed,
		},
		"machine never boots": {
			inject: func(e *emulated) {
				e.aws.Configure(func() { e.aws.BootMachine = func(testcloud.BootingMachine) func() { return func() {} } })
			},
			timeout: "10s",
			step:    "boot", want: []string{"longer than --timeout (10s)", "lb-us-east-1-0: waiting for its agent", "hint: read the console output"}, code: exitFailed,
		},
		"bootstrap fails": {
			broken: "node", timeout: "10s",
			step: "boot", want: []string{"lb-us-east-1-0: waiting for its agent"}, code: exitFailed,
		},
		"console never shows the key": {
			inject: func(e *emulated) {
				boot := e.aws.BootMachine
				e.aws.Configure(func() {
					e.aws.BootMachine = func(m testcloud.BootingMachine) func() {
						m.ID = "silent-" + m.ID // the console of no instance
						return boot(m)
					}
				})
			},
			timeout: "30s",
			step:    "enrolment", want: []string{"lb-us-east-1-0: waiting for its machine to boot", "hint: at AWS the key is read from the console"}, code: exitFailed,
		},
		"engine never ready": {
			broken: "engine", timeout: "2m",
			step: "replicas", want: []string{"us-east-1-0: crash_loop: exit status 1: engine is broken"}, code: exitFailed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t, envBrokenCommand+"="+tt.broken)
			if tt.inject != nil {
				tt.inject(e)
			}
			args := e.inAWS("-o", "json")
			if tt.timeout != "" {
				args = append(args, "--timeout", tt.timeout)
			}
			out := e.skyserve(tt.code, args...)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			for _, s := range reportIn(t, out).Steps {
				if failed := s.Result == resultFailed; failed != (s.Step == tt.step) || failed != (s.Error != "") {
					t.Errorf("step %s: %s %q; want a failure at %s\n%s", s.Step, s.Result, s.Error, tt.step, out)
				}
			}
			e.checkNothingIsLeft(out)
		})
	}
}

// After Ctrl-C, everything is deleted, also what a cut off call creates while the rest is deleted.
func TestInterruptedRehearsalDeletesAll(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	for name, action := range map[string]string{"role": "iam:CreateRole", "launch": "ec2:RunInstances", "key": "ec2:GetConsoleOutput"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			var interrupted atomic.Bool
			begun, released := make(chan struct{}), make(chan struct{})
			begin, release := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(released) })
			e.hold(func(c testcloud.Call) {
				switch {
				case c.Action == action && !interrupted.Load():
					begin()
					<-released
				case interrupted.Load() && c.Action == "ec2:DescribeInstances": // of the deletion
					release()
				}
			})
			cmd := e.command(e.inAWS()...)
			var text strings.Builder
			cmd.Stdout, cmd.Stderr = &text, &text
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-begun
			interrupted.Store(true)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // the exit code is checked below
			release()
			out := text.String()
			if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(out, "interrupted ") {
				t.Errorf("exit %d, want %d, with an interrupted step:\n%s", code, exitInterrupted, out)
			}
			e.checkNothingIsLeft(out)
		})
	}
}

// What a killed rehearsal leaves is deleted by the next one, by down, or by gc.
func TestKilledRehearsalCanBeDeleted(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	for name, by := range map[string]func(e *emulated) string{
		"rehearse": func(e *emulated) string { return e.skyserve(exitOK, e.inAWS()...) },
		"down":     func(e *emulated) string { return e.skyserve(exitOK, e.at("down", "chat-rehearsal", "--yes")...) },
		"gc": func(e *emulated) string {
			out := e.skyserve(exitOK, e.at("gc", "--region", "aws/us-east-1", "--yes")...)
			return out + e.skyserve(exitOK, e.at("down", "chat-rehearsal", "--yes")...) // its state
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			out, code := e.end(os.Kill, []string{"ec2:GetConsoleOutput"}, e.inAWS()...)
			if code != -1 || len(e.aws.Machines()) != 2 || !strings.Contains(out, "skyserve gc --region aws/us-east-1") {
				t.Fatalf("killed: exit %d, %d machines\n%s", code, len(e.aws.Machines()), out)
			}
			e.checkNothingIsLeft(by(e))
		})
	}
}

// If the clouds refuse the deletion, the report and the output name what remains and how to delete it.
func TestRehearsalReportsRefusedDeletion(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.deny("ec2:TerminateInstances", "UnauthorizedOperation")
	out := e.skyserve(exitCredentials, e.inAWS("-o", "json")...)
	for _, want := range []string{"permission denied for ec2:TerminateInstances", "objects left", "balancer lb-us-east-1-0 in aws/us-east-1", "resources remain and are billed", "skyserve down chat-rehearsal"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	failed := map[string]bool{}
	for _, s := range reportIn(t, out).Steps {
		failed[s.Step] = s.Result == resultFailed
	}
	if !failed["interruption"] || !failed["down"] || !failed["gc"] || failed["request"] {
		t.Errorf("failed: %v", failed)
	}
	e.deny("", "")
	e.checkNothingIsLeft(e.skyserve(exitOK, e.inAWS()...))
}
