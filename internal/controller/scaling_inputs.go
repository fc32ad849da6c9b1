package controller

import (
	"cmp"
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// maxReportAge is the maximum age of a replica's or balancer's report that a decision uses. If older
// reports were used, several decisions would be based on the same one.
const maxReportAge = 3 * time.Second

// scalingInputs are the inputs of a scaling decision.
type scalingInputs struct {
	now      time.Time
	current  CurrentState
	snapshot *telemetry.Snapshot
	// loads is the interactive load of the last minutes in uncached prompt tokens per second;
	// missing entries are unknown.
	loads      map[modelRegion]float64
	lastMinute map[modelRegion]float64            // the loads of the last complete minute
	targets    map[modelRegion]*plan.HourlyTarget // the planned counts of review
	review     *telemetry.Review                  // in force; nil before the first
	claimed    map[string]bool                    // donated replicas that are claimed in this iteration
	// failedBalancers is the number of balancers without a snapshot: see Observed.Failed.
	failedBalancers int
}

// groupReplica is a replica of a group: as the Actuator returns it, and as a balancer reports it.
type groupReplica struct {
	CurrentReplica
	report *telemetry.ReplicaSnapshot // nil = no balancer reports it as attached
}

// replicaGroup is the replicas of one model in one region, which package plan calls an endpoint. A strategy receives each
// group as a plan.ScaledEndpoint.
type replicaGroup struct {
	modelRegion
	bounds   service.Bounds
	gpu      service.GPU // the model's first GPU in service.yaml
	mismatch mismatch    // difference from the plan
	replicas []groupReplica
}

// isActive reports whether a replica is neither drained, nor donated, nor about to be removed. It is ready, starting or,
// until it passes its health check again, not ready.
func (r groupReplica) isActive() bool { return !r.Drained && r.Donation == nil }

func (r groupReplica) ready() bool {
	return r.isActive() && r.report != nil && r.report.State == service.StateReady
}

// hasFreshReport reports whether a replica's report is recent.
func (r groupReplica) hasFreshReport() bool {
	return r.report.AgeMillis != nil && time.Duration(*r.report.AgeMillis)*time.Millisecond <= maxReportAge
}

// isDonated reports whether a replica is donated, so that it can be reclaimed. A replica that drains before its removal
// has a Donation and is not donated.
func (r CurrentReplica) isDonated() bool { return r.Donation != nil && !r.Donation.Draining() }

// idle reports whether a donated or drained replica has no outstanding requests: all balancers respond, and none reports
// it as attached.
func (in *scalingInputs) idle(r groupReplica) bool { return r.report == nil && in.failedBalancers == 0 }

// groups returns the groups of replicas in the order of service.yaml.
func (in *scalingInputs) groups() []replicaGroup {
	reports := map[string]*telemetry.ReplicaSnapshot{}
	for i := range in.snapshot.Regions {
		for k := range in.snapshot.Regions[i].Replicas {
			r := &in.snapshot.Regions[i].Replicas[k]
			if r.IsAttached() {
				reports[r.ID] = r
			}
		}
	}
	var out []replicaGroup
	for _, r := range in.current.Spec.Regions {
		for i := range in.current.Spec.Models {
			m := &in.current.Spec.Models[i]
			g := replicaGroup{modelRegion: modelRegion{m.Name, r.Name}, bounds: in.current.Spec.BoundsFor(m.Name, r.Name)}
			if len(m.GPUs) > 0 {
				g.gpu = service.GPU{Type: m.GPUs[0].Type, Count: max(1, m.GPUs[0].Count)}
			}
			for _, rep := range in.current.Replicas {
				if reported := reports[rep.ID]; rep.Model == "" && reported != nil {
					rep.Model = reported.Model
				}
				if rep.Region == r.Name && rep.Model == m.Name {
					g.replicas = append(g.replicas, groupReplica{rep, reports[rep.ID]})
				}
			}
			g.mismatch = newMismatch(plannedCounts(in.review, in.now, g.modelRegion), g.replicas)
			out = append(out, g)
		}
	}
	return out
}

// strategyInput returns the input of a strategy: a plan.ScaledEndpoint for each group, in the same order.
func (in *scalingInputs) strategyInput(groups []replicaGroup) *plan.StrategyInput {
	input := &plan.StrategyInput{FreeVMs: map[string]int{}}
	keepOne := in.groupsKeepingOne(groups)
	for _, g := range groups {
		e := plan.ScaledEndpoint{Model: g.model, Region: string(g.region), Min: g.bounds.Min, Max: g.bounds.Max, Utilisation: g.utilisation(), Target: in.targets[g.modelRegion]}
		if keepOne[g.modelRegion] {
			e.Min = max(e.Min, 1)
		}
		if m := in.modelReport(g); m != nil {
			waiting := m.Queued + g.pendingRequests()
			e.Waiting, e.FastFirstTokens = &waiting, &plan.FirstTokens{Total: m.FirstTokens, Late: m.SLOMisses}
		}
		for _, r := range g.replicas {
			switch {
			case r.isDonated():
				e.Donated++
			case !r.isActive(): // it uses capacity and does not serve
				e.Draining++
				e.Max--
			case r.ready():
				e.Ready++
			default:
				e.Starting++
			}
		}
		e.Max = max(e.Max, 0)
		e.Min = min(e.Min, e.Max)
		if load, known := in.loads[g.modelRegion]; known {
			e.ObservedTPS = &load
		}
		if load, known := in.lastMinute[g.modelRegion]; known {
			e.LastMinuteTPS = &load
		}
		if g.region.Cloud() != service.CloudStatic {
			// The number of free VMs in a cloud is unknown. g.bounds.Max for each group never limits a strategy, which does
			// not go beyond that number anyway. Static regions have no free VMs.
			input.FreeVMs[e.Region] += g.bounds.Max
		}
		input.Endpoints = append(input.Endpoints, e)
	}
	return input
}

// modelReport returns the report of a group's model from the balancers of its region; nil where it is not
// recent.
func (in *scalingInputs) modelReport(g replicaGroup) *telemetry.ModelSnapshot {
	for i := range in.snapshot.Regions {
		r := &in.snapshot.Regions[i]
		if r.Name != g.region || balancerReportAge(*r) > maxReportAge {
			continue
		}
		for k := range r.Models {
			if r.Models[k].Model == g.model {
				return &r.Models[k]
			}
		}
	}
	return nil
}

// pendingRequests returns the pending requests of the ready engines with a recent report; the others are
// unknown, but the queue shows whether they are full.
func (g replicaGroup) pendingRequests() (n int) {
	for _, r := range g.replicas {
		if r.ready() && r.report.Pending != nil && r.hasFreshReport() {
			n += *r.report.Pending
		}
	}
	return n
}

// utilisation returns the mean KV utilisation of the ready replicas; nil where one of them has no
// recent report, because a partial mean is misleading.
func (g replicaGroup) utilisation() *float64 {
	sum, n := 0.0, 0
	for _, r := range g.replicas {
		if !r.ready() {
			continue
		}
		if r.report.KV == nil || !r.hasFreshReport() {
			return nil
		}
		sum += *r.report.KV
		n++
	}
	if n == 0 {
		return nil
	}
	mean := sum / float64(n)
	return &mean
}

// removalCandidates returns up to n ready replicas: first the unplanned ones (see mismatch), then those with the fewest outstanding requests. Among equals the newest come first.
func (g replicaGroup) removalCandidates(n int) []string {
	ready := slices.DeleteFunc(slices.Clone(g.replicas), func(r groupReplica) bool { return !r.ready() })
	slices.Reverse(ready)
	slices.SortStableFunc(ready, func(a, b groupReplica) int {
		return cmp.Or(compareBools(g.mismatch.unplanned[b.ID], g.mismatch.unplanned[a.ID]), cmp.Compare(a.report.Outstanding, b.report.Outstanding))
	})
	return idsOf(ready[:min(n, len(ready))])
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// activeCount returns the number of active replicas.
func (g replicaGroup) activeCount() int {
	n := 0
	for _, r := range g.replicas {
		if r.isActive() {
			n++
		}
	}
	return n
}

func idsOf(replicas []groupReplica) []string {
	var ids []string
	for _, r := range replicas {
		ids = append(ids, r.ID)
	}
	return ids
}

// observedLoads returns the mean loads of the last complete minutes at a time: see plan.ObservedLoads. from is the
// first minute of the history.
func observedLoads(h *forecast.History, from int64, now time.Time, minutes int) map[modelRegion]float64 {
	out := map[modelRegion]float64{}
	for key, tps := range plan.ObservedLoads(h, from, settledMinute(now), minutes) {
		out[modelRegion{key.Model, key.Region}] = tps
	}
	return out
}
