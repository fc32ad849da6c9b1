package telemetry

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
)

func TestDonatedReplicasAreListed(t *testing.T) {
	since := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	until := since.Add(time.Hour)
	s := Snapshot{Regions: []RegionSnapshot{
		{Name: "local/eu", Replicas: []ReplicaSnapshot{{ID: "eu-0", State: service.StateReady}}},
		{Name: "local/us", Replicas: []ReplicaSnapshot{
			{ID: "us-1", State: service.StateDraining, Outstanding: 1}, {ID: "us-2", State: service.StateReady}, {ID: "us-3", State: service.StateReady},
		}},
	}}
	s.AddScaling(nil)
	if s.Strategy != "" || len(s.Donations) != 0 {
		t.Fatalf("got %+v", s)
	}
	s.AddScaling(&Scaling{Strategy: "lt-ua", Donations: []Donation{
		{Replica: "us-0", Region: "local/us", Model: "m", Since: since, Until: &until, RevenuePerHour: 0.3},
		{Replica: "us-1", Region: "local/us", Since: since, RevenuePerHour: 0.3},
		{Replica: "us-2", Region: "local/us", Since: since}, // serves again, and the controller has not reported it yet
	}})
	want := []ReplicaSnapshot{
		{ID: "us-0", Model: "m", State: service.StateDonated, Donated: true, Unattached: true, Reason: "donated since 2026-03-01T14:00:00Z, removed at 2026-03-01T15:00:00Z unless reclaimed"},
		{ID: "us-1", State: service.StateDraining, Outstanding: 1, Donated: true},
		{ID: "us-2", State: service.StateReady},
		{ID: "us-3", State: service.StateReady},
	}
	if got := s.Regions[1].Replicas; len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i, r := range s.Regions[1].Replicas {
		if !reflect.DeepEqual(r, want[i]) {
			t.Errorf("got %+v, want %+v", r, want[i])
		}
	}
	if len(s.Regions[0].Replicas) != 1 {
		t.Errorf("got %+v", s.Regions[0].Replicas)
	}
	if got := s.DonationLine(); got != "3 replicas donated (us-0, us-1, us-2), revenue $0.60/h" {
		t.Errorf("got %q", got)
	}
}

func TestEventLines(t *testing.T) {
	e := Event{
		At: time.Date(2026, 3, 1, 14, 2, 5, 0, time.UTC), Actor: ActorAutoscaler, Kind: EventLaunch, Region: "local/us",
		Object: "us-3", Message: "launched us-3", Reason: "KV memory 71 % used, above 70 %, 5 replicas planned; replicas before: 3",
	}
	s := Snapshot{Events: []Event{{Actor: ActorAutoscaler}, e, {Actor: ActorController}}}
	lines := s.EventLines(time.UTC, 1)
	if want := "14:02:05 autoscaler: us: launched us-3: KV memory 71 % used, above 70 %, 5 replicas planned; replicas before: 3"; len(lines) != 1 || lines[0] != want {
		t.Errorf("got %q", lines)
	}
}
