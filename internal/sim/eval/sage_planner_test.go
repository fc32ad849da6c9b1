package eval

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim"
	"skyserve/internal/testkit"
	"skyserve/plan"
)

// The simulation uses the production planner with its defaults: the same history yields the same
// targets as a review of the corresponding service.
func TestSageUsesProductionPlanner(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it computes, which takes minutes with the detector on")
	p := sagePlan(t, "sage-day", "lt-ua")
	shipped := shippedForecaster(p)
	runs, _, err := shipped.runs()
	if err != nil {
		t.Fatal(err)
	}
	defaults := runs[0].setup.Scaler.(*fleetScaler)
	if o := defaults.inputs.options.WithDefaults(defaults.service); o.LocalShare != plan.DefaultLocalShare || o.PeakQuantile != plan.DefaultPeakQuantile || o.Step != plan.DefaultStep || o.Forecaster != "auto" {
		t.Errorf("planned with %+v", o)
	}

	runs, tps, err := p.runs()
	if err != nil {
		t.Fatal(err)
	}
	s, f := runs[0].fleet, runs[0].setup.Scaler.(*fleetScaler)
	view := &sim.FleetView{Spare: make([]int, len(s.Regions))}
	for m := range s.Models {
		for r := range s.Regions {
			view.Endpoints = append(view.Endpoints, sim.EndpointView{Model: m, Region: r, Ready: s.VMs})
		}
	}
	if _, err := f.Step(0, view); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(60*weekStartMinute, 0).Add(s.From)
	want, err := plan.Review(fleetService(s, tps), f.counts(view), f.history(view), at, plan.ReviewOptions{StartUp: s.Starts.Reclaim, Forecaster: p.Settings.Forecaster})
	if err != nil {
		t.Fatal(err)
	}
	for i, target := range want.Targets() {
		target.From, target.Until = 0, time.Hour
		if got := f.demand[i].target; got == nil || !reflect.DeepEqual(*got, target.HourlyTarget) {
			t.Errorf("%s in %s: got %+v, want %+v", target.Model, target.Region, got, target.HourlyTarget)
		}
		if target.Replicas[0].GPU.Count != s.Models[view.Endpoints[i].Model].GPUs {
			t.Errorf("%s: on %+v", target.Model, target.Replicas)
		}
	}
}

// Without history, or with too little for the forecaster, strategies run without a plan; with enough
// history a failed forecast ends the run.
func TestNoPlanWithoutHistory(t *testing.T) {
	for _, c := range []struct {
		from, now time.Duration
		next      time.Duration
		fails     bool
	}{{0, 0, time.Minute, false}, {time.Hour, 0, retryPlan, false}, {3 * sageDay, 0, 0, true}} {
		p := sagePlan(t, "sage-day", "lt-ua")
		p.Settings.Forecaster = "seasonal-naive"
		runs, _, err := p.runs()
		if err != nil {
			t.Fatal(err)
		}
		f := runs[0].setup.Scaler.(*fleetScaler)
		f.scenario.From = c.from
		if c.fails {
			f.service.Regions[0].Name = service.Region("local/elsewhere") // unknown to the history
			f.inputs.options.Survive = []string{"local/nowhere"}
		}
		view := &sim.FleetView{Spare: make([]int, 3), Endpoints: []sim.EndpointView{{Ready: 2}}}
		_, err = f.Step(c.now, view)
		if (err != nil) != c.fails || !c.fails && (f.nextPlan != c.next || f.demand[0].target != nil) {
			t.Errorf("from %s: next at %s, target %+v, %v", c.from, f.nextPlan, f.demand[0].target, err)
		}
	}
}
