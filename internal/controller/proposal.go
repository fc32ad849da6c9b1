package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// StalePlanError means that the number of replicas has changed since a plan was made.
type StalePlanError struct {
	Model  string
	Region service.Region
	GPU    string
	// AtPlan is the number of replicas from which the plan was made, Current the current number.
	AtPlan, Current int
}

// Error returns a message with both counts.
func (e *StalePlanError) Error() string {
	return fmt.Sprintf("replicas of %s in %s on %s: the plan was made from %d, but there are %d now", e.Model, e.Region, e.GPU, e.AtPlan, e.Current)
}

// RebuildProposal returns the complete proposal that a published summary was made from: its changes, and
// unchanged rows for all other replicas. It fails with *StalePlanError when the plan was made from other
// counts than the current ones, and with another error for a summary without a plan.
func RebuildProposal(spec *service.Spec, counts []plan.ReplicaCount, s *telemetry.PlanSummary) (plan.Proposal, error) {
	status := plan.SolveStatus(s.Status)
	if status != plan.StatusOptimal && status != plan.StatusFeasible {
		return plan.Proposal{}, fmt.Errorf("there is no plan for %s to apply: %s; wait for the next one, or run 'skyserve plan'", spec.Name, cmp.Or(s.Error, strings.Join(s.Infeasible, "; "), s.Status))
	}
	in, err := plan.ForecastInputs(spec, nil, s.At, plan.ReviewOptions{})
	if err != nil {
		return plan.Proposal{}, err
	}
	p := in.CurrentProposal(counts, status)
	existing := len(p.Changes)
	for _, c := range s.Changes {
		if p.Changes, err = withChange(p.Changes, existing, c); err != nil {
			return plan.Proposal{}, err
		}
	}
	return p, nil
}

// withChange applies a change to its row among the existing rows, or appends it as a new row where
// there are no replicas yet.
func withChange(rows []plan.ReplicaChange, existing int, c telemetry.PlanChange) ([]plan.ReplicaChange, error) {
	running := 0
	for i, row := range rows[:existing] {
		other := c.Capacity != "" && row.CapacityType != nil && *row.CapacityType != string(c.Capacity)
		if row.Model != c.Model || row.Region != string(c.Region) || row.GPU != c.GPU || other {
			continue
		}
		if row.Current == c.Current && row.Delta == 0 {
			rows = slices.Clone(rows)
			rows[i].Delta, rows[i].Planned = c.Delta, c.Planned
			return rows, nil
		}
		running += row.Current
	}
	if c.Current != 0 || running != 0 {
		return nil, &StalePlanError{Model: c.Model, Region: c.Region, GPU: c.GPU, AtPlan: c.Current, Current: running}
	}
	row := plan.ReplicaChange{Model: c.Model, Region: string(c.Region), GPU: c.GPU, Delta: c.Delta, Planned: c.Planned, Reason: c.Reason}
	if c.Capacity != "" {
		capacity := string(c.Capacity)
		row.CapacityType = &capacity
	}
	return append(rows, row), nil
}
