package fleet

import (
	"context"
	"errors"
	"fmt"

	"skyserve/provision"
)

// Noted is where it is noted which public name a service has: local.Service. The note is
// written before the name, so that whatever was begun is found.
type Noted interface {
	KeptName() (n provision.Name, has bool, err error)
	KeepName(n provision.Name) error
	ForgetName() error
}

// Publish makes a public name what n says. Another name that the service had until now is
// removed before, with every trace of it; an n without a Name only does that. zone is asked
// for nothing where there is neither. Errors are those of provision.Zone's Set.
func Publish(ctx context.Context, zone provision.Zone, noted Noted, n provision.Name) error {
	old, had, err := noted.KeptName()
	if err != nil {
		return err
	}
	if had && (n.Name != old.Name || n.Zone != old.Zone || n.Private != old.Private) {
		if err := Unpublish(ctx, zone, noted); err != nil {
			return err
		}
	}
	if n.Name == "" {
		return nil
	}
	if err := noted.KeepName(n); err != nil {
		return err
	}
	return zone.Set(ctx, n)
}

// Unpublish removes the name that is noted, if one is. One that is somebody else's by now
// is not ours to remove.
func Unpublish(ctx context.Context, zone provision.Zone, noted Noted) error {
	old, had, err := noted.KeptName()
	if err != nil || !had {
		return err
	}
	old.Records = nil
	var owned *provision.OwnedError
	if err := zone.Set(ctx, old); err != nil && !errors.As(err, &owned) {
		return fmt.Errorf("removing the name %s: %w", old.Name, err)
	}
	return noted.ForgetName()
}
