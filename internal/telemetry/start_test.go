package telemetry

import (
	"testing"

	"skyserve/internal/service"
)

// The reason of a replica contains the current phases while it starts, and the total once it is ready. Other
// states keep their reason.
func TestStartReason(t *testing.T) {
	loading := &Start{Seconds: 250, Phases: []StartPhase{
		{Name: StartBoot, Seconds: 60}, {Name: StartWeights, Seconds: 190, Running: true, Bytes: &ByteCount{Done: 4e9, Total: 16e9}},
	}}
	ready := &Start{Seconds: 300, Ready: true, Phases: []StartPhase{{Name: StartBoot, Seconds: 60}, {Name: StartLoad, Seconds: 240}}}
	for _, tt := range []struct {
		start  *Start
		state  service.ReplicaState
		reason string
		want   string
	}{
		{nil, service.StateStarting, "booting", "booting"},
		{loading, service.StateStarting, "", "weights 3m10s 25 % of 16.0 GB"},
		{loading, service.StateNotReady, "connection refused", "weights 3m10s 25 % of 16.0 GB; connection refused"},
		{loading, service.StateInterrupted, "by its cloud", "by its cloud"},
		{ready, service.StateReady, "", "ready in 5m0s"},
		{ready, service.StateNotReady, "connection refused", "connection refused"},
	} {
		if got := StartReason(tt.start, tt.state, tt.reason); got != tt.want {
			t.Errorf("%s %q: got %q, want %q", tt.state, tt.reason, got, tt.want)
		}
	}
}

// Starts that the controller reports are shown with their replicas.
func TestSnapshotShowsStarts(t *testing.T) {
	s := Snapshot{Regions: []RegionSnapshot{{Name: "aws/us-east-1", Replicas: []ReplicaSnapshot{{ID: "a"}, {ID: "b"}}}}}
	start := &Start{Seconds: 3}
	s.AddScaling(&Scaling{Starts: []ReplicaStart{{Replica: "b", Start: start}, {Replica: "c", Start: start}}})
	if r := s.Regions[0].Replicas; len(r) != 2 || r[0].Start != nil || r[1].Start != start {
		t.Errorf("replicas %+v", r)
	}
}
