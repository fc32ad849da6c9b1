package controller

import (
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
	"skyserve/provision"
)

// inForce is the newest review, which the strategy goes by. It is safe for
// concurrent use.
type inForce struct {
	mu     sync.Mutex
	review *telemetry.Review
}

func (f *inForce) set(r telemetry.Review) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.review = &r
}

// get is nil before the first.
func (f *inForce) get() *telemetry.Review {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.review
}

// publishedTargets is what the plan wants of each model and region; none where it has no
// counts.
func publishedTargets(v *plan.Reviewed) []telemetry.Target {
	out := []telemetry.Target{}
	for _, t := range v.Targets() {
		p := telemetry.Target{Model: t.Model, Region: t.Region, Count: t.Count, ReplicaTPS: t.ReplicaTPS, PeakTPS: t.PeakTPS, Replicas: []telemetry.TargetReplicas{}}
		for _, r := range t.Replicas {
			p.Replicas = append(p.Replicas, telemetry.TargetReplicas{GPU: r.GPU.Type, GPUs: r.GPU.Count, Capacity: r.Capacity, Count: r.Count})
		}
		out = append(out, p)
	}
	return out
}

// countsAt are the replicas of a model in a region by what a review wants them to run on; nil
// where it says nothing any more.
func countsAt(r *telemetry.Review, now time.Time, at place) provision.Counts {
	if !r.Holds(now) {
		return nil
	}
	for _, t := range r.Targets {
		if t.Model != at.model || t.Region != at.region || len(t.Replicas) == 0 {
			continue
		}
		counts := provision.Counts{}
		for _, c := range t.Replicas {
			counts[provision.Class{GPU: c.GPU, GPUs: c.GPUs, Capacity: c.Capacity}] += c.Count
		}
		return counts
	}
	return nil
}

// place is one model in one region.
type place struct {
	model  string
	region service.Region
}

// targetsAt are the targets of a review in a strategy's words, on a clock that
// began at base; none where it says nothing any more.
func targetsAt(r *telemetry.Review, now, base time.Time) map[place]*plan.Target {
	out := map[place]*plan.Target{}
	if !r.Holds(now) {
		return out
	}
	for _, t := range r.Targets {
		target := &plan.Target{
			Count: t.Count, From: r.From.Sub(base), Until: r.Until.Sub(base), ReplicaTPS: t.ReplicaTPS, PeakTPS: t.PeakTPS,
		}
		for _, n := range t.Replicas {
			target.Replicas = append(target.Replicas, plan.ReplicaTarget{GPU: service.GPU{Type: n.GPU, Count: n.GPUs}, Capacity: n.Capacity, Count: n.Count})
		}
		out[place{t.Model, t.Region}] = target
	}
	for _, f := range r.Forecast {
		if t := out[place{f.Model, f.Region}]; t != nil && f.StepSeconds > 0 {
			t.Course, t.CourseStep = f.MeanTPS, time.Duration(f.StepSeconds*float64(time.Second))
		}
	}
	return out
}
