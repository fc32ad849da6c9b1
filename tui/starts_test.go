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
