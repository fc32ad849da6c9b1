package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"skyserve/provision"
)

// maxDownRounds is the maximum number of attempts to list and delete remaining objects: lists of
// clouds are eventually consistent, so that an object may appear late.
const maxDownRounds = 3

// Down deletes every object of a service from the clouds of a provider, and lists the objects again to
// verify it. Balancers are deleted first, because a controller that still runs on the machine of
// one would launch replicas again. Down requires only the name and the owner; with an empty owner
// it deletes all objects of that name in the cloud accounts. A *provision.RemainingError lists the
// remaining objects.
func Down(ctx context.Context, p provision.Provider, name, owner string, progress provision.ProgressFunc) error {
	var failure error
	for range maxDownRounds {
		have, err := p.List(ctx, name)
		if err != nil {
			return err
		}
		for _, o := range have {
			if owner != "" && o.Owner != owner {
				return &provision.OwnedError{Resource: "the service " + name, Where: string(o.Region), Owner: o.Owner}
			}
		}
		if len(have) == 0 {
			return nil
		}
		failure = nil
		balancers := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Kind != provision.KindBalancer })
		others := slices.DeleteFunc(have, func(o provision.Object) bool { return o.Kind == provision.KindBalancer })
		for _, objects := range [][]provision.Object{balancers, others} {
			_, err := provision.Apply(ctx, provision.Diff(nil, objects), p, provision.ApplyOptions{Parallel: parallel, Progress: progress})
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
	remaining := &provision.RemainingError{Service: name}
	for _, o := range have {
		remaining.Remaining = append(remaining.Remaining, fmt.Sprintf("%s %s in %s (%s)", o.Kind, o.ID, o.Region, o.Handle))
	}
	return errors.Join(remaining, failure)
}
