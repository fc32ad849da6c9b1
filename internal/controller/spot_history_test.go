package controller

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// spotMachines are machines with a history of spot machines and nothing else.
type spotMachines struct{ provision.SpotHistory }

func (m *spotMachines) Reconcile(context.Context, func() error) bool { return false }
func (m *spotMachines) Wait()                                        {}

func (m *spotMachines) SpotRecord() provision.SpotRecord         { return m.Record() }
func (m *spotMachines) RestoreSpotRecord(r provision.SpotRecord) { m.Restore(r) }

// spotLoop returns a control loop with new machines over a store.
func spotLoop(st state) (*controlLoop, *spotMachines) {
	m := &spotMachines{}
	log := slog.New(slog.DiscardHandler)
	r := newControlLoop(nil, log)
	r.machines, r.spot = m, newSpotHistory("chat", st, m, log)
	return r, m
}

// The history of spot machines survives the process. While the store cannot be read, nothing is overwritten.
func TestSpotHistoryOutlivesController(t *testing.T) {
	now := time.Now()
	zone := func(name string) provision.Offering {
		return provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: name, Capacity: service.CapacitySpot}
	}
	st, l := &fakeState{}, &fakeLease{}
	first, machines := spotLoop(st)
	machines.Add(zone("a"), now)
	first.runOnce(t.Context(), l)
	if !strings.Contains(string(st.data), `"token":7`) || !strings.Contains(string(st.data), `"version":1`) {
		t.Errorf("stored %s", st.data)
	}
	written := st.revision
	first.runOnce(t.Context(), l)
	if st.revision != written {
		t.Error("an unchanged history was stored again")
	}

	next, after := spotLoop(st)
	st.down = true
	after.Add(zone("b"), now)
	next.runOnce(t.Context(), l)
	st.down = false
	next.runOnce(t.Context(), l)
	for _, name := range []string{"a", "b"} {
		if got := after.Penalty(zone(name), now); got < 0.99 {
			t.Errorf("zone %s: %g events, want 1", name, got)
		}
	}
	third, last := spotLoop(st)
	third.runOnce(t.Context(), l)
	if last.Penalty(zone("b"), now) < 0.99 {
		t.Errorf("what was recorded during the outage was lost: %s", st.data)
	}
}

// An unreadable history is replaced: it is only advice.
func TestUnreadableSpotHistoryIsReplaced(t *testing.T) {
	st := &fakeState{data: []byte("{"), revision: 3}
	r, m := spotLoop(st)
	m.Add(provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: "a", Capacity: service.CapacitySpot}, time.Now())
	r.runOnce(t.Context(), &fakeLease{})
	if !strings.Contains(string(st.data), "us-east-1") {
		t.Errorf("stored %q", st.data)
	}
}

// A new term reads what another leader has stored meanwhile.
func TestSpotHistoryFollowsOtherLeader(t *testing.T) {
	st, l := &fakeState{}, &fakeLease{}
	a, first := spotLoop(st)
	a.runOnce(t.Context(), l)
	b, second := spotLoop(st)
	o := provision.Offering{Type: "g6.xlarge", Region: "aws/us-east-1", Zone: "a", Capacity: service.CapacitySpot}
	second.Add(o, time.Now())
	b.runOnce(t.Context(), l)
	a.spot.startTerm()
	a.runOnce(t.Context(), l)
	if first.Penalty(o, time.Now()) < 0.99 {
		t.Error("the first controller does not know the event")
	}
}
