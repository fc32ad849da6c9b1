package deploy

import (
	"cmp"
	"slices"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// reasonReplaced is why the controller drains a replica that no operator and no plan has drained.
const reasonReplaced = "receives no new requests: it is replaced or not needed"

// drainReason is why a replica that an operator or a plan has drained is DRAINING.
func drainReason(id string) string {
	return "drained; undo with 'skyserve replica drain --undo " + id + "'"
}

// statesOf returns the state of each balancer and replica that is not ready, drained or donated. Balancers add it to
// their snapshots, so that `top` shows the state that `status` shows.
func statesOf(v *serviceView, replicas []controller.CurrentReplica, decided ReplicaDecisions) (states []telemetry.MachineState) {
	runs := map[string]bool{}
	for _, o := range v.have {
		runs[o.ID] = runs[o.ID] || o.TerminatedReason == ""
	}
	for _, o := range v.have {
		if o.Kind != provision.KindBalancer && o.Kind != provision.KindReplica || o.Kind == provision.KindReplica && runs[o.ID] || o.TerminatedReason != "" && runs[o.ID] {
			continue // replicas that run follow
		}
		m := telemetry.MachineState{ID: o.ID, Region: o.Region, Balancer: o.Kind == provision.KindBalancer, Model: o.Labels["model"], GPU: gpuTypeOf(o), Machine: machineState(v, o), Terminated: o.TerminatedReason != ""}
		if m.Machine.State != service.StateReady {
			states = append(states, m)
		}
	}
	for _, r := range replicas {
		m := telemetry.MachineState{ID: r.ID, Region: r.Region, Model: r.Model, GPU: r.GPU, URL: r.URL, Donation: r.Donation}
		if i := slices.IndexFunc(v.have, func(o provision.Object) bool { return o.ID == r.ID && o.TerminatedReason == "" }); i >= 0 {
			m.Machine = machineState(v, v.have[i])
		}
		switch {
		case decided.IsDrained(r.ID):
			m.DrainReason = drainReason(r.ID)
		case r.Drained:
			m.DrainReason = reasonReplaced
		}
		if m.DrainReason != "" || m.Donation != nil || m.Machine.State != "" && m.Machine.State != service.StateReady {
			states = append(states, m)
		}
	}
	slices.SortStableFunc(states, func(a, b telemetry.MachineState) int { return cmp.Compare(a.ID, b.ID) })
	states = slices.CompactFunc(states, func(a, b telemetry.MachineState) bool { return a.ID == b.ID })
	return states[:min(len(states), telemetry.MaxStates)]
}

// machineState returns the state of a machine at the last observation.
func machineState(v *serviceView, o provision.Object) service.StateReason {
	r, has := v.seen[o.ID]
	if !has && o.TerminatedReason == "" && Reachable(o) {
		return service.StateReason{} // not read
	}
	var s service.StateReason
	s.State, s.Reason = stateOf(o, machineReport{status: r.Status, err: r.Err})
	return s
}
