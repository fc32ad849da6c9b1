package gcp_test

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// Reservations are found by name in every zone of the region, also those of another project.
func TestReservationsByID(t *testing.T) {
	g := newGCE(nil)
	ends := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	g.PutReservation(testcloud.GCEReserved{Name: "mine", Zone: "us-central1-b", Type: "g2-standard-4", Count: 2})
	g.PutReservation(testcloud.GCEReserved{Project: "other", Name: "shared", Zone: "us-central1-a", Type: "a3-highgpu-8g", Count: 1, Status: "CREATING", Deleted: ends})
	p := provider(g)
	w := replica("us-central1-0", service.CapacityReserved)
	w.Offerings[0].Zone, w.Offerings[0].Reservation = "us-central1-b", "mine"
	launched(t, p, w)
	got, err := p.Reservations(t.Context(), "gcp/us-central1", []string{"mine", "projects/other/reservations/shared", "none"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].Ends = got[i].Ends.UTC()
	}
	want := []provision.Reservation{
		{ID: "mine", Region: "gcp/us-central1", Type: "g2-standard-4", Zone: "us-central1-b", State: "READY", Active: true, Total: 2, Free: 1, Owner: "p"},
		{ID: "projects/other/reservations/shared", Region: "gcp/us-central1", Type: "a3-highgpu-8g", Zone: "us-central1-a", State: "CREATING", Pending: true, Total: 1, Free: 1, Owner: "other", Ends: ends},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
