package tui

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// selectReplica selects a replica in the view of replicas.
func (d *desk) selectReplica(id string) {
	d.t.Helper()
	d.press("2", "g")
	for range d.model.screen.table.rows {
		if got, _ := d.model.screen.table.selection(); got == id {
			return
		}
		d.press("j")
	}
	d.t.Fatalf("%s is not listed", id)
}

// footerText returns the last line of the frame.
func (d *desk) footerText() string {
	lines := strings.Split(d.frame(), "\n")
	return lines[len(lines)-1]
}

// withState returns ownMachines with us-0 in a state.
func withState(state service.ReplicaState) *telemetry.Snapshot {
	s := ownMachines()
	s.Regions[0].Replicas[0].State = state
	return s
}

// The footer offers an action only if it applies to the selected replica; the key of any other action shows why it does not
// apply, and what to do.
func TestActionsOfferedWhereAccepted(t *testing.T) {
	tests := []struct {
		name     string
		snapshot *telemetry.Snapshot
		replica  string
		offered  string            // the keys of accepted actions
		refused  map[string]string // by key
	}{
		{"own, ready", ownMachines(), "us-0", "x o", map[string]string{"u": "us-0 is not draining; x drains it", "c": "us-0 is not donated; view 6 lists"}},
		{"own, drained", ownMachines(), "us-3", "u o", map[string]string{"x": "us-3 is already draining; u undrains it", "c": "us-3 is not donated"}},
		{"own, donated", ownMachines(), "us-10", "c", map[string]string{
			"x": "us-10 is donated and receives no requests; c reclaims it", "u": "us-10 is donated; c reclaims it", "o": "us-10 is already donated; c reclaims it",
		}},
		{"own, starting", withState(service.StateStarting), "us-0", "x o", nil},
		{"own, no machine", withState(service.StatePending), "us-0", "", map[string]string{"x": "has no machine yet", "o": "has no machine yet"}},
		{"own, ends", withState(service.StateShuttingDown), "us-0", "", map[string]string{"x": "us-0 is being removed", "o": "us-0 is being removed"}},
		{"own, failed", withState(service.StateFailed), "us-0", "", map[string]string{"x": "us-0 has failed", "o": "'skyserve up' restarts it"}},
		{"clouds, ready", normal(), "us-0", "", map[string]string{
			"x": "drain: not available with cloud regions; 'skyserve replica remove us-0' drains", "o": "donate: not available with cloud regions; 'skyserve replica remove us-0'",
			"u": "undrain: not available with cloud regions", "c": "reclaim: not available with cloud regions; 'skyserve replica add'",
		}},
		{"clouds, draining", normal(), "us-3", "", map[string]string{"u": "a drain by POST /workers/us-3/drain ends when its balancer restarts"}},
	}
	hints := map[string]string{"x": "x drain", "u": "u undrain", "o": "o donate", "c": "c reclaim"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := deskIn(t, 140, 40, tt.snapshot, "2")
			d.selectReplica(tt.replica)
			for key, hint := range hints {
				offered := strings.Contains(tt.offered, key)
				if strings.Contains(d.footerText(), hint) != offered {
					t.Errorf("%q is offered: %t, want %t: %s", hint, !offered, offered, d.footerText())
				}
				d.press(key)
				if open := d.model.screen.dialog.open(); open != offered {
					t.Errorf("%s asks for confirmation: %t, want %t", key, open, offered)
				}
				d.press("n")
				if why, refused := tt.refused[key]; refused {
					d.press(key)
					d.wants(why)
				}
				d.press("esc")
				d.selectReplica(tt.replica)
			}
		})
	}
}

// A static region of a service with cloud regions is no exception: decisions are not delivered to the controller.
func TestCloudServiceRejectsActionsOnOwnMachines(t *testing.T) {
	s := normal()
	s.Regions[3].Replicas = []telemetry.ReplicaSnapshot{replica("paris-0", "H100", 0.5)}
	d := deskIn(t, 140, 40, s, "2")
	d.selectReplica("paris-0")
	d.lacks("x drain", "o donate")
	for key, why := range map[string]string{ // 'replica remove' rejects these machines
		"x": "drain: not available with cloud regions; POST /workers/paris-0/drain at its balancer drains it until the balancer restarts",
		"o": "donate: not available with cloud regions; change regions[].endpoints in service.yaml, then 'skyserve up'",
	} {
		d.press(key)
		d.wants(why)
		d.press("esc")
	}
	// The regions of service.yaml count, also before their machines exist.
	d = deskIn(t, 140, 40, ownMachines())
	d.op.spec.Regions = append(d.op.spec.Regions, service.RegionSpec{Name: "aws/us-east-1"})
	d.run(d.press("2"))
	d.now = d.now.Add(deployEvery)
	d.run(d.press("2"))
	d.selectReplica("us-0")
	d.lacks("x drain", "o donate")
}

