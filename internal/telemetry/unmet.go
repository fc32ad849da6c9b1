package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// Unmet is a GPU type on which fewer replicas run than the current plan requires.
type Unmet struct {
	Model  string
	Region service.Region
	TargetReplicas
	// Running is the number of replicas that run on it.
	Running int
}

// String returns a short description: us-east-1 runs 1 of 2 on spot H100.
func (u Unmet) String() string {
	gpus := u.GPU
	if u.GPUs > 1 {
		gpus = fmt.Sprintf("%dx%s", u.GPUs, u.GPU)
	}
	on := strings.TrimSpace(string(u.Capacity) + " " + gpus)
	return fmt.Sprintf("%s runs %d of %d on %s", u.Region.ShortName(), u.Running, u.Count, on)
}

// Unmet lists the planned replicas that do not run, by GPU and capacity type, except those of cold
// models, which start when a request waits, and those of regions whose balancer has not reported its replicas yet. Only GPUs are compared where replicas do not report their capacity type; targets without a GPU are
// skipped.
func (s *Snapshot) Unmet() []Unmet {
	var out []Unmet
	for _, t := range s.Targets {
		if s.isCold(t.Model) || s.awaitsReport(t.Region) {
			continue
		}
		hasCapacity := s.reportsCapacity(t)
		byGPU := map[string]int{}
		for _, c := range t.Replicas {
			byGPU[c.GPU] += c.Count
		}
		for _, c := range t.Replicas {
			if !hasCapacity {
				c.Capacity, c.Count = "", byGPU[c.GPU]
				delete(byGPU, c.GPU) // one line for all capacity types of a GPU
			}
			if running := s.running(t, c); c.GPU != "" && running < c.Count {
				out = append(out, Unmet{t.Model, t.Region, c, running})
			}
		}
	}
	return out
}

// awaitsReport reports whether a balancer of a region has not reported its replicas yet.
func (s *Snapshot) awaitsReport(region service.Region) bool {
	return slices.ContainsFunc(s.Regions, func(r RegionSnapshot) bool {
		return r.Name == region && slices.ContainsFunc(r.Balancers, func(b BalancerSnapshot) bool { return b.Reason == ReasonNoReport })
	})
}

// isCold reports whether a region reports that a model is cold.
func (s *Snapshot) isCold(model string) bool {
	for _, r := range s.Regions {
		for _, m := range r.Models {
			if m.Model == model && m.Cold {
				return true
			}
		}
	}
	return false
}

// running returns how many replicas of a target's model and region run on a GPU type and,
// if given, with a capacity type.
func (s *Snapshot) running(t PlannedCapacity, on TargetReplicas) (n int) {
	s.eachReplica(t, func(r *ReplicaSnapshot) {
		if r.GPU == on.GPU && (on.Capacity == "" || r.Capacity == on.Capacity) {
			n++
		}
	})
	return n
}

// reportsCapacity reports whether all replicas of a target report their capacity type.
func (s *Snapshot) reportsCapacity(t PlannedCapacity) bool {
	hasCapacity := true
	s.eachReplica(t, func(r *ReplicaSnapshot) { hasCapacity = hasCapacity && r.Capacity != "" })
	return hasCapacity
}

// eachReplica calls f with each replica of a target's model and region that is attached to a balancer and not donated.
func (s *Snapshot) eachReplica(t PlannedCapacity, f func(*ReplicaSnapshot)) {
	for i := range s.Regions {
		for k := range s.Regions[i].Replicas {
			if r := &s.Regions[i].Replicas[k]; cmp.Or(r.Region, s.Regions[i].Name) == t.Region && r.Model == t.Model && !r.Donated && !r.Unattached {
				f(r)
			}
		}
	}
}

// UnmetLine returns the unmet part of the plan in one line; empty if there is none.
func (s *Snapshot) UnmetLine() string {
	var all []string
	for _, u := range s.Unmet() {
		all = append(all, u.String())
	}
	if len(all) == 0 {
		return ""
	}
	return "now fewer than planned: " + strings.Join(all, ", ")
}
