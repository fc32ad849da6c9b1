package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"skyserve/provision"
)

// List returns every object of a service. It lists all regions concurrently. It omits terminated machines:
// they cost nothing and cannot be removed.
func (p *Provider) List(ctx context.Context, service string) ([]provision.Object, error) {
	calls := []func() ([]provision.Object, error){}
	for _, name := range p.names {
		r := p.regions[name]
		calls = append(calls, func() ([]provision.Object, error) {
			found, err := r.listObjects(ctx, service)
			return found, wrapError("listing the resources in "+string(r.regionID()), err)
		})
	}
	if !p.cfg.MachinesOnly {
		calls = append(calls, func() ([]provision.Object, error) {
			found, err := p.listIdentities(ctx, service)
			return found, p.withAlternative(wrapError("listing the IAM roles and instance profiles of AWS", err))
		})
	}
	if p.cfg.Binaries && !p.cfg.MachinesOnly {
		calls = append(calls, func() ([]provision.Object, error) {
			found, err := p.listBinaries(ctx, service)
			return found, wrapError("listing the buckets with the skyserve binary", err)
		})
	}
	lists, errs := make([][]provision.Object, len(calls)), make([]error, len(calls))
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() { lists[i], errs[i] = call() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

// listObjects returns the objects of a service in a region.
func (r *region) listObjects(ctx context.Context, service string) ([]provision.Object, error) {
	states := filter("instance-state-name", "pending", "running", "stopping", "stopped")
	machines, err := r.listInstances(ctx, ofService(service), states)
	if err != nil {
		return nil, fmt.Errorf("machines: %w", err)
	}
	var objects []provision.Object
	for _, i := range machines {
		if o, owned := r.objectFromInstance(i); owned {
			objects = append(objects, o)
		}
	}
	if r.p.cfg.MachinesOnly {
		return objects, nil
	}
	firewalls, err := r.listFirewalls(ctx, service)
	if err != nil {
		return nil, fmt.Errorf("firewalls: %w", err)
	}
	return append(objects, firewalls...), nil
}

// mergeNames returns names plus those of profiles that are not among them, sorted.
func mergeNames(names []string, profiles map[string]*iamtypes.InstanceProfile) []string {
	all := append(slices.Clone(names), slices.Collect(maps.Keys(profiles))...)
	slices.Sort(all)
	return slices.Compact(all)
}
