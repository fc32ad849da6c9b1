package controller

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// scalingChange is one change.
type scalingChange struct {
	capacity CapacityChange  // for the Actuator
	actions  []scalingAction // what capacity changes, for events
	fromZero bool            // the change starts the first replica of a model
}

// scaleInMode defines what happens to excess replicas: they are donated or removed.
type scaleInMode struct {
	donate  bool
	keepFor time.Duration // of a donated replica; 0 = forever
}

// scaleInModeOf returns the mode of a region. Machines of a static region stay donated.
func scaleInModeOf(region service.Region, autoscale service.Autoscale) scaleInMode {
	mode := scaleInMode{donate: autoscale.Donates(region)}
	if mode.donate && region.Cloud() != service.CloudStatic {
		mode.keepFor = autoscale.DonateFor
	}
	return mode
}

// newDonation returns the Donation of an excess replica from now on. If the replica is removed instead of donated, Until
// is equal to Since: see CurrentReplica.
func (mode scaleInMode) newDonation(now time.Time) service.Donation {
	d := service.Donation{Since: now.UTC()}
	switch {
	case !mode.donate:
		d.Until = d.Since
	case mode.keepFor > 0:
		d.Until = d.Since.Add(mode.keepFor)
	}
	return d
}

// buildChange converts a strategy's decision, which has numbers of replicas, into a change of particular replicas.
// c.Endpoint is the index in groups of the group to change: the strategy received one endpoint for each group (see
// strategyInput).
func (in *scalingInputs) buildChange(groups []replicaGroup, c plan.Scaling, autoscale service.Autoscale) scalingChange {
	g := groups[c.Endpoint]
	b := &changeBuilder{scalingInputs: in, group: g, reason: c.Reason}
	b.donateOrRemove(c, scaleInModeOf(g.region, autoscale))
	launch := c.Launch
	for _, r := range c.Redeploy {
		launch += r.Count - b.redeployDonated(groups[r.From], r.Count)
	}
	// A strategy ignores GPU types. If it redeploys donated replicas of this group as a model that needs another GPU,
	// redeployDonated leaves them. They are reclaimed here before new replicas are launched.
	launch += c.Reclaim
	if ids := in.claimDonated(g, launch, false); len(ids) > 0 {
		launch -= len(ids)
		b.capacity.Reclaim = ids
		b.addAction(telemetry.EventReclaim, ids)
	}
	if launch > 0 {
		b.addLaunch(launch)
		b.addAction(telemetry.EventLaunch, nil)
	}
	return b.scalingChange
}

// claimDonated claims up to n donated replicas that were not claimed in this iteration, and returns them: the most
// recently donated first, because their caches are the freshest. With idle, it only claims idle replicas.
func (in *scalingInputs) claimDonated(g replicaGroup, n int, idle bool) []string {
	donated := slices.DeleteFunc(slices.Clone(g.replicas), func(r groupReplica) bool {
		return !r.isDonated() || idle && !in.idle(r) || in.claimed[r.ID]
	})
	slices.SortStableFunc(donated, func(a, b groupReplica) int { return b.Donation.Since.Compare(a.Donation.Since) })
	ids := idsOf(donated[:min(n, len(donated))])
	for _, id := range ids {
		in.claimed[id] = true
	}
	return ids
}

// changeBuilder builds the change of one group.
type changeBuilder struct {
	*scalingInputs
	scalingChange
	group  replicaGroup
	reason string
}

func (b *changeBuilder) addAction(kind telemetry.EventKind, ids []string) {
	b.actions = append(b.actions, scalingAction{
		at: b.now.UTC(), kind: kind, model: b.group.model, region: b.group.region,
		replicas: append([]string{}, ids...), active: b.group.activeCount(), reason: b.reason, plan: b.planTime(),
	})
}

// donateOrRemove adds the donation or removal of replicas to the change.
func (b *changeBuilder) donateOrRemove(c plan.Scaling, mode scaleInMode) {
	b.drain(b.group.removalCandidates(b.group.mismatch.removable(c.DrainedReplicas())), mode, telemetry.EventDrain)
}

