package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"skyserve/provision"
)

// downRounds bounds how often what is left is looked for and removed: lists of
// clouds lag behind, so that something may show up late.
const downRounds = 3

// Down removes every object of a service from the clouds of a provider and makes
// sure that they are gone. Balancers go first: a controller beside one of them, if it was
// not dismissed, would launch replicas again. It needs nothing but the name and the owner; an empty
// owner removes what anybody of this account made under that name. A
// *provision.LeftoverError lists what is still there.
func Down(ctx context.Context, p provision.Provider, name, owner string, progress provision.Progress) error {
	var failure error
	for range downRounds {
		have, err := p.List(ctx, name)
		if err != nil {
			return err
		}
		for _, o := range have {
			if owner != "" && o.Owner != owner {
				return &provision.OwnedError{What: "the service " + name, Where: string(o.Region), Owner: o.Owner}
			}
		}
		if len(have) == 0 {
			return nil
		}
		failure = nil
		balancers := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Kind != provision.KindBalancer })
		others := slices.DeleteFunc(have, func(o provision.Object) bool { return o.Kind == provision.KindBalancer })
		for _, objects := range [][]provision.Object{balancers, others} {
			_, err := provision.Apply(ctx, provision.Diff(nil, objects), p, provision.Options{Parallel: parallel, Progress: progress})
			failure = errors.Join(failure, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	have, err := p.List(ctx, name)
	if err != nil {
		return errors.Join(failure, err)
	}
	if len(have) == 0 {
		return nil
	}
	left := &provision.LeftoverError{Service: name}
	for _, o := range have {
		left.Left = append(left.Left, fmt.Sprintf("%s %s in %s (%s)", o.Kind, o.ID, o.Region, o.Handle))
	}
	return errors.Join(left, failure)
}
