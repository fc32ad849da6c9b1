package main

import (
	"testing"

	"skyserve/provision"
)

// Only working machines of balancers are updated one at a time: those that have ended or do not respond are replaced
// together, since two lost members of the store return only together.
func TestUpdatesAreOfWorkingBalancers(t *testing.T) {
	works := provision.Object{ID: "lb-us-0", Kind: provision.KindBalancer, SpecHash: "s"}
	silent, ended, replica := works, works, works
	silent.SpecHash, ended.TerminatedReason, replica.Kind = "", "host failure", provision.KindReplica
	for name, tt := range map[string]struct {
		action provision.ChangeAction
		have   provision.Object
		want   bool
	}{
		"works": {provision.ActionReplace, works, true}, "does not respond": {provision.ActionReplace, silent, false}, "has ended": {provision.ActionReplace, ended, false},
		"a replica": {provision.ActionReplace, replica, false}, "only reloads": {provision.ActionReload, works, false}, "is removed": {provision.ActionTerminate, works, false},
	} {
		c := provision.Change{Action: tt.action, Observed: tt.have}
		if tt.action != provision.ActionTerminate {
			c.Desired = provision.Desired{ID: tt.have.ID, Kind: tt.have.Kind}
		}
		if got := isUpdate(c); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