// drain adds replicas to drain to the change. They are then donated or removed, depending on mode. kind is
// the kind of the recorded event; the event of a donation is EventDonate instead of EventDrain.
func (b *changeBuilder) drain(ids []string, mode scaleInMode, kind telemetry.EventKind) {
	for _, id := range ids {
		b.capacity.Drain = append(b.capacity.Drain, ReplicaDrain{id, mode.newDonation(b.now)})
	}
	switch {
	case len(ids) == 0:
	case mode.donate && kind == telemetry.EventDrain:
		b.addAction(telemetry.EventDonate, ids)
	default:
		b.addAction(kind, ids)
	}
}

// redeployDonated replaces up to n idle donated replicas of another model with replicas of this group's model, and returns
// how many. It returns 0 if the first GPUs of the two models differ.
func (b *changeBuilder) redeployDonated(from replicaGroup, n int) int {
	if from.gpu != b.group.gpu {
		return 0
	}
	ids := b.claimDonated(from, n, true)
	if len(ids) == 0 {
		return 0
	}
	b.capacity.Remove = append(b.capacity.Remove, ids...)
	b.addLaunch(len(ids))
	b.addAction(telemetry.EventRedeploy, ids)
	return len(ids)
}

func (b *changeBuilder) addLaunch(n int) {
	b.capacity.Launch = append(b.capacity.Launch, b.group.mismatch.launches(b.group.modelRegion, n)...)
}

// buildReplacements returns the changes that replace, in each group, one unplanned replica with a
// replica of a missing class (see mismatch). It omits groups that change otherwise in this
// iteration.
func (in *scalingInputs) buildReplacements(groups []replicaGroup, changed map[modelRegion]bool) []scalingChange {
	var out []scalingChange
	for _, g := range groups {
		replacements := g.nextReplacement()
		if len(replacements) == 0 || changed[g.modelRegion] {
			continue
		}
		b := &changeBuilder{scalingInputs: in, group: g}
		b.reason = fmt.Sprintf("the plan requires %s; replaces %s", replacements[0].Class, replacements[0].ID)
		b.capacity.Replace = replacements
		b.addAction(telemetry.EventReplace, nil)
		out = append(out, b.scalingChange)
	}
	return out
}

// buildRemovals returns the changes that remove the donated replicas whose donation has ended, and the replicas that
// were drained for their removal. Each must be idle.
func (in *scalingInputs) buildRemovals(groups []replicaGroup) []scalingChange {
	var out []scalingChange
	for _, g := range groups {
		ended := slices.DeleteFunc(slices.Clone(g.replicas), func(r groupReplica) bool {
			return r.Donation == nil || !r.Donation.Ended(in.now) || !in.idle(r) || in.claimed[r.ID]
		})
		if len(ended) == 0 {
			continue
		}
		b := &changeBuilder{scalingInputs: in, group: g}
		b.capacity.Remove = idsOf(ended)
		draining, donated := splitDraining(ended)
		if len(draining) > 0 {
			b.reason = "its requests have ended"
			b.addAction(telemetry.EventTermination, draining)
		}
		if len(donated) > 0 {
			b.reason = fmt.Sprintf("donated for %s and not reclaimed", in.current.Spec.Autoscale.DonateFor)
			b.addAction(telemetry.EventTermination, donated)
		}
		out = append(out, b.scalingChange)
	}
	return out
}

// splitDraining separates the IDs of replicas that drained before their removal from those that were
// donated.
func splitDraining(ended []groupReplica) (draining, donated []string) {
	for _, r := range ended {
		if r.Donation.Draining() {
			draining = append(draining, r.ID)
		} else {
			donated = append(donated, r.ID)
		}
	}
	return draining, donated
}

// donations returns the donated replicas in the form in which the leader publishes them.
func (s CurrentState) donations() []telemetry.Donation {
	out := []telemetry.Donation{}
	for _, r := range s.Replicas {
		if !r.isDonated() {
			continue
		}
		d := telemetry.Donation{
			Replica: r.ID, Model: r.Model, GPU: r.GPU, URL: r.URL, Region: r.Region, Since: r.Donation.Since, RevenuePerHour: s.Spec.Autoscale.DonatePrice,
		}
		if !r.Donation.Until.IsZero() {
			until := r.Donation.Until
			d.Until = &until
		}
		out = append(out, d)
	}
	return out
}
