package lbd

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"skyserve/internal/telemetry"
)

// startFigures returns the count and sum of each series of the metrics of starts, by the values of its labels.
func startFigures(t *testing.T, reg *prometheus.Registry) map[string][2]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string][2]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			figures[seriesName(f.GetName(), m)] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
		}
	}
	return figures
}

func seriesName(name string, m *dto.Metric) string {
	for _, l := range m.GetLabel() {
		name += " " + l.GetValue()
	}
	return name
}

// Each start is counted once, in total and by phase, although the controller publishes it again and again, also
// after a change of the leader. Starts in progress, and those before the balancer began, are not counted.
func TestStartsAreCountedOnce(t *testing.T) {
	began := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	reg := prometheus.NewRegistry()
	m := newStartMetrics(reg, began)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	start := func(replica string, startedAt time.Time, ready bool, seconds float64) telemetry.ReplicaStart {
		return telemetry.ReplicaStart{Replica: replica, Region: "aws/us-east-1", GPU: "L4", Start: &telemetry.Start{
			StartedAt: startedAt, Ready: ready, Seconds: seconds,
			Phases: []telemetry.StartPhase{{Name: telemetry.StartBoot, Seconds: 60}, {Name: telemetry.StartLoad, Seconds: seconds - 60}},
		}}
	}
	earlier := start("a", at(-10*time.Minute), true, 300)
	first, running := start("b", at(-time.Minute), true, 240), start("c", at(time.Minute), false, 100)
	m.count(at(4*time.Minute), &telemetry.Scaling{Starts: []telemetry.ReplicaStart{earlier, first, running, {Replica: "d"}}})
	m.count(at(5*time.Minute), &telemetry.Scaling{Starts: []telemetry.ReplicaStart{earlier, first}})
	m.count(at(6*time.Minute), &telemetry.Scaling{}) // by a new leader
	m.count(at(7*time.Minute), &telemetry.Scaling{Starts: []telemetry.ReplicaStart{first, start("c", at(time.Minute), true, 360)}})
	m.count(at(30*time.Minute), &telemetry.Scaling{Starts: []telemetry.ReplicaStart{start("b", at(20*time.Minute), true, 120)}})

	want := map[string][2]float64{
		"skyserve_replica_start_seconds L4 aws/us-east-1":            {3, 240 + 360 + 120},
		"skyserve_replica_start_phase_seconds L4 boot aws/us-east-1": {3, 180},
		"skyserve_replica_start_phase_seconds L4 load aws/us-east-1": {3, 180 + 300 + 60},
	}
	got := startFigures(t, reg)
	if len(got) != len(want) {
		t.Errorf("series %v", got)
	}
	for name, figures := range want {
		if got[name] != figures {
			t.Errorf("%s: got %v, want %v", name, got[name], figures)
		}
	}
	m.count(at(3*time.Hour), &telemetry.Scaling{})
	if len(m.counted) != 0 {
		t.Errorf("%d starts are remembered after three hours", len(m.counted))
	}
}
