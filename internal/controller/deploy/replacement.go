package deploy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// costlierInterval is the interval at which a preferred offering is tried for a replica on a costlier
// one. Offerings without capacity are not retried sooner.
const costlierInterval = 10 * time.Minute

// replaceCostlier tries to move one replica to a cheaper, preferred offering (for example from on demand to spot).
// It runs only while no other change is due, and where replicas.max allows another replica. The replica serves until its
// replacement is ready. It is then deleted like a replica with a rebalance recommendation.
// Without capacity nothing changes, and no error is returned.
func (rc *Reconciler) replaceCostlier(ctx context.Context, bs *bundleState, s *observation, seen map[string]AgentReport, checkLeadership func() error) (changed bool, err error) {
	if inTransition(s.have, seen) || time.Since(rc.costlierTriedAt) < costlierInterval {
		return false, nil
	}
	rc.costlierTriedAt = time.Now()
	for _, costlier := range s.have {
		if costlier.Kind != provision.KindReplica || costlier.TerminatedReason != "" || cloud.FallbackFor(costlier) != "" || bs.content.Draining[costlier.ID] {
			continue
		}
		if changed, err := rc.launchCheaper(ctx, bs, s, costlier, checkLeadership); changed || err != nil {
			return changed, err
		}
	}
	return false, nil
}

// launchCheaper launches a replacement for a costlier replica; false where there is no capacity.
func (rc *Reconciler) launchCheaper(ctx context.Context, bs *bundleState, s *observation, costlier provision.Object, checkLeadership func() error) (launched bool, err error) {
	c, found, err := bs.cheaperReplacement(s.have, costlier, time.Now())
	if err != nil || !found {
		return false, err
	}
	if err := checkLeadership(); err != nil {
		return false, err
	}
	_, err = provision.Apply(ctx, provision.Changes{c}, bs.deployer.launcher(), bs.deployer.applyOptions(&MachinePlan{Observed: s.have}, rc.recordProgress))
	var none *provision.AllOfferingsExhaustedError
	if errors.As(err, &none) || len(heldErrors(err)) > 0 {
		return false, nil
	}
	return true, err
}

// cheaperReplacement returns the launch of a replacement for a costlier replica, on a preferred and cheaper
// offering that was not without capacity recently; false where there is none, or replicas.max
// does not allow it.
func (bs *bundleState) cheaperReplacement(have []provision.Object, costlier provision.Object, now time.Time) (c provision.Change, found bool, err error) {
	c, own, err := bs.deployer.planReplacement(have, costlier)
	if held := new(provision.HeldError); errors.As(err, &held) {
		return c, false, nil
	}
	if err != nil || own == nil || len(preferredOffers(own.Offerings, costlier)) == 0 {
		return c, false, err // on demand is its desired capacity type: see on_demand_base
	}
	c.Desired.Offerings = bs.deployer.withoutExhausted(preferredOffers(c.Desired.Offerings, costlier), now)
	return c, len(c.Desired.Offerings) > 0, nil
}

// planReplacement returns the launch of a replacement for a replica, and the desired state of that
// replica; nil where replicas.max does not allow both.
func (dp *Deployer) planReplacement(have []provision.Object, of provision.Object) (c provision.Change, own *provision.Desired, err error) {
	terminating, only := dp.NeedReplacement, dp.Filter
	defer func() { dp.NeedReplacement, dp.Filter = terminating, only }()
	if dp.NeedReplacement = maps.Clone(terminating); dp.NeedReplacement == nil {
		dp.NeedReplacement = map[string]bool{}
	}
	dp.NeedReplacement[of.ID] = true
	dp.Filter = func(_ *MachinePlan, c provision.Change) bool {
		return c.Action == provision.ActionLaunch && c.Kind() == provision.KindReplica && cloud.ReplacesHandle(provision.Object{Labels: c.Desired.Labels}) == of.Handle
	}
	p, err := dp.planFor(have, nil)
	if err == nil && len(p.Held) > 0 {
		err = p.Held[0]
	}
	if err != nil || len(p.Changes) == 0 {
		return c, nil, err
	}
	at := slices.IndexFunc(p.Desired, func(desired provision.Desired) bool { return desired.ID == of.ID })
	if at < 0 {
		return c, nil, nil
	}
	return p.Changes[0], &p.Desired[at], nil
}

