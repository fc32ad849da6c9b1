package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// status returns the status of the service from its JSON output.
func (e *emulated) status() (s deploy.ServiceStatus) {
	e.t.Helper()
	e.document(&s, e.at("status", "chat", "-o", "json")...)
	return s
}

// states returns the states of all machines, by id.
func states(s deploy.ServiceStatus) map[string]service.ReplicaState {
	of := map[string]service.ReplicaState{}
	for _, r := range s.Regions {
		for _, m := range slices.Concat(r.Balancers, r.Replicas) {
			of[m.ID] = m.State
		}
	}
	return of
}

// checkStatus checks status and logs of a service that is healthy, with a machine that hangs, and
// broken: with a terminated replica and a firewall opened by hand. It leaves the service broken.
func (e *emulated) checkStatus(file string) {
	e.t.Helper()
	e.checkStatusOfHealthy()
	e.checkLogs()
	e.checkStatusWithoutAccess(file)
	e.checkStatusOfHanging()
	e.checkStatusOfBroken()
}

func (e *emulated) checkStatusOfHealthy() {
	e.t.Helper()
	s := e.replicated("lb-eu-west-1-0", "lb-us-east-1-0", "lb-us-east-1-1")
	if c := s.Controller; c == nil || c.State != service.StateReady || c.Machine != s.Leadership.Leader {
		e.t.Errorf("the controller is %+v, its store %s", c, s.Store)
	}
	if s.State != deploy.StateReady || s.CostPerHour <= 0 || s.Drift == nil || len(s.Drift)+len(s.Problems) > 0 || len(states(s)) != 4 {
		e.t.Errorf("status: %+v", s)
	}
	table := e.skyserve(exitOK, "status", "--endpoint-aws", e.url)
	if !s.PlainHTTP || !strings.Contains(table, plainHTTPWarning) {
		e.t.Errorf("no plain HTTP warning in status: %v\n%s", s.PlainHTTP, table)
	}
	for _, cells := range [][]string{
		{"aws/us-east-1", "balancer", "lb-us-east-1-1", "READY", ":8000", "on_demand c7i.large"},
		{"aws/us-east-1", "replica", "us-east-1-0", "READY", ":8300", " m ", "spot g6.xlarge in us-east-1"},
		{"aws/eu-west-1", "balancer", "lb-eu-west-1-0", "READY"},
	} {
		if !hasRow(table, cells) {
			e.t.Errorf("no row with %q in\n%s", cells, table)
		}
	}
}

// hasRow reports whether a line of a table contains all cells.
func hasRow(table string, cells []string) bool {
	return slices.ContainsFunc(strings.Split(table, "\n"), func(line string) bool {
		return !slices.ContainsFunc(cells, func(cell string) bool { return !strings.Contains(line, cell) })
	})
}

func (e *emulated) checkLogs() {
	e.t.Helper()
	logs := func(code int, args ...string) string {
		e.t.Helper()
		return e.skyserve(code, append([]string{"logs", "chat", "--endpoint-aws", e.url}, args...)...)
	}
	all := logs(exitOK)
	for _, id := range []string{"lb-us-east-1-0", "lb-us-east-1-1", "lb-eu-west-1-0", "us-east-1-0"} {
		if !strings.Contains(all, id+": ") {
			e.t.Errorf("no lines of %s in\n%s", id, all)
		}
	}
	if out := logs(exitOK, "lb/us-east-1"); !strings.Contains(out, "lb-us-east-1-1: ") || strings.Contains(out, "eu-west-1-0: ") {
		e.t.Errorf("the logs of a region's balancers:\n%s", out)
	}
	if out := logs(exitOK, "controller"); !strings.Contains(out, "lease acquired") || strings.Count(out, "controller started") != 3 {
		e.t.Errorf("the logs of the controllers:\n%s", out)
	}
	if out := logs(exitOK, "lb-eu-west-1-0", "--tail", "1"); strings.Count(out, "\n") != 1 || strings.HasPrefix(out, "lb-") {
		e.t.Errorf("the last line of a balancer:\n%s", out)
	}
	if out := logs(exitFailed, "us-east-1-7"); !strings.Contains(out, "chat has no balancer or replica \"us-east-1-7\"") || !strings.Contains(out, "us-east-1-0") {
		e.t.Errorf("the log of an unknown machine:\n%s", out)
	}
	if out := logs(exitUsage, "--tail", "10001"); !strings.Contains(out, "at most 10000") {
		e.t.Errorf("a tail over the maximum:\n%s", out)
	}
	e.followLogs()
}

