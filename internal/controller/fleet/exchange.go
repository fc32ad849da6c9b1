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

// RefusedError is a replica that keeps its machine class, because the desired class is unavailable.
type RefusedError struct {
	ID     string
	On     provision.Class // the desired class
	Runs   provision.Class
	Reason string
}

// Error returns a message with the replica, the desired class and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s stays on %s: %s is unavailable: %s", e.ID, e.Runs, e.On, e.Reason)
}

// Exchange launches a replacement of a class for an existing replica, which serves until the
// replacement is ready: balancers then stop using it, and the controller deletes it. It returns the
// launch. There is no fallback: where that class is unavailable, or replicas.max does not allow
// both, the error is a *RefusedError and nothing has changed.
func (f *Fleet) Exchange(ctx context.Context, have []provision.Object, of provision.Object, on provision.Class, progress provision.Progress) (launched provision.Change, err error) {
	refused := &RefusedError{ID: of.ID, On: on}
	if of.Offering != nil {
		refused.Runs = provision.ClassOf(*of.Offering)
	}
	c, own, err := f.planReplacement(have, of)
	if err != nil {
		return launched, err
	}
	if own == nil {
		refused.Reason = "replicas.max does not allow a replacement before the old replica is removed"
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
	if c.Want.Offers = f.withoutRefused(offers, now()); len(c.Want.Offers) == 0 {
		return launched, refused
	}
	_, err = provision.Apply(ctx, provision.Changes{c}, f.launcher(), f.applyOptions(&Plan{Have: have}, progress))
	var none *provision.NoCapacityError
	if errors.As(err, &none) {
		return launched, refused
	}
	if err != nil {
		return launched, err
	}
	return c, nil
}

// replaceReplicas applies replacements and returns the IDs of the launched replicas.
func (k *Reconciler) replaceReplicas(ctx context.Context, o *bundleState, replacements []controller.Replacing) (launched []string, err error) {
	for _, r := range replacements {
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
		failed = k.limitPlanning(ctx, o, s)
		c, refused := o.fleet.Exchange(ctx, s.have, s.have[at], r.On, k.progress)
		if err = errors.Join(err, failed, refused); refused == nil {
			launched = append(launched, c.ID())
		}
	}
	return launched, err
}