// withoutExhausted returns the offerings except those that had no capacity recently.
func (dp *Deployer) withoutExhausted(offers provision.Offerings, now time.Time) provision.Offerings {
	return slices.DeleteFunc(slices.Clone(offers), func(o provision.Offering) bool { return dp.exhausted.Covers(o, now) })
}

// preferredOffers returns the offerings that are preferred to a machine's own and have the same GPUs and a
// lower price, or are paid already: those of reservations. Others without a known price are not included.
func preferredOffers(offers provision.Offerings, costlier provision.Object) provision.Offerings {
	if costlier.Offering == nil {
		return nil
	}
	runs := func(o provision.Offering) bool {
		return o.Type == costlier.Offering.Type && o.Capacity == costlier.Offering.Capacity
	}
	var out provision.Offerings
	for _, o := range offers {
		if runs(o) {
			break
		}
		cheaper := o.Reservation != "" || o.PricePerHour > 0 && o.PricePerHour < costlier.CostPerHour
		if o.GPU == costlier.Offering.GPU && o.GPUs == costlier.Offering.GPUs && o.Capacity != costlier.Offering.Capacity && cheaper {
			out = append(out, o)
		}
	}
	return out
}

// withReplacement returns the replicas for which a replacement was launched.
func withReplacement(have []provision.Object) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" && slices.ContainsFunc(have, func(by provision.Object) bool { return isReplacementOf(by, o) }) {
			ids[o.ID] = true
		}
	}
	return ids
}

// isReplacementOf reports whether a machine is the replacement of another.
func isReplacementOf(by, o provision.Object) bool {
	return o.Handle != "" && by.TerminatedReason == "" && cloud.ReplacesHandle(by) == o.Handle
}

// needReplacement returns the replicas that need replacement: those being interrupted, those with a
// rebalance recommendation, and those with a replacement. While all replacements of a replica are being
// interrupted, and it is not, it is kept and not included.
func needReplacement(have []provision.Object, seen map[string]AgentReport, advised map[string]bool) map[string]bool {
	interruptedIDs := interrupted(have, seen)
	ids := maps.Clone(interruptedIDs)
	maps.Copy(ids, advised)
	maps.Copy(ids, withReplacement(have))
	for _, o := range have {
		successors := slices.DeleteFunc(slices.Clone(have), func(by provision.Object) bool { return !isReplacementOf(by, o) })
		last := !slices.ContainsFunc(successors, func(by provision.Object) bool { return !interruptedIDs[by.ID] })
		if len(successors) > 0 && last && (!interruptedIDs[o.ID] || isMaintenance(seen[o.ID])) {
			delete(ids, o.ID)
		}
	}
	return ids
}

// isMaintenance reports whether a machine's end is scheduled maintenance: see maintenanceNotice.
func isMaintenance(s AgentReport) bool {
	return s.Err == nil && s.Phase == agent.PhaseInterrupted && time.Until(s.InterruptionAt) > maintenanceNotice
}

// pendingReplacements returns the replacements that are not ready yet for replicas that keep serving: a strategy
// that counted both would remove one of them.
func pendingReplacements(have []provision.Object, seen map[string]AgentReport, settlingSpot, notServing map[string]bool) map[string]bool {
	ids := map[string]bool{}
	for _, by := range have {
		if (seen[by.ID].Phase != agent.PhaseReady || settlingSpot[by.ID]) && slices.ContainsFunc(have, func(o provision.Object) bool {
			return o.TerminatedReason == "" && !notServing[o.ID] && isReplacementOf(by, o)
		}) {
			ids[by.ID] = true
		}
	}
	return ids
}

// replaced returns the replicas that are ready, or scheduled for maintenance, and whose replacement
// is ready and not in settlingSpot: see settlingSpotReplicas. A machine that its cloud is interrupting is not included: the
// cloud deletes it.
func replaced(have []provision.Object, seen map[string]AgentReport, settlingSpot map[string]bool) map[string]bool {
	ready := func(o provision.Object) bool { return seen[o.ID].Err == nil && seen[o.ID].Phase == agent.PhaseReady }
	ids := map[string]bool{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" && (ready(o) || isMaintenance(seen[o.ID])) &&
			slices.ContainsFunc(have, func(by provision.Object) bool { return isReplacementOf(by, o) && ready(by) && !settlingSpot[by.ID] }) {
			ids[o.ID] = true
		}
	}
	return ids
}

// maintenanceNotice is the notice above which the end of a machine is scheduled maintenance, after which
// the cloud restarts it. A shorter notice is an interruption.
const maintenanceNotice = 5 * time.Minute
