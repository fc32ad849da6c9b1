package fleet

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

// preferEvery is how often it is tried to have again what had no capacity when a replica
// was launched on something dearer: offerings that were refused are not asked again sooner.
const preferEvery = 10 * time.Minute

// prefer launches, while nothing else is to do, one replica in the place of one that runs on
// something dearer than what is tried before it, on demand where spot comes first: there may
// be capacity by now. That one serves until the other does; it is given back like one that its
// cloud recommends to leave, and counts as little against replicas.max. Where there still is no
// capacity nothing changes, and that is no error.
func (k *Reconciler) prefer(ctx context.Context, o *opened, s *observation, seen map[string]Seen, may func() error) (changed bool, err error) {
	if unsettled(s.have, seen) || time.Since(k.preferred) < preferEvery {
		return false, nil
	}
	k.preferred = time.Now()
	for _, dear := range s.have {
		if dear.Kind != provision.KindReplica || dear.Gone != "" || cloud.StandsIn(dear) != "" || o.content.Leaving[dear.ID] {
			continue
		}
		c, found, err := o.cheaper(s.have, dear, k.preferred)
		if err != nil {
			return false, err
		}
		if !found {
			continue
		}
		if err := may(); err != nil {
			return false, err
		}
		_, err = provision.Apply(ctx, provision.Changes{c}, o.fleet.launcher(), o.fleet.options(&Plan{Have: s.have}, k.progress))
		var none *provision.NoCapacityError
		if errors.As(err, &none) {
			continue
		}
		return true, err
	}
	return false, nil
}

// cheaper is the launch of a replica in the place of a dear one, on what is tried before
// that and costs less, and was not refused a while ago; false where there is none, or no
// room.
func (o *opened) cheaper(have []provision.Object, dear provision.Object, now time.Time) (c provision.Change, found bool, err error) {
	c, own, err := o.fleet.successor(have, dear)
	if err != nil || own == nil || len(better(own.Offers, dear)) == 0 {
		return c, false, err // on demand is where it belongs: see on_demand_base
	}
	c.Want.Offers = o.fleet.notRefused(better(c.Want.Offers, dear), now)
	return c, len(c.Want.Offers) > 0, nil
}

// successor is the launch of a replica in the place of another, and what that one is wanted
// to be; nil where replicas.max leaves no room for both.
func (f *Fleet) successor(have []provision.Object, of provision.Object) (c provision.Change, own *provision.Want, err error) {
	going, only := f.Going, f.Only
	defer func() { f.Going, f.Only = going, only }()
	if f.Going = maps.Clone(going); f.Going == nil {
		f.Going = map[string]bool{}
	}
	f.Going[of.ID] = true
	f.Only = func(_ *Plan, c provision.Change) bool {
		return c.Action == provision.ActionLaunch && c.Kind() == provision.KindReplica && cloud.Instead(provision.Object{Labels: c.Want.Labels}) == of.Handle
	}
	p, err := f.planFor(have, nil)
	if err != nil || len(p.Changes) == 0 {
		return c, nil, err
	}
	at := slices.IndexFunc(p.Wants, func(w provision.Want) bool { return w.ID == of.ID })
	if at < 0 {
		return c, nil, nil
	}
	return p.Changes[0], &p.Wants[at], nil
}

// notRefused are the offerings that were not refused a while ago.
func (f *Fleet) notRefused(offers provision.Offerings, now time.Time) provision.Offerings {
	return slices.DeleteFunc(slices.Clone(offers), func(o provision.Offering) bool { return f.exhausted.Has(o, now) })
}

// better are the offers that are tried before one that a machine runs on, with the same GPUs
// and at a lower price, as far as both are known.
func better(offers provision.Offerings, dear provision.Object) provision.Offerings {
	if dear.Offering == nil {
		return nil
	}
	runs := func(o provision.Offering) bool {
		return o.Type == dear.Offering.Type && o.Capacity == dear.Offering.Capacity
	}
	var out provision.Offerings
	for _, o := range offers {
		if runs(o) {
			break
		}
		if o.GPU == dear.Offering.GPU && o.GPUs == dear.Offering.GPUs && o.Capacity != dear.Offering.Capacity && o.PricePerHour > 0 && o.PricePerHour < dear.CostPerHour {
			out = append(out, o)
		}
	}
	return out
}

// succeeded are the replicas in whose place another was launched.
func succeeded(have []provision.Object) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.Gone == "" && slices.ContainsFunc(have, func(by provision.Object) bool { return succeeds(by, o) }) {
			ids[o.ID] = true
		}
	}
	return ids
}

// succeeds says whether a machine was launched in the place of another.
func succeeds(by, o provision.Object) bool {
	return o.Handle != "" && by.Gone == "" && cloud.Instead(by) == o.Handle
}

// parting are the replicas in whose place others are wanted: those that are going, those that
// are advised to, and those that were succeeded. One that lasts longer than the machine that
// was launched in its place, because that one is taken, stays for as long as both stand.
func parting(have []provision.Object, seen map[string]Seen, advised map[string]bool) map[string]bool {
	taken := going(have, seen)
	ids := maps.Clone(taken)
	maps.Copy(ids, advised)
	maps.Copy(ids, succeeded(have))
	for _, o := range have {
		successors := slices.DeleteFunc(slices.Clone(have), func(by provision.Object) bool { return !succeeds(by, o) })
		last := !slices.ContainsFunc(successors, func(by provision.Object) bool { return !taken[by.ID] })
		if len(successors) > 0 && last && (!taken[o.ID] || later(seen[o.ID])) {
			delete(ids, o.ID)
		}
	}
	return ids
}

// later says whether the end of a machine is that far ahead that its cloud maintains it.
func later(s Seen) bool {
	return s.Err == nil && s.Phase == agent.PhaseInterrupted && time.Until(s.GoneAt) > maintained
}

// spare are the replicas that do not serve yet and were launched in the place of others that
// go on: a strategy that counted both would give one of them up, or another in their stead.
func spare(have []provision.Object, seen map[string]Seen, leave map[string]bool) map[string]bool {
	ids := map[string]bool{}
	for _, by := range have {
		if seen[by.ID].Phase != agent.PhaseReady && slices.ContainsFunc(have, func(o provision.Object) bool {
			return o.Gone == "" && !leave[o.ID] && succeeds(by, o)
		}) {
			ids[by.ID] = true
		}
	}
	return ids
}

// replaced are the replicas that serve, or are to be maintained, and in whose place another
// serves. One that its cloud is about to take is left to it.
func replaced(have []provision.Object, seen map[string]Seen) map[string]bool {
	ready := func(o provision.Object) bool { return seen[o.ID].Err == nil && seen[o.ID].Phase == agent.PhaseReady }
	ids := map[string]bool{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.Gone == "" && (ready(o) || later(seen[o.ID])) &&
			slices.ContainsFunc(have, func(by provision.Object) bool { return succeeds(by, o) && ready(by) }) {
			ids[o.ID] = true
		}
	}
	return ids
}

// maintained is how far ahead the end of a machine is that its cloud maintains rather than
// takes, which it would start again afterwards.
const maintained = 5 * time.Minute
