package deploy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// For the same facts, `status` (from the agents, the balancers and the decisions) and `top` (from a balancer's
// snapshot) show the same state and the same reason.
func TestStatusAndTopShowTheSameStates(t *testing.T) {
	const balancer, replica = "lb-us-east-1-0", "us-east-1-0"
	since := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	word := func(state service.ReplicaState, reason string) service.StateReason {
		return service.StateReason{State: state, Reason: reason}
	}
	ready, none := word(service.StateReady, ""), service.StateReason{}
	phase := func(p agent.Phase, reason string) AgentReport {
		return AgentReport{Status: agent.Status{Phase: p, Reason: reason}}
	}
	well := phase(agent.PhaseReady, "")
	hangs := AgentReport{Err: errors.New("no response within 2s")}
	drained := ReplicaDecisions{}.WithDrained(replica, true)
	donated := ReplicaDecisions{}.WithDonated(replica, service.Donation{Since: since})
	removed := ReplicaDecisions{}.WithDonated(replica, service.Donation{Since: since, Until: since})
	finishing := word(service.StateDraining, "finishing in-flight requests")
	terminated := func(why string, capacity service.CapacityType) func(*provision.Object) {
		return func(o *provision.Object) {
			o.TerminatedReason, o.Offering = why, &provision.Offering{Capacity: capacity}
		}
	}
	boots := func(o *provision.Object) { o.PublicIP, o.PrivateIP = netip.Addr{}, netip.Addr{} }
	seen := map[string]map[service.ReplicaState]bool{balancer: {}, replica: {}}
	for _, tt := range []struct {
		name     string
		of       string // balancer or replica
		change   func(*provision.Object)
		agent    AgentReport
		reported service.StateReason // by the balancer, about the replica or itself; zero = it does not
		inFlight int
		decided  ReplicaDecisions
		want     service.StateReason
	}{
		{"it serves", replica, nil, well, ready, 0, ReplicaDecisions{}, ready},
		{"it has no address", replica, boots, AgentReport{}, none, 0, ReplicaDecisions{}, word(service.StateProvisioning, "waiting for an address from the cloud")},
		{"it pulls its image", replica, nil, phase(agent.PhaseImage, "3 of 9 layers"), none, 0, ReplicaDecisions{}, word(service.StateStarting, "image: 3 of 9 layers")},
		{"its model loads", replica, nil, well, word(service.StateStarting, "no response yet"), 0, ReplicaDecisions{}, word(service.StateStarting, "no response yet")},
		{"it is enrolled", replica, nil, AgentReport{Err: identity.ErrUntrusted}, none, 0, ReplicaDecisions{}, word(service.StateStarting, "enrolling: it has no valid certificate of the service; the controller or 'skyserve up' issues one")},
		{"it fails its probes", replica, nil, well, word(service.StateNotReady, "connection refused"), 0, ReplicaDecisions{}, word(service.StateNotReady, "connection refused")},
		{"its agent hangs", replica, nil, hangs, none, 0, ReplicaDecisions{}, word(service.StateNotReady, "no response within 2s")},
		{"its agent hangs, it serves", replica, nil, hangs, ready, 0, ReplicaDecisions{}, ready},
		{"it will be taken", replica, nil, phase(agent.PhaseInterrupted, "in 2 minutes"), ready, 0, ReplicaDecisions{}, word(service.StateInterrupted, "in 2 minutes")},
		{"it was taken", replica, terminated("spot capacity", service.CapacitySpot), AgentReport{}, none, 0, ReplicaDecisions{}, word(service.StateInterrupted, "spot capacity")},
		{"its machine has ended", replica, terminated("stopped", service.CapacityOnDemand), AgentReport{}, none, 0, ReplicaDecisions{}, word(service.StateFailed, "stopped")},
		{"its machine has ended, its balancer lists it", replica, terminated("stopped", service.CapacityOnDemand), AgentReport{}, word(service.StateNotReady, "connection refused"), 0, ReplicaDecisions{}, word(service.StateFailed, "stopped")},
		{"it cannot start", replica, nil, phase(agent.PhaseFailed, "no GPU"), word(service.StateNotReady, "connection refused"), 0, ReplicaDecisions{}, word(service.StateFailed, "no GPU")},
		{"it is about to be drained", replica, nil, well, ready, 0, drained, ready},
		{"it drains", replica, nil, well, finishing, 3, drained, finishing},
		{"it is drained", replica, nil, well, none, 0, drained, word(service.StateDraining, drainReason(replica))},
		{"it drains before its donation", replica, nil, well, finishing, 3, donated, finishing},
		{"it is about to be detached for its donation", replica, nil, well, finishing, 0, donated, word(service.StateDonated, "donated since 2026-03-01T14:00:00Z")},
		{"it is donated", replica, nil, well, none, 0, donated, word(service.StateDonated, "donated since 2026-03-01T14:00:00Z")},
		{"it drains before its removal", replica, nil, well, finishing, 3, removed, finishing},
		{"it is removed", replica, nil, well, none, 0, removed, word(service.StateShuttingDown, "receives no new requests before its removal")},
		{"a donated one fails", replica, nil, phase(agent.PhaseFailed, "no GPU"), none, 0, donated, word(service.StateFailed, "no GPU")},

		{"it serves", balancer, nil, well, ready, 0, ReplicaDecisions{}, ready},
		{"it has no address", balancer, boots, AgentReport{}, none, 0, ReplicaDecisions{}, word(service.StateProvisioning, "waiting for an address from the cloud")},
		{"it starts", balancer, nil, phase(agent.PhaseStarting, "it does not respond yet"), none, 0, ReplicaDecisions{}, word(service.StateStarting, "starting: it does not respond yet")},
		{"no replica is ready", balancer, nil, phase(agent.PhaseStarting, "503"), word(service.StateStarting, "none of 2 replicas is ready"), 0, ReplicaDecisions{}, word(service.StateStarting, "none of 2 replicas is ready")},
		{"it drains", balancer, nil, phase(agent.PhaseDraining, ""), word(service.StateDraining, "shutting down"), 0, ReplicaDecisions{}, word(service.StateDraining, "shutting down")},
		{"it will be taken", balancer, nil, phase(agent.PhaseInterrupted, "in 2 minutes"), ready, 0, ReplicaDecisions{}, word(service.StateInterrupted, "in 2 minutes")},
		{"its machine hangs", balancer, nil, hangs, none, 0, ReplicaDecisions{}, word(service.StateUnreachable, "no response within 2s")},
		{"its machine has ended", balancer, terminated("stopped", service.CapacityOnDemand), AgentReport{}, none, 0, ReplicaDecisions{}, word(service.StateUnreachable, "stopped")},
		{"it cannot start", balancer, nil, phase(agent.PhaseFailed, "exit status 1"), none, 0, ReplicaDecisions{}, word(service.StateUnreachable, "exit status 1")},
	} {
		name := fmt.Sprintf("%s: %s", tt.of, tt.name)
		const region = "aws/us-east-1"
		machines := []provision.Object{
			{ID: balancer, Kind: provision.KindBalancer, Region: region},
			{ID: "lb-us-east-1-1", Kind: provision.KindBalancer, Region: region},
			{ID: replica, Kind: provision.KindReplica, Region: region},
		}
		view := &serviceView{spec: &service.Spec{Models: []service.Model{{Name: "m"}}, Regions: []service.RegionSpec{{Name: region}}}, seen: map[string]AgentReport{}}
		responses := make([]machineReport, len(machines))
		for i := range machines {
			o := &machines[i]
			o.Labels, o.PublicIP, o.PrivateIP = map[string]string{"model": "m"}, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			view.seen[o.ID] = well
			if o.ID == tt.of {
				if view.seen[o.ID] = tt.agent; tt.change != nil {
					tt.change(o)
				}
			}
			responses[i] = machineReport{status: view.seen[o.ID].Status, err: view.seen[o.ID].Err}
		}
		view.have = machines

		// The snapshot of the other balancer, and of this one if it responds.
		peer := telemetry.BalancerSnapshot{ID: balancer, State: service.StateReady}
		if tt.of == balancer {
			if peer.State, peer.Reason = tt.reported.State, tt.reported.Reason; tt.reported == none {
				peer.State, peer.Reason = service.StateUnreachable, tt.want.Reason // the silence as its peer describes it
			}
		}
		r := telemetry.RegionSnapshot{Name: region, Balancers: []telemetry.BalancerSnapshot{peer, {ID: "lb-us-east-1-1", State: service.StateReady}}}
		if tt.of == replica && tt.reported != none {
			r.Replicas = []telemetry.ReplicaSnapshot{{ID: replica, Model: "m", State: tt.reported.State, Reason: tt.reported.Reason, Origin: "controller", Outstanding: tt.inFlight}}
		}
		top := &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{r}}
		top.AddScaling(&telemetry.Scaling{States: statesOf(view, currentState(view, tt.decided).Replicas, tt.decided)})
		responses[1].snapshot = top
		if peer.State != service.StateUnreachable {
			responses[0].snapshot = top
		}
		status := &ServiceStatus{Regions: regionsOf(view.spec, machines, responses)}
		inspector := &Inspector{Deployer: &Deployer{Spec: view.spec}, Decisions: tt.decided}
		inspector.addBalancerReports(t.Context(), status, machines, responses)

		var inTop, inStatus service.StateReason
		for _, r := range top.Regions[0].Replicas {
			if r.ID == tt.of {
				inTop = word(r.State, r.Reason)
				if terminated := machines[2].TerminatedReason != ""; r.Terminated != terminated {
					t.Errorf("%s: terminated %t, want %t", name, r.Terminated, terminated)
				}
			}
		}
		if b := top.Balancer(tt.of); b != nil {
			inTop = word(b.State, b.Reason)
		}
		for _, m := range slices.Concat(status.Regions[0].Balancers, status.Regions[0].Replicas) {
			if m.ID == tt.of {
				inStatus = word(m.State, m.Reason)
			}
		}
		if inTop != tt.want || inStatus != tt.want {
			t.Errorf("%s: top shows %q and status %q, want %q", name, inTop, inStatus, tt.want)
		}
		seen[tt.of][tt.want.State] = true
	}
	for of, want := range map[string][]service.ReplicaState{
		replica: { // PENDING replicas have no machine: only status, which reads service.yaml, shows them
			service.StateProvisioning, service.StateStarting, service.StateReady, service.StateNotReady, service.StateDraining,
			service.StateDonated, service.StateInterrupted, service.StateShuttingDown, service.StateFailed,
		},
		balancer: {service.StateProvisioning, service.StateStarting, service.StateReady, service.StateDraining, service.StateInterrupted, service.StateUnreachable},
	} {
		for _, state := range want {
			if !seen[of][state] {
				t.Errorf("no case of %s is %s", of, state)
			}
		}
	}
}

