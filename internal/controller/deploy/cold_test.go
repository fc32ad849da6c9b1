package deploy

import (
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Without a strategy, no request starts a replica: the line says what does.
func TestModelsWithoutReplicasAreListed(t *testing.T) {
	spec := &service.Spec{
		Models:  []service.Model{{Name: "m"}, {Name: "n"}},
		Regions: []service.RegionSpec{{Name: "local/us", Replicas: service.Bounds{Max: 2}}},
	}
	const next = ": no replica (replicas.min is 0); add one with 'skyserve replica add', or set autoscale.strategy, so that a request starts one"
	for _, tt := range []struct {
		running string
		want    []string
	}{{"", []string{"m" + next, "n" + next}}, {"m", []string{"n" + next}}} {
		regions := []RegionStatus{{Name: "local/us", Replicas: []MachineStatus{{ID: "us-0", Model: tt.running, State: service.StateStarting}}}}
		if got := emptyLines(spec, regions); !slices.Equal(got, tt.want) {
			t.Errorf("with a replica of %q: got %q, want %q", tt.running, got, tt.want)
		}
	}
}

func TestColdModelsAreListed(t *testing.T) {
	seen := func(us, eu int) *telemetry.Snapshot {
		model := func(n int) []telemetry.ModelSnapshot {
			return []telemetry.ModelSnapshot{{Model: "a", Queued: n, Cold: true}, {Model: "b", Queued: 7}, {Model: "c", Deferred: n, Cold: true}}
		}
		return &telemetry.Snapshot{Regions: []telemetry.RegionSnapshot{{Name: "local/us", Models: model(us)}, {Name: "local/eu", Models: model(eu)}}}
	}
	regions := []RegionStatus{{Name: "local/us", Replicas: []MachineStatus{
		{ID: "us-0", Model: "a", State: service.StateStarting},
		{ID: "us-1", Model: "a", State: service.StateProvisioning},
		{ID: "us-2", Model: "a", State: service.StateShuttingDown},
		{ID: "us-3", Model: "b", State: service.StateStarting},
	}}}
	for name, c := range map[string]struct {
		snapshots []*telemetry.Snapshot
		regions   []RegionStatus
		want      []string
	}{
		"nothing is reported": {nil, regions, []string{}},
		"nobody waits":        {[]*telemetry.Snapshot{seen(0, 0)}, nil, []string{"a: no ready replica, one starts at the first request", "c: no ready replica, one starts at the first request"}},
		"started in advance":  {[]*telemetry.Snapshot{seen(0, 0)}, regions, []string{"a: no ready replica; starting us-0, us-1", "c: no ready replica, one starts at the first request"}},
		"requests wait":       {[]*telemetry.Snapshot{seen(1, 2), seen(0, 2)}, regions, []string{"a: no ready replica, 3 queued requests; starting us-0, us-1", "c: no ready replica, 3 queued requests"}},
		"one waits":           {[]*telemetry.Snapshot{seen(0, 1)}, nil, []string{"a: no ready replica, 1 queued request", "c: no ready replica, 1 queued request"}},
	} {
		if got := coldLines(c.snapshots, c.regions); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
