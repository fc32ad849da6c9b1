package controller

import (
	"strings"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// reviewInForce is the review in force, whose plan the strategy follows. It is safe for concurrent use.
type reviewInForce struct {
	mu     sync.Mutex
	review *telemetry.Review
}

func (c *reviewInForce) set(r telemetry.Review) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.review = &r
}

// get returns nil before the first review.
func (c *reviewInForce) get() *telemetry.Review {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.review
}

// budgetAlerts returns an alert while the plan in force omits replicas because of autoscale.budget.
func (c *reviewInForce) budgetAlerts() []telemetry.Alert {
	r := c.get()
	if r == nil || r.Plan == nil || len(r.Plan.OverBudget) == 0 || !r.Current(time.Now()) {
		return nil
	}
	return []telemetry.Alert{{
		Severity: telemetry.SeverityWarning, Kind: telemetry.AlertBudget, Object: "plan", Message: "the budget is too low for the planned load: the plan omits " + strings.Join(r.Plan.OverBudget, ", "),
		NextStep: "raise autoscale.budget",
	}}
}

// plannedCapacity returns the planned capacity of each model in each region, as it is published. If no plan is feasible,
// the counts serve each region's own peak as far as the bounds allow. It is empty if the solver ended without counts.
func plannedCapacity(v *plan.ReviewResult) []telemetry.PlannedCapacity {
	out := []telemetry.PlannedCapacity{}
	for _, t := range v.Targets() {
		p := telemetry.PlannedCapacity{Model: t.Model, Region: t.Region, Count: t.Count, ReplicaTPS: t.ReplicaTPS, PeakTPS: t.PeakTPS, Replicas: []telemetry.TargetReplicas{}, StabilizationSeconds: t.StabilizationWindow.Seconds(), Headroom: t.Headroom, StartUpSeconds: t.StartUp.Seconds(), OverloadTolerance: t.OverloadTolerance}
		for _, r := range t.Replicas {
			p.Replicas = append(p.Replicas, telemetry.TargetReplicas{GPU: r.GPU.Type, GPUs: r.GPU.Count, Capacity: r.CapacityType, Count: r.Count})
		}
		out = append(out, p)
	}
	return out
}

// plannedCounts returns the planned number of replicas of a model in a region by replica class; nil where
// the plan no longer applies (see telemetry.Review.Current) or has no replicas there.
func plannedCounts(r *telemetry.Review, now time.Time, at modelRegion) provision.ClassCounts {
	if !r.Current(now) {
		return nil
	}
	for _, t := range r.Targets {
		if t.Model != at.model || t.Region != at.region || len(t.Replicas) == 0 {
			continue
		}
		counts := provision.ClassCounts{}
		for _, c := range t.Replicas {
			counts[provision.ReplicaClass{GPU: c.GPU, GPUs: c.GPUs, Capacity: c.Capacity}] += c.Count
		}
		return counts
	}
	return nil
}

// modelRegion is one model in one region. It identifies a replicaGroup.
type modelRegion struct {
	model  string
	region service.Region
}

// hourlyTargets returns the planned counts of a review as a strategy uses them, on a clock that starts at base; none
// where the plan no longer applies (see telemetry.Review.Current).
func hourlyTargets(r *telemetry.Review, now, base time.Time) map[modelRegion]*plan.HourlyTarget {
	out := map[modelRegion]*plan.HourlyTarget{}
	if !r.Current(now) {
		return out
	}
	for _, t := range r.Targets {
		target := &plan.HourlyTarget{
			Count: t.Count, From: r.From.Sub(base), Until: r.Until.Sub(base), ReplicaTPS: t.ReplicaTPS, PeakTPS: t.PeakTPS,
			Tracking: plan.Tracking{
				StabilizationWindow: time.Duration(t.StabilizationSeconds * float64(time.Second)), Headroom: t.Headroom,
				StartUp: time.Duration(t.StartUpSeconds * float64(time.Second)), OverloadTolerance: t.OverloadTolerance,
			},
		}
		for _, n := range t.Replicas {
			target.Replicas = append(target.Replicas, plan.ReplicaTarget{GPU: service.GPU{Type: n.GPU, Count: n.GPUs}, CapacityType: n.Capacity, Count: n.Count})
		}
		out[modelRegion{t.Model, t.Region}] = target
	}
	for _, f := range r.Forecast {
		if t := out[modelRegion{f.Model, f.Region}]; t != nil && f.StepSeconds > 0 {
			t.ForecastTPS, t.ForecastStep = f.MeanTPS, time.Duration(f.StepSeconds*float64(time.Second))
		}
	}
	return out
}
