package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/local"
)

var launchedAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// launched is a replica that was launched at launchedAt.
func launched(id string) provision.Object {
	return provision.Object{ID: id, Kind: provision.KindReplica, Started: launchedAt}
}

// after is a time after the launch.
func after(seconds int) time.Time { return launchedAt.Add(time.Duration(seconds) * time.Second) }

// running is the status of a machine in phases of its start, each since a number of seconds.
func running(phases ...telemetry.StartPhase) agent.Status {
	s := agent.Status{Phase: agent.PhaseImage, Start: &telemetry.Start{StartedAt: launchedAt, Phases: phases}}
	for i := range phases {
		phases[i].Running = true
		s.Start.Seconds = max(s.Start.Seconds, phases[i].Seconds)
	}
	return s
}

// becameReady is the status of a machine that is ready after a number of seconds of loading.
func becameReady(seconds float64) agent.Status {
	return agent.Status{Phase: agent.PhaseReady, Start: &telemetry.Start{StartedAt: launchedAt, Seconds: seconds, Ready: true, Phases: []telemetry.StartPhase{{Name: telemetry.StartLoad, Seconds: seconds}}}}
}

// Without a terminal, a machine prints a line at each change of its phase, and none while figures change.
func TestStartLines(t *testing.T) {
	v := newStartView(launchedAt)
	var lines []string
	step := func(at int, s agent.Status) {
		v.observe(after(at), launched("us-0"), s)
		lines = append(lines, v.dueLines(after(at))...)
	}
	for at := range 20 {
		step(at, agent.Status{Phase: agent.PhaseWaiting, Reason: fmt.Sprintf("for its agent: dial tcp: timeout %d", at)})
	}
	for at := 20; at < 60; at++ {
		step(at, running(telemetry.StartPhase{Name: telemetry.StartImage, Seconds: float64(at - 20)}))
	}
	for at := 60; at < 90; at++ {
		step(at, running(telemetry.StartPhase{Name: telemetry.StartWeights, Seconds: float64(at - 60), Bytes: &telemetry.ByteCount{Done: int64(at) * 1e8, Total: 16e9}}))
	}
	step(90, agent.Status{Phase: agent.PhaseFailed, Reason: "docker pull: i/o timeout", Failure: &agent.Failure{Kind: agent.FailureUnknown}})
	step(100, becameReady(100))
	want := []string{
		"us-0 waiting for its agent: dial tcp: timeout 0, boot 0s", "us-0 image 0s", "us-0 weights 0s 37 % of 16.0 GB", "us-0 failed docker pull: i/o timeout", "us-0 ready in 1m40s: load 1m40s",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever machines do, few lines are printed, and each machine's last phase is among them.
func TestManyMachinesPrintFewLines(t *testing.T) {
	v := newStartView(launchedAt)
	printed := 0
	var last []string
	phases := []telemetry.StartPhaseName{telemetry.StartImage, telemetry.StartWeights, telemetry.StartLoad, telemetry.StartWarmup}
	for at := range 1800 {
		for n := range 50 {
			v.observe(after(at), launched(fmt.Sprintf("us-%d", n)), running(telemetry.StartPhase{Name: phases[(at+n)/5%len(phases)]}))
		}
		lines := v.dueLines(after(at))
		if printed += len(lines); len(lines) > 0 {
			last = lines
		}
	}
	if limit := maxLines + 4*30; printed > limit || printed < 100 {
		t.Errorf("%d lines in 30 minutes, want at most %d", printed, limit)
	}
	if len(last) != 1 || strings.Count(last[0], "; ") != 49 {
		t.Errorf("the last line is %q", last)
	}
}

// The end of a wait prints the phases that were held back because too many lines were printed before.
func TestEndOfWaitPrintsHeldLines(t *testing.T) {
	var out bytes.Buffer
	d := newStartDisplay(&up{errOut: &out})
	d.view.lines = 0
	stop := d.run()
	for _, id := range []string{"us-0", "us-1"} {
		d.observe(launched(id), becameReady(100))
	}
	stop()
	if got := out.String(); !strings.Contains(got, "us-0 ready") || !strings.Contains(got, "us-1 ready") {
		t.Errorf("got %q", got)
	}
}

// A terminal shows the slowest machine first, with a bar for what it downloads.
func TestStartRows(t *testing.T) {
	v := newStartView(launchedAt)
	if rows := v.rows(launchedAt); len(rows) != 0 {
		t.Errorf("before the first status: %q", rows)
	}
	v.observe(after(60), launched("us-10"), running(telemetry.StartPhase{Name: telemetry.StartWeights, Seconds: 30, Bytes: &telemetry.ByteCount{Done: 8e9, Total: 16e9}}))
	v.observe(after(60), launched("us-2"), running(telemetry.StartPhase{Name: telemetry.StartImage, Seconds: 40}))
	v.observe(after(60), launched("us-3"), becameReady(50))
	v.observe(after(60), launched("us-4"), agent.Status{Phase: agent.PhaseFailed, Failure: &agent.Failure{Kind: agent.FailureNoSpace, Permanent: true}})
	want := []string{
		"us-2   image 45s",
		"us-10  [##########..........]  weights 35s 50 % of 16.0 GB",
		"1 of 4 machines ready, slowest: us-2",
	}
	if got := v.rows(after(65)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for n := range 20 {
		v.observe(after(60), launched(fmt.Sprintf("more-%02d", n)), running(telemetry.StartPhase{Name: telemetry.StartLoad}))
	}
	if got := v.rows(after(65)); len(got) != maxRows+1 || got[maxRows] != "1 of 24 machines ready, slowest: us-2 (10 more not shown)" {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// At the end the slowest of the replicas that this run started is named.
func TestSlowestReplica(t *testing.T) {
	v := newStartView(launchedAt)
	v.observe(after(0), launched("served-before"), becameReady(900))
	v.observe(after(0), launched("slow"), running(telemetry.StartPhase{Name: telemetry.StartImage}))
	v.observe(after(0), launched("fast"), running(telemetry.StartPhase{Name: telemetry.StartImage}))
	if got := v.slowest(); got != "" {
		t.Errorf("before any is ready: %q", got)
	}
	v.observe(after(90), launched("slow"), becameReady(90))
	v.observe(after(90), launched("fast"), becameReady(60))
	if got, want := v.slowest(), "slowest replica: slow ready in 1m30s: load 1m30s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTerminalBlockIsRedrawn(t *testing.T) {
	var out bytes.Buffer
	b := &terminalBlock{w: &out}
	b.draw([]string{"one", strings.Repeat("x", 200)})
	b.draw([]string{"two"})
	b.draw(nil)
	b.draw(nil)
	up := func(rows int) string { return fmt.Sprintf("\x1b[%dA\x1b[J", rows) }
	if want := "one\n" + strings.Repeat("x", 79) + "\n" + up(2) + "two\n" + up(1); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// Exit 1 if all replicas of the service failed, 3 if others serve.
func TestFailedReplicasEndUp(t *testing.T) {
	failure := func(id string) error {
		return &deploy.StartFailedError{ID: id, Failure: agent.Failure{Kind: agent.FailureImageNotFound, Message: "manifest unknown", Lines: []string{"one", "two"}, Hint: "correct models[].engine.image"}}
	}
	portInUse := &deploy.StartFailedError{ID: "lb-us-0", Failure: agent.Failure{Kind: agent.FailurePortInUse, Message: "listening on 127.0.0.1:45102: address already in use"}}
	for _, tt := range []struct {
		name string
		err  error
		code int
		want []string
	}{
		{"another error", errors.New("no network"), 0, nil},
		{"one of two", failure("us-0"), exitPartial, []string{"us-0 failed: image_not_found: manifest unknown\n  | one\n  | two\n  next step: correct models[].engine.image\n  log: skyserve logs chat us-0\n"}},
		{"both", errors.Join(failure("us-1"), failure("us-0")), exitFailed, []string{"us-0 failed", "us-1 failed"}},
		{"a balancer's port", portInUse, exitPartial, []string{"lb-us-0 failed: port_in_use: listening on 127.0.0.1:45102: address already in use\n"}},
		{"and a timeout", errors.Join(failure("us-0"), errors.New("waiting for us-1: not ready within 30m0s")), exitPartial, []string{"us-0 failed"}},
	} {
		var out bytes.Buffer
		u := &upRun{up: &up{upOptions: &upOptions{file: "chat.yaml"}, errOut: &out}, spec: &service.Spec{Name: "chat"}, changes: &deploy.MachinePlan{}}
		u.clouds.localService = &local.Service{}
		u.changes.Desired = append(u.changes.Desired, provision.Desired{ID: "lb-us-0", Kind: provision.KindBalancer})
		for _, id := range []string{"us-0", "us-1"} {
			u.changes.Desired = append(u.changes.Desired, provision.Desired{ID: id, Kind: provision.KindReplica})
		}
		err := u.failedStartsError(tt.err)
		var coded *exitError
		if errors.As(err, &coded) != (tt.code != 0) || coded != nil && (coded.code != tt.code || coded.hint == "") {
			t.Errorf("%s: %+v (%v), want exit %d", tt.name, coded, err, tt.code)
		}
		if tt.err == portInUse && (err.Error() != "starting chat: these balancers and replicas will not become ready without a change: lb-us-0: port_in_use: listening on 127.0.0.1:45102: address already in use" ||
			coded.hint != "stop the process that uses the port, or run 'skyserve down chat' and choose another local.port in chat.yaml; then: skyserve up chat.yaml") {
			t.Errorf("%s: %v; hint %q", tt.name, err, coded.hint)
		}
		if tt.err == portInUse {
			u.changes.Observed = []provision.Object{{ID: "us-0"}} // it ran before: it keeps its history and its ports
			if err := u.failedStartsError(tt.err); !errors.As(err, &coded) || coded.hint != "stop the process that uses the port, then: skyserve up chat.yaml" {
				t.Errorf("of a running service: hint %q", coded.hint)
			}
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: printed\n%s\nwant %q", tt.name, out.String(), want)
			}
		}
		if tt.name == "both" && err.Error() != "starting chat: these replicas will not become ready without a change: us-0: image_not_found: manifest unknown; us-1: image_not_found: manifest unknown" || tt.name == "and a timeout" && !strings.Contains(err.Error(), "us-1: not ready") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
