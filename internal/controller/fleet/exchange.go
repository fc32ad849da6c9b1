package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/controller"
	"skyserve/provision"
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
// the other does: balancers then leave it, and the controller gives it back. It returns the
// launch. There is nothing to fall back to: where that class cannot be had, or
// replicas.max leaves no room for both, the error is a *RefusedError and nothing changed.
func (f *Fleet) Exchange(ctx context.Context, have []provision.Object, of provision.Object, on provision.Class, progress provision.Progress) (launched provision.Change, err error) {
	refused := &RefusedError{ID: of.ID, On: on}
	if of.Offering != nil {
		refused.Runs = provision.ClassOf(*of.Offering)
	}
	c, own, err := f.successor(have, of)
	if err != nil {
		return launched, err
	}
	if own == nil {
		refused.Reason = "replicas.max leaves no room to launch one before the other goes"
		return launched, refused
	}
	offers := slices.DeleteFunc(slices.Clone(c.Want.Offers), func(o provision.Offering) bool { return !on.Takes(o) })
	if len(offers) == 0 {
		refused.Reason = "the region does not offer it"
		return launched, refused
	}
	now := time.Now
	if f.Now != nil {
		now = f.Now
	}
	refused.Reason = "its cloud has no capacity"
	if c.Want.Offers = f.notRefused(offers, now()); len(c.Want.Offers) == 0 {
		return launched, refused
	}
	_, err = provision.Apply(ctx, provision.Changes{c}, f.launcher(), f.options(&Plan{Have: have}, progress))
	var none *provision.NoCapacityError
	if errors.As(err, &none) {
		return launched, refused
	}
	if err != nil {
		return launched, err
	}
	return c, nil
}

// exchange carries out the replacements of an order, and returns the ids of what it launched.
func (k *Reconciler) exchange(ctx context.Context, o *opened, orders []controller.Replacing) (launched []string, err error) {
	for _, r := range orders {
		s, failed := k.observe(ctx, o)
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
		c, refused := o.fleet.Exchange(ctx, s.have, s.have[at], r.On, k.progress)
		if err = errors.Join(err, failed, refused); refused == nil {
			launched = append(launched, c.ID())
		}
	}
	return launched, err
}
