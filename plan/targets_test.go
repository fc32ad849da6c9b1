package plan

import (
	"strings"
	"testing"
	"time"

	"skyserve/forecast"
)

// steady is an endpoint that is asked the same all the time, in tokens a second.
func steady(model, region string, tps float64) Demand {
	s := forecast.Series{Name: model + " in " + region, Unit: forecast.PromptTokens, Step: time.Minute, Values: make([]float64, 120)}
	for i := range s.Values {
		s.Values[i] = 60 * tps
	}
	return Demand{Model: model, Region: region, Interactive: s, Count: 2, Min: 2, Max: 20, ReplicaTPS: 100}
}

func TestTargetsCarryTheForecast(t *testing.T) {
	hourly := Hourly{Forecaster: forecast.MovingAverage()}
	demands := []Demand{steady("a", "r", 650), steady("a", "s", 0), steady("b", "r", 430), steady("b", "s", 430)}
	demands[0].DeferredTPS = 400 // of which a tenth is planned for
	got, err := hourly.Targets(3*time.Hour, demands)
	if err != nil {
		t.Fatal(err)
	}
	// a: 690 in r, of which 0.8 must be there; 7 in all, 2 of them in s at least. b:
	// 860 in all, 344 and so 4 at least in each.
	for i, least := range []int{6, 2, 4, 4} {
		if got[i].Count < least {
			t.Errorf("endpoint %d: %d replicas, want at least %d", i, got[i].Count, least)
		}
	}
	if a, b := got[0].Count+got[1].Count, got[2].Count+got[3].Count; a != 8 || b != 9 {
		t.Errorf("%d and %d replicas, want 8 and 9", a, b)
	}
	first := got[0]
	if first.PeakTPS < 689.9 || first.PeakTPS > 690.1 || first.From != 3*time.Hour || first.Until != 4*time.Hour ||
		len(first.Course) != 6 || first.CourseStep != 10*time.Minute || first.ReplicaTPS != 100 {
		t.Errorf("got %+v", first)
	}
}

// More than what is allowed is planned for as far as it is.
func TestTargetsBeyondTheBounds(t *testing.T) {
	hourly := Hourly{Forecaster: forecast.MovingAverage()}
	got, err := hourly.Targets(0, []Demand{steady("a", "r", 5000), steady("a", "s", 650)})
	if err != nil || got[0].Count != 20 || got[1].Count != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTargetsRefuse(t *testing.T) {
	hourly := Hourly{}
	empty := steady("a", "r", 1)
	empty.Interactive.Values = nil
	for _, c := range []struct {
		name    string
		demands []Demand
		want    string
	}{
		{"no history", []Demand{empty}, "a in r"},
		{"another order", []Demand{steady("a", "r", 1), steady("a", "s", 1), steady("b", "s", 1)}, "model b: region s: want the regions [r s]"},
		{"a region too many", []Demand{steady("a", "r", 1), steady("b", "r", 1), steady("b", "s", 1)}, "model b: region s: want the regions [r]"},
		{"nobody", nil, "must not be empty"},
	} {
		if _, err := hourly.Targets(0, c.demands); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// The same load at another price is the same plan.
func TestTargetsDoNotDependOnPrices(t *testing.T) {
	demands := []Demand{steady("a", "r", 650), steady("a", "s", 320)}
	cheap, err := Hourly{Price: 1, StartCost: 0.1}.Targets(0, demands)
	if err != nil {
		t.Fatal(err)
	}
	dear, err := Hourly{Price: 98.32, StartCost: 9.832}.Targets(0, demands)
	if err != nil || cheap[0].Count != dear[0].Count || cheap[1].Count != dear[1].Count {
		t.Errorf("%v: %+v and %+v", err, cheap, dear)
	}
}
