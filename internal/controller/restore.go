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

// ChangedError says that other replicas stand by now than a plan was made from.
type ChangedError struct {
	Model  string
	Region service.Region
	GPU    string
	// Planned is how many the plan was made from, Now how many there are.
	Planned, Now int
}

// Error names the two counts.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("replicas of %s in %s on %s: the plan was made from %d, and there are %d by now", e.Model, e.Region, e.GPU, e.Planned, e.Now)
}

// Restore makes the whole proposal again that a summary tells of: its changes, and
// besides them everything as it stands. counts are those that stand now: it fails with
// *ChangedError where the plan was made from others, and on a summary that has no plan.
func Restore(spec *service.Spec, counts []plan.Count, s *telemetry.PlanSummary) (plan.Proposal, error) {
	status := plan.Status(s.Status)
	if status != plan.StatusOptimal && status != plan.StatusFeasible {
		return plan.Proposal{}, fmt.Errorf("there is no plan for %s to carry out: %s", spec.Name, cmp.Or(s.Error, strings.Join(s.Infeasible, "; "), s.Status))
	}
	in, err := plan.ForecastInputs(spec, nil, s.At, plan.ReviewOptions{})
	if err != nil {
		return plan.Proposal{}, err
	}
	p := in.Current(counts, status)
	standing := len(p.Changes)
	for _, c := range s.Changes {
		if p.Changes, err = withChange(p.Changes, standing, c); err != nil {
			return plan.Proposal{}, err
		}
	}
	return p, nil
}

// withChange is rows, of which the first few are what stands, with a change made in its
// row, or as one more where nothing stands yet.
func withChange(rows []plan.Change, standing int, c telemetry.PlanChange) ([]plan.Change, error) {
	now := 0
	for i, row := range rows[:standing] {
		other := c.Capacity != "" && row.Capacity != nil && *row.Capacity != string(c.Capacity)
		if row.Model != c.Model || row.Region != string(c.Region) || row.GPU != c.GPU || other {
			continue
		}
		if row.Now == c.Now && row.Delta == 0 {
			rows = slices.Clone(rows)
			rows[i].Delta, rows[i].Then = c.Delta, c.Then
			return rows, nil
		}
		now += row.Now
	}
	if c.Now != 0 || now != 0 {
		return nil, &ChangedError{Model: c.Model, Region: c.Region, GPU: c.GPU, Planned: c.Now, Now: now}
	}
	row := plan.Change{Model: c.Model, Region: string(c.Region), GPU: c.GPU, Delta: c.Delta, Then: c.Then, Reason: c.Reason}
	if c.Capacity != "" {
		capacity := string(c.Capacity)
		row.Capacity = &capacity
	}
	return append(rows, row), nil
}
