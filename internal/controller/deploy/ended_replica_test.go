package deploy_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"skyserve/internal/controller/deploy"
	"skyserve/provision"
)

// endProcess ends the process of a machine on this computer.
func (s *scaledService) endProcess(id string) {
	s.ChangeObject(id, func(o *provision.Object) { o.TerminatedReason = "process exited (pid 71)" })
}

// desiredCount returns the stored desired count.
func (s *scaledService) desiredCount() int {
	return s.Decisions.DesiredCounts(s.Owner)[s.group]
}

// A replica on this computer whose process has ended still exists: a controller starts it again. It can be removed, and the
// other commands say who starts it.
func TestChangeOfEndedReplica(t *testing.T) {
	for _, balancerEnded := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newScaledService(t, "local/us", "donate_for: 1h")
			s.apply(t, provision.ClassCounts{onL4: 3})
			s.endProcess("us-1")
			if balancerEnded {
				s.endProcess("lb-us-0")
			}
			want := deploy.ReplicaEndedError{ID: "us-1", Reason: "process exited (pid 71)", IsRestarted: !balancerEnded}
			for what, err := range map[string]error{
				"drain":   s.Drain(t.Context(), "us-1", true),
				"undrain": s.Drain(t.Context(), "us-1", false),
				"donate":  s.Donate(t.Context(), "us-1"),
				"reclaim": s.Reclaim(t.Context(), "us-1"),
			} {
				if ended := (*deploy.ReplicaEndedError)(nil); !errors.As(err, &ended) || *ended != want || err.Error() != "us-1 does not run: process exited (pid 71)" {
					t.Errorf("%s: got %v, want %v", what, err, &want)
				}
			}
		})
	}
}

// The desired count after a removal is that of the replicas which run or are started again.
func TestRemoveEndedReplica(t *testing.T) {
	for _, tt := range []struct {
		ended  []string
		remove string
		want   string // the desired count, or the error
	}{
		{[]string{"us-1"}, "us-1", "2"},
		{[]string{"us-0", "us-1"}, "us-1", "2"},
		{[]string{"us-0", "us-1", "us-2", "lb-us-0"}, "us-0", "2"},
		{[]string{"us-0", "us-1"}, "us-2", "2"},
		{[]string{"us-0"}, "us-7", `the service has no replica "us-7"`},
	} {
		t.Run(fmt.Sprint(tt.remove, " of ", tt.ended), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScaledService(t, "local/us", "donate_for: 1h")
				s.apply(t, provision.ClassCounts{onL4: 3})
				for _, id := range tt.ended {
					s.endProcess(id)
				}
				p, err := s.PlanRemoval(t.Context(), tt.remove)
				if err == nil {
					err = s.Remove(t.Context(), p, tt.remove)
				}
				got := fmt.Sprint(err)
				if err == nil {
					got = fmt.Sprint(s.desiredCount())
				}
				if got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				for _, o := range s.Objects() {
					if o.ID == tt.remove {
						t.Errorf("%s exists", o.ID)
					}
				}
			})
		})
	}
}

// Below replicas.min, a removal is refused as for replicas that run.
func TestRemoveEndedReplicaBelowMin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScaledService(t, "local/us", "")
		s.endProcess("us-1")
		var bounds *deploy.BoundsError
		if _, err := s.PlanRemoval(t.Context(), "us-1"); !errors.As(err, &bounds) || bounds.Count != 1 {
			t.Errorf("got %v", err)
		}
	})
}
