package telemetry

import "testing"

func TestControlLine(t *testing.T) {
	three := []StoreMember{{Node: "lb-asia-0", State: "current"}, {Node: "lb-eu-0", State: "leader"}, {Node: "lb-us-0", State: "offline"}}
	for _, c := range []struct {
		s    Snapshot
		want string
	}{
		{Snapshot{}, ""},
		{Snapshot{Controller: &ControllerState{Leader: "lb-us-0", Term: 7}, Store: &StoreState{Nodes: 1}}, "controller: leader lb-us-0, term 7, no standby; store: not replicated"},
		{Snapshot{Controller: &ControllerState{Leader: "lb-us-0", Term: 9, Standbys: []string{"lb-asia-0", "lb-eu-0"}}, Store: &StoreState{External: true}}, "controller: leader lb-us-0, term 9, standby lb-asia-0, lb-eu-0; store: external"},
		{Snapshot{Controller: &ControllerState{Term: 9}}, "controller: no leader"},
		{Snapshot{Controller: &ControllerState{Term: 9}, Store: &StoreState{Nodes: 3, Replicated: true, Leader: "lb-eu-0", Members: three[:2]}}, "controller: no leader; store: unknown, because no controller leads"},
		{Snapshot{Controller: &ControllerState{Term: 9}, Store: &StoreState{External: true}}, "controller: no leader; store: external"},
		{Snapshot{Store: &StoreState{Nodes: 3, Members: three[:1], Problem: "no majority of its members responds"}}, "store: not replicated: no majority of its members responds (lb-asia-0 responds)"},
		{Snapshot{Store: &StoreState{Nodes: 3, Replicated: true, Leader: "lb-eu-0", Members: three[:2]}}, "store: replicated (lb-asia-0 in sync, lb-eu-0 store leader)"},
		{Snapshot{Store: &StoreState{Nodes: 3, Leader: "lb-eu-0", Members: three, Problem: "no response from lb-us-0"}}, "store: not replicated: no response from lb-us-0 (lb-asia-0 in sync, lb-eu-0 store leader, lb-us-0 offline)"},
	} {
		if got := c.s.ControlLine(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
