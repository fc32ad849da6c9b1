package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// twoClouds is the service without its name, with one replica in each cloud.
var twoClouds = strings.NewReplacer("aws/eu-west-1", "gcp/us-central1", "{min: 0, max: 0}", "{min: 1, max: 1}",
	"dns: {provider: route53, name: chat.example.com, zone: example.com}\n", "").Replace(cloudService)

// interrupt runs a command and interrupts it during calls of some actions, which the clouds still
// complete after the command has ended. It returns the output.
func (e *emulated) interrupt(actions []string, args ...string) string {
	e.t.Helper()
	output, code := e.end(os.Interrupt, actions, args...)
	if code != exitInterrupted {
		e.t.Fatalf("interrupted at %s: exit %d, want %d\n%s", actions, code, exitInterrupted, output)
	}
	return output
}

// end is interrupt with any signal; code is the command's exit code.
func (e *emulated) end(by os.Signal, actions []string, args ...string) (output string, code int) {
	e.t.Helper()
	begun, ended := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	e.hold(func(c testcloud.Call) {
		if slices.Contains(actions, c.Action) {
			once()
			<-ended
		}
	})
	cmd := e.command(args...)
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case <-begun:
	case err := <-gone:
		close(ended)
		e.t.Fatalf("skyserve %s ended (%v) without %s:\n%s", strings.Join(args, " "), err, actions, text.String())
	}
	if err := cmd.Process.Signal(by); err != nil {
		e.t.Error(err)
	}
	<-gone
	close(ended)
	e.hold(nil)
	return text.String(), cmd.ProcessState.ExitCode()
}

// hold is called while a call to the clouds is in flight; nil = nothing is.
func (e *emulated) hold(with func(testcloud.Call)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = with
}

// Whenever up is interrupted, the next up continues: it finds what the cloud created after the
// interrupt, and creates nothing twice.
func TestUpResumesAfterInterrupt(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(twoClouds), "--yes")
	for _, actions := range [][]string{
		{"compute.regions.get", "ec2:DescribeVpcs"}, // listing
		{"compute.firewalls.insert", "iam:CreateRole"},
		{"compute.instances.insert", "ec2:RunInstances"},
		{"compute.instances.getGuestAttributes", "ec2:GetConsoleOutput"}, // the keys of the machines
	} {
		if output := e.interrupt(actions, up...); strings.Count("\n"+output, "\ninterrupted") != 1 || strings.Contains(output, "s  failed ") {
			t.Errorf("interrupted at %s:\n%s", actions, output)
		}
	}
	if out := e.skyserve(exitOK, up...); e.RunningAgents() != 5 {
		t.Errorf("%d machines, want 5\n%s", e.RunningAgents(), out)
	}
	if a, g := len(e.aws.Machines()), len(e.gce.Instances()); a != 3 || g != 2 {
		t.Errorf("%d machines at AWS and %d at Google, want 3 and 2", a, g)
	}
	down := e.at("down", "chat", "--yes")
	for _, action := range []string{"ec2:TerminateInstances", "compute.firewalls.delete"} {
		if output := e.interrupt([]string{action}, down...); !strings.Contains(output, "interrupted") {
			t.Errorf("down interrupted at %s:\n%s", action, output)
		}
	}
	e.downAndCheckEmpty()
}

// After up or down is killed during a call to a cloud that still completes, a second run results in
// the same service, or in none.
func TestUpAndDownRecoverFromKill(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(strings.Replace(cloudService, "aws/eu-west-1", "gcp/us-central1", 2)), "--yes")
	kill := func(args []string, at ...[]string) {
		t.Helper()
		for _, actions := range at {
			if output, code := e.end(os.Kill, actions, args...); code != -1 {
				t.Fatalf("killed at %s: exit %d\n%s", actions, code, output)
			}
		}
	}
	kill(up,
		[]string{"iam:CreateRole", "ec2:CreateSecurityGroup", "compute.firewalls.insert"}, []string{"ec2:RunInstances", "compute.instances.insert"},
		[]string{"ec2:GetConsoleOutput", "compute.instances.getGuestAttributes"}, []string{"route53:ChangeResourceRecordSets"},
	)
	out := e.skyserve(exitOK, up...)
	if a, g := len(e.aws.Machines()), len(e.gce.Instances()); a != 3 || g != 1 {
		t.Errorf("%d machines at AWS and %d at Google, want 3 and 1\n%s", a, g, out)
	}
	within(t, "a chat", func() error { return chatAt(endpointIn(out, "us-east-1"), "key-of-a-client") })
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	kill(e.at("down", "chat", "--yes"), []string{"route53:ChangeResourceRecordSets"},
		[]string{"ec2:TerminateInstances", "compute.instances.delete"}, []string{"iam:DeleteRole", "compute.firewalls.delete"})
	e.downAndCheckEmpty()
}

