package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// FaultKind is a kind of fault.
type FaultKind string

// The kinds of fault, with the fields of Fault that each uses besides From and To.
const (
	// ReplicaDown: Replica stops and restarts with an empty cache. Its requests are lost;
	// new connections are refused until it restarts.
	ReplicaDown FaultKind = "replica-down"
	// ReplicaSlow: Replica is slower by Factor.
	ReplicaSlow FaultKind = "replica-slow"
	// LinkCut: the link between the balancers of Region and Peer is cut. Requests between them break at
	// both ends.
	LinkCut FaultKind = "link-cut"
	// ProbeLoss: the Share of probes is lost: of Replica, of those in Region, or of all if neither is
	// set.
	ProbeLoss FaultKind = "probe-loss"
	// ReportDelay: probe reports are delayed by Delay; replicas as in ProbeLoss.
	ReportDelay FaultKind = "report-delay"
	// NoMetrics: the reports of replicas contain no figures; replicas as in ProbeLoss.
	NoMetrics FaultKind = "no-metrics"
	// BalancerDown: Region's Balancer, or all of its balancers, stop and restart without state. Their
	// requests are lost to the clients, who retry, and to peers; the nearest balancer adopts their
	// replicas until they restart.
	BalancerDown FaultKind = "balancer-down"
)

// FaultKinds returns all kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{ReplicaDown, ReplicaSlow, LinkCut, ProbeLoss, ReportDelay, NoMetrics, BalancerDown}
}

// usedFields lists the fields of Fault that a kind uses besides Kind, From and To, by their keys in files.
var usedFields = map[FaultKind][]string{
	ReplicaDown:  {"replica"},
	ReplicaSlow:  {"replica", "factor"},
	LinkCut:      {"region", "peer"},
	ProbeLoss:    {"replica", "region", "share"},
	ReportDelay:  {"replica", "region", "delay"},
	NoMetrics:    {"replica", "region"},
	BalancerDown: {"region", "balancer"},
}

// Fault is a fault from From until To.
type Fault struct {
	Kind FaultKind
	// To = 0 means the end of the run.
	From, To time.Duration
	// Replica is an ID such as us-01: the first replica of region us.
	Replica string
	Region  string
	Peer    string
	// Balancer is the number of a balancer in the region, from 1; 0 = all.
	Balancer int
	Factor   float64 // at least 1
	Share    float64 // 0 to 1
	Delay    time.Duration
}

const (
	// adoptionDelay is the time until the replicas of a stopped balancer are adopted: the third failed probe of the
	// controller, with one every 500 ms (internal/controller/leader.go), is 1 to 1.5 s after the stop.
	adoptionDelay = 1250 * time.Millisecond
	// maxSlowdown is the maximum Factor of ReplicaSlow.
	maxSlowdown = 1000
	// maxReportDelay is the maximum Delay of ReportDelay.
	maxReportDelay = time.Hour
)

func faultKindList() string {
	var names []string
	for _, k := range FaultKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// replicaID returns the ID of the i-th replica of a region.
func replicaID(region string, i int) string { return fmt.Sprintf("%s-%02d", region, i+1) }

// ofProbes reports whether the fault is of probes, not of replicas, links or balancers.
func (k FaultKind) ofProbes() bool { return k == ProbeLoss || k == ReportDelay || k == NoMetrics }

// same reports whether two faults affect the same object.
func (f *Fault) same(o *Fault) bool {
	if f.Kind != o.Kind || f.Kind.ofProbes() {
		return false
	}
	ends := func(x *Fault) []string { e := []string{x.Region, x.Peer}; slices.Sort(e); return e }
	if f.Balancer != o.Balancer && f.Balancer != 0 && o.Balancer != 0 {
		return false
	}
	return f.Replica == o.Replica && slices.Equal(ends(f), ends(o))
}

// end returns the end of a fault.
func (s *Scenario) end(f *Fault) time.Duration {
	if f.To == 0 {
		return s.Duration
	}
	return f.To
}

// affects reports whether a probe fault currently affects a replica.
func (w *world) affects(f *Fault, r *replica) bool {
	if w.now < f.From || w.now >= w.scenario.end(f) {
		return false
	}
	if f.Replica != "" {
		return f.Replica == r.id
	}
	return f.Region == "" || f.Region == w.scenario.Regions[r.region].Name
}
