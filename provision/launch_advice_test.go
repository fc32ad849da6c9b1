package provision_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// advisor is a cloud that gives advice by zone.
type advisor struct {
	provision.Provider
	advice []provision.CapacityAdvice
	err    error
	asked  []int // the numbers of machines
}

func (a *advisor) CapacityAdvice(_ context.Context, _ service.Region, _ provision.Offerings, count int) ([]provision.CapacityAdvice, error) {
	a.asked = append(a.asked, count)
	return a.advice, a.err
}

// The advice on spot machines that are tried first is shown once for each type and region; an unlikely launch is a
// warning, before anything is billed.
func TestAdviseLaunches(t *testing.T) {
	at := func(zone string, c service.CapacityType) provision.Offering {
		return provision.Offering{Region: "aws/us-east-1", Zone: zone, Type: "g6.xlarge", Capacity: c}
	}
	machine := func(offers ...provision.Offering) provision.Desired {
		return provision.Desired{Region: "aws/us-east-1", Machine: &provision.MachineConfig{}, Offerings: offers}
	}
	spot := machine(at("a", service.CapacitySpot), at("b", service.CapacitySpot), at("a", service.CapacityOnDemand))
	advice := func(zone string, score float64, unlikely bool) provision.CapacityAdvice {
		return provision.CapacityAdvice{Zone: zone, Type: "g6.xlarge", Score: &score, Unlikely: unlikely, Text: "score of " + zone}
	}
	for _, tt := range []struct {
		name     string
		machines []provision.Desired
		cloud    *advisor
		asked    []int
		message  string // empty = no result
		warning  bool
		hint     string
	}{
		{"the best zone", []provision.Desired{spot, spot}, &advisor{advice: []provision.CapacityAdvice{advice("a", 0.1, true), advice("b", 0.9, false)}}, []int{2}, "capacity of 2 g6.xlarge (spot): score of b in b", false, ""},
		{"unlikely everywhere", []provision.Desired{spot}, &advisor{advice: []provision.CapacityAdvice{advice("a", 0.1, true)}}, []int{1}, "capacity of 1 g6.xlarge (spot): score of a in a, the best zone: a launch is unlikely", true, "add capacity types, GPUs or regions; 'skyserve offers' compares them"},
		{"unknown", []provision.Desired{spot}, &advisor{err: errors.New("denied")}, []int{1}, "capacity of 1 g6.xlarge (spot): unknown: denied", true, ""},
		{"out of requests", []provision.Desired{spot}, &advisor{err: &provision.AdviceLimitError{Err: errors.New("limit"), Hint: "wait"}}, []int{1}, "capacity of 1 g6.xlarge (spot): unknown: limit", true, "wait"},
		{"permission denied", []provision.Desired{spot}, &advisor{err: &provision.CredentialsError{Cloud: "aws", Action: "ec2:GetSpotPlacementScores", Err: errors.New("no"), Hint: "grant it"}}, []int{1}, "capacity of 1 g6.xlarge (spot): unknown: calling aws: permission denied for ec2:GetSpotPlacementScores: no", true, "grant it"},
		{"no advice", []provision.Desired{spot}, &advisor{}, []int{1}, "", false, ""},
		{"on demand first", []provision.Desired{machine(at("a", service.CapacityOnDemand), at("a", service.CapacitySpot))}, &advisor{}, nil, "", false, ""},
		{"no machine", []provision.Desired{{Region: "aws/us-east-1"}}, &advisor{}, nil, "", false, ""},
	} {
		got := provision.AdviseLaunches(t.Context(), provision.MultiCloud{"aws": tt.cloud}, tt.machines)
		if !slices.Equal(tt.cloud.asked, tt.asked) {
			t.Errorf("%s: asked for %v machines, want %v", tt.name, tt.cloud.asked, tt.asked)
		}
		if tt.message == "" {
			if len(got) != 0 {
				t.Errorf("%s: got %+v", tt.name, got)
			}
			continue
		}
		if len(got) != 1 || !got[0].OK || got[0].Message != tt.message || got[0].Warning != tt.warning || got[0].Hint != tt.hint || got[0].Where != "aws/us-east-1" {
			t.Errorf("%s: got %+v, want %q with hint %q", tt.name, got, tt.message, tt.hint)
		}
	}
}
