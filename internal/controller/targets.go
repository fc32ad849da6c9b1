package controller

import (
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
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

// targets is what the plan wants of each model and region; none where it has no
// counts.
func (v *Reviewed) targets() []telemetry.Target {
	out := []telemetry.Target{}
	for _, c := range v.Courses {
		if c.CapacityThen == nil {
			continue
		}
		i, j := v.made.modelIndex(c.Model), v.made.regionIndex(service.Region(c.Region))
		t := telemetry.Target{Model: c.Model, Region: service.Region(c.Region), ReplicaTPS: firstKnown(v.Problem.Theta[i])}
		for _, n := range v.X[i][j] {
			t.Count += n
		}
		if t.Count > 0 {
			t.ReplicaTPS = *c.CapacityThen / float64(t.Count)
		}
		t.PeakTPS, _ = c.Peak()
		out = append(out, t)
	}
	return out
}

// firstKnown is what a replica carries on the first GPU that the model runs on.
func firstKnown(theta []float64) float64 {
	for _, v := range theta {
		if v > 0 {
			return v
		}
	}
	return 0
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
		out[place{t.Model, t.Region}] = &plan.Target{
			Count: t.Count, From: r.From.Sub(base), Until: r.Until.Sub(base), ReplicaTPS: t.ReplicaTPS, PeakTPS: t.PeakTPS,
		}
	}
	for _, f := range r.Forecast {
		if t := out[place{f.Model, f.Region}]; t != nil && f.StepSeconds > 0 {
			t.Course, t.CourseStep = f.MeanTPS, time.Duration(f.StepSeconds*float64(time.Second))
		}
	}
	return out
}
