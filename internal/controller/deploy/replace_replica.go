package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"skyserve/internal/controller"
	"skyserve/provision"
)

// ReplacementRefusedError is a replica that keeps its replica class: the desired class is unavailable, or the limits of the
// service (replicas.max, budget, launches) do not allow a replacement now. Reason says which.
type ReplacementRefusedError struct {
	ID      string
	Desired provision.ReplicaClass // the desired class
	Current provision.ReplicaClass
	Reason  string
}

// Error returns a message with the replica, the desired class and the reason.
func (e *ReplacementRefusedError) Error() string {
	return fmt.Sprintf("replacing %s (%s) with %s: %s", e.ID, e.Current, e.Desired, e.Reason)
}

// ReplaceReplica launches a replacement of a class for an existing replica, which serves until the
// replacement is ready: balancers then stop using it, and the controller deletes it. It returns the
// launch. There is no fallback: where that class is unavailable, or replicas.max does not allow
// both, the error is a *ReplacementRefusedError and nothing has changed.
func (dp *Deployer) ReplaceReplica(ctx context.Context, have []provision.Object, of provision.Object, class provision.ReplicaClass, progress provision.ProgressFunc) (launched provision.Change, err error) {
	refused := &ReplacementRefusedError{ID: of.ID, Desired: class}
	if of.Offering != nil {
		refused.Current = provision.ReplicaClassOf(*of.Offering)
	}
	c, own, err := dp.planReplacement(have, of)
	if held := new(provision.HeldError); errors.As(err, &held) {
		refused.Reason = held.Reason
		return launched, refused
	}
	if err != nil {
		return launched, err
	}
	if own == nil {
		refused.Reason = "replicas.max does not allow a replacement before the old replica is removed"
		return launched, refused
	}
	offers := slices.DeleteFunc(slices.Clone(c.Desired.Offerings), func(o provision.Offering) bool { return !class.Matches(o) })
	if len(offers) == 0 {
		refused.Reason = "the region does not offer it"
		return launched, refused
	}
	refused.Reason = "the cloud has no capacity for it"
	if c.Desired.Offerings = dp.withoutExhausted(offers, dp.clock()()); len(c.Desired.Offerings) == 0 {
		return launched, refused
	}
	_, err = provision.Apply(ctx, provision.Changes{c}, dp.launcher(), dp.applyOptions(&MachinePlan{Observed: have}, progress))
	var none *provision.AllOfferingsExhaustedError
	if errors.As(err, &none) {
		return launched, refused
	}
	if held := new(provision.HeldError); errors.As(err, &held) {
		refused.Reason = held.Reason
		return launched, refused
	}
	if err != nil {
		return launched, err
	}
	return c, nil
}

// replaceReplicas applies replacements and returns the IDs of the launched replicas.
func (rc *Reconciler) replaceReplicas(ctx context.Context, bs *bundleState, replacements []controller.ReplicaReplacement) (launched []string, err error) {
	for _, r := range replacements {
		s, failed := rc.observe(ctx, bs)
		if failed != nil {
			return launched, errors.Join(err, failed)
		}
		at := slices.IndexFunc(s.have, func(h provision.Object) bool {
			return h.ID == r.ID && h.Kind == provision.KindReplica && h.TerminatedReason == ""
		})
		if at < 0 {
			continue // it was terminated meanwhile
		}
		failed = rc.limitPlanning(ctx, bs, s)
		c, refused := bs.deployer.ReplaceReplica(ctx, s.have, s.have[at], r.Class, rc.progress)
		if err = errors.Join(err, failed, refused); refused == nil {
			launched = append(launched, c.ID())
		}
	}
	return launched, err
}
