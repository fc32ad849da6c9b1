package tui

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// staleAfter is the age from which metrics are marked as stale: ten heartbeat intervals,
// after which a peer is lost.
const staleAfter = time.Second

// regionsOf returns the regions of a snapshot sorted by name, so that they keep their
// order when another balancer responds.
func regionsOf(s *telemetry.Snapshot) []*telemetry.RegionSnapshot {
	regions := make([]*telemetry.RegionSnapshot, len(s.Regions))
	for i := range s.Regions {
		regions[i] = &s.Regions[i]
	}
	slices.SortStableFunc(regions, func(a, b *telemetry.RegionSnapshot) int {
		return compareNatural(string(a.Name), string(b.Name))
	})
	return regions
}

// findRegion returns the region of that name, or nil.
func findRegion(s *telemetry.Snapshot, name service.Region) *telemetry.RegionSnapshot {
	if s == nil {
		return nil
	}
	for i := range s.Regions {
		if s.Regions[i].Name == name {
			return &s.Regions[i]
		}
	}
	return nil
}

// balancersState summarises the states of a region's balancers: their common state, or
// how many are ready.
func balancersState(balancers []telemetry.BalancerSnapshot) string {
	if len(balancers) == 0 {
		return "NO BALANCER"
	}
	ready, common := 0, string(balancers[0].State)
	for _, b := range balancers {
		if b.State == service.StateReady {
			ready++
		}
		if string(b.State) != common {
			common = ""
		}
	}
	if len(balancers) > 1 && (common == "" || common == string(service.StateReady)) {
		return fmt.Sprintf("READY %d/%d", ready, len(balancers))
	}
	return common
}

// balancerMark returns the symbol of a balancer's state.
func (g glyphs) balancerMark(state service.ReplicaState) (string, role) {
	switch state {
	case service.StateReady:
		return g.ready, roleGood
	case service.StateProvisioning, service.StateStarting:
		return g.starting, roleWarn
	case service.StateNotReady:
		return g.warning, roleBad
	case service.StateDraining:
		return g.draining, roleWarn
	case service.StateUnreachable, service.StateInterrupted:
		return g.failed, roleBad
	}
	return "?", roleWarn
}

// balancersMark returns the symbol of the worst state of a region's balancers.
func (g glyphs) balancersMark(balancers []telemetry.BalancerSnapshot) (string, role) {
	state := service.StateReady
	for _, b := range balancers {
		if b.State == service.StateUnreachable || stateRank[b.State] < stateRank[state] {
			state = b.State
		}
	}
	switch {
	case len(balancers) == 0:
		return g.warning, roleBad
	case state == service.StateUnreachable && balancersState(balancers) != string(state):
		return g.warning, roleBad
	}
	return g.balancerMark(state)
}

// metricsAge returns the age of a region's metrics: that of its oldest reachable balancer;
// of the youngest when none is reachable. known is false without balancers.
func metricsAge(r *telemetry.RegionSnapshot) (ms int64, known bool) {
	oldest, youngest, reachable := int64(0), int64(0), false
	for i, b := range r.Balancers {
		if b.Responds() {
			oldest, reachable = max(oldest, b.AgeMillis), true
		}
		if i == 0 || b.AgeMillis < youngest {
			youngest = b.AgeMillis
		}
	}
	if reachable {
		return oldest, true
	}
	return youngest, len(r.Balancers) > 0
}

// nearestRTT returns the shortest round-trip time to a region's balancers in milliseconds,
// nil if none was measured.
func nearestRTT(r *telemetry.RegionSnapshot) *float64 {
	var nearest *float64
	for i := range r.Balancers {
		if rtt := r.Balancers[i].RTTMillis; rtt != nil && (nearest == nil || *rtt < *nearest) {
			nearest = rtt
		}
	}
	return nearest
}

// readyCount returns the number of ready replicas.
func readyCount(replicas []telemetry.ReplicaSnapshot) int {
	return countInState(replicas, service.StateReady)
}

// donatedCount returns the number of donated replicas, which serve other work.
func donatedCount(replicas []telemetry.ReplicaSnapshot) int {
	return countInState(replicas, service.StateDonated)
}

func countInState(replicas []telemetry.ReplicaSnapshot, state service.ReplicaState) int {
	n := 0
	for i := range replicas {
		if replicas[i].State == state {
			n++
		}
	}
	return n
}

// totals are the metrics of the whole service in the header. A sum is nil when no region
// reports the metric.
type totals struct {
	ready, replicas, queued int
	requests, tokens        *float64
}

func totalsOf(s *telemetry.Snapshot) totals {
	var t totals
	for _, r := range regionsOf(s) {
		t.replicas += len(r.Replicas) - donatedCount(r.Replicas)
		t.ready += readyCount(r.Replicas)
		t.queued += r.Queued
		t.requests = addOptional(t.requests, r.RequestsPerSecond)
		t.tokens = addOptional(t.tokens, r.OutputTokensPerSecond)
	}
	return t
}

// addOptional returns sum + v; nil is unknown and adds nothing.
func addOptional(sum, v *float64) *float64 {
	if v == nil {
		return sum
	}
	total := *v
	if sum != nil {
		total += *sum
	}
	return &total
}

// compareNatural orders names as naturalLess does.
func compareNatural(a, b string) int {
	switch {
	case a == b:
		return 0
	case naturalLess(a, b):
		return -1
	}
	return 1
}
