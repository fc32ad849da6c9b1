package provision_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// A restored history gives the same penalties, and counts no machine again.
func TestSpotRecordContinuesHistory(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	a := spotIn("a", service.CapacitySpot)
	m := provision.Object{ID: "us-0", Handle: "i-1", Region: a.Region, Offering: &a}
	var before, after provision.SpotHistory
	before.AddInterrupted(m, now)
	before.Add(spotIn("b", service.CapacitySpot), now.Add(-time.Hour))
	text, err := json.Marshal(before.Record())
	var stored provision.SpotRecord
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err != nil || !reflect.DeepEqual(stored, before.Record()) {
		t.Fatalf("%v: stored %+v, want %+v", err, stored, before.Record())
	}
	after.Restore(stored)
	if after.AddInterrupted(m, now) {
		t.Error("the machine is counted twice")
	}
	for _, zone := range []string{"a", "b"} {
		o := spotIn(zone, service.CapacitySpot)
		if got, want := after.RecentEvents(o, now), before.RecentEvents(o, now); got != want || want == 0 {
			t.Errorf("zone %s: %g, want %g", zone, got, want)
		}
	}
	if !after.InterruptedSince(a.Region, now) || after.InterruptedSince(a.Region, now.Add(1)) || after.InterruptedSince("aws/eu-west-1", now) {
		t.Error("the last interruption of the region differs")
	}
}

// A record that an older state follows does not change what is known, and another version is ignored.
func TestSpotRecordMerges(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	a := spotIn("a", service.CapacitySpot)
	var old, h provision.SpotHistory
	old.Add(a, now.Add(-time.Hour))
	h.Add(a, now)
	h.Restore(old.Record())
	if got := h.RecentEvents(a, now); got != 1 {
		t.Errorf("got %g, want the later state, 1", got)
	}
	other := h.Record()
	other.Version++
	var ignored provision.SpotHistory
	if ignored.Restore(other); !ignored.Record().Empty() {
		t.Errorf("another version was restored: %+v", ignored.Record())
	}
}

// The record is bounded, and keeps the latest events.
func TestSpotRecordIsBounded(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	var h provision.SpotHistory
	for i := range 2000 {
		o := spotIn(fmt.Sprintf("z%d", i), service.CapacitySpot)
		h.AddInterrupted(provision.Object{Handle: fmt.Sprintf("i-%d", i), Region: o.Region, Offering: &o}, now.Add(time.Duration(i)*time.Second))
	}
	r := h.Record()
	if len(r.Pools) > 1000 || len(r.Seen) > 1000 || r.Pools[0].Zone != "z1999" || r.Seen[0].Handle != "i-1999" {
		t.Errorf("%d pools, %d machines, the first %v and %v", len(r.Pools), len(r.Seen), r.Pools[0], r.Seen[0])
	}
}
