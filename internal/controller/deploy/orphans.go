package deploy

import (
	"cmp"
	"context"
	"slices"

	"skyserve/provision"
)

// ServiceKey identifies the service of objects.
type ServiceKey struct {
	Name  string
	Owner string
}

// Orphans returns the objects of unknown services in every region of a provider, ordered by
// service. It ignores objects without the tags of a service.
func Orphans(ctx context.Context, p provision.Provider, known []ServiceKey) ([]provision.Object, error) {
	have, err := p.List(ctx, "")
	if err != nil {
		return nil, err
	}
	orphans := slices.DeleteFunc(have, func(o provision.Object) bool {
		return slices.Contains(known, ServiceKey{Name: o.Service, Owner: o.Owner})
	})
	slices.SortFunc(orphans, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Region, b.Region), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Handle, b.Handle))
	})
	return orphans, nil
}

// DeleteObjects deletes objects, machines before the objects that they depend on.
func DeleteObjects(ctx context.Context, p provision.Provider, objects []provision.Object, progress provision.ProgressFunc) error {
	_, err := provision.Apply(ctx, provision.Diff(nil, objects), p, provision.ApplyOptions{Parallel: parallel, Progress: progress})
	return err
}
