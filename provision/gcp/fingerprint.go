package gcp

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/provision"
)

// fingerprintPath is the guest attribute where a machine's agent writes the fingerprint of its key.
// Only the machine can write there.
const fingerprintPath = "skyserve/fingerprint"

var _ provision.KeyAttestor = (*Provider)(nil)

// fingerprintTTL is how long a fingerprint is cached. Compute Engine permits about ten reads of a machine's
// guest attributes per minute. Beyond that rate it may lose guest attributes.
const fingerprintTTL = 7 * time.Second

// cachedFingerprint is a cached fingerprint of a machine.
type cachedFingerprint struct {
	at          time.Time
	fingerprint string
}

// Fingerprint returns the fingerprint of a machine's key, from the guest attributes where its agent
// writes it; empty until then. It may be 7 s old.
func (p *Provider) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	p.mu.Lock()
	cached, ok := p.fingerprints[o.Handle]
	p.mu.Unlock()
	if ok && p.cfg.Poll > 0 && time.Since(cached.at) < fingerprintTTL {
		return cached.fingerprint, nil
	}
	fingerprint, err := p.readFingerprint(ctx, o)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.fingerprints == nil {
			p.fingerprints = map[string]cachedFingerprint{}
		}
		maps.DeleteFunc(p.fingerprints, func(_ string, k cachedFingerprint) bool { return time.Since(k.at) >= fingerprintTTL })
		p.fingerprints[o.Handle] = cachedFingerprint{time.Now(), fingerprint}
	}
	return fingerprint, err
}

// readFingerprint reads the fingerprint from the cloud.
func (p *Provider) readFingerprint(ctx context.Context, o provision.Object) (string, error) {
	zone, name, _, err := handleOf(o)
	if err != nil {
		return "", fmt.Errorf("reading the key fingerprint of %s: %w", o.ID, err)
	}
	client, project, err := newClient(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return "", wrapError(err, "reading the key fingerprint of %s", o.ID)
	}
	found, err := client.GetGuestAttributes(ctx, &computepb.GetGuestAttributesInstanceRequest{
		Project: project, Zone: zone, Instance: name, QueryPath: new(fingerprintPath),
	})
	if isMissing(err) && strings.Contains(err.Error(), "Guest Attribute") {
		return "", nil
	}
	if err != nil {
		return "", wrapError(err, "reading the key fingerprint of %s", o.ID)
	}
	for _, item := range found.GetQueryValue().GetItems() {
		if item.GetNamespace()+"/"+item.GetKey() == fingerprintPath {
			return strings.TrimSpace(item.GetValue()), nil
		}
	}
	return "", nil
}
