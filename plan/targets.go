package plan

import (
	"fmt"
	"math"
	"time"

	"skyserve/forecast"
)

// Hourly is how the plan of an hour is made (SageServe sections 5 and 6.3). The
// zero value of what has a default takes it.
type Hourly struct {
	Forecaster forecast.Forecaster // nil = forecast.Auto
	// Step is what history is summed up to before it is forecast; 0 = 10 minutes.
	// A plan is for the greatest step of the hour, so short ones plan for noise.
	Step time.Duration
	// Horizon is how long a plan holds; 0 = an hour.
	Horizon time.Duration
	// Buffer is the share of the deferred load of the hour before that is planned
	// for beside the interactive forecast; 0 = a tenth (the paper's beta).
	Buffer float64
	// Epsilon is the share of its own peak that a region must carry; 0 = 0.8.
	Epsilon float64
	// Price is that of a replica, in USD an hour, StartCost that of starting one.
	Price, StartCost float64
}

func (h Hourly) withDefaults() Hourly {
	if h.Forecaster == nil {
		h.Forecaster = forecast.Auto()
	}
	for _, d := range []struct {
		of      *time.Duration
		instead time.Duration
	}{{&h.Step, 10 * time.Minute}, {&h.Horizon, time.Hour}} {
		if *d.of == 0 {
			*d.of = d.instead
		}
	}
	for _, v := range []struct {
		of      *float64
		instead float64
	}{{&h.Buffer, 0.10}, {&h.Epsilon, 0.8}, {&h.Price, 1}} {
		if *v.of == 0 {
			*v.of = v.instead
		}
	}
	return h
}

// Demand is what is known of one endpoint when the hour begins.
type Demand struct {
	Model, Region string
	// Interactive is the prompt tokens of IW-F and IW-N together by step up to now,
	// which is a multiple of the plan's Step.
	Interactive forecast.Series
	// DeferredTPS is the deferred load of the last hour, in prompt tokens a second.
	DeferredTPS float64
	// Count is how many replicas there are now, Min and Max what bounds them.
	Count, Min, Max int
	// ReplicaTPS is what one replica carries, in prompt tokens a second.
	ReplicaTPS float64
}

// Targets plans for the hour from a time on: it forecasts every endpoint, adds the
// buffer, and solves the programme over all models and regions. The demands of
// the models come together, each with the same regions in the same order. It
// gives one target a demand, in their order. Load beyond what the bounds allow is
// planned for as far as they do. What cannot be forecast is an error.
func (h Hourly) Targets(from time.Duration, demands []Demand) ([]Target, error) {
	h = h.withDefaults()
	targets := make([]Target, len(demands))
	for i := range demands {
		t, err := h.expect(from, &demands[i])
		if err != nil {
			return nil, err
		}
		targets[i] = t
	}
	p, err := h.problem(demands, targets)
	if err != nil {
		return nil, err
	}
	res, err := Solve(p, Options{})
	if err != nil {
		return nil, err
	}
	for i := range targets {
		if res.X != nil {
			targets[i].Count = res.X[i/len(p.Regions)][i%len(p.Regions)][0]
			continue
		}
		d := &demands[i]
		targets[i].Count = min(max(int(math.Ceil(targets[i].PeakTPS/d.ReplicaTPS)), d.Min), d.Max)
	}
	return targets, nil
}

// expect forecasts one endpoint.
func (h Hourly) expect(from time.Duration, d *Demand) (Target, error) {
	s := d.Interactive
	if s.Step < h.Step {
		var err error
		if s, err = forecast.Resample(s, h.Step); err != nil {
			return Target{}, err
		}
	}
	steps := max(1, int(h.Horizon/s.Step))
	f, err := h.Forecaster.Forecast(s, steps)
	if err != nil {
		return Target{}, err
	}
	t := Target{From: from, Until: from + h.Horizon, ReplicaTPS: d.ReplicaTPS, CourseStep: s.Step, Course: make([]float64, steps)}
	for i, v := range f.Mean {
		t.Course[i] = s.PerSecond(v)
		t.PeakTPS = math.Max(t.PeakTPS, t.Course[i])
	}
	t.PeakTPS += h.Buffer * d.DeferredTPS
	return t, nil
}

// problem is the programme of the hour: one kind of GPU, the load of each window
// with its buffer.
func (h Hourly) problem(demands []Demand, targets []Target) (*Problem, error) {
	p := &Problem{GPUs: []string{"gpu"}, Alpha: []float64{h.Price}, Epsilon: h.Epsilon}
	for i := range demands {
		d, t := &demands[i], &targets[i]
		if last := len(p.Models) - 1; last < 0 || p.Models[last] != d.Model {
			p.Models = append(p.Models, d.Model)
			p.N, p.Rho = append(p.N, nil), append(p.Rho, nil)
			p.Min, p.Max = append(p.Min, nil), append(p.Max, nil)
			p.Theta, p.Sigma = append(p.Theta, []float64{d.ReplicaTPS}), append(p.Sigma, []float64{h.StartCost})
		}
		m := len(p.Models) - 1
		if m == 0 {
			p.Regions = append(p.Regions, d.Region)
		} else if j := len(p.N[m]); j >= len(p.Regions) || p.Regions[j] != d.Region {
			return nil, fmt.Errorf("planning the hour: model %s: region %s: want the regions %v of every model, in that order", d.Model, d.Region, p.Regions)
		}
		buffer := h.Buffer * d.DeferredTPS
		rho := make([]float64, len(t.Course))
		for w, v := range t.Course {
			rho[w] = v + buffer
		}
		p.N[m], p.Rho[m] = append(p.N[m], []int{d.Count}), append(p.Rho[m], rho)
		p.Min[m], p.Max[m] = append(p.Min[m], &d.Min), append(p.Max[m], &d.Max)
	}
	return p, nil
}
