package main

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"skyserve/provision/fakecloud"
)

// twoClouds is the service without its name, with a replica in each of both clouds.
var twoClouds = strings.NewReplacer("aws/eu-west-1", "gcp/us-central1", "{min: 0, max: 0}", "{min: 1, max: 1}",
	"dns: {provider: route53, name: chat.example.com, zone: example.com}\n", "").Replace(cloudService)

// interrupt runs a command and interrupts it while calls of some actions are under way,
// which the clouds still carry out after the command has ended. It gives what was said.
func (e *emulated) interrupt(actions []string, args ...string) string {
	e.t.Helper()
	begun, ended := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	e.hold(func(c fakecloud.Call) {
		if slices.Contains(actions, c.Action) {
			once()
			<-ended
		}
	})
	cmd := e.command(args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case <-begun:
	case err := <-gone:
		close(ended)
		e.t.Fatalf("skyserve %s ended (%v) without %s:\n%s", strings.Join(args, " "), err, actions, said.String())
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		e.t.Error(err)
	}
	err := <-gone
	close(ended)
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		e.t.Fatalf("interrupted at %s: exit %d (%v), want %d\n%s", actions, got, err, exitInterrupted, said.String())
	}
	e.hold(nil)
	return said.String()
}

// hold is called while a call to the clouds is in flight; nil = nothing is.
func (e *emulated) hold(with func(fakecloud.Call)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = with
}

// Whenever somebody interrupts up, the next one takes up where it ended: what the
// cloud made after nobody listened any more is found, and nothing is made twice.
func TestAnInterruptedUp(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	up := append(e.upOf(twoClouds), "--yes")
	for _, actions := range [][]string{
		{"compute.regions.get", "ec2:DescribeVpcs"}, // what there is
		{"compute.firewalls.insert", "iam:CreateRole"},
		{"compute.instances.insert", "ec2:RunInstances"},
		{"compute.instances.getGuestAttributes", "ec2:GetConsoleOutput"}, // the keys of the machines
	} {
		if said := e.interrupt(actions, up...); !strings.Contains(said, "interrupted") {
			t.Errorf("interrupted at %s:\n%s", actions, said)
		}
	}
	if out := e.skyserve(exitOK, up...); e.machines() != 5 {
		t.Errorf("%d machines, want 5\n%s", e.machines(), out)
	}
	if a, g := len(e.aws.Machines()), len(e.gce.Instances()); a != 3 || g != 2 {
		t.Errorf("%d machines at AWS and %d at Google, want 3 and 2", a, g)
	}
	e.downToNothing()
}

// downToNothing takes the service down and looks into both clouds.
func (e *emulated) downToNothing() {
	e.t.Helper()
	e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
	e.ended()
	if left := e.aws.Left(); len(left)+len(e.gce.Instances())+len(e.gce.Firewalls()) > 0 {
		e.t.Errorf("left over: %q, %+v, %+v", left, e.gce.Instances(), e.gce.Firewalls())
	}
}

func TestUpWithCredentialsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		deny func(e *emulated)
		says []string
	}{
		"a key that AWS does not know": {
			func(e *emulated) { e.aws.Deny = func(string, string) string { return "AuthFailure" } },
			[]string{"reaching aws: no valid credentials", "AuthFailure", "hint: check the keys"},
		},
		"keys of AWS that have expired": {
			func(e *emulated) { e.aws.Deny = func(string, string) string { return "ExpiredToken" } },
			[]string{"ExpiredToken", "hint: log in again: aws sso login"},
		},
		"an action that AWS does not allow": {
			func(e *emulated) {
				e.aws.Deny = func(_, action string) string {
					if action == "ec2:RunInstances" {
						return "UnauthorizedOperation"
					}
					return ""
				}
			},
			[]string{"reaching aws: ec2:RunInstances is not allowed", "hint: let the caller do ec2:RunInstances by an IAM policy"},
		},
		"a token that Google does not know": {
			func(e *emulated) { e.gce.RequireToken("another") },
			[]string{"reaching gcp: no valid credentials", "hint: run gcloud auth application-default login"},
		},
		"an action that Google does not allow": {
			func(e *emulated) { e.gce.Deny("compute.instances.create") },
			[]string{"reaching gcp: compute.instances.create is not allowed", "hint: grant a role that has it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			tt.deny(e)
			out := e.skyserve(exitCredentials, append(e.upOf(twoClouds), "--yes")...)
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestUpInARegionThatIsNone(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	out := e.skyserve(exitUsage, append(e.upOf(strings.ReplaceAll(twoClouds, "gcp/us-central1", "gcp/mars-north1")), "--yes")...)
	if !strings.Contains(out, `"mars-north1"`) || len(e.aws.Left()) > 0 {
		t.Errorf("there is %q after\n%s", e.aws.Left(), out)
	}
}

// An account whose quotas are used up after they were looked at: up tells what it tried
// and which limit it met, and down clears away what could be had.
func TestUpWithoutQuota(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit    func(e *emulated)
		says     []string
		machines int
	}{
		"of GPUs": {
			func(e *emulated) {
				e.aws.Refuse = func(_, machine, _ string) string {
					if strings.HasPrefix(machine, "g6.") {
						return "VcpuLimitExceeded"
					}
					return ""
				}
				e.limitLate("NVIDIA_L4_GPUS")
			},
			[]string{
				"1 of m in aws/us-east-1, 1 of m in gcp/us-central1", "none of", "spot g6.xlarge in us-east-1a: VcpuLimitExceeded",
				"on_demand g2-standard-4 in us-central1-a: QUOTA_EXCEEDED", "hint: what could be had stands and is billed",
			},
			3,
		},
		"of anything": {
			func(e *emulated) {
				e.aws.Refuse = func(string, string, string) string { return "VcpuLimitExceeded" }
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
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			if e.machines() != tt.machines {
				t.Errorf("%d machines, want %d", e.machines(), tt.machines)
			}
			e.downToNothing()
		})
	}
}

// limitLate takes quotas of Google away as soon as something is made there.
func (e *emulated) limitLate(metrics ...string) {
	e.hold(func(c fakecloud.Call) {
		if c.Action == "compute.firewalls.insert" {
			for _, m := range metrics {
				e.gce.SetQuota("us-central1", m, 0)
			}
		}
	})
}