// followLogs checks that logs -f continues until it is interrupted.
func (e *emulated) followLogs() {
	e.t.Helper()
	cmd := e.command("logs", "chat", "us-east-1-0", "-f", "--endpoint-aws", e.url)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line == "\n" {
		e.t.Errorf("the first line of the followed log: %q, %v", line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		e.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		e.t.Errorf("following ended with %v", err)
	}
}

// checkStatusWithoutAccess checks status without cloud credentials, and without operator keys.
func (e *emulated) checkStatusWithoutAccess(file string) {
	e.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		e.t.Fatal(err)
	}
	home := filepath.Join(e.t.TempDir(), "services", "chat")
	if err := os.MkdirAll(home, 0o700); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "service.yaml"), text, 0o600); err != nil {
		e.t.Fatal(err)
	}
	for _, verb := range []string{"status", "logs"} {
		for _, c := range []struct{ variable, want, hint string }{
			{"SKYSERVE_HOME=" + filepath.Dir(filepath.Dir(home)), "this machine is not an operator of the service", "hint: run this on the machine from which the service was deployed"},
			{"AWS_ACCESS_KEY_ID=", "calling aws: no valid credentials", "hint: set AWS_ACCESS_KEY_ID"},
		} {
			cmd := e.command(verb, "chat", "--endpoint-aws", e.url)
			cmd.Env = append(cmd.Env, c.variable)
			out, _ := cmd.CombinedOutput() // the exit code is checked below
			if cmd.ProcessState.ExitCode() != exitCredentials || !strings.Contains(string(out), c.want) || !strings.Contains(string(out), c.hint) {
				e.t.Errorf("%s %s: exit %d\n%s", c.variable, verb, cmd.ProcessState.ExitCode(), out)
			}
		}
	}
}

