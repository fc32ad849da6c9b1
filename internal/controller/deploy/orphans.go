package deploy

import (
	"cmp"
	"context"
	"slices"

	"skyserve/provision"
)

// Service identifies the service of objects.
type Service struct {
	Name  string
	Owner string
}

// Orphans returns the objects of unknown services in every region of a provider, ordered by
// service. It ignores objects without the tags of a service.
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

// Remove deletes objects, machines before the objects that they depend on.
func Remove(ctx context.Context, p provision.Provider, objects []provision.Object, progress provision.ProgressFunc) error {
	_, err := provision.Apply(ctx, provision.Diff(nil, objects), p, provision.ApplyOptions{Parallel: parallel, Progress: progress})
	return err
}
