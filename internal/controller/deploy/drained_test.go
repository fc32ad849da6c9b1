package deploy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// setOf returns the words of a text as a set.
func setOf(text string) map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(text) {
		set[word] = true
	}
	return set
}

// An interrupted replica is used until another replica of its model is ready.
func TestInterruptedDrainsWhenOthersServe(t *testing.T) {
	for _, tt := range []struct{ name, machines, draining, want string }{
		{"none is interrupted", "a0 ready, a1 starting", "", ""},
		{"the only one is interrupted", "a0 interrupted", "", ""},
		{"its replacement starts", "a0 interrupted, a1 starting", "", ""},
		{"its replacement does not respond", "a0 interrupted, a1 unresponsive", "", ""},
		{"its replacement is ready", "a0 interrupted, a1 ready", "", "a0"},
		{"another model is ready", "a0 interrupted, b0 ready", "", ""},
		{"the other one drains", "a0 interrupted, a1 ready", "a1", "a1"},
		{"all are interrupted", "a0 interrupted, a1 interrupted", "", ""},
		{"one is already draining", "a0 interrupted, a1 draining, a2 ready", "", "a0"},
	} {
		seen, have := map[string]AgentReport{}, []provision.Object{}
		for machine := range strings.SplitSeq(tt.machines, ", ") {
			id, phase, _ := strings.Cut(machine, " ")
			have = append(have, provision.Object{ID: id, Kind: provision.KindReplica, Labels: map[string]string{"model": id[:1]}})
			seen[id] = AgentReport{Status: agent.Status{Phase: agent.Phase(phase)}}
			if phase == "unresponsive" {
				seen[id] = AgentReport{Err: errors.New("no response")}
			}
		}
		if got := drained(setOf(tt.draining), have, seen, nil); !maps.Equal(got, setOf(tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.name, got, tt.want)
		}
	}
}