// On a machine that did not deploy the service, the keys show the command that does it there, without a question before it.
func TestActionsOnOtherMachineShowTheCommand(t *testing.T) {
	d := newDesk(t, 140, 40, ownMachines())
	d.op.spec = nil
	d.poll(0)
	d.run(d.press("2"))
	d.selectReplica("us-0")
	d.lacks("x drain", "o donate", "l logs", "s shell")
	d.wants("d describe")
	for key, command := range map[string]string{"x": "replica drain us-0 --service chat", "o": "replica donate us-0 --service chat"} {
		d.press(key)
		d.wants("deployed from another machine; run there: skyserve " + command)
		d.press("esc")
	}
	s := normal()
	d = newDesk(t, 140, 40, s)
	d.op.spec = nil
	d.poll(0)
	d.run(d.press("5"))
	d.lacks("a apply", "press a to apply")
	d.press("a")
	d.wants("apply: deployed from another machine; run there: skyserve plan chat --apply")
	// Unknown: the action itself tells why it fails.
	d = newDesk(t, 140, 40, ownMachines())
	d.op.err = errors.New("permission denied")
	d.poll(0)
	d.run(d.press("2"))
	d.selectReplica("us-0")
	d.wants("x drain", "o donate")
}

// A replica is not donated if fewer than replicas.min would serve then, counted over all marked replicas.
func TestDonationsKeepTheMinimum(t *testing.T) {
	d := newDesk(t, 140, 40, ownMachines())
	d.op.spec.Regions[1].Replicas.Min = 1 // of local/eu, with two replicas
	d.poll(0)
	d.run(d.press("2"))
	d.selectReplica("eu-0")
	d.wants("o donate")
	d.press("space", "space", "o") // both
	d.wants("Donate eu-0?")
	d.press("n", "esc", "esc")
	d.op.spec.Regions[1].Replicas.Min = 2
	d.now = d.now.Add(deployEvery)
	d.run(d.press("2"))
	d.selectReplica("eu-0")
	d.wants("x drain")
	d.lacks("o donate")
	d.press("o")
	d.wants("donate: replicas.min of eu is 2, and 1 would serve; lower it in service.yaml, then 'skyserve up'")
}

// A reason that is longer than a line continues on the next ones, so that the next step is readable at 80 columns; a click still
// selects the row below it.
func TestReasonsOfKeysAreReadable(t *testing.T) {
	d := newDesk(t, 80, 24, ownMachines())
	d.op.spec = nil
	d.poll(0)
	d.run(d.press("2"))
	d.selectReplica("us-10")
	d.press("o")
	words := strings.Join(strings.Fields(d.frame()), " ")
	if want := "deployed from another machine; run there: skyserve replica donate us-10 --service chat"; !strings.Contains(words, want) {
		t.Errorf("%q is not readable:\n%s", want, d.frame())
	}
	for y, line := range strings.Split(d.frame(), "\n") {
		if strings.Contains(line, " us-1 ") {
			d.run(d.send(tea.MouseClickMsg{X: 10, Y: y, Button: tea.MouseLeft}))
			break
		}
	}
	if id, _ := d.model.screen.table.selection(); id != "us-1" {
		t.Errorf("a click selects %s", id)
	}
	d.op.err = errors.New(strings.Repeat("long ", 200))
	d.send(actionDoneMsg{Action{Verb: VerbDrain, Replica: "us-0"}, "", d.op.err, nil})
	d.wants("REPLICA", "us-10") // the list stays
	small := newDesk(t, 80, 12, normal())
	small.poll(0)
	small.run(small.press("2"))
	small.selectReplica("us-0")
	small.press("x")
	small.wants("'skyserve replica remove us-0'")
}

// Without a selection, in a recording and in the past the footer offers no key that needs one or changes something.
func TestNothingOfferedWithoutTarget(t *testing.T) {
	actions := []string{"x drain", "u undrain", "o donate", "c reclaim", "a apply", "press a to apply"}
	d := deskIn(t, 140, 40, ownMachines(), "2")
	d.lacks(append(actions, "d describe", "l logs")...)
	d.wants("j/k select")

	d = newDesk(t, 140, 40, ownMachines())
	d.model.cfg.Operator, d.model.screen.readOnly = nil, true
	d.poll(0)
	d.selectReplica("us-0")
	d.lacks(append(actions, "l logs", "s shell")...)
	d.wants("d describe")

	d = deskIn(t, 140, 40, normal(), "5")
	d.wants("a apply", "press a to apply")
	d.poll(time.Second)
	d.press("<")
	d.lacks(actions...)
}

// The view of donations says where donations are possible, and offers c only on a selected one.
func TestDonationsSayWhereTheyApply(t *testing.T) {
	deskIn(t, 140, 40, normal(), "6").wants("No donated replicas", "replicas in clouds are not donated")
	none := ownMachines()
	none.Donations, none.Regions[0].Replicas = nil, none.Regions[0].Replicas[:3]
	deskIn(t, 140, 40, none, "6").wants("No donated replicas", "press o on a replica in view 2")
	d := deskIn(t, 140, 40, ownMachines(), "6")
	d.lacks("c reclaim")
	d.press("j")
	d.wants("c reclaim")
}

// A replica that a command names twice is drained once, and counts once in what remains.
func TestCommandNamesAReplicaTwice(t *testing.T) {
	d := deskIn(t, 140, 40, ownMachines(), "2")
	d.press(":drain us-0", "enter")
	want := d.model.screen.dialog
	d.press("n", ":drain us-0 us-0", "enter")
	got := d.model.screen.dialog
	if len(got.actions) != 1 || strings.Join(got.lines, "\n") != strings.Join(want.lines, "\n") {
		t.Errorf("%d actions, %q; want 1, %q", len(got.actions), got.lines, want.lines)
	}
}
