package core

import (
	"fmt"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// mute is a balancer with one replica of which only readiness is known. Its engine runs requests in
// slots, one step after another.
type mute struct {
	*testing.T
	b       *Balancer
	now     time.Duration
	slots   int
	at      []string // at the engine, in the order of their sends
	started map[string]bool
	sent    int
}

func newMute(t *testing.T, slots int) *mute {
	p, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	m := &mute{T: t, b: New(DefaultConfig(p)), slots: slots, started: map[string]bool{}}
	m.step(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	m.report(ProbeReport{Ready: true})
	return m
}

func (m *mute) step(ev Event) {
	for _, a := range m.b.Step(m.now, ev) {
		if a.Kind == ActionDispatch {
			m.at = append(m.at, a.ID)
		}
	}
}

func (m *mute) report(r ProbeReport) {
	m.step(Event{Kind: EventReplicaReport, Target: "r", Report: &r})
}

// serve serves n requests while 50 more wait.
func (m *mute) serve(n int, r ProbeReport) {
	for range n {
		m.now += 100 * time.Millisecond
		m.report(r)
		for m.sent-len(m.started) < 50 {
			m.sent++
			m.step(Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(m.sent), Model: "m"}})
		}
		for i := 0; i < min(m.slots, len(m.at)); i++ {
			if id := m.at[i]; !m.started[id] {
				m.started[id] = true
				m.step(Event{Kind: EventFirstToken, ID: id})
			}
		}
		m.now += 100 * time.Millisecond
		first := m.at[0]
		m.at = m.at[1:]
		m.step(Event{Kind: EventFinished, ID: first, Outcome: &Outcome{OutputTokens: policy.Known(20)}})
	}
}

func (m *mute) limit() policy.Maybe[int] { return m.b.Snapshot(m.now).Replicas[0].OutstandingLimit }

func TestLimitOfEngineWithoutMetricsIsLearned(t *testing.T) {
	m := newMute(t, 4)
	if got := m.limit(); got != policy.Known(DefaultConfig(nil).OutstandingLimit) {
		t.Errorf("before anything is known: %+v", got)
	}
	m.serve(300, ProbeReport{Ready: true})
	if got := m.limit(); !got.Known || got.Value < 4 || got.Value > 6 || len(m.at) > 6 {
		t.Errorf("with 4 slots: %+v, and %d are there", got, len(m.at))
	}
	// A replica that was not ready may be another engine.
	m.report(ProbeReport{Reason: "connection refused"})
	if got := m.limit(); got.Value != 24 {
		t.Errorf("after a restart: %+v", got)
	}
}

func TestReportedSlotsAreTheLimit(t *testing.T) {
	m := newMute(t, 4)
	m.serve(1, ProbeReport{Ready: true, Slots: policy.Known(4)})
	m.serve(100, ProbeReport{Ready: true, Slots: policy.Known(4)})
	if got := m.limit(); got != policy.Known(4) || len(m.at) > 24 {
		t.Errorf("got %+v, and %d are there", got, len(m.at))
	}
	for _, n := range []int{0, -1} {
		m.report(ProbeReport{Ready: true, Slots: policy.Known(n)})
		if got := m.limit(); got.Value < 5 {
			t.Errorf("with %d slots: %+v", n, got)
		}
	}
}

// The pending count of an engine decides as long as it is known and new.
func TestLimitAppliesOnlyWithoutPendingCount(t *testing.T) {
	m := newMute(t, 4)
	m.report(ProbeReport{Ready: true, Pending: policy.Known(0)})
	if got := m.limit(); got.Known {
		t.Errorf("with a pending count: %+v", got)
	}
	m.report(ProbeReport{Ready: true, Pending: policy.Known(0), MetricsAge: 400 * time.Millisecond})
	if got := m.limit(); !got.Known {
		t.Error("with an old pending count it is unknown")
	}
}
