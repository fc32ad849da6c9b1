package controller

import (
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// A plan that the budget has reduced has an alert while it applies.
func TestReducedPlanRaisesBudgetAlert(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		over  []string
		until time.Time
		want  string
	}{
		"reduced": {[]string{"2 of m on L4 in aws/us-east-1"}, now.Add(time.Hour), "warning: budget plan: the budget is too low for the planned load: the plan omits 2 of m on L4 in aws/us-east-1; raise autoscale.budget"},
		"within":  {nil, now.Add(time.Hour), ""},
		"expired": {[]string{"2 of m"}, now.Add(-2 * time.Hour), ""},
	} {
		var f reviewInForce
		f.set(telemetry.Review{From: c.until.Add(-time.Hour), Until: c.until, Plan: &telemetry.PlanSummary{OverBudget: c.over}})
		got := ""
		for _, a := range f.budgetAlerts() {
			got += a.Line()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := new(reviewInForce).budgetAlerts(); len(got) > 0 {
		t.Errorf("without a plan: %+v", got)
	}
}
