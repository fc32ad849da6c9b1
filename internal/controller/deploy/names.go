package deploy

import (
	"context"
	"errors"
	"fmt"

	"skyserve/internal/service"
	"skyserve/provision"
)

// PublicName returns the public name of a service in clouds with a record for each balancer that runs; the zero value if
// the service has no name.
func PublicName(spec *service.Spec, owner string, have []provision.Object) provision.PublicName {
	if spec.DNS == nil {
		return provision.PublicName{}
	}
	n := provision.PublicName{Name: spec.DNS.Name, Zone: spec.DNS.Zone, Service: spec.Name, Owner: owner, Routing: provision.DNSRouting(spec.DNS.Routing), TTL: spec.DNS.TTL, Private: spec.DNS.Private}
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" {
			n.Records = append(n.Records, provision.DNSRecord{ID: o.ID, Region: o.Region, Address: o.PublicIP, Check: PublicURL(spec, o) + "/readyz"})
		}
	}
	return n
}

// DNSNameStore stores the public name of a service: local.Service. It is written before the name is
// created, so that an incomplete creation is found.
type DNSNameStore interface {
	StoredName() (n provision.PublicName, has bool, err error)
	StoreName(n provision.PublicName) error
	RemoveName() error
}

// PublishName creates or updates a public name. If the service had another name before, that one is first removed
// completely. If n has no Name, nothing is created afterwards. zone is not called if there is no previous name and
// no new one. PublishName returns the errors of provision.DNSZone.Set.
func PublishName(ctx context.Context, zone provision.DNSZone, stored DNSNameStore, n provision.PublicName) error {
	old, had, err := stored.StoredName()
	if err != nil {
		return err
	}
	if had && (n.Name != old.Name || n.Zone != old.Zone || n.Private != old.Private) {
		if err := UnpublishName(ctx, zone, stored); err != nil {
			return err
		}
	}
	if n.Name == "" {
		return nil
	}
	if err := stored.StoreName(n); err != nil {
		return err
	}
	return zone.Set(ctx, n)
}

// UnpublishName removes the stored name, if any. It leaves a name that now belongs to another owner.
func UnpublishName(ctx context.Context, zone provision.DNSZone, stored DNSNameStore) error {
	old, had, err := stored.StoredName()
	if err != nil || !had {
		return err
	}
	old.Records = nil
	var owned *provision.OwnedError
	if err := zone.Set(ctx, old); err != nil && !errors.As(err, &owned) {
		return fmt.Errorf("removing the DNS name %s: %w", old.Name, err)
	}
	return stored.RemoveName()
}
