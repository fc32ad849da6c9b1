package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"skyserve/internal/service"
)

// MultiCloud combines the providers of several clouds, by cloud (aws, gcp, local). Each object belongs to
// the provider of its region's cloud. An object without a region is an error, because no provider would
// list it later.
type MultiCloud map[string]Provider

// Offerings calls the provider of the region's cloud.
func (p MultiCloud) Offerings(ctx context.Context, region service.Region) (Offerings, error) {
	provider, err := p.provider(region)
	if err != nil {
		return nil, err
	}
	return provider.Offerings(ctx, region)
}

// List queries all clouds concurrently. When one fails there is no list: acting on a partial list would
// launch existing objects again.
func (p MultiCloud) List(ctx context.Context, service string) ([]Object, error) {
	clouds := slices.Sorted(maps.Keys(p))
	lists, errs := make([][]Object, len(clouds)), make([]error, len(clouds))
	var wg sync.WaitGroup
	for i, cloud := range clouds {
		wg.Go(func() {
			lists[i], errs[i] = p[cloud].List(ctx, service)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("listing %s in %s: %w", cmp.Or(service, "all services"), cloud, errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

// Launch calls the provider of the region's cloud, unless the fence of the context prevents it.
func (p MultiCloud) Launch(ctx context.Context, w Desired) (Object, error) {
	provider, err := p.provider(w.Region)
	if err == nil {
		err = CheckFence(ctx)
	}
	if err != nil {
		return Object{}, err
	}
	return provider.Launch(ctx, w)
}

// Terminate calls the provider of the region's cloud, unless the fence of the context prevents it.
func (p MultiCloud) Terminate(ctx context.Context, o Object) error {
	provider, err := p.provider(o.Region)
	if err == nil {
		err = CheckFence(ctx)
	}
	if err != nil {
		return err
	}
	return provider.Terminate(ctx, o)
}

// Fingerprint calls the provider of the region's cloud. A provider without key attestation is an error.
func (p MultiCloud) Fingerprint(ctx context.Context, o Object) (string, error) {
	provider, err := p.provider(o.Region)
	if err != nil {
		return "", err
	}
	attestor, ok := provider.(KeyAttestor)
	if !ok {
		return "", fmt.Errorf("reading the key fingerprint of %s: cloud %s does not support key attestation", o.ID, o.Region.Cloud())
	}
	return attestor.Fingerprint(ctx, o)
}

func (p MultiCloud) provider(region service.Region) (Provider, error) {
	provider, ok := p[region.Cloud()]
	if !ok {
		return nil, fmt.Errorf("finding a provider for region %q: no provider for cloud %q", region, region.Cloud())
	}
	return provider, nil
}
