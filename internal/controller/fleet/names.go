package fleet

import (
	"context"
	"errors"
	"fmt"

	"skyserve/provision"
)

// Noted stores the public name of a service: local.Service. It is written before the name is
// created, so that an incomplete creation is found.
type Noted interface {
	KeptName() (n provision.Name, has bool, err error)
	KeepName(n provision.Name) error
	ForgetName() error
}

// Publish creates or updates a public name. It first removes another previous name of the service
// completely; an n without a Name only removes. zone is not called where there is neither. It
// returns the errors of provision.Zone's Set.
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

// Unpublish removes the stored name, if any. It leaves a name that now belongs to another owner.
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