// A peer's report may be older than a drain that has succeeded.
func TestStatusShowsDrainAtOnce(t *testing.T) {
	const home, other = "aws/us-east-1", "aws/eu-west-1"
	machines := []provision.Object{
		{ID: "lb-us-east-1-0", Kind: provision.KindBalancer, Region: home},
		{ID: "us-east-1-0", Kind: provision.KindReplica, Region: home},
		{ID: "lb-eu-west-1-0", Kind: provision.KindBalancer, Region: other},
	}
	for i := range machines {
		address := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		machines[i].Labels, machines[i].PublicIP, machines[i].PrivateIP = map[string]string{"model": "m"}, address, address
	}
	balancers := func(id string) []telemetry.BalancerSnapshot {
		return []telemetry.BalancerSnapshot{{ID: id, State: service.StateReady}}
	}
	before := []telemetry.ReplicaSnapshot{{ID: "us-east-1-0", Model: "m", State: service.StateReady, Origin: "controller"}}
	responses := []machineReport{
		{status: agent.Status{Phase: agent.PhaseReady}, snapshot: &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: home, Balancers: balancers("lb-us-east-1-0")}}}},
		{status: agent.Status{Phase: agent.PhaseReady}},
		{status: agent.Status{Phase: agent.PhaseReady}, snapshot: &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: home, Balancers: balancers("lb-us-east-1-0"), Replicas: before}}}},
	}
	spec := &service.Spec{Models: []service.Model{{Name: "m"}}, Regions: []service.RegionSpec{{Name: home}, {Name: other}}}
	for want, decided := range map[service.ReplicaState]ReplicaDecisions{
		service.StateReady:    {},
		service.StateDraining: ReplicaDecisions{}.WithDrained("us-east-1-0", true),
	} {
		status := &ServiceStatus{Regions: regionsOf(spec, machines, responses)}
		inspector := &Inspector{Deployer: &Deployer{Spec: spec}, Decisions: decided}
		inspector.addBalancerReports(t.Context(), status, machines, responses)
		if got := status.Regions[0].Replicas[0].State; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// What the controller publishes about a machine is some seconds older than the report of the replica's balancer, and it
// publishes nothing while up runs; what status reads from the machine itself is newer.
func TestNewerFactPrecedesOlder(t *testing.T) {
	const region = "local/us"
	fails := agent.Status{Phase: agent.PhaseFailed, Reason: "exit code 2"}
	well := agent.Status{Phase: agent.PhaseReady}
	failed := service.StateReason{State: service.StateFailed, Reason: fails.Reason}
	ready := service.StateReason{State: service.StateReady}
	machines := []provision.Object{{ID: "lb-us-0", Kind: provision.KindBalancer, Region: region}, {ID: "us-0", Kind: provision.KindReplica, Region: region}}
	for i := range machines {
		machines[i].Labels = map[string]string{"model": "m"}
		machines[i].Endpoints.Listen.Agent, machines[i].Endpoints.Advertised.Agent = "http://127.0.0.1:9", "http://127.0.0.1:9"
	}
	spec := &service.Spec{Models: []service.Model{{Name: "m"}}, Regions: []service.RegionSpec{{Name: region}}}
	for _, tt := range []struct {
		name                string
		published, present  agent.Status
		inSnapshot, inState service.StateReason
	}{
		{"its cause was corrected since the controller's iteration", fails, well, ready, ready},
		{"its process has just ended", well, fails, ready, failed},
	} {
		view := &serviceView{spec: spec, have: machines, seen: map[string]AgentReport{"lb-us-0": {Status: well}, "us-0": {Status: tt.published}}}
		snapshot := &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{
			Name: region, Balancers: []telemetry.BalancerSnapshot{{ID: "lb-us-0", State: service.StateReady}},
			Replicas: []telemetry.ReplicaSnapshot{{ID: "us-0", Model: "m", State: service.StateReady, Origin: "controller"}},
		}}}
		snapshot.AddScaling(&telemetry.Scaling{States: statesOf(view, currentState(view, ReplicaDecisions{}).Replicas, ReplicaDecisions{})})
		got := snapshot.Regions[0].Replicas[0]
		if (service.StateReason{State: got.State, Reason: got.Reason}) != tt.inSnapshot {
			t.Errorf("%s: the snapshot, for which up waits, has %s %q", tt.name, got.State, got.Reason)
		}
		responses := []machineReport{{status: well, snapshot: snapshot}, {status: tt.present}}
		status := &ServiceStatus{Regions: regionsOf(spec, machines, responses)}
		(&Inspector{Deployer: &Deployer{Spec: spec}}).addBalancerReports(t.Context(), status, machines, responses)
		shown := status.Regions[0].Replicas[0]
		if (service.StateReason{State: shown.State, Reason: shown.Reason}) != tt.inState {
			t.Errorf("%s: status shows %s %q", tt.name, shown.State, shown.Reason)
		}
	}
}

