package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"skyserve/internal/service"
)

// Places is the providers of several clouds as one, by cloud (aws, gcp, local):
// each object belongs to the provider of its region's cloud. What has no region is
// an error, for nobody would know where to look for it.
type Places map[string]Provider

// Offerings asks the region's cloud.
func (p Places) Offerings(ctx context.Context, region service.Region) (Offerings, error) {
	provider, err := p.of(region)
	if err != nil {
		return nil, err
	}
	return provider.Offerings(ctx, region)
}

// List asks all clouds at once. When one does not answer there is no list: acting
// on the rest would make again what is there.
func (p Places) List(ctx context.Context, service string) ([]Object, error) {
	clouds := slices.Sorted(maps.Keys(p))
	lists, errs := make([][]Object, len(clouds)), make([]error, len(clouds))
	var wg sync.WaitGroup
	for i, cloud := range clouds {
		wg.Go(func() {
			lists[i], errs[i] = p[cloud].List(ctx, service)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("listing %s in %s: %w", service, cloud, errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

// Launch asks the region's cloud.
func (p Places) Launch(ctx context.Context, w Want) (Object, error) {
	provider, err := p.of(w.Region)
	if err != nil {
		return Object{}, err
	}
	return provider.Launch(ctx, w)
}

// Terminate asks the region's cloud.
func (p Places) Terminate(ctx context.Context, o Object) error {
	provider, err := p.of(o.Region)
	if err != nil {
		return err
	}
	return provider.Terminate(ctx, o)
}

// Fingerprint asks the region's cloud; an error where it bears no witness.
func (p Places) Fingerprint(ctx context.Context, o Object) (string, error) {
	provider, err := p.of(o.Region)
	if err != nil {
		return "", err
	}
	witness, ok := provider.(Witness)
	if !ok {
		return "", fmt.Errorf("reading the key of %s: %s bears no witness", o.ID, o.Region.Cloud())
	}
	return witness.Fingerprint(ctx, o)
}

func (p Places) of(region service.Region) (Provider, error) {
	provider, ok := p[region.Cloud()]
	if !ok {
		return nil, fmt.Errorf("finding a provider for the region %q: there is none for the cloud %q", region, region.Cloud())
	}
	return provider, nil
}
