package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/telemetry"
	"skyserve/internal/telemetry/demand/demandtest"
	"skyserve/plan"
)

// A restored proposal leads to the same counts as the original, whatever the load.
func TestRebuildReturnsOriginalProposal(t *testing.T) {
	spec := demandtest.Parse(t, demandtest.Service)
	rapid.Check(t, func(r *rapid.T) {
		counts := standing(rapid.IntRange(0, 8).Draw(r, "us"), rapid.IntRange(0, 8).Draw(r, "eu"))
		h := demandtest.Constant(t, 10, float64(rapid.IntRange(0, 9000).Draw(r, "us load")), float64(rapid.IntRange(0, 9000).Draw(r, "eu load")), 0)
		made, err := plan.Review(spec, counts, h, demandtest.Now, plan.ReviewOptions{})
		if err != nil {
			r.Fatal(err)
		}
		if made.Proposal.Status != plan.StatusOptimal {
			r.Skip("no plan to carry out")
		}
		restored, err := RebuildProposal(spec, counts, publishedReview(made).Plan)
		if err != nil {
			r.Fatal(err)
		}
		if got, want := counted(restored), counted(made.Proposal); !slices.Equal(got, want) {
			r.Fatalf("restored %v, made %v", got, want)
		}
	})
}

// counted returns the relevant fields of a proposal's rows, sorted.
func counted(p plan.Proposal) []string {
	var out []string
	for _, c := range p.Changes {
		if c.Current != 0 || c.Planned != 0 {
			out = append(out, fmt.Sprintf("%s %s %s %d%+d=%d", c.Model, c.Region, c.GPU, c.Current, c.Delta, c.Planned))
		}
	}
	slices.Sort(out)
	return out
}

func TestRebuildRejectsChangedCounts(t *testing.T) {
	const model = demandtest.Model
	more := telemetry.PlanChange{Model: model, Region: "local/us", GPU: "L4", Current: 1, Delta: 2, Planned: 3}
	for name, c := range map[string]struct {
		counts  []plan.ReplicaCount
		status  string
		changes []telemetry.PlanChange
		want    string
	}{
		"as planned":          {standing(1, 2), "optimal", []telemetry.PlanChange{more}, ""},
		"another region":      {standing(1, 7), "optimal", []telemetry.PlanChange{more}, ""},
		"nothing to do":       {standing(1, 1), "feasible", nil, ""},
		"one more by now":     {standing(2, 2), "optimal", []telemetry.PlanChange{more}, "replicas of " + model + " in local/us on L4: the plan was made from 1, but there are 2 now"},
		"none any more":       {standing(0, 2), "optimal", []telemetry.PlanChange{more}, "the plan was made from 1, but there are 0 now"},
		"the first, but late": {standing(1, 2), "optimal", []telemetry.PlanChange{{Model: model, Region: "local/us", GPU: "L4", Delta: 3, Planned: 3}}, "the plan was made from 0, but there are 1 now"},
		"twice the same":      {standing(1, 2), "optimal", []telemetry.PlanChange{more, more}, "the plan was made from 1"},
		"no plan":             {standing(1, 1), "infeasible", nil, "there is no plan for chat to apply: infeasible; wait for the next one, or run 'skyserve plan'"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := RebuildProposal(demandtest.Parse(t, demandtest.Service), c.counts, &telemetry.PlanSummary{At: demandtest.Now, Status: c.status, Changes: c.changes})
			if c.want == "" {
				if err != nil || p.Changed() != (len(c.changes) > 0) {
					t.Errorf("got %v, %v", counted(p), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			var changed *StalePlanError
			if errors.As(err, &changed) != (c.status == "optimal") {
				t.Errorf("%T: a caller cannot identify the error", err)
			}
		})
	}
}
