package service

import (
	"cmp"
	"slices"
)

// StateUnreachable is the state of a balancer or a name server that does not respond. The other states of a balancer
// are StateProvisioning, StateStarting, StateReady, StateNotReady, StateDraining, StateInterrupted and, only in `status`,
// StateFailed.
const StateUnreachable ReplicaState = "UNREACHABLE"

// Reasons of balancers without a ready replica. Drained replicas are not attached: their balancer reports
// ReasonNoReplicas, and whoever knows the decisions replaces it by ReasonAllDrained (BalancerFacts.Replicas).
const (
	ReasonNoReplicas = "no attached replicas"
	ReasonAllDrained = "all its replicas are drained"
)

// StateReason is a state with its reason. The zero value means that the state is unknown.
type StateReason struct {
	State  ReplicaState `json:"state"`
	Reason string       `json:"reason"`
}

// ReplicaFacts are the facts that determine the state of a replica. `status`, `replica list` and `top` all get the
// state from them, so that they show the same state for the same facts.
type ReplicaFacts struct {
	// Machine is the state of its machine, from the cloud and the machine's agent; zero if unknown.
	Machine StateReason
	// MachineIsOlder is true if Machine was read before Reported: the controller publishes it once per iteration.
	MachineIsOlder bool
	// Reported is the report of the balancer to which the replica is attached; zero if it is attached to none.
	Reported StateReason
	// InFlight is the number of requests that this balancer has sent to it and that have not ended.
	InFlight int
	// DrainReason is why the service drains it; empty if it does not. Donation is its donation or removal; nil
	// without one.
	DrainReason string
	Donation    *Donation
}

// State returns the state of the replica.
func (f ReplicaFacts) State() StateReason {
	switch {
	case f.Machine.State == StateInterrupted:
		return f.Machine
	case f.Machine.State == StateFailed && !f.MachineIsOlder: // its process or machine has ended since the report
		return f.Machine
	case f.Reported.State == StateReady: // it receives requests
		return f.Reported
	}
	switch f.Machine.State {
	case StatePending, StateProvisioning, StateNotReady, StateDraining, StateFailed:
		return f.Machine
	}
	switch d := f.Donation; {
	case f.Reported.State == StateDraining && f.InFlight > 0:
		return f.Reported
	case f.DrainReason != "":
		return StateReason{StateDraining, f.DrainReason}
	case d != nil && d.Draining():
		return StateReason{StateShuttingDown, "receives no new requests before its removal"}
	case d != nil:
		return StateReason{StateDonated, d.String()}
	case f.Reported.State != "":
		return f.Reported
	}
	return f.Machine
}

// BalancerFacts are the facts that determine the state of a balancer, for `status` and `top`.
type BalancerFacts struct {
	// Machine is the state of its machine, as in ReplicaFacts.
	Machine StateReason
	// Reported is what the balancer reports about itself; zero if it does not respond.
	Reported StateReason
	// Silence is why it does not respond; empty = the reason of its machine.
	Silence string
	// Replicas are the states of the replicas of its region.
	Replicas []ReplicaState
}

// State returns the state of the balancer.
func (f BalancerFacts) State() StateReason {
	responds := f.Reported.State != ""
	switch f.Machine.State {
	case StateProvisioning, StateStarting:
		if !responds {
			return f.Machine
		}
	case StateInterrupted:
		if responds {
			return f.Machine
		}
	}
	if f.Reported == (StateReason{StateStarting, ReasonNoReplicas}) && areDrained(f.Replicas) {
		return StateReason{StateNotReady, ReasonAllDrained}
	}
	if responds {
		return f.Reported
	}
	return StateReason{StateUnreachable, cmp.Or(f.Silence, f.Machine.Reason)}
}

// areDrained reports whether there are replicas, and all of them are drained or donated.
func areDrained(replicas []ReplicaState) bool {
	return len(replicas) > 0 && !slices.ContainsFunc(replicas, func(s ReplicaState) bool { return s != StateDraining && s != StateDonated })
}
