package controller

import (
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// A balancer that has a replica with outdated ranks would send requests to ranks that no longer
// exist: the replica is attached again.
func TestReplicaWithOtherRanksIsReattached(t *testing.T) {
	w := newWorld()
	for i := range w.config.Replicas {
		w.config.Replicas[i].DataParallel, w.config.Replicas[i].MaxNumSeqs = 4, 8
	}
	w.rounds(t, 1)
	for _, c := range []struct {
		ranks, seqs, want int
	}{{4, 8, 0}, {2, 8, 1}, {0, 8, 1}, {4, 0, 1}} {
		held := service.ReplicaConfig{ID: "eu-0", Epoch: w.current.Epoch(), DataParallel: c.ranks, MaxNumSeqs: c.seqs}
		lb := &trackedBalancer{
			ControlledBalancer: service.ControlledBalancer{ID: "lb-eu-0"}, listed: true,
			workers: []telemetry.Worker{{ReplicaConfig: held}},
		}
		if got := w.replicasToAttach(lb); len(got) != c.want {
			t.Errorf("attached with %d ranks of %d: %d to attach, want %d", c.ranks, c.seqs, len(got), c.want)
		}
	}
}
