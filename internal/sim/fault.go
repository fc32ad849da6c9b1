package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// FaultKind says what goes wrong.
type FaultKind string

// The kinds of fault, with the fields of Fault that each of them reads beside
// From and To.
const (
	// ReplicaDown: Replica dies and comes back empty. What it was at is lost; who
	// asks meanwhile is refused.
	ReplicaDown FaultKind = "replica-down"
	// ReplicaSlow: Replica takes Factor times as long for everything.
	ReplicaSlow FaultKind = "replica-slow"
	// LinkCut: the balancers of Region and Peer do not reach each other. What was
	// under way between them breaks at both ends.
	LinkCut FaultKind = "link-cut"
	// ProbeLoss: the Share of the probes comes to nothing: of Replica, of those of
	// Region, or of all where neither is given.
	ProbeLoss FaultKind = "probe-loss"
	// ReportDelay: what probes read comes Delay later; of whom, as ProbeLoss.
	ReportDelay FaultKind = "report-delay"
	// BalancerDown: Region's Balancer, or all that it has, dies and comes back
	// knowing nothing. What it
	// held is lost to the clients, who ask again, and to its peers; the nearest
	// balancer adopts its replicas, which go home when it is back.
	BalancerDown FaultKind = "balancer-down"
)

// FaultKinds lists the kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{ReplicaDown, ReplicaSlow, LinkCut, ProbeLoss, ReportDelay, BalancerDown}
}

// Fault is something that goes wrong from From until To.
type Fault struct {
	Kind FaultKind
	// To 0 = to the end of the run.
	From, To time.Duration
	// Replica is named as us-01: the first one of region us.
	Replica string
	Region  string
	Peer    string
	// Balancer is which one of the region, from 1; 0 = all.
	Balancer int
	Factor   float64 // at least 1
	Share    float64 // 0 to 1
	Delay    time.Duration
}

const (
	// adoption is how long it takes until a dead balancer's replicas are adopted:
	// three heartbeats that did not come.
	adoption = 300 * time.Millisecond
	// slowest is the most that a replica can be slowed down.
	slowest = 1000
	// longestDelay bounds how late a report can come.
	longestDelay = time.Hour
)

func faultKindList() string {
	var names []string
	for _, k := range FaultKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// replicaID is what the i-th replica of a region is called.
func replicaID(region string, i int) string { return fmt.Sprintf("%s-%02d", region, i+1) }

// same says whether two faults turn the same thing on and off.
func (f *Fault) same(o *Fault) bool {
	if f.Kind != o.Kind || f.Kind == ProbeLoss || f.Kind == ReportDelay {
		return false
	}
	ends := func(x *Fault) []string { e := []string{x.Region, x.Peer}; slices.Sort(e); return e }
	if f.Balancer != o.Balancer && f.Balancer != 0 && o.Balancer != 0 {
		return false
	}
	return f.Replica == o.Replica && slices.Equal(ends(f), ends(o))
}

// end is when a fault ends.
func (s *Scenario) end(f *Fault) time.Duration {
	if f.To == 0 {
		return s.Duration
	}
	return f.To
}

// strikes says whether a fault of probes speaks of a replica now.
func (w *world) strikes(f *Fault, r *replica) bool {
	if w.now < f.From || w.now >= w.scenario.end(f) {
		return false
	}
	if f.Replica != "" {
		return f.Replica == r.id
	}
	return f.Region == "" || f.Region == w.scenario.Regions[r.region].Name
}
