package tui

import (
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// A replica that starts shows the phase of its start, also while it is donated.
func TestReasonShowsStart(t *testing.T) {
	r := telemetry.ReplicaSnapshot{ID: "us-0", State: service.StateStarting, Start: &telemetry.Start{Phases: []telemetry.StartPhase{{Name: telemetry.StartImage, Seconds: 190, Running: true}}}}
	if got := reasonOf(&r); got != "image 3m10s" {
		t.Errorf("got %q", got)
	}
	r.Donated = true
	if got := reasonOf(&r); got != "donated: image 3m10s" {
		t.Errorf("got %q", got)
	}
}

// The filter finds the text of the reason column, which includes the start.
func TestFilterMatchesTheShownReason(t *testing.T) {
	r := telemetry.ReplicaSnapshot{ID: "us-0", State: service.StateStarting, Start: &telemetry.Start{Phases: []telemetry.StartPhase{{Name: telemetry.StartImage, Seconds: 190, Running: true}}}}
	regions := []*telemetry.RegionSnapshot{{Name: "aws/us-east-1", Replicas: []telemetry.ReplicaSnapshot{r}}}
	if rows := selectRows(regions, "", "image", sortOrder{}, nil); len(rows) != 1 {
		t.Errorf("the filter image shows %d rows, want 1 with %q", len(rows), reasonOf(&r))
	}
}
