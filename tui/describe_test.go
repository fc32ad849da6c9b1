package tui

import (
	"errors"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// d describes what is selected, with its alerts and events; esc returns.
func TestDescribe(t *testing.T) {
	s := normal()
	s.Events = []telemetry.Event{
		{At: noon, Actor: "controller", Kind: telemetry.EventLaunch, Region: "aws/us-east-1", Object: "us-0", Message: "launched us-0"},
		{At: noon, Actor: "controller", Kind: telemetry.EventLaunch, Region: "aws/us-east-1", Object: "us-9", Message: "launched us-9"},
	}
	s.Alerts = []telemetry.Alert{{Severity: telemetry.SeverityWarning, Kind: "kv", Region: "aws/us-east-1", Object: "us-0", Message: "KV memory is full"}}
	d := deskIn(t, 120, 40, s, "2", "j", "j", "j", "j", "d")
	for _, want := range []string{"replica us-0", "KV utilisation", "launched us-0", "warning: kv us-0: KV memory is full"} {
		if !strings.Contains(d.frame(), want) {
			t.Errorf("the description of a replica lacks %q:\n%s", want, d.frame())
		}
	}
	if strings.Contains(d.frame(), "launched us-9") {
		t.Error("the description shows another replica's event")
	}
	// The description is live, with the requests of the replica.
	later := normal()
	later.Alerts, later.Events = s.Alerts, s.Events
	findRegion(later, "aws/us-east-1").Replicas[0].Pending = ptr(77)
	d.fetch.snapshot = later
	d.poll(time.Second)
	d.run(d.model.fetchViewData())
	for _, want := range []string{"pending         77", "recent requests:", "req-"} {
		if !strings.Contains(d.frame(), want) {
			t.Errorf("the live description of a replica lacks %q:\n%s", want, d.frame())
		}
	}
	d.press("esc", "1", "G", "k", "k", "d")
	for _, want := range []string{"region aws/us-east-1", "lb-us-east-1-0", "launched us-0", "launched us-9", "us-1  READY"} {
		if !strings.Contains(d.frame(), want) {
			t.Errorf("the description of a region lacks %q:\n%s", want, d.frame())
		}
	}
}

func TestDescriptionOfOneRequestIsSingular(t *testing.T) {
	s := normal()
	r := findRegion(s, "aws/us-east-1")
	r.Queued, r.Replicas[0].Pending, r.Replicas[0].Running, r.Replicas[0].Outstanding = 1, ptr(1), nil, 1
	d := deskIn(t, 120, 40, s, "2", "j", "j", "j", "j", "d")
	d.wants("pending         1 request waiting in the engine", "running         -\n", "outstanding     1 request sent by the balancer, not finished")
	d.press("esc", "1", "G", "k", "k", "d")
	d.wants("queued          1 request")
	d.lacks("1 requests")
}

// s suspends the dashboard for a shell on the machine of the selected row, and says why there is none.
func TestShell(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "2", "s")
	if !strings.Contains(d.frame(), "shell: select a replica") {
		t.Errorf("without a selection:\n%s", d.frame())
	}
	d.press("j", "j", "j", "j")
	cmd := d.model.openShell()
	msg, ok := cmd().(shellMsg)
	if !ok || msg.id != "us-0" || msg.err != nil || msg.cmd.Args[1] != "us-0" {
		t.Fatalf("got %+v", msg)
	}
	if d.model.runShell(msg) == nil {
		t.Error("the shell does not run")
	}
	if d.model.runShell(shellMsg{id: "us-0", err: errors.New("it has no machine")}) != nil || !strings.Contains(d.frame(), "shell: it has no machine") {
		t.Errorf("an error is not shown:\n%s", d.frame())
	}
	d.send(shellDoneMsg{id: "us-0"})
	if !strings.Contains(d.frame(), "shell on us-0 closed") {
		t.Errorf("the end is not shown:\n%s", d.frame())
	}
}

// The replica of a donation is selected also if the view of replicas was never open, or shows others.
func TestEnterOnDonationSelectsItsReplica(t *testing.T) {
	for _, before := range [][]string{nil, {"2", "j", "/", "eu", "enter"}} {
		d := deskIn(t, 120, 40, ownMachines(), before...)
		d.press("6", "j", "enter")
		if id, _ := d.model.screen.table.selection(); id != "us-10" {
			t.Errorf("after %v: %q is selected, want us-10", before, id)
		}
	}
}

// With --replay and --ssh there are only snapshots; the texts are true for both.
func TestSnapshotsOnlyIsNotCalledRecording(t *testing.T) {
	d := deskIn(t, 120, 40, normal())
	d.model.cfg.Operator, d.model.screen.readOnly = nil, true
	d.press("3")
	d.wants("Snapshots contain no requests")
	d.lacks("ecording")
	d.press("4")
	d.wants("(snapshots do not contain the load)")
	d.press("2", "j", "enter")
	d.wants("snapshots do not contain requests")
}

// Open details stay live if a filter hides their replica, and say when it no longer exists.
func TestOpenDetailsFollowTheirReplica(t *testing.T) {
	d := deskIn(t, 120, 40, ownMachines(), "2", "/", "us-0 ready", "enter", "j", "enter")
	d.wants("replica us-0", "READY")
	s := ownMachines()
	s.Regions[0].Replicas[0].State = service.StateDraining
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("state           DRAINING")
	s = ownMachines()
	s.Regions[0].Replicas = s.Regions[0].Replicas[1:]
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("replica us-0 no longer exists: last figures", "state           DRAINING")
	d.fetch.snapshot = ownMachines()
	d.poll(time.Second)
	d.lacks("no longer exists")
	d.press("<") // it may have been added after this snapshot
	d.wants("replica us-0 is not in this snapshot: figures of another one")
}
