package tui

import (
	"strings"
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
		{telemetry.PlanSummary{At: noon, Status: "optimal"}, []string{"No changes: the plan of 12:00 matched the replicas at that time"}, "apply: the plan has no changes"},
	}
	for _, tt := range tests {
		s := normal()
		s.Plan = &tt.plan
		d := deskIn(t, 120, 40, s, "5")
		d.wants(tt.shows...)
		if tt.plan.Status == "" {
			d.lacks("plan from", "matches the replicas")
		}
		d.press("a")
		d.wants(tt.toast)
	}
}

// The footer offers enter only for a selected row, and how to select one only where there is one.
func TestFooterOffersEnterForSelectedRow(t *testing.T) {
	d := deskIn(t, 140, 40, normal(), "5")
	if got := d.footerText(); strings.Contains(got, "enter") || !strings.Contains(got, "j/k select") {
		t.Errorf("without a selected row: %s", got)
	}
	d.press("j")
	if got := d.footerText(); !strings.Contains(got, "enter details") {
		t.Errorf("with a selected row: %s", got)
	}
	none := normal()
	none.Plan = &telemetry.PlanSummary{At: noon, Status: "optimal"}
	if got := deskIn(t, 140, 40, none, "5").footerText(); strings.Contains(got, "enter") || strings.Contains(got, "j/k") {
		t.Errorf("without a row: %s", got)
	}
}
