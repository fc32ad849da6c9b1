package aws_test

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// Reservations are found by id, also those that another account shares. An unknown id is omitted.
func TestReservationsByID(t *testing.T) {
	cloud := newCloud(nil)
	p := open(t, cloud)
	ends := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	cloud.PutReservation("us-east-1", testcloud.Reservation{ID: "cr-0a", Zone: "us-east-1b", Type: "g6.xlarge", Count: 2})
	cloud.PutReservation("us-east-1", testcloud.Reservation{ID: "cr-0b", Zone: "us-east-1a", Type: "p5.48xlarge", Count: 1, State: "expired", Owner: "999988887777", Ends: ends})
	cloud.PutReservation("us-east-1", testcloud.Reservation{ID: "cr-0c", Zone: "us-east-1a", Type: "g6.xlarge", Count: 1})
	cloud.Configure(func() { cloud.PageSize = 1 })
	w := machine("us-east-1-0", provision.KindReplica, east, service.CapacityReserved)
	w.Offerings[0].Reservation, w.Offerings[0].Zone = "cr-0a", "us-east-1b"
	launchPrerequisites(t, p, east)
	launch(t, p, w)
	got, err := p.Reservations(t.Context(), east, []string{"cr-0a", "cr-0b", "cr-0d"})
	if err != nil {
		t.Fatal(err)
	}
	want := []provision.Reservation{
		{ID: "cr-0a", Region: east, Type: "g6.xlarge", Zone: "us-east-1b", State: "active", Active: true, Total: 2, Free: 1, Owner: testcloud.AWSAccount},
		{ID: "cr-0b", Region: east, Type: "p5.48xlarge", Zone: "us-east-1a", State: "expired", Total: 1, Free: 1, Owner: "999988887777", Ends: ends},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
