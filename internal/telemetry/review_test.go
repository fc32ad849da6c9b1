package telemetry

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func usd(v float64) *float64 { return &v }

func TestPlanLine(t *testing.T) {
	at := time.Date(2027, 1, 15, 1, 0, 0, 0, time.UTC)
	us := PlanChange{Model: "m", Region: "aws/us", GPU: "L4", Delta: 2}
	eu := PlanChange{Model: "m", Region: "aws/eu", GPU: "2xL4", Delta: -1}
	other := PlanChange{Model: "big", Region: "aws/eu", GPU: "H100", Delta: 1}
	tests := []struct {
		name string
		plan *PlanSummary
		want string
	}{
		{"none", nil, ""},
		{"no change", &PlanSummary{At: at, Status: "optimal"}, "plan of 01:00: no change"},
		{"changes", &PlanSummary{At: at, Status: "optimal", Changes: []PlanChange{us, eu}, CostPerHour: PlanCost{usd(3.2), usd(4)}}, "plan of 01:00: us +2 L4, eu -1 2xL4; $3.20/h -> $4.00/h"},
		{"not billed", &PlanSummary{At: at, Status: "feasible", Changes: []PlanChange{us}, CostPerHour: PlanCost{usd(0), usd(0)}}, "plan of 01:00: us +2 L4"},
		{"several models", &PlanSummary{At: at, Status: "optimal", Changes: []PlanChange{us, other}}, "plan of 01:00: m us +2 L4, big eu +1 H100"},
		{"infeasible", &PlanSummary{At: at, Status: "infeasible", Infeasible: []string{"m in us: needs more"}}, "plan of 01:00: infeasible: m in us: needs more"},
		{"unknown", &PlanSummary{At: at, Status: "unknown"}, "plan of 01:00: unknown"},
		{"old", &PlanSummary{At: at, Status: "optimal", Error: "no balancer responds: GET a\nGET b"}, "plan of 01:00: no change; later planning failed: no balancer responds: GET a GET b"},
		{"failed from the first", &PlanSummary{At: at, Error: "no balancer responds"}, "plan: no balancer responds"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&Snapshot{Plan: tt.plan}).PlanLine(time.UTC); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPeakAndDeviationLines(t *testing.T) {
	us := LoadForecast{Model: "m", Region: "aws/us", StepSeconds: 300, MeanTPS: make([]float64, 12), Peak: Peak{Mean: 1700, P95: 3400.4}}
	eu := LoadForecast{Model: "m", Region: "aws/eu", Peak: Peak{Mean: 60, P95: 120}, Deviation: "5.0x the forecast, for 12m (burst)"}
	big := LoadForecast{Model: "big", Region: "aws/eu", Peak: Peak{P95: 1}, Deviation: "0.4x the forecast, for 20m (below)"}
	tests := []struct {
		name       string
		all        []LoadForecast
		peak, left string
	}{
		{"none", nil, "", ""},
		{"one model", []LoadForecast{us, eu}, "forecast for the next 1h: peak p95 us 3400, eu 120 uncached prompt tok/s", "load deviates from forecast: eu 5.0x the forecast, for 12m (burst)"},
		{"two models", []LoadForecast{us, big}, "forecast for the next 1h: peak p95 m us 3400, big eu 1 uncached prompt tok/s", "load deviates from forecast: big eu 0.4x the forecast, for 20m (below)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &Snapshot{Forecast: tt.all}
			if got := s.PeakLine(); got != tt.peak {
				t.Errorf("got %q, want %q", got, tt.peak)
			}
			if got := s.DeviationLine(); got != tt.left {
				t.Errorf("got %q, want %q", got, tt.left)
			}
		})
	}
}

func TestPeakLineShowsTheWholeHorizon(t *testing.T) {
	for steps, want := range map[int]string{0: "0s", 6: "30m", 12: "1h", 18: "1h30m", 26: "2h10m", 120: "10h"} {
		s := &Snapshot{Forecast: []LoadForecast{{Model: "m", Region: "aws/us", StepSeconds: 300, MeanTPS: make([]float64, steps)}}}
		if got := s.PeakLine(); !strings.HasPrefix(got, "forecast for the next "+want+": ") {
			t.Errorf("%d steps of 5m: got %q, want %s", steps, got, want)
		}
	}
}

func TestEarlierForecasts(t *testing.T) {
	at := time.Date(2027, 1, 15, 1, 0, 0, 0, time.UTC)
	of := func(start time.Duration, step float64, means ...float64) *LoadForecast {
		return &LoadForecast{At: at.Add(start), StepSeconds: step, MeanTPS: means}
	}
	first := of(0, 300, 1, 2, 3)
	second := of(10*time.Minute, 300, 30, 40, 50)
	second.After(first)
	late := of(40*time.Minute, 300, 9)
	late.After(second)
	long := of(10*24*time.Hour, 300, 9)
	long.After(second)
	tests := []struct {
		name string
		next *LoadForecast
		want []any
	}{
		{"two steps later", second, []any{1.0, 2.0}},
		{"after a pause", late, []any{1.0, 2.0, 30.0, 40.0, 50.0, nil, nil, nil}},
	}
	for _, tt := range tests {
		var got []any
		for _, v := range tt.next.EarlierTPS {
			if v == nil {
				got = append(got, nil)
				continue
			}
			got = append(got, *v)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	if len(long.EarlierTPS) != MaxEarlierSteps {
		t.Errorf("%d steps are kept", len(long.EarlierTPS))
	}
	for name, previous := range map[string]*LoadForecast{"none": nil, "other steps": of(0, 60, 1), "a later one": of(20*time.Minute, 300, 1)} {
		next := of(10*time.Minute, 300, 1)
		if next.After(previous); next.EarlierTPS == nil || len(next.EarlierTPS) != 0 {
			t.Errorf("%s: got %v", name, next.EarlierTPS)
		}
	}
}
