package telemetry

import (
	"testing"
	"time"
)

// The summary has the mean utilisation, the share of all memory and the highest temperature; what no GPU reports is
// unknown, never zero.
func TestSummarizeGPUs(t *testing.T) {
	half, full, hot, cool, used, all := 0.5, 1.0, 81.0, 40.0, int64(10), int64(40)
	s := SummarizeGPUs([]GPUFigures{{&half, &used, &all, &cool}, {&full, &all, &all, &hot}, {}})
	if *s.Utilisation != 0.75 || *s.Memory != 0.625 || *s.Temperature != 81 {
		t.Errorf("got %v %v %v", *s.Utilisation, *s.Memory, *s.Temperature)
	}
	if s := SummarizeGPUs([]GPUFigures{{Memory: &all}}); s != (GPUSummary{}) {
		t.Errorf("without figures: %+v", s)
	}
}

// Snapshots have the machine of each replica; a replica without one has no version, uptime or GPUs.
func TestSnapshotHasMachines(t *testing.T) {
	began := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	start := &Start{StartedAt: began, Seconds: 90.4, Ready: true}
	hot := 70.0
	s := Snapshot{Regions: []RegionSnapshot{{Name: "local/us", Replicas: []ReplicaSnapshot{{ID: "us-0"}, {ID: "us-1"}}}}}
	s.AddScaling(&Scaling{Machines: []ReplicaMachine{{"us-1", "0.11.0", start.ReadySince(), []GPUFigures{{Temperature: &hot}}}}})
	with, without := s.Regions[0].Replicas[1], s.Regions[0].Replicas[0]
	if with.Version != "0.11.0" || !with.ReadySince.Equal(began.Add(90*time.Second)) || *with.GPUs[0].Temperature != 70 {
		t.Errorf("got %+v", with)
	}
	if without.Version != "" || without.ReadySince != nil || without.GPUs != nil {
		t.Errorf("got %+v", without)
	}
	if start.Ready = false; start.ReadySince() != nil || (*Start)(nil).ReadySince() != nil {
		t.Error("a start in progress is ready")
	}
}
