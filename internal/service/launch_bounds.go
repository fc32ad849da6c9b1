package service

import (
	"cmp"
	"time"
)

// Budget is the maximum cost of a service's machines.
type Budget struct {
	// PerHour is in USD per hour for all running machines together, balancers included.
	PerHour float64 `yaml:"per_hour" json:"per_hour"`
}

// minLaunchesPerHour is the smallest default of autoscale.max_launches_per_hour: a small service may lose
// all its spot machines several times within an hour.
const minLaunchesPerHour = 20

// ReadyTimeoutOf returns the time by which a replica of a model must be ready.
func (s *Spec) ReadyTimeoutOf(model string) time.Duration {
	byDefault, _ := defaults["Model.ready_timeout"].value.(time.Duration)
	m := s.ModelByName(model)
	if m == nil {
		return byDefault
	}
	return cmp.Or(m.ReadyTimeout, byDefault)
}

// LaunchesPerHour returns the maximum number of machines that the controller launches within an hour. By
// default it is twice the sum of replicas.max: enough to grow to replicas.max and to replace every replica
// once, while a loop of failing launches ends there.
func (s *Spec) LaunchesPerHour() int {
	if n := s.Autoscale.MaxLaunchesPerHour; n > 0 {
		return n
	}
	sum := 0
	for i := range s.Models {
		for j := range s.Regions {
			if r := &s.Regions[j]; r.Name.Cloud() != CloudStatic {
				sum += s.BoundsFor(s.Models[i].Name, r.Name).Max
			}
		}
	}
	return max(minLaunchesPerHour, 2*sum)
}

// BudgetPerHour returns the maximum cost of the service's machines in USD per hour; 0 = unlimited.
func (s *Spec) BudgetPerHour() float64 {
	if s.Autoscale.Budget == nil {
		return 0
	}
	return s.Autoscale.Budget.PerHour
}
