package service

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const boundedFile = `name: chat
models:
  - {name: m, engine: {kind: sim}, gpus: [{type: L4}], ready_timeout: 2h}
  - {name: n, engine: {kind: sim}, gpus: [{type: L4}]}
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 12}}
  - {name: gcp/us-central1, replicas: {min: 1, max: 3}}
balancer: {insecure: true}
autoscale:
  budget: {per_hour: 40}
`

func TestLaunchBounds(t *testing.T) {
	s, err := Parse("service.yaml", []byte(boundedFile))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := s.ReadyTimeoutOf("m"), s.ReadyTimeoutOf("n"); a != 2*time.Hour || b != 45*time.Minute {
		t.Errorf("ready timeouts %s and %s, want 2h and 45m", a, b)
	}
	if got := s.LaunchesPerHour(); got != 60 { // two models, 12 + 3 replicas each, twice
		t.Errorf("%d launches an hour, want 60", got)
	}
	if got := s.BudgetPerHour(); got != 40 {
		t.Errorf("a budget of $%v, want 40", got)
	}
	s.Autoscale.MaxLaunchesPerHour, s.Autoscale.Budget = 7, nil
	if s.LaunchesPerHour() != 7 || s.BudgetPerHour() != 0 {
		t.Errorf("%d launches, $%v, want 7 and 0", s.LaunchesPerHour(), s.BudgetPerHour())
	}
	small := &Spec{Models: []Model{{Name: "m"}}, Regions: []RegionSpec{{Name: "local/us", Replicas: Bounds{Max: 2}}, {Name: "static/x", Replicas: Bounds{Max: 500}}}}
	if got := small.LaunchesPerHour(); got != 20 {
		t.Errorf("%d launches an hour for a small service, want 20", got)
	}
}

// Invalid bounds are reported with their place and value.
func TestLaunchBoundsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"budget: {per_hour: 0}":     "service.yaml:10:22: autoscale.budget.per_hour: must be greater than 0",
		"budget: {}":                "service.yaml:10:11: autoscale.budget.per_hour: is required",
		"max_launches_per_hour: 0":  "service.yaml:10:26: autoscale.max_launches_per_hour: must be at least 1, got 0",
		"max_launches_per_hour: -1": "service.yaml:10:26: autoscale.max_launches_per_hour: must be at least 1, got -1",
		"budget: {per_day: 3}":      "autoscale.budget.per_day: unknown key",
	} {
		_, err := Parse("service.yaml", []byte(strings.Replace(boundedFile, "budget: {per_hour: 40}", text, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	_, err := Parse("service.yaml", []byte(strings.Replace(boundedFile, "ready_timeout: 2h", "ready_timeout: 10s", 1)))
	if want := "service.yaml:3:71: models[0].ready_timeout: must be at least 1m"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// The checks of other packages report their problems together with those of the file. A problem that may follow from an
// error is omitted.
func TestParseWith(t *testing.T) {
	check := func(*Spec) Errors {
		return Errors{
			{Path: "autoscale.budget.per_hour", Problem: "must be at least 50", Found: "40", Suggestion: "raise it"},
			{Path: "models[0].gpus", Problem: "is required"},
		}
	}
	const budget, gpus = "service.yaml:10:22: autoscale.budget.per_hour: must be at least 50, got 40; raise it", "models[0].gpus: is required"
	const wrong = "models[0].ready_timeout: must be at least 1m"
	for _, tt := range []struct {
		from, to     string
		want, absent []string
	}{
		{"", "", []string{budget, gpus}, nil},
		{"ready_timeout: 2h", "ready_timeout: 10s", []string{wrong, budget}, []string{gpus}},
		{"budget: {per_hour: 40}", "budget: {per_hour: -1}", []string{"autoscale.budget.per_hour: must be", gpus}, []string{"at least 50"}},
	} {
		_, err := ParseWith("service.yaml", []byte(strings.Replace(boundedFile, tt.from, tt.to, 1)), check)
		got := fmt.Sprint(err)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in:\n%s", tt.to, want, got)
			}
		}
		for _, absent := range tt.absent {
			if strings.Contains(got, absent) {
				t.Errorf("%s: %q in:\n%s", tt.to, absent, got)
			}
		}
	}
}
