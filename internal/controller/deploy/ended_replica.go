package deploy

import (
	"fmt"
	"slices"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// ReplicaEndedError is a replica on this computer whose process has ended. It exists until it is removed: a controller or
// `up` starts it again.
type ReplicaEndedError struct {
	ID     string
	Reason string
	// IsRestarted is true where the balancers run, and with them a controller, which starts the replica again.
	IsRestarted bool
}

// Error returns a message with the replica and the reason.
func (e *ReplicaEndedError) Error() string {
	return fmt.Sprintf("%s does not run: %s", e.ID, e.Reason)
}

// isEndedHere reports whether an object is a replica on this computer whose process has ended. In clouds, a removed replica
// and one that has ended look the same, so that neither exists.
func isEndedHere(o provision.Object) bool {
	return o.Kind == provision.KindReplica && o.TerminatedReason != "" && cloud.RunsOnThisComputer(o.Region)
}

// withEnded returns objects in which the replicas on this computer that have ended look as if they ran.
func withEnded(have []provision.Object) []provision.Object {
	have = slices.Clone(have)
	for i, o := range have {
		if isEndedHere(o) {
			have[i].TerminatedReason = ""
		}
	}
	return have
}

// notRunningError returns the error of a change of a replica that does not run.
func notRunningError(have []provision.Object, id string) error {
	i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == id && isEndedHere(o) })
	if i < 0 {
		return &NoReplicaError{ID: id}
	}
	balancers := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Kind != provision.KindBalancer })
	hasEnded := func(o provision.Object) bool { return o.TerminatedReason != "" }
	return &ReplicaEndedError{ID: id, Reason: have[i].TerminatedReason, IsRestarted: len(balancers) > 0 && !slices.ContainsFunc(balancers, hasEnded)}
}

// withEndedRemoved returns d after a replica on this computer that has ended is removed; have are the objects before. The
// last count did not include it. At most the others are desired.
func (d ReplicaDecisions) withEndedRemoved(removed provision.Object, have []provision.Object) ReplicaDecisions {
	g := cloud.ReplicaGroup{Model: removed.Labels["model"], Region: removed.Region}
	others := slices.DeleteFunc(replicasIn(withEnded(have), g), func(o provision.Object) bool { return o.ID == removed.ID })
	d.Desired = slices.Clone(d.Desired)
	for i, c := range d.Desired {
		if c.Model == g.Model && c.Region == g.Region {
			d.Desired[i].Count = min(c.Count, len(others))
		}
	}
	return d
}