// If credentials expire during up, everything created so far is kept, and the next up continues.
func TestUpReportsExpiringCredentials(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(twoClouds), "--yes")
	var ended atomic.Bool
	e.aws.Configure(func() {
		e.aws.DenialCode = func(string, string) string {
			if ended.Load() {
				return "ExpiredToken"
			}
			return ""
		}
	})
	e.hold(func(c testcloud.Call) {
		if c.Action == "ec2:RunInstances" {
			ended.Store(true)
		}
	})
	if out := e.skyserve(exitCredentials, up...); !strings.Contains(out, "ExpiredToken") || !strings.Contains(out, "hint: log in again: aws sso login") {
		t.Errorf("after their expiry:\n%s", out)
	}
	e.hold(nil)
	ended.Store(false)
	out := e.skyserve(exitOK, up...)
	if a, g := len(e.aws.Machines()), len(e.gce.Instances()); a != 3 || g != 2 {
		t.Errorf("%d machines at AWS and %d at Google, want 3 and 2\n%s", a, g, out)
	}
	ended.Store(true)
	if out := e.skyserve(exitCredentials, e.at("down", "chat", "--yes")...); !strings.Contains(out, "ExpiredToken") {
		t.Errorf("down after their expiry:\n%s", out)
	}
	ended.Store(false)
	e.downAndCheckEmpty()
}

// downAndCheckEmpty deletes the service and checks that both clouds are empty.
func (e *emulated) downAndCheckEmpty() {
	e.t.Helper()
	e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
	e.ended()
	if remaining := e.aws.RemainingResources(); len(remaining)+len(e.gce.Instances())+len(e.gce.Firewalls())+len(e.names.RecordSets(e.zone)) > 0 {
		e.t.Errorf("remaining: %q, %+v, %+v, %+v", remaining, e.gce.Instances(), e.gce.Firewalls(), e.names.RecordSets(e.zone))
	}
}

