package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/controller"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// RefusedError is a replica that stays on what it runs on, since what a plan wants it to run
// on cannot be had now.
type RefusedError struct {
	ID     string
	On     provision.Class // what is wanted
	Runs   provision.Class
	Reason string
}

// Error names the replica, what is wanted, and why that is not.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s stays on %s: %s was wanted: %s", e.ID, e.Runs, e.On, e.Reason)
}

// Exchange launches a replica of a class in the place of one that exists, which serves until
// the other does: balancers then leave it, and the controller gives it back. It returns the id
// of the new one. There is nothing to fall back to: where that class cannot be had, or
// replicas.max leaves no room for both, the error is a *RefusedError and nothing changed.
func (f *Fleet) Exchange(ctx context.Context, have []provision.Object, of provision.Object, on provision.Class, progress provision.Progress) (launched string, err error) {
	refused := &RefusedError{ID: of.ID, On: on}
	if of.Offering != nil {
		refused.Runs = provision.ClassOf(*of.Offering)
	}
	c, own, err := f.successor(have, of)
	if err != nil {
		return "", err
	}
	if own == nil {
		refused.Reason = "replicas.max leaves no room to launch one before the other goes"
		return "", refused
	}
	offers := slices.DeleteFunc(slices.Clone(c.Want.Offers), func(o provision.Offering) bool { return !on.Takes(o) })
	if len(offers) == 0 {
		refused.Reason = "the region does not offer it"
		return "", refused
	}
	now := time.Now
	if f.Now != nil {
		now = f.Now
	}
	refused.Reason = "its cloud has no capacity"
	if c.Want.Offers = f.notRefused(offers, now()); len(c.Want.Offers) == 0 {
		return "", refused
	}
	_, err = provision.Apply(ctx, provision.Changes{c}, f.launcher(), f.options(&Plan{Have: have}, progress))
	var none *provision.NoCapacityError
	if errors.As(err, &none) {
		return "", refused
	}
	if err != nil {
		return "", err
	}
	return c.Want.ID, nil
}

// Follow makes the replicas there are those that Counts ask for: first it launches what is
// missing, then what takes the place of replicas on another GPU or capacity type, and last it
// takes away what is too much. use is called whenever something was launched, or taken away,
// with what there is then; it returns once that is used. refused joins a *RefusedError for each
// replica that stays because what is wanted cannot be had. Running it again is safe at any
// time.
func (f *Fleet) Follow(ctx context.Context, progress provision.Progress, use func(context.Context, *Plan) error) (refused, err error) {
	if _, err := f.Step(ctx, provision.ActionLaunch, progress, use); err != nil {
		return nil, err
	}
	for again := true; again; {
		var launched bool
		if refused, launched, err = f.swap(ctx, progress, use); err != nil {
			return refused, err
		}
		if _, err = f.Step(ctx, provision.ActionTerminate, progress, use); err != nil {
			return refused, err
		}
		again = launched && refused != nil // what went left room for others
	}
	return refused, nil
}

// Step makes the changes of replicas of one kind; use is called as Follow does.
func (f *Fleet) Step(ctx context.Context, action provision.Action, progress provision.Progress, use func(context.Context, *Plan) error) (p *Plan, err error) {
	f.Only = func(_ *Plan, c provision.Change) bool { return c.Kind() == provision.KindReplica && c.Action == action }
	if p, err = f.Plan(ctx); err != nil || len(p.Changes) == 0 {
		return p, err
	}
	if p, err = f.Up(ctx, p, progress); err != nil {
		return p, err
	}
	return p, use(ctx, p)
}

// swap launches others in the place of replicas that run on something else than is wanted.
// Those that they take the place of are too many then.
func (f *Fleet) swap(ctx context.Context, progress provision.Progress, use func(context.Context, *Plan) error) (refused error, launched bool, err error) {
	f.Only = func(*Plan, provision.Change) bool { return false }
	p, err := f.Plan(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, s := range Swaps(p.Have, f.Counts) {
		_, err := f.Exchange(ctx, p.Have, s.Of, s.On, progress)
		var stays *RefusedError
		if errors.As(err, &stays) {
			refused = errors.Join(refused, err)
			continue
		}
		if err != nil {
			return refused, launched, err
		}
		launched = true
		if p, err = f.Plan(ctx); err != nil {
			return refused, launched, err
		}
	}
	if !launched {
		return refused, false, nil
	}
	return refused, true, use(ctx, p)
}

// Swap is a replica that runs on something else than is wanted.
type Swap struct {
	Of provision.Object
	On provision.Class
}

// Swaps are the replicas that stay in number and run on something else than counts ask for, in
// the order of their ids. Replicas that stand in for another region are left as they are.
func Swaps(have []provision.Object, counts map[cloud.Group]provision.Counts) []Swap {
	exist := map[cloud.Group][]provision.Object{}
	for _, o := range have {
		if o.Kind == provision.KindReplica && o.Gone == "" && cloud.StandsIn(o) == "" {
			g := cloud.Group{Model: o.Labels["model"], Region: o.Region}
			exist[g] = append(exist[g], o)
		}
	}
	var swaps []Swap
	for g, wanted := range counts {
		slices.SortFunc(exist[g], func(a, b provision.Object) int {
			return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
		})
		matched, missing := wanted.Fit(exist[g])
		missing = missing[min(len(missing), max(0, wanted.Total()-len(exist[g]))):] // the first ones are launched beside
		for i, o := range exist[g] {
			if _, fits := matched[i]; !fits && len(missing) > 0 {
				swaps, missing = append(swaps, Swap{o, missing[0]}), missing[1:]
			}
		}
	}
	slices.SortFunc(swaps, func(a, b Swap) int { return cmp.Compare(a.Of.ID, b.Of.ID) })
	return swaps
}

// exchange carries out the replacements of an order, and returns the ids of what it launched.
func (k *Keeper) exchange(ctx context.Context, o *opened, orders []controller.Replacing) (launched []string, err error) {
	for _, r := range orders {
		s, failed := k.look(ctx, o)
		if failed != nil {
			return launched, errors.Join(err, failed)
		}
		at := slices.IndexFunc(s.have, func(h provision.Object) bool {
			return h.ID == r.ID && h.Kind == provision.KindReplica && h.Gone == ""
		})
		if at < 0 {
			continue // it has ended meanwhile
		}
		failed = k.plans(ctx, o, s)
		id, refused := o.fleet.Exchange(ctx, s.have, s.have[at], r.On, k.progress)
		if err = errors.Join(err, failed, refused); id != "" {
			launched = append(launched, id)
		}
	}
	return launched, err
}
