package store

import "testing"

// Replicated promises that any one member may be lost. A replaced member that is not removed yet counts for majorities:
// three that respond of four lose their majority with the next one.
func TestReplicatedSurvivesALoss(t *testing.T) {
	for _, tt := range []struct {
		members, offline int
		want             bool
	}{
		{3, 0, true}, {3, 1, false}, {2, 0, false}, {4, 0, true}, {4, 1, false}, {5, 0, true}, {5, 1, true}, {5, 2, false},
	} {
		c := ClusterStatus{Clustered: true, Open: true, Leader: "a"}
		for i := range tt.members {
			m := MemberStatus{State: MemberCurrent}
			if i < tt.offline {
				m.State = MemberOffline
			}
			c.Members = append(c.Members, m)
		}
		if got := c.Replicated(); got != tt.want {
			t.Errorf("%d members, %d offline: %t, want %t", tt.members, tt.offline, got, tt.want)
		}
		if tt.want && tt.members-tt.offline-1 <= tt.members/2 {
			t.Errorf("%d members, %d offline: the loss of one leaves no majority", tt.members, tt.offline)
		}
		c.Unreplicated = []string{"events"}
		if c.Replicated() {
			t.Errorf("%d members: replicated without copies", tt.members)
		}
	}
}
