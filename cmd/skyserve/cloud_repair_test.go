package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// hang suspends the agent of a machine until wake is called; the cloud still runs the machine.
func (e *emulated) hang(id string) (wake func()) {
	e.t.Helper()
	agent := e.AgentProcess(id)
	if err := agent.Signal(syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
	return func() {
		if err := agent.Signal(syscall.SIGCONT); err != nil {
			e.t.Error(err)
		}
	}
}

// The controller's machine runs but does not respond: up replaces it, since another machine responds.
// If none does, up prints the command that replaces it, and that command does so.
func TestLongUpReplacesUnresponsiveMachine(t *testing.T) {
	needsLongFlag(t)
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() { e.aws.Now = func() time.Time { return time.Now().Add(-time.Hour) } }) // launched long enough ago to have booted
	up := append(e.upOf(cloudService), "--yes", "--replace-after", "1ms")
	e.skyserve(exitOK, up...)
	for _, second := range []string{"lb-us-east-1-1", "lb-eu-west-1-0"} {
		dead := e.instance("lb-us-east-1-0")
		wake := []func(){e.hang("lb-us-east-1-0")}
		if second == "lb-eu-west-1-0" { // no remaining machine responds
			for _, id := range []string{"lb-us-east-1-1", second} {
				wake = append(wake, e.hang(id))
			}
			out := e.skyserve(exitFailed, append(up, "--replace", "us-east-1-7")...)
			if !strings.Contains(out, `chat has no running machine "us-east-1-7"`) || !strings.Contains(out, "hint: 'skyserve status chat' lists them") {
				t.Errorf("replacing an unknown machine:\n%s", out)
			}
			out = e.skyserve(exitPartial, append(up, "--timeout", "100ms")...)
			if !strings.Contains(out, "no other balancer responds") || !strings.Contains(out, "--replace lb-us-east-1-0") || e.instance("lb-us-east-1-0") != dead {
				t.Errorf("without a responding machine:\n%s", out)
			}
			up = append(up, "--replace", "lb-us-east-1-0", "--replace", "lb-us-east-1-1", "--replace", second)
		}
		out := e.skyserve(exitOK, up...)
		for _, w := range wake {
			w()
		}
		if e.instance("lb-us-east-1-0") == dead || !strings.Contains(out, "lb-us-east-1-0") {
			t.Errorf("it was not replaced:\n%s", out)
		}
		if n := len(e.aws.Machines()); n != 4 {
			t.Errorf("there are %d machines, want 4\n%s", n, out)
		}
		within(t, "a chat", func() error { return chatAt(endpointIn(out, "us-east-1"), "key-of-a-client") })
	}
	if out := e.skyserve(exitOK, up[:len(up)-6]...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	e.downAndCheckEmpty()
}

// The next up repairs manual changes: of a security group, a machine and the records of the name.
func TestUpRepairsManualChanges(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	text := strings.Replace(oneRegion, "balancer:\n", "dns: {provider: route53, name: chat.example.com, zone: example.com}\nbalancer:\n", 1)
	up := append(e.upOf(text), "--yes")
	e.skyserve(exitOK, up...)
	records := len(e.names.RecordSets(e.zone))
	e.aws.DeleteSecurityGroup("us-east-1", "skyserve-chat-replica")
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "firewall-us-east-1-replica") || !strings.Contains(out, "us-east-1-0") {
		t.Errorf("after a group was deleted:\n%s", out)
	}
	e.aws.TerminateInstance(e.instance("lb-us-east-1-0"))
	e.names.EditHealthChecks(func(c *testcloud.HealthCheckConfig) { c.ResourcePath = "/elsewhere" })
	out := e.skyserve(exitOK, up...)
	within(t, "a chat", func() error { return chatAt(endpointIn(out, "us-east-1"), "key-of-a-client") })
	checks, _ := e.names.HealthChecks()
	for _, c := range checks {
		if c.HealthCheckConfig.ResourcePath != "/readyz" {
			t.Errorf("a health check requests %s", c.HealthCheckConfig.ResourcePath)
		}
	}
	if got := e.names.ResolveName(e.zone, "chat.example.com", "us-east-1"); len(got) != 1 || !strings.Contains(out, got[0].String()) || len(e.names.RecordSets(e.zone)) != records {
		t.Errorf("the name resolves to %v, of %d records\n%s", got, len(e.names.RecordSets(e.zone)), out)
	}
	if out := e.skyserve(exitOK, up...); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	e.nameChanges(up, text)
	e.downAndCheckEmpty()
}

// nameChanges changes the name and removes it; no record of the former name remains.
func (e *emulated) nameChanges(up []string, text string) {
	e.t.Helper()
	for _, change := range [][2]string{{"chat.example.com", "llm.example.com"}, {"dns: {provider: route53, name: chat.example.com, zone: example.com}\n", ""}} {
		e.upOf(strings.Replace(text, change[0], change[1], 1))
		out := e.skyserve(exitOK, up...)
		for _, r := range e.names.RecordSets(e.zone) {
			if strings.Contains(r.Name, "chat.example.com") || change[1] == "" {
				e.t.Errorf("%s remains after\n%s", r.Name, out)
			}
		}
	}
	if checks, _ := e.names.HealthChecks(); len(checks) > 0 {
		e.t.Errorf("%d health checks remain", len(checks))
	}
}