// A machine with scheduled maintenance is removed once its replacement is ready; one that is about to
// be interrupted is not: its cloud deletes it.
func TestMaintainedReplicaIsReplaced(t *testing.T) {
	for _, tt := range []struct {
		name, old, other string
		left             time.Duration
		want             bool
	}{
		{"it and its replacement are ready", "ready", "ready", 0, true},
		{"maintenance is scheduled", "interrupted", "ready", 50 * time.Minute, true},
		{"it ends soon", "interrupted", "ready", 2 * time.Minute, false},
		{"the other one starts", "interrupted", "starting", 50 * time.Minute, false},
		{"it starts itself", "starting", "ready", 0, false},
	} {
		have := []provision.Object{
			{ID: "a0", Kind: provision.KindReplica, Handle: "i-0", Labels: map[string]string{}},
			{ID: "a1", Kind: provision.KindReplica, Handle: "i-1", Labels: map[string]string{"instead": "i-0"}},
		}
		seen := map[string]AgentReport{
			"a0": {Status: agent.Status{Phase: agent.Phase(tt.old), InterruptionAt: time.Now().Add(tt.left)}},
			"a1": {Status: agent.Status{Phase: agent.Phase(tt.other)}},
		}
		if got := replaced(have, seen, nil); got["a0"] != tt.want || got["a1"] {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}

// The reconciler launches missing replicas and removes the remains of others.
func TestReconcilerChanges(t *testing.T) {
	const launch, terminate, replace = provision.ActionLaunch, provision.ActionTerminate, provision.ActionReplace
	object := func(kind provision.ObjectKind, id, removed string, fallbackFor ...string) provision.Object {
		o := provision.Object{ID: id, Kind: kind, TerminatedReason: removed, Labels: map[string]string{}}
		if len(fallbackFor) > 0 {
			o.Labels["for"] = fallbackFor[0]
		}
		return o
	}
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us"}, {Name: "aws/eu"}}}
	p := &MachinePlan{Desired: []provision.Desired{{ID: "us-0", Kind: provision.KindReplica}, {ID: "lb-us-0", Kind: provision.KindBalancer}}}
	r, b := provision.KindReplica, provision.KindBalancer
	for _, tt := range []struct {
		name  string
		c     provision.Change
		phase agent.Phase // of the desired replica
		want  string      // when the change is made: at once, or once the replica has drained; empty = never
	}{
		{"a missing replica", provision.Change{Action: launch, Desired: p.Desired[0]}, "", "done"},
		{"a missing balancer", provision.Change{Action: launch, Desired: p.Desired[1]}, "", ""},
		{"a changed firewall", provision.Change{Action: provision.ActionRepair, Desired: provision.Desired{Kind: provision.KindFirewall}}, "", ""},
		{"a replica of another program", provision.Change{Action: replace, Desired: p.Desired[0], Observed: object(r, "us-0", "")}, "", ""},
		{"the remains of a replica", provision.Change{Action: terminate, Observed: object(r, "us-1", "taken")}, "", "done"},
		{"a second one of an id", provision.Change{Action: terminate, Observed: object(r, "us-0", "")}, "", "done"},
		{"a second balancer of an id", provision.Change{Action: terminate, Observed: object(b, "lb-us-0", "")}, "", ""},
		{"one above max", provision.Change{Action: terminate, Observed: object(r, "us-1", "")}, agent.PhaseReady, ""},
		{"a fallback that is needed", provision.Change{Action: terminate, Observed: object(r, "eu-1", "", "aws/us")}, agent.PhaseStarting, ""},
		{"a fallback that is not needed", provision.Change{Action: terminate, Observed: object(r, "eu-1", "", "aws/us")}, agent.PhaseReady, "released"},
		{"a fallback for a region that does not respond", provision.Change{Action: terminate, Observed: object(r, "eu-1", "", "gcp/unresponsive")}, agent.PhaseReady, ""},
	} {
		seen := map[string]AgentReport{"us-0": {Status: agent.Status{Phase: tt.phase}}}
		got := ""
		if isReconcilerChange(p, tt.c) {
			got = "done"
		}
		if removesOutOfRegion(spec, p, tt.c, seen) {
			got += "released"
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A controller delivers deployments to new replicas and to balancers with the hash of its own input. Those
// with another hash keep their deployment; only their certificates are renewed.
func TestControllerDeliversToOwnInputHash(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dl := &Delivery{Service: "chat", Authority: authority}
	fresh, ends := time.Now().Add(identity.CertificateLife), time.Now().Add(time.Hour)
	status := func(revision string, expires time.Time) AgentReport {
		return AgentReport{Status: agent.Status{Enrolled: true, Revision: revision, Expires: expires}}
	}
	for _, tt := range []struct {
		name     string
		kind     provision.ObjectKind
		seen     AgentReport
		wanted   string // the revision of its deployment; empty = it has none
		revision string // of the delivery; empty = no delivery
	}{
		{"a new replica", provision.KindReplica, AgentReport{Err: identity.ErrUntrusted}, "r2", "r2"},
		{"a new balancer, which operators alone enrol", provision.KindBalancer, AgentReport{Err: identity.ErrUntrusted}, "e1.b2", ""},
		{"one that boots", provision.KindReplica, AgentReport{Err: errors.New("connection refused")}, "r2", ""},
		{"without a deployment", provision.KindReplica, AgentReport{Err: identity.ErrUntrusted}, "", ""},
		{"a balancer that lacks a replica", provision.KindBalancer, status("e1.b1", fresh), "e1.b2", "e1.b2"},
		{"a balancer of another edition", provision.KindBalancer, status("e2.b1", fresh), "e1.b2", ""},
		{"a balancer as it should be", provision.KindBalancer, status("e1.b2", fresh), "e1.b2", ""},
		{"a replica of another edition", provision.KindReplica, status("r1", fresh), "r2", ""},
		{"a replica's certificate ends", provision.KindReplica, status("r1", ends), "r2", "r1"},
		{"a balancer's certificate of another edition ends", provision.KindBalancer, status("e2.b1", ends), "e1.b2", "e2.b1"},
	} {
		o := provision.Object{ID: "x", Kind: tt.kind, PublicIP: netip.MustParseAddr("203.0.113.1"), PrivateIP: netip.MustParseAddr("10.0.0.1")}
		all := map[string]agent.Deployment{}
		if tt.wanted != "" {
			all["x"] = agent.Deployment{Revision: tt.wanted}
		}
		d, due := dl.dueDeployment(tt.seen, o, all)
		if due != (tt.revision != "") || due && d.Revision != tt.revision {
			t.Errorf("%s: delivery of %q (%t), want %q", tt.name, d.Revision, due, tt.revision)
		}
	}
}

func TestInTransition(t *testing.T) {
	have := []provision.Object{{ID: "a", Kind: provision.KindReplica}, {ID: "lb", Kind: provision.KindBalancer}}
	for phase, want := range map[agent.Phase]bool{agent.PhaseReady: false, agent.PhaseWeights: true, agent.PhaseInterrupted: true, "": true} {
		if got := inTransition(have, map[string]AgentReport{"a": {Status: agent.Status{Phase: phase}}}); got != want {
			t.Errorf("a replica that is %q: %t", phase, got)
		}
	}
	if got := slices.Collect(maps.Keys(interrupted(have, map[string]AgentReport{"a": {Status: agent.Status{Phase: agent.PhaseInterrupted}}, "lb": {Status: agent.Status{Phase: agent.PhaseInterrupted}}}))); !slices.Equal(got, []string{"a"}) {
		t.Errorf("terminating: %q", got)
	}
}

// The controller's status comes from its machine's agent, or from the machine where there is no agent status.
func TestControllerStatus(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "aws/us-east-1"}}}
	machine := provision.Object{ID: "lb-us-east-1-0", Kind: provision.KindBalancer, PublicIP: netip.MustParseAddr("203.0.113.1")}
	boots, removed := machine, machine
	boots.PublicIP, removed.TerminatedReason = netip.Addr{}, "stopped"
	unit := func(u agent.UnitStatus) machineReport {
		u.Name = UnitController
		return machineReport{status: agent.Status{Phase: agent.PhaseFailed, Reason: "balancer: it ended", Units: []agent.UnitStatus{{Name: "balancer"}, u}}}
	}
	for _, tt := range []struct {
		name     string
		machine  provision.Object
		response machineReport
		want     string
	}{
		{"it works, its balancer does not", machine, unit(agent.UnitStatus{Running: true, Ready: true}), "READY"},
		{"it starts", machine, unit(agent.UnitStatus{Running: true, Reason: "it does not respond yet"}), "STARTING it does not respond yet"},
		{"it exits repeatedly", machine, unit(agent.UnitStatus{Reason: "exit status 1"}), "FAILED exit status 1"},
		{"there is none", machine, machineReport{status: agent.Status{Phase: agent.PhaseReady}}, "none"},
		{"its machine hangs", machine, machineReport{err: errors.New("no response within 2s")}, "NOT_READY no response within 2s"},
		{"its machine boots", boots, machineReport{}, "PROVISIONING waiting for an address from the cloud"},
		{"its machine no longer exists", removed, machineReport{}, "FAILED its machine no longer exists; run 'skyserve up' to replace it"},
	} {
		got := "none"
		if c := controllerOf(spec, []provision.Object{tt.machine}, []machineReport{tt.response}, ""); c != nil {
			got = strings.TrimSpace(string(c.State) + " " + c.Reason)
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Of several controllers, none is shown as the leader before balancers report which one leads.
func TestControllerBeforeLeaderIsKnown(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "local/us"}, {Name: "local/eu"}, {Name: "local/asia"}}}
	unit := func(ready bool) machineReport {
		return machineReport{status: agent.Status{Phase: agent.PhaseReady, Units: []agent.UnitStatus{{Name: UnitController, Running: true, Ready: ready}}}}
	}
	var machines []provision.Object
	for _, region := range []string{"asia", "eu", "us"} {
		machines = append(machines, provision.Object{ID: "lb-" + region + "-0", Kind: provision.KindBalancer, Region: service.Region("local/" + region), PublicIP: netip.MustParseAddr("127.0.0.1")})
	}
	for name, tt := range map[string]struct {
		leader   string
		machines int
		ready    []bool
		want     string
		service  ServiceState
	}{
		"unknown":              {"", 3, []bool{true, true, true}, "STARTING : no leader is known yet", StateReady},
		"known":                {"lb-eu-0", 3, []bool{true, true, true}, "READY lb-eu-0: ", StateReady},
		"no longer ready":      {"lb-eu-0", 3, []bool{true, false, true}, "NOT_READY : the leader lb-eu-0 is not ready", StateDegraded},
		"others did not start": {"", 3, []bool{true, false, false}, "STARTING : no leader is known yet", StateReady},
		"none is ready":        {"", 3, []bool{false, false, false}, "STARTING lb-asia-0: ", StateDegraded},
		"the only controller":  {"", 1, []bool{true}, "READY lb-asia-0: ", StateReady},
	} {
		var responses []machineReport
		for _, ready := range tt.ready {
			responses = append(responses, unit(ready))
		}
		c := controllerOf(spec, machines[:tt.machines], responses, tt.leader)
		if got := fmt.Sprintf("%s %s: %s", c.State, c.Machine, c.Reason); got != tt.want || (c.Machine == "") != (c.Admin == "") {
			t.Errorf("%s: got %q at %q, want %q", name, got, c.Admin, tt.want)
		}
		// A service whose controllers elect a leader, as after each up, is not degraded.
		s := ServiceStatus{Controller: c, Regions: []RegionStatus{{Balancers: []MachineStatus{{State: service.StateReady, Desired: true}}}}}
		if got, want := s.overallState(true), tt.service; got != want {
			t.Errorf("%s: the service is %s, want %s", name, got, want)
		}
		// Nor is its store unknown: it starts.
		s.Store = controller.StoreStarting
		(&Inspector{Deployer: &Deployer{Spec: spec}}).addBalancerReports(t.Context(), &s, nil, nil)
		if got, want := s.Store == "unknown", tt.service != StateReady; got != want {
			t.Errorf("%s: the store is %s", name, s.Store)
		}
	}
}

// A controller on this computer is a process, which ends without its machine.
func TestEndedLocalControllerIsProcess(t *testing.T) {
	spec := &service.Spec{Regions: []service.RegionSpec{{Name: "static/paris"}}}
	ended := provision.Object{ID: "lb-paris-0", Kind: provision.KindBalancer, Region: "static/paris", TerminatedReason: "process exited (pid 7)"}
	for name, machines := range map[string][]provision.Object{"ended": {ended}, "none": nil} {
		c := controllerOf(spec, machines, make([]machineReport, len(machines)), "")
		if c == nil || c.State != service.StateFailed || c.Reason != "its process has ended; run 'skyserve up' to start it again" {
			t.Errorf("%s: got %+v", name, c)
		}
	}
}

// Serving machines are updated one after the other, others are awaited, and interrupted ones are omitted.
func TestSplitServing(t *testing.T) {
	dl := &Delivery{Service: "chat"}
	seen, deployments := map[string]AgentReport{}, map[string]agent.Deployment{}
	for id, s := range map[string]agent.Status{
		"as-it-should": {Phase: agent.PhaseReady, Revision: "new"}, "changes": {Phase: agent.PhaseReady, Revision: "old"},
		"loads": {Phase: agent.PhaseWeights, Revision: "new"}, "hangs": {}, "going": {Phase: agent.PhaseInterrupted, Revision: "old"},
		"not-ours": {Phase: agent.PhaseWeights},
	} {
		dl.Machines = append(dl.Machines, provision.Object{ID: id, Kind: provision.KindReplica})
		seen[id] = AgentReport{Status: s}
		if id != "not-ours" {
			deployments[id] = agent.Deployment{Revision: "new"}
		}
	}
	serving, others := dl.splitServing(seen, deployments)
	ids := func(objects []provision.Object) string {
		var all []string
		for _, o := range objects {
			all = append(all, o.ID)
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	if ids(serving) != "changes" || ids(others) != "hangs loads" {
		t.Errorf("serving machines to update are %q, others %q", ids(serving), ids(others))
	}
}
