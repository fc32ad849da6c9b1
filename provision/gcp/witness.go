package gcp

import (
	"context"
	"fmt"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/provision"
)

// fingerprintPath is the guest attribute that a machine's agent writes the
// fingerprint of its key to. Nobody but the machine can write there.
const fingerprintPath = "skyserve/fingerprint"

var _ provision.Witness = (*Provider)(nil)

// Fingerprint is that of the key of a machine, as its agent wrote it into the machine's guest
// attributes; empty while it has not.
func (p *Provider) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	zone, name, _, err := handleOf(o)
	if err != nil {
		return "", fmt.Errorf("reading the key of %s: %w", o.ID, err)
	}
	client, project, err := through(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return "", explain(err, "reading the key of %s", o.ID)
	}
	found, err := client.GetGuestAttributes(ctx, &computepb.GetGuestAttributesInstanceRequest{
		Project: project, Zone: zone, Instance: name, QueryPath: new(fingerprintPath),
	})
	if isMissing(err) && strings.Contains(err.Error(), "Guest Attribute") {
		return "", nil
	}
	if err != nil {
		return "", explain(err, "reading the key of %s", o.ID)
	}
	for _, item := range found.GetQueryValue().GetItems() {
		if item.GetNamespace()+"/"+item.GetKey() == fingerprintPath {
			return strings.TrimSpace(item.GetValue()), nil
		}
	}
	return "", nil
}