// The first screen after up shows the states of all balancers: up waits for their reports.
func TestReportsAreCompleteWithPresentStates(t *testing.T) {
	machines := []provision.Object{
		{ID: "lb-us-0", Kind: provision.KindBalancer, Region: "local/us"},
		{ID: "lb-eu-0", Kind: provision.KindBalancer, Region: "local/eu"},
	}
	snapshot := func(us, eu service.StateReason) *telemetry.Snapshot {
		return &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{
			{Name: "local/us", Balancers: []telemetry.BalancerSnapshot{{ID: "lb-us-0", State: us.State, Reason: us.Reason}}},
			{Name: "local/eu", Balancers: []telemetry.BalancerSnapshot{{ID: "lb-eu-0", State: eu.State, Reason: eu.Reason}}},
		}}
	}
	ready := service.StateReason{State: service.StateReady}
	starting := service.StateReason{State: service.StateStarting, Reason: "none of 2 replicas is ready"}
	for name, tt := range map[string]struct {
		us, eu *telemetry.Snapshot
		want   bool
	}{
		"both know both":              {snapshot(ready, ready), snapshot(ready, ready), true},
		"one starts, and both say so": {snapshot(ready, starting), snapshot(ready, starting), true},
		"an earlier state of a peer":  {snapshot(ready, starting), snapshot(ready, ready), false},
		"a peer does not respond":     {snapshot(ready, service.StateReason{State: service.StateUnreachable}), nil, false},
		"a peer has not reported":     {snapshot(ready, service.StateReason{State: service.StateStarting, Reason: telemetry.ReasonNoReport}), nil, false},
		"one is not read":             {snapshot(ready, ready), nil, true},
	} {
		snapshots := map[string]*telemetry.Snapshot{"lb-us-0": tt.us}
		if tt.eu != nil {
			snapshots["lb-eu-0"] = tt.eu
		}
		if got := reportsComplete(machines, snapshots); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
