package deploy

import (
	"errors"
	"testing"

	"skyserve/internal/telemetry"
)

// The leader observes the store. When it stops, for example because its machine is replaced, balancers keep its last
// report: an update that believed it would replace the next member while no majority has the data.
func TestStoreIsUnknownWithoutLeader(t *testing.T) {
	replicated := &telemetry.StoreState{Nodes: 3, Replicated: true}
	for name, tt := range map[string]struct {
		snapshot telemetry.Snapshot
		want     *telemetry.StoreState
		err      error
	}{
		"led":            {telemetry.Snapshot{Controller: &telemetry.ControllerState{Leader: "lb-eu-0", Term: 4}, Store: replicated}, replicated, nil},
		"leader stopped": {telemetry.Snapshot{Controller: &telemetry.ControllerState{Term: 4}, Store: replicated}, nil, errNoLeader},
		"not reported":   {telemetry.Snapshot{}, nil, nil},
		"external":       {telemetry.Snapshot{Store: &telemetry.StoreState{External: true}}, &telemetry.StoreState{External: true}, nil},
	} {
		got, err := reportedStore(&tt.snapshot)
		if !errors.Is(err, tt.err) || (got == nil) != (tt.want == nil) || got != nil && (got.Replicated != tt.want.Replicated || got.External != tt.want.External) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
