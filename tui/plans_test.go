package tui

import (
	"testing"

	"skyserve/internal/telemetry"
)

// A controller without a plan reports why; that is neither a plan nor one without changes.
func TestMissingPlanShowsTheReason(t *testing.T) {
	tests := []struct {
		plan  telemetry.PlanSummary
		shows []string
		toast string
	}{
		{telemetry.PlanSummary{At: noon, Waiting: "no whole minute of load yet"}, []string{"No plan yet: no whole minute of load yet"}, "apply: no plan yet: no whole minute of load yet"},
		{telemetry.PlanSummary{At: noon, Error: "reading the history: timed out"}, []string{"No plan yet: reading the history: timed out"}, "apply: no plan yet: reading the history"},
		{telemetry.PlanSummary{At: noon, Status: "unknown"}, []string{"plan from", "No plan was found in time"}, "apply: no plan was found"},
		{telemetry.PlanSummary{At: noon, Status: "infeasible"}, []string{"No plan satisfies the bounds"}, "apply: no plan satisfies the bounds"},
		{telemetry.PlanSummary{At: noon, Status: "optimal"}, []string{"No changes: the running replicas match the plan"}, "apply: the plan has no changes"},
	}
	for _, tt := range tests {
		s := normal()
		s.Plan = &tt.plan
		d := deskIn(t, 120, 40, s, "5")
		d.wants(tt.shows...)
		if tt.plan.Status == "" {
			d.lacks("plan from", "match the plan")
		}
		d.press("a")
		d.wants(tt.toast)
	}
}
