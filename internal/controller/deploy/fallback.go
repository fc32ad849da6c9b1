package deploy

import (
	"context"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Dynamic fallback (spot.dynamic_fallback): cloud.BuildLayout places the replacement of an interrupted spot
// replica on demand, and returnToSpot at once launches a spot replica to replace the on-demand one. Both use the
// launches, labels and removals of any other replacement.

// Times of dynamic fallback, with their reasons.
const (
	// fallbackWindow is the time after an interruption in which new replicas of the region are on demand
	// first: the others of a zone often follow within minutes.
	fallbackWindow = 10 * time.Minute
	// spotSettleTime is how long a spot replica must have been ready before the one on demand that it replaces is
	// removed. Where spot is short, a new machine is often interrupted within minutes.
	spotSettleTime = 5 * time.Minute
)

// returnToSpot launches one spot replica that replaces one on demand in a region with dynamic fallback. Unlike
// replaceCostlier, it does not wait for other replicas. Offerings without capacity are tried again after
// the time for which Apply skips them.
func (rc *Reconciler) returnToSpot(ctx context.Context, bs *bundleState, s *observation, checkLeadership func() error) (changed bool, err error) {
	has := withReplacement(s.have)
	for _, r := range s.have {
		if onFallback(s.spec, r) && !has[r.ID] && !bs.content.Draining[r.ID] {
			if changed, err := rc.launchCheaper(ctx, bs, s, r, checkLeadership); changed || err != nil {
				return changed, err
			}
		}
	}
	return false, nil
}

// onFallback reports whether a running replica of a region with dynamic fallback is on demand.
func onFallback(spec *service.Spec, o provision.Object) bool {
	if o.Kind != provision.KindReplica || o.TerminatedReason != "" || o.Offering == nil || o.Offering.Capacity != service.CapacityOnDemand || cloud.FallbackFor(o) != "" {
		return false
	}
	return slices.ContainsFunc(spec.Regions, func(r service.RegionSpec) bool { return r.Name == o.Region && r.HasFallback() })
}

// settlingSpotReplicas returns the spot replicas that have been ready for less than spotSettleTime, so that the on-demand
// replicas which they replace must stay.
func (rc *Reconciler) settlingSpotReplicas(spec *service.Spec, have []provision.Object, seen map[string]AgentReport, now time.Time) map[string]bool {
	settling, since := map[string]bool{}, map[string]time.Time{}
	for _, by := range have {
		replacesFallback := slices.ContainsFunc(have, func(o provision.Object) bool { return onFallback(spec, o) && isReplacementOf(by, o) })
		if !replacesFallback || by.Kind != provision.KindReplica {
			continue
		}
		first, known := rc.readySince[by.Handle]
		if !known {
			first = now
		}
		if ready := seen[by.ID].Err == nil && seen[by.ID].Phase == agent.PhaseReady; ready {
			since[by.Handle] = first
		}
		if _, ready := since[by.Handle]; !ready || now.Sub(first) < spotSettleTime {
			settling[by.ID] = true
		}
	}
	rc.readySince = since
	return settling
}
