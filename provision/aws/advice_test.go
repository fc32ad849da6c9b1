package aws_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// spotOffers returns the spot offerings of a region for one GPU.
func spotOffers(t *testing.T, p provision.Provider, region service.Region, gpu string) provision.Offerings {
	t.Helper()
	offers, err := p.Offerings(t.Context(), region)
	if err != nil {
		t.Fatal(err)
	}
	return offers.WithGPU(gpu, 1).SortedByCapacity([]service.CapacityType{service.CapacitySpot})
}

// Scores are by zone name although AWS returns zone ids, and cover all types with the same GPUs.
func TestSpotScoresAreByZoneName(t *testing.T) {
	fake := newCloud(nil)
	fake.SpotScore = func(zone string, types []string) int {
		if !slices.Contains(types, "g6.2xlarge") && !slices.Contains(types, "p5.4xlarge") {
			t.Errorf("asked about %v, want all types with the same GPUs", types)
		}
		return map[string]int{"us-east-1a": 9, "us-east-1b": 4, "us-east-1c": 1}[zone]
	}
	p := open(t, fake)
	for gpu, want := range map[string]string{
		"L4":   "g6.xlarge us-east-1a 9, g6.xlarge us-east-1b 4, g6.xlarge us-east-1c 1",
		"H100": "p5.4xlarge us-east-1a 1, p5.4xlarge us-east-1b 1, p5.4xlarge us-east-1c 1",
	} {
		advice, err := p.CapacityAdvice(t.Context(), east, slices.DeleteFunc(spotOffers(t, p, east, gpu), func(o provision.Offering) bool { return o.Type == "g6.4xlarge" }), 2)
		var got []string
		for _, a := range advice {
			got = append(got, fmt.Sprintf("%s %s %d", a.Type, a.Zone, *a.SpotScore))
			if a.Score == nil || *a.Score != float64(*a.SpotScore)/10 {
				t.Errorf("%s %s: the share of the best score is %v", a.Type, a.Zone, a.Score)
			}
			if low := strings.Contains(a.Text, "always low"); low != (gpu == "H100") {
				t.Errorf("%s: %q", gpu, a.Text)
			}
		}
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%s: got %v, %v, want %s", gpu, got, err, want)
		}
	}
}

// The limit of different requests has an error of its own. Repeated requests do not count.
func TestSpotScoreLimit(t *testing.T) {
	fake := newCloud(nil)
	now := time.Now()
	fake.Now = func() time.Time { return now }
	fake.MaxScoreRequests = 1
	p := open(t, fake)
	offers := spotOffers(t, p, east, "L4")
	for range 2 {
		if _, err := p.CapacityAdvice(t.Context(), east, offers, 1); err != nil {
			t.Fatal(err)
		}
	}
	_, err := p.CapacityAdvice(t.Context(), east, offers, 2)
	var limit *provision.AdviceLimitError
	if !errors.As(err, &limit) || !strings.Contains(err.Error(), "MaxConfigLimitExceeded") || !strings.Contains(limit.Hint, "24 hours") {
		t.Errorf("got %v, want the limit with a hint", err)
	}
	now = now.Add(24 * time.Hour)
	if _, err := p.CapacityAdvice(t.Context(), east, offers, 2); err != nil {
		t.Errorf("a day later: %v", err)
	}
}
