package telemetry

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
)

// MachineState is what the controller knows about a replica or balancer, and its balancer or peers may not know.
type MachineState struct {
	ID     string         `json:"id"`
	Region service.Region `json:"region"`
	// Balancer is true for a balancer, false for a replica.
	Balancer bool   `json:"balancer,omitempty"`
	Model    string `json:"model,omitempty"`
	GPU      string `json:"gpu,omitempty"`
	URL      string `json:"url,omitempty"`
	// Machine, DrainReason and Donation are as in service.ReplicaFacts.
	Machine     service.StateReason `json:"machine"`
	DrainReason string              `json:"drain_reason,omitempty"`
	Donation    *service.Donation   `json:"donation,omitempty"`
	// Terminated is true for a machine that its cloud has terminated or stopped, or a process that has ended: it is not billed.
	Terminated bool `json:"terminated,omitempty"`
}

// MaxStates is the maximum number of Scaling.States: one has about 400 bytes, and a value of the store at most 1 MB.
const MaxStates = 500

// addStates sets the states of balancers and replicas from what the controller knows. It adds the replicas that no
// balancer reports.
func (s *Snapshot) addStates(states []MachineState, donations []Donation) {
	known := map[string]MachineState{}
	for _, m := range states {
		known[m.ID] = m
	}
	for _, d := range donations {
		m := known[d.Replica]
		if m.ID == "" {
			m = MachineState{ID: d.Replica, Region: d.Region, Model: d.Model, GPU: d.GPU, URL: d.URL}
		}
		m.Donation = d.donation()
		known[d.Replica] = m
	}
	for i := range s.Regions {
		for k := range s.Regions[i].Replicas {
			r := &s.Regions[i].Replicas[k]
			if m, has := known[r.ID]; has && !m.Balancer {
				r.addState(m)
				delete(known, r.ID)
			}
		}
	}
	for i := range s.Regions {
		region := &s.Regions[i]
		for _, m := range known {
			if m.Region == region.Name && !m.Balancer {
				region.Replicas = append(region.Replicas, m.unattached())
			}
		}
		slices.SortStableFunc(region.Replicas, func(a, b ReplicaSnapshot) int { return cmp.Compare(a.ID, b.ID) })
		var replicas []service.ReplicaState
		for _, r := range region.Replicas {
			replicas = append(replicas, r.State)
		}
		for k := range region.Balancers {
			b := &region.Balancers[k]
			m := known[b.ID] // zero: only what it reports is known
			if m.Balancer || b.State == service.StateStarting {
				b.addState(m, replicas)
			}
		}
	}
}

// addState sets the state of a replica that a balancer reports.
func (r *ReplicaSnapshot) addState(m MachineState) {
	r.Donated = m.isDonated() && r.State != service.StateReady // a ready one is not drained yet, or was reclaimed
	state := service.ReplicaFacts{
		Machine: m.Machine, MachineIsOlder: true, Reported: service.StateReason{State: r.State, Reason: r.Reason}, InFlight: r.Outstanding,
		DrainReason: m.DrainReason, Donation: m.Donation,
	}.State()
	r.State, r.Reason = state.State, state.Reason
	r.Terminated = m.Terminated && r.State != service.StateReady // a machine that serves was launched after the observation
}

// isDonated reports whether a replica is donated, not removed.
func (m MachineState) isDonated() bool { return m.Donation != nil && !m.Donation.Draining() }

// unattached returns the replica as one that no balancer reports.
func (m MachineState) unattached() ReplicaSnapshot {
	state := service.ReplicaFacts{Machine: m.Machine, DrainReason: m.DrainReason, Donation: m.Donation}.State()
	return ReplicaSnapshot{
		ID: m.ID, URL: m.URL, Model: m.Model, GPU: m.GPU, State: state.State, Reason: state.Reason, Donated: m.isDonated(), Unattached: true, Terminated: m.Terminated,
	}
}

// addState sets the state of a balancer. replicas are the states of its region's replicas.
func (b *BalancerSnapshot) addState(m MachineState, replicas []service.ReplicaState) {
	f := service.BalancerFacts{Machine: m.Machine, Reported: service.StateReason{State: b.State, Reason: b.Reason}, Replicas: replicas}
	if b.State == service.StateUnreachable {
		f.Reported, f.Silence, b.Unresponsive = service.StateReason{}, b.Reason, true
	}
	state := f.State()
	b.State, b.Reason = state.State, state.Reason
}

// Responds reports whether the balancer responds.
func (b *BalancerSnapshot) Responds() bool {
	return b.State != service.StateUnreachable && !b.Unresponsive
}

// IsAttached reports whether a balancer has the replica. Others are listed because the controller knows them, and
// receive no requests.
func (r *ReplicaSnapshot) IsAttached() bool {
	earlier := r.State == service.StateDonated && r.Origin == "" // listed by an earlier version, without Unattached
	return !r.Unattached && !earlier
}