func TestUpReportsRejectedCredentials(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	for name, tt := range map[string]struct {
		deny func(e *emulated)
		want []string
	}{
		"unknown AWS key": {
			func(e *emulated) {
				e.aws.Configure(func() { e.aws.DenialCode = func(string, string) string { return "AuthFailure" } })
			},
			[]string{"calling aws: no valid credentials", "AuthFailure", "hint: check the access keys"},
		},
		"expired AWS keys": {
			func(e *emulated) {
				e.aws.Configure(func() { e.aws.DenialCode = func(string, string) string { return "ExpiredToken" } })
			},
			[]string{"ExpiredToken", "hint: log in again: aws sso login"},
		},
		"action denied by AWS": {
			func(e *emulated) {
				e.aws.Configure(func() {
					e.aws.DenialCode = func(_, action string) string {
						if action == "ec2:RunInstances" {
							return "UnauthorizedOperation"
						}
						return ""
					}
				})
			},
			[]string{"calling aws: permission denied for ec2:RunInstances", "hint: allow ec2:RunInstances for the caller in an IAM policy"},
		},
		"unknown Google token": {
			func(e *emulated) { e.gce.RequireToken("another") },
			[]string{"calling gcp: no valid credentials", "hint: run gcloud auth application-default login"},
		},
		"action denied by Google": {
			func(e *emulated) { e.gce.DenyPermissions("compute.instances.create") },
			[]string{"calling gcp: permission denied for compute.instances.create", "hint: grant a role with this permission"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			tt.deny(e)
			out := e.skyserve(exitCredentials, append(e.upOf(twoClouds), "--yes")...)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// An unknown region or GPU is an error of the file, before anything is launched.
func TestUpRejectsUnknownRegionsAndGPUs(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	for name, tt := range map[string]struct {
		is, not string
		exit    int
		want    []string
	}{
		"Google region": {"gcp/us-central1", "gcp/mars-north1", exitUsage, []string{`"mars-north1"`}},
		"AWS region":    {"aws/us-east-1", "aws/mars-north-1", exitCredentials, []string{"listing the offerings of aws/mars-north-1", "hint: "}},
		"GPU type":      {"type: L4", "type: L400", exitUsage, []string{"models[0].gpus[0].type: must be one of L4, A10G, L40S, A100, H100, H200", `got "L400"`}},
		"GPU count":     {"type: L4", "type: L4, count: 7", exitUsage, []string{"models[0].gpus[0].count: must be 1, 4 or 8 for L4 in aws/us-east-1, got 7", "or let no replica of m start there: models[0].regions: {aws/us-east-1: {max: 0}}"}},
	} {
		out := e.skyserve(tt.exit, append(e.upOf(strings.ReplaceAll(twoClouds, tt.is, tt.not)), "--yes")...)
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
		if remaining := e.aws.RemainingResources(); len(remaining) > 0 || e.RunningAgents() > 0 {
			t.Errorf("%s: %q remains after\n%s", name, remaining, out)
		}
	}
}

// A service or public name of another owner is not changed.
func TestUpRejectsNamesOfOtherOwners(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(oneRegion, "balancer:\n", "dns: {provider: route53, name: chat.example.com, zone: example.com}\nbalancer:\n", 1)
	e.skyserve(exitOK, append(e.upOf(text), "--yes")...)
	stands, records := e.aws.RemainingResources(), e.names.RecordSets(e.zone)
	for name, tt := range map[string]struct{ text, want string }{
		"the service": {oneRegion, "service chat in aws/us-east-1 belongs to another owner"},
		"the name":    {strings.Replace(text, "name: chat\n", "name: talk\n", 1), "DNS name chat.example.com in hosted zone example.com (public, Z"},
	} {
		cmd := e.command(append(e.upOf(tt.text), "--yes")...)
		cmd.Env = append(cmd.Env, "SKYSERVE_HOME="+t.TempDir())
		out, _ := cmd.CombinedOutput() // the exit code is checked below
		if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(string(out), tt.want) || !strings.Contains(string(out), "hint: choose another name") {
			t.Errorf("%s: exit %d\n%s", name, code, out)
		}
	}
	if remaining, now := e.aws.RemainingResources(), e.names.RecordSets(e.zone); !slices.Equal(remaining, stands) || !reflect.DeepEqual(now, records) {
		t.Errorf("got %q and %+v, want %q and %+v", remaining, now, stands, records)
	}
}

// If quotas are exhausted after up has checked them, up reports its attempts and the limits, and
// down deletes what was launched.
func TestUpReportsExceededQuota(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	for name, tt := range map[string]struct {
		limit    func(e *emulated)
		want     []string
		machines int
	}{
		"GPU quota": {
			func(e *emulated) {
				e.aws.Configure(func() {
					e.aws.CapacityErrorCode = func(_, machine, _ string) string {
						if strings.HasPrefix(machine, "g6.") {
							return "VcpuLimitExceeded"
						}
						return ""
					}
				})
				e.limitLate("NVIDIA_L4_GPUS")
			},
			[]string{
				"1 replica of m in aws/us-east-1, 1 replica of m in gcp/us-central1", "none of", "spot g6.xlarge in us-east-1a: VcpuLimitExceeded",
				"on_demand g2-standard-4 in us-central1-a: QUOTA_EXCEEDED", "hint: the machines that were launched are running and billed",
			},
			3,
		},
		"all quotas": {
			func(e *emulated) {
				e.aws.Configure(func() { e.aws.CapacityErrorCode = func(string, string, string) string { return "VcpuLimitExceeded" } })
				e.limitLate("NVIDIA_L4_GPUS", "CPUS")
			},
			[]string{
				"launching lb-us-east-1-0 in aws/us-east-1: none of", "c7i.large in us-east-1a: VcpuLimitExceeded",
				"launching lb-us-central1-0 in gcp/us-central1: none of", "e2-standard-2 in us-central1-a: QUOTA_EXCEEDED",
			},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			tt.limit(e)
			out := e.skyserve(exitPartial, append(e.upOf(twoClouds), "--yes")...)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if e.RunningAgents() != tt.machines {
				t.Errorf("%d machines, want %d", e.RunningAgents(), tt.machines)
			}
			e.downAndCheckEmpty()
		})
	}
}

// limitLate reduces the quotas at Google as soon as something is launched there.
func (e *emulated) limitLate(metrics ...string) {
	e.hold(func(c testcloud.Call) {
		if c.Action == "compute.firewalls.insert" {
			for _, m := range metrics {
				e.gce.SetQuota("us-central1", m, 0)
			}
		}
	})
}
