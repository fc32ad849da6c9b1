package fleet

import (
	"cmp"
	"context"
	"slices"

	"skyserve/provision"
)

// Service is whose objects they are.
type Service struct {
	Name  string
	Owner string
}

// Orphans finds the objects of services that are not among those known, in every
// region of a provider, in the order of their services. Objects without the tags of
// a service are not ours and not looked at.
func Orphans(ctx context.Context, p provision.Provider, known []Service) ([]provision.Object, error) {
	have, err := p.List(ctx, "")
	if err != nil {
		return nil, err
	}
	orphans := slices.DeleteFunc(have, func(o provision.Object) bool {
		return slices.Contains(known, Service{Name: o.Service, Owner: o.Owner})
	})
	slices.SortFunc(orphans, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Region, b.Region), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Handle, b.Handle))
	})
	return orphans, nil
}

// Remove terminates objects, machines before what they stand on.
func Remove(ctx context.Context, p provision.Provider, objects []provision.Object, progress provision.Progress) error {
	_, err := provision.Apply(ctx, provision.Diff(nil, objects), p, provision.Options{Parallel: parallel, Progress: progress})
	return err
}
