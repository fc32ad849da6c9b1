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

// fingerprintPath is the guest attribute that a machine's agent writes the
// fingerprint of its key to. Nobody but the machine can write there.
const fingerprintPath = "skyserve/fingerprint"

var _ provision.Witness = (*Provider)(nil)

// keyEvery is how long a key that was read stands for what is there: Compute Engine wants a
// machine's guest attributes to be asked for ten times a minute at most, and may lose
// them beyond that.
const keyEvery = 7 * time.Second

// readKey is what a machine had said of its key at some time.
type readKey struct {
	at          time.Time
	fingerprint string
}

// Fingerprint is that of the key of a machine, as its agent wrote it into the machine's guest
// attributes; empty while it has not. It may be 7 s old.
func (p *Provider) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	p.mu.Lock()
	last, asked := p.keys[o.Handle]
	p.mu.Unlock()
	if asked && p.cfg.Poll > 0 && time.Since(last.at) < keyEvery {
		return last.fingerprint, nil
	}
	fingerprint, err := p.fingerprint(ctx, o)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.keys == nil {
			p.keys = map[string]readKey{}
		}
		maps.DeleteFunc(p.keys, func(_ string, k readKey) bool { return time.Since(k.at) >= keyEvery })
		p.keys[o.Handle] = readKey{time.Now(), fingerprint}
	}
	return fingerprint, err
}

// fingerprint asks the cloud for it.
func (p *Provider) fingerprint(ctx context.Context, o provision.Object) (string, error) {
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
