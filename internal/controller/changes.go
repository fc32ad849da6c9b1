package controller

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// scalingChange is one change with its actions.
type scalingChange struct {
	change CapacityChange
	events []scalingAction
	starts bool // it starts the first replica of a model
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

// newDonation returns the donation of an excess replica that begins at a time. The donation of a
// replica that is to be removed ends at once.
func (t scaleInMode) newDonation(now time.Time) service.Donation {
	d := service.Donation{Since: now.UTC()}
	switch {
	case !t.donate:
		d.Until = d.Since
	case t.keepFor > 0:
		d.Until = d.Since.Add(t.keepFor)
	}
	return d
}

// buildChange converts a strategy's decision into a change: the replicas and the events.
func (s *scalingInputs) buildChange(groups []replicaGroup, c plan.Scaling, autoscale service.Autoscale) scalingChange {
	g := groups[c.Endpoint]
	m := &changeBuilder{scalingInputs: s, group: g, reason: c.Reason}
	m.donateOrRemove(c, scaleInModeOf(g.region, autoscale))
	launch := c.Launch
	for _, r := range c.Redeploy {
		launch += r.Count - m.redeployDonated(groups[r.From], r.Count)
	}
	// A strategy ignores GPU types. It may have assigned donated replicas of this group to a model
	// on another GPU, which cannot use them. They are reclaimed here before new replicas are
	// launched.
	launch += c.Reclaim
	if ids := s.claimDonated(g, launch, false); len(ids) > 0 {
		launch -= len(ids)
		m.change.Reclaim = ids
		m.addEvent(telemetry.EventReclaim, ids)
	}
	if launch > 0 {
		m.addLaunch(launch)
		m.addEvent(telemetry.EventLaunch, nil)
	}
	return m.scalingChange
}

// claimDonated returns up to n donated replicas that are not claimed in this iteration, the most recently
// donated first, because their caches are the freshest. With idle, it only returns replicas without
// outstanding requests.
func (s *scalingInputs) claimDonated(g replicaGroup, n int, idle bool) []string {
	donated := slices.DeleteFunc(slices.Clone(g.members), func(m member) bool {
		return !m.isDonated() || idle && !m.idle() || s.claimed[m.ID]
	})
	slices.SortStableFunc(donated, func(a, b member) int { return b.Donation.Since.Compare(a.Donation.Since) })
	ids := idsOf(donated[:min(n, len(donated))])
	for _, id := range ids {
		s.claimed[id] = true
	}
	return ids
}

// changeBuilder builds a change of one group.
type changeBuilder struct {
	*scalingInputs
	scalingChange
	group  replicaGroup
	reason string
}

func (m *changeBuilder) addEvent(kind telemetry.EventKind, ids []string) {
	m.events = append(m.events, scalingAction{
		at: m.now.UTC(), kind: kind, model: m.group.model, region: m.group.region,
		replicas: append([]string{}, ids...), serving: m.group.serving(), reason: m.reason, plan: m.planTime(),
	})
}

// donateOrRemove adds the donation or removal of replicas to the change.
func (m *changeBuilder) donateOrRemove(c plan.Scaling, t scaleInMode) {
	m.drain(m.group.removalCandidates(m.group.mismatch.removable(c.DrainedReplicas())), t, telemetry.EventDrain)
}

// drain adds to the change that replicas drain and are then donated, or removed; kind is the kind of
// the event of a removal.
func (m *changeBuilder) drain(ids []string, t scaleInMode, kind telemetry.EventKind) {
	for _, id := range ids {
		m.change.Drain = append(m.change.Drain, ReplicaDrain{id, t.newDonation(m.now)})
	}
	switch {
	case len(ids) == 0:
	case t.donate && kind == telemetry.EventDrain:
		m.addEvent(telemetry.EventDonate, ids)
	default:
		m.addEvent(kind, ids)
	}
}

// redeployDonated adds to the change that donated replicas of another model are replaced with
// replicas of this group's model, and returns their number. It uses those without
// outstanding requests, and none when the first GPUs of the two models differ.
func (m *changeBuilder) redeployDonated(from replicaGroup, n int) int {
	if from.gpu != m.group.gpu {
		return 0
	}
	ids := m.claimDonated(from, n, true)
	if len(ids) == 0 {
		return 0
	}
	m.change.Remove = append(m.change.Remove, ids...)
	m.addLaunch(len(ids))
	m.addEvent(telemetry.EventRedeploy, ids)
	return len(ids)
}

func (m *changeBuilder) addLaunch(n int) {
	m.change.Launch = append(m.change.Launch, m.group.mismatch.launches(m.group.modelRegion, n)...)
}

// buildReplacements returns the changes that replace, in each group, one excess replica with a
// replica of a missing class (see mismatch). It omits groups that change otherwise in this
// iteration.
func (s *scalingInputs) buildReplacements(groups []replicaGroup, changed map[modelRegion]bool) []scalingChange {
	var out []scalingChange
	for _, g := range groups {
		replacements := g.nextReplacement()
		if len(replacements) == 0 || changed[g.modelRegion] {
			continue
		}
		m := &changeBuilder{scalingInputs: s, group: g}
		m.reason = fmt.Sprintf("the plan requires %s; replaces %s", replacements[0].Class, replacements[0].ID)
		m.change.Replace = replacements
		m.addEvent(telemetry.EventReplace, nil)
		out = append(out, m.scalingChange)
	}
	return out
}

// buildRemovals returns the changes that remove the donated replicas whose donation has ended and
// that have no outstanding requests.
func (s *scalingInputs) buildRemovals(groups []replicaGroup) []scalingChange {
	var out []scalingChange
	for _, g := range groups {
		ended := slices.DeleteFunc(slices.Clone(g.members), func(m member) bool {
			return m.Donation == nil || !m.Donation.Ended(s.now) || !m.idle() || s.claimed[m.ID]
		})
		if len(ended) == 0 {
			continue
		}
		m := &changeBuilder{scalingInputs: s, group: g}
		m.change.Remove = idsOf(ended)
		draining, donated := splitDraining(ended)
		if len(draining) > 0 {
			m.reason = "its requests have ended"
			m.addEvent(telemetry.EventTermination, draining)
		}
		if len(donated) > 0 {
			m.reason = fmt.Sprintf("donated for %s and not reclaimed", s.current.Spec.Autoscale.DonateFor)
			m.addEvent(telemetry.EventTermination, donated)
		}
		out = append(out, m.scalingChange)
	}
	return out
}

// splitDraining separates the IDs of replicas that drained before their removal from those that were
// donated.
func splitDraining(ended []member) (draining, donated []string) {
	for _, m := range ended {
		if m.Donation.Draining() {
			draining = append(draining, m.ID)
		} else {
			donated = append(donated, m.ID)
		}
	}
	return draining, donated
}

// donations returns the donated replicas as published.
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
