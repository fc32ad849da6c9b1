package deploy_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// A machine whose end is known is replaced before it, even at replicas.max, and only once.
func TestEndingMachineIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorldOf(t, strings.Replace(spotFirst, "min: 2, max: 3", "min: 1, max: 1", 1))
		end := time.Now().Add(2 * time.Hour)
		u.ChangeObject("us-east-1-0", func(o *provision.Object) {
			offer := *o.Offering
			offer.Block, offer.Ends = true, end
			o.Offering = &offer
		})
		rc := u.reconciler()
		rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
			seen := map[string]deploy.AgentReport{}
			for _, o := range have {
				seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady}}
			}
			return seen
		})
		for _, c := range []struct {
			left time.Duration
			want []string
		}{{31 * time.Minute, []string{"us-east-1-0"}}, {29 * time.Minute, []string{"us-east-1-0", "us-east-1-1"}}, {time.Minute, []string{"us-east-1-0", "us-east-1-1"}}} {
			time.Sleep(time.Until(end.Add(-c.left)))
			u.reconcileFor(t, rc, 10*time.Second, always)
			if got := u.replicas(); !slices.Equal(got, c.want) {
				t.Errorf("%s before the end: %q, want %q", c.left, got, c.want)
			}
		}
		u.ChangeObject("us-east-1-0", nil)
		u.reconcileFor(t, rc, time.Minute, always)
		if got := u.replicas(); !slices.Equal(got, []string{"us-east-1-1"}) {
			t.Errorf("after the end: %q", got)
		}
	})
}

// A replica that its cloud interrupts is replaced during the notice, even at replicas.max. Scheduled maintenance, after
// which the machine comes back, is not such an end.
func TestInterruptedReplicaIsReplacedAtMax(t *testing.T) {
	for notice, want := range map[time.Duration][]string{
		2 * time.Minute: {"us-east-1-0", "us-east-1-1"},
		time.Hour:       {"us-east-1-0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := newReconcilerWorldOf(t, strings.Replace(spotFirst, "min: 2, max: 3", "min: 1, max: 1", 1))
			rc, end := u.reconciler(), time.Now().Add(notice)
			rc.SetProber(func(have []provision.Object) map[string]deploy.AgentReport {
				seen := map[string]deploy.AgentReport{}
				for _, o := range have {
					seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady}}
				}
				seen["us-east-1-0"] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseInterrupted, InterruptionAt: end}}
				return seen
			})
			u.reconcileFor(t, rc, 10*time.Second, always)
			if got := u.replicas(); !slices.Equal(got, want) {
				t.Errorf("notice of %v: %q, want %q", notice, got, want)
			}
		})
	}
}

// Balancers stop using a machine shortly before its end, if another one serves its model.
func TestDrainedBeforeEnd(t *testing.T) {
	now := time.Unix(1e9, 0)
	machine := func(id, model string, left time.Duration) provision.Object {
		o := provision.Object{ID: id, Kind: provision.KindReplica, Labels: map[string]string{"model": model}, Offering: &provision.Offering{}}
		if left > 0 {
			o.Offering.Ends = now.Add(left)
		}
		return o
	}
	have := []provision.Object{
		machine("soon", "a", 4*time.Minute), machine("later", "a", 6*time.Minute),
		machine("last", "b", 4*time.Minute), machine("starting", "b", 0),
		machine("alone", "c", 4*time.Minute), machine("drained", "c", 0),
	}
	seen := map[string]deploy.AgentReport{}
	for _, o := range have {
		seen[o.ID] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseReady}}
	}
	seen["starting"] = deploy.AgentReport{Status: agent.Status{Phase: agent.PhaseWeights}}
	got := deploy.DrainedBeforeEnd(map[string]bool{"drained": true}, have, seen, now)
	if want := map[string]bool{"soon": true}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// reportedReservations is a provider that reports reservations.
type reportedReservations struct {
	provision.Provider
	all []provision.Reservation
}

func (p reportedReservations) Reservations(_ context.Context, region service.Region, _ []string) ([]provision.Reservation, error) {
	return slices.DeleteFunc(slices.Clone(p.all), func(v provision.Reservation) bool { return v.Region != region }), nil
}

// The status contains the reservations with their end, and the end of a machine.
func TestStatusShowsEnds(t *testing.T) {
	m, i := newInspector(t, nil)
	ends := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	m.ChangeObject("us-east-1-0", func(o *provision.Object) {
		offer := *o.Offering
		offer.Ends = ends
		o.Offering = &offer
	})
	spec := *i.Deployer.Spec
	spec.Regions = slices.Clone(spec.Regions)
	spec.Regions[0].Reserved = []service.Reservation{{ID: "cr-0a", Type: "g6.xlarge", Count: 1}, {ID: "cr-0unknown", Type: "g6.xlarge", Count: 1}}
	i.Deployer.Spec = &spec
	i.Deployer.Provider = reportedReservations{i.Deployer.Provider, []provision.Reservation{{ID: "cr-0a", Region: "aws/us-east-1", State: "active", Active: true, Ends: ends}}}
	s, err := i.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Reservations) != 1 || s.Reservations[0].ID != "cr-0a" || !s.Reservations[0].Ends.Equal(ends) {
		t.Errorf("got %+v", s.Reservations)
	}
	if got := machineState(t, s, "us-east-1-0"); got != "READY its cloud terminates it at 2026-12-01T12:00:00Z" {
		t.Errorf("got %q", got)
	}
}
