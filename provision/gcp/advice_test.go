package gcp_test

import (
	"net/http"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Google advises on spot machines by type and zone.
func TestCapacityAdvice(t *testing.T) {
	g := newGCE(nil)
	g.SetObtainability("us-central1-a", "g2-standard-4", 0.8)
	offers := provision.Offerings{offer("g2-standard-4", service.CapacityOnDemand), offer("g2-standard-4", service.CapacitySpot)}
	got, err := provider(g).CapacityAdvice(t.Context(), here, offers, 2)
	if err != nil || len(got) != 1 || got[0].Score == nil || *got[0].Score != 0.8 {
		t.Fatalf("got %+v, %v, want a score of 0.8", got, err)
	}
	got[0].Score = nil
	if got[0] != (provision.CapacityAdvice{Type: "g2-standard-4", Zone: "us-central1-a", Text: "obtainability 0.8, expected uptime at least 3600s"}) {
		t.Errorf("got %+v", got[0])
	}
	g.FailCalls("compute.advice.capacity", http.StatusForbidden, "forbidden", "Required 'compute.advice.capacity' permission")
	if _, err := provider(g).CapacityAdvice(t.Context(), here, offers, 2); err == nil {
		t.Error("no error without the permission")
	}
}
