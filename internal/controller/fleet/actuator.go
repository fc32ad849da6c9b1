package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

var _ controller.Actuator = (*Keeper)(nil)

// fileLeaving is where it is kept, beside what the controller was handed, which replicas
// are emptied before they are removed. Where it is lost they serve on until a strategy
// gives them up again.
const fileLeaving = "leaving.json"

// Standing implements controller.Actuator: the service as it was seen at the last look, less
// regions that never answered. It is an error before the first.
func (k *Keeper) Standing() (controller.Standing, error) {
	v, err := k.seenLast()
	if err != nil {
		return controller.Standing{}, err
	}
	leaving, err := k.leaving()
	if err != nil {
		return controller.Standing{}, err
	}
	return standing(v, leaving), nil
}

// standing is what stands of a service, with the replicas that were given up and when.
func standing(v *view, leaving map[string]time.Time) controller.Standing {
	s := controller.Standing{Spec: v.spec}
	leave := going(v.have, v.seen)
	maps.Copy(leave, replaced(v.have, v.seen))
	maps.Copy(leave, spare(v.have, v.seen, leave))
	for _, o := range v.have {
		if o.Kind != provision.KindReplica || o.Gone != "" {
			continue
		}
		r := controller.StandingReplica{ID: o.ID, Model: o.Labels["model"], Region: o.Region, GPU: o.Labels["gpu"], Drained: leave[o.ID]}
		if Reachable(o) {
			r.URL = engineURL(o)
		}
		if since, is := leaving[o.ID]; is {
			r.Donation = &service.Donation{Since: since, Until: since}
		}
		s.Replicas = append(s.Replicas, r)
	}
	rank := func(r service.Region) int {
		return slices.IndexFunc(v.spec.Regions, func(s service.RegionSpec) bool { return s.Name == r })
	}
	slices.SortStableFunc(s.Replicas, func(a, b controller.StandingReplica) int {
		return cmp.Or(rank(a.Region)-rank(b.Region), cmp.Compare(a.Model, b.Model), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return s
}

// Carry implements controller.Actuator. Machines that are given up go back to the cloud:
// there is nobody to lend them to. The next look tells balancers of what changed.
func (k *Keeper) Carry(ctx context.Context, order controller.Order, may func() error) (launched []string, err error) {
	if !k.working.TryLock() {
		return nil, controller.ErrBusy
	}
	defer k.working.Unlock()
	o, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	s, err := k.look(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := may(); err != nil {
		return nil, err
	}
	if err := k.keepLeaving(s.all(), order); err != nil {
		return nil, err
	}
	failure := errors.Join(s.beyond(order), k.remove(ctx, o, s.have, order.Remove, "given up"))
	launched, err = k.launch(ctx, o, order.Launch)
	return launched, errors.Join(failure, err)
}

// remove ends machines; why is logged.
func (k *Keeper) remove(ctx context.Context, o *opened, have []provision.Object, ids []string, why string) error {
	gone := slices.DeleteFunc(slices.Clone(have), func(r provision.Object) bool {
		return r.Kind != provision.KindReplica || !slices.Contains(ids, r.ID)
	})
	if len(gone) == 0 {
		return nil
	}
	changes := provision.Diff(nil, gone)
	for i := range changes {
		changes[i].Reason = why
	}
	_, err := provision.Apply(ctx, changes, o.fleet.Provider, provision.Options{Parallel: parallel, Progress: k.progress})
	return err
}

// launch makes so many more replicas, and returns the ids of those that could be had.
func (k *Keeper) launch(ctx context.Context, o *opened, orders []controller.Launching) (launched []string, err error) {
	if len(orders) == 0 {
		return nil, nil
	}
	s, err := k.look(ctx, o)
	if err != nil {
		return nil, err
	}
	silent := k.plans(ctx, o, s)
	have := s.have
	o.fleet.Counts = map[cloud.Group]int{}
	defer func() { o.fleet.Counts = nil }()
	for _, l := range orders {
		o.fleet.Counts[cloud.Group{Model: l.Model, Region: l.Region}] += l.Count
	}
	before := map[string]bool{}
	for _, r := range have {
		before[r.ID] = r.Gone == ""
		own := r.Kind == provision.KindReplica && r.Gone == "" && cloud.StandsIn(r) == "" && !o.fleet.Going[r.ID]
		if g := (cloud.Group{Model: r.Labels["model"], Region: r.Region}); own && o.fleet.Counts[g] > 0 {
			o.fleet.Counts[g]++
		}
	}
	o.fleet.Only = func(_ *Plan, c provision.Change) bool {
		return c.Kind() == provision.KindReplica && c.Action == provision.ActionLaunch
	}
	p, err := o.fleet.planFor(have, nil)
	if err == nil {
		_, err = o.fleet.Up(ctx, p, k.progress)
	}
	after, failed := o.fleet.list(ctx)
	for _, r := range after {
		if r.Kind == provision.KindReplica && r.Gone == "" && !before[r.ID] {
			launched = append(launched, r.ID)
		}
	}
	return launched, errors.Join(silent, err, failed)
}

// leaving are the replicas that were given up, and when.
func (k *Keeper) leaving() (map[string]time.Time, error) {
	ids := map[string]time.Time{}
	text, err := os.ReadFile(filepath.Join(k.Dir, fileLeaving))
	if errors.Is(err, fs.ErrNotExist) {
		return ids, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &ids)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which replicas leave: %w", err)
	}
	return ids, nil
}

// keepLeaving keeps which replicas leave once an order holds, before it is begun. Of one
// that is no longer there nothing is kept: another may get its id.
func (k *Keeper) keepLeaving(have []provision.Object, order controller.Order) error {
	ids, err := k.leaving()
	if err != nil {
		return err
	}
	next := maps.Clone(ids)
	for _, d := range order.Donate {
		next[d.ID] = d.Since
	}
	for _, id := range order.Reclaim {
		delete(next, id)
	}
	maps.DeleteFunc(next, func(id string, _ time.Time) bool {
		return !slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" })
	})
	if maps.Equal(ids, next) {
		return nil
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = identity.WriteFile(filepath.Join(k.Dir, fileLeaving), text)
	}
	if err != nil {
		return fmt.Errorf("keeping which replicas leave: %w", err)
	}
	return nil
}
