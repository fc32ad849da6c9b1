package provision_test

import (
	"math"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// spotIn returns an offering of a zone of aws/us-east-1.
func spotIn(zone string, capacity service.CapacityType) provision.Offering {
	return provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: zone, Capacity: capacity}
}

func TestSpotEventsDecay(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	var h provision.SpotHistory
	a := spotIn("a", service.CapacitySpot)
	h.Add(a, now)
	h.Add(a, now.Add(2*time.Hour))
	h.Add(spotIn("b", service.CapacityOnDemand), now)
	for _, c := range []struct {
		after time.Duration
		want  float64
	}{{2 * time.Hour, 1.5}, {4 * time.Hour, 0.75}, {48 * time.Hour, 0}} {
		if got := h.RecentEvents(a, now.Add(c.after)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("after %s: %g, want %g", c.after, got, c.want)
		}
	}
	if h.RecentEvents(spotIn("b", service.CapacityOnDemand), now) != 0 || h.RecentEvents(spotIn("b", service.CapacitySpot), now) != 0 {
		t.Error("an on-demand machine has a penalty")
	}
}

// An interrupted machine is listed many times, and counts once.
func TestInterruptionCountsOnce(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	var h provision.SpotHistory
	a := spotIn("a", service.CapacitySpot)
	for range 3 {
		h.AddInterrupted(provision.Object{ID: "us-0", Handle: "i-1", Offering: &a}, now)
	}
	h.AddInterrupted(provision.Object{ID: "us-0", Handle: "i-2", Offering: &a}, now)
	h.AddInterrupted(provision.Object{ID: "us-1", Handle: "i-3"}, now)
	if got := h.RecentEvents(a, now); got != 2 {
		t.Errorf("got %g events, want 2", got)
	}
}