// checkStatusOfHanging suspends the agent of a balancer's machine: the replica behind it is reached
// through the other balancer.
func (e *emulated) checkStatusOfHanging() {
	e.t.Helper()
	e.mu.Lock()
	agent := e.AgentProcess("lb-us-east-1-0")
	e.mu.Unlock()
	if err := agent.Signal(syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
	s := e.status()
	if err := agent.Signal(syscall.SIGCONT); err != nil {
		e.t.Fatal(err)
	}
	of := states(s)
	if s.State != deploy.StateDegraded || of["lb-us-east-1-0"] != service.StateUnreachable || of["us-east-1-0"] != service.StateReady || of["lb-eu-west-1-0"] != service.StateReady {
		e.t.Errorf("with a machine that hangs: %+v", s)
	}
}

func (e *emulated) checkStatusOfBroken() {
	e.t.Helper()
	e.aws.TerminateInstance(e.instance("lb-eu-west-1-0")) // not a replica, which the controller might replace before the check
	e.aws.AddSecurityGroupRule("us-east-1", "skyserve-chat-balancer", 22, "0.0.0.0/0")
	s := e.status()
	var drift []string
	for _, c := range s.Drift {
		drift = append(drift, string(c.Action)+" "+c.ID)
	}
	if want := []string{"repair firewall-us-east-1-balancer", "launch lb-eu-west-1-0"}; s.State != deploy.StateDegraded || !slices.Equal(drift, want) {
		e.t.Errorf("broken: %+v", s)
	}
	table := e.skyserve(exitOK, "status", "chat", "--endpoint-aws", e.url)
	if !strings.Contains(table, "drift; repair it with: skyserve up ") || !hasRow(table, []string{"~ firewall", "firewall-us-east-1-balancer", "does not match its configuration"}) {
		e.t.Errorf("broken:\n%s", table)
	}
}

// Following a log prints its last lines and then new ones. A machine that does not respond is
// reported once.
func TestFollowedLogs(t *testing.T) {
	var out, errOut bytes.Buffer
	machine := provision.Object{ID: "us-0"}
	l := &machineLogs{wanted: []provision.Object{machine}, out: &out, errOut: &errOut}
	var f followedLog
	for _, step := range []struct {
		lines, printed, problem string
		err                     error
	}{
		{err: errors.New("asleep"), problem: "problem: asleep\n"},
		{err: errors.New("asleep")},
		{lines: "a b c", printed: "b\nc\n"},
		{lines: "a b c d", printed: "d\n"},
		{err: errors.New("asleep"), problem: "problem: asleep\n"},
		{lines: "b c d e", printed: "e\n"},
		{lines: "x", printed: "x\n", problem: "problem: lines of us-0 may be missing: its log began anew\n"},
		{lines: strings.Repeat("y ", logsWindow), printed: strings.Repeat("y\n", logsWindow), problem: "problem: lines of us-0 may be missing: more than 500 lines were written since the last poll\n"},
	} {
		out.Reset()
		errOut.Reset()
		l.printNew(machine, &f, strings.Fields(step.lines), step.err, 2)
		if out.String() != step.printed || !strings.HasPrefix(errOut.String(), step.problem) || (step.problem == "") != (errOut.Len() == 0) {
			t.Errorf("%+v: printed %q to stdout, %q to stderr", step, out.String(), errOut.String())
		}
	}
}

// The last lines that --tail and --since select are fetched once: later polls fetch the minimum.
func TestFollowedLogFetchesItsTailOnce(t *testing.T) {
	var f followedLog
	if got := f.count(agent.MaxLogLines); got != agent.MaxLogLines {
		t.Errorf("first %d lines", got)
	}
	if got := f.count(20); got != logsWindow {
		t.Errorf("first %d lines for a short tail", got)
	}
	l := &machineLogs{wanted: make([]provision.Object, 1), out: io.Discard, errOut: io.Discard}
	l.printNew(provision.Object{ID: "us-0"}, &f, []string{"a"}, nil, agent.MaxLogLines)
	if got := f.count(agent.MaxLogLines); got != logsWindow {
		t.Errorf("then %d lines", got)
	}
}

// The logs of a region that cannot be listed are missing, as those of a machine that does not respond.
func TestLogsOfUnlistedRegionsAreMissing(t *testing.T) {
	for _, c := range []struct {
		part       string
		incomplete bool
	}{{"", true}, {provision.ControllerID, true}, {"us-0", false}, {"lb/us", false}} {
		l := &machineLogs{incomplete: misses(c.part, []string{"listing aws/eu-west-1: timeout"}), out: io.Discard, errOut: io.Discard}
		err := l.showLogs(t.Context(), 20)
		var coded *exitError
		if got := errors.As(err, &coded) && coded.code == exitPartial; got != c.incomplete || !got && err != nil {
			t.Errorf("%q: got %v", c.part, err)
		}
	}
	l := &machineLogs{incomplete: misses("", nil), out: io.Discard, errOut: io.Discard}
	if err := l.showLogs(t.Context(), 20); err != nil {
		t.Errorf("all regions listed: %v", err)
	}
}

// linesSince returns the lines after those printed before.
func TestLinesSince(t *testing.T) {
	for _, c := range []struct {
		before, now, fresh string
		gap                bool
	}{
		{"", "", "", false},
		{"", "a b", "a b", false},
		{"a b", "a b", "", false},
		{"a b", "a b c", "c", false},
		{"a b c", "b c d e", "d e", false},
		{"a a b", "a b a", "a", false},
		{"a b", "c d", "c d", true},
		{"a b", "", "", true},
	} {
		fresh, gap := linesSince(strings.Fields(c.before), strings.Fields(c.now))
		if !slices.Equal(fresh, strings.Fields(c.fresh)) || gap != c.gap {
			t.Errorf("after %q, %q yields %q (gap %v)", c.before, c.now, fresh, gap)
		}
	}
}
