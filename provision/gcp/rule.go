package gcp

import (
	"context"
	"fmt"
	"path"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/provision"
)

// readRule reads a firewall rule and checks its owner; nil when there is none.
func (p *Provider) readRule(ctx context.Context, n note, name string) (*computepb.Firewall, error) {
	client, project, err := newClient(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading firewall rule %s", name)
	}
	found, err := client.Get(ctx, &computepb.GetFirewallRequest{Project: project, Firewall: name})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, wrapError(err, "reading firewall rule %s", name)
	}
	if foundNote, owned := readNote(found.GetDescription()); !owned || !foundNote.sameObject(n) {
		return nil, &provision.OwnedError{Resource: "firewall rule " + name, Where: "project " + project, Owner: foundNote.Owner}
	}
	return found, nil
}

// setRule creates or updates a rule.
func (p *Provider) setRule(ctx context.Context, n note, want *computepb.Firewall) error {
	client, project, err := newClient(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return wrapError(err, "creating firewall rule %s", want.GetName())
	}
	return p.pollUntil(ctx, "firewall rule "+want.GetName(), func() (bool, error) {
		found, err := p.readRule(ctx, n, want.GetName())
		if err != nil || found != nil && sameRule(found, want) {
			return err == nil, err
		}
		if found != nil && path.Base(found.GetNetwork()) != path.Base(want.GetNetwork()) {
			return false, &provision.SpecError{Err: fmt.Errorf("service %s is in network %s, not %s; run 'skyserve down' before moving it", n.Service, path.Base(found.GetNetwork()), path.Base(want.GetNetwork()))}
		}
		id := requestID()
		if found == nil {
			op, err := client.Insert(ctx, &computepb.InsertFirewallRequest{Project: project, FirewallResource: want, RequestId: &id})
			return ruleChanged(p.waitOperation(ctx, op, err), "creating firewall rule %s", want.GetName())
		}
		op, err := client.Update(ctx, &computepb.UpdateFirewallRequest{Project: project, Firewall: want.GetName(), FirewallResource: want, RequestId: &id})
		return ruleChanged(p.waitOperation(ctx, op, err), "updating firewall rule %s", want.GetName())
	})
}

// ruleChanged reports whether a change of a rule succeeded. It is false, and the caller retries, when
// another process was changing the same rule.
func ruleChanged(err error, doing, name string) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case isTaken(err), isBusy(err), isMissing(err) && !noNetwork.MatchString(err.Error()):
		return false, nil
	}
	return false, wrapError(err, doing, name)
}

// removeRule deletes a rule of an object; a missing rule is not an error.
func (p *Provider) removeRule(ctx context.Context, n note, name string) error {
	client, project, err := newClient(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return wrapError(err, "removing firewall rule %s", name)
	}
	return p.pollUntil(ctx, "deletion of firewall rule "+name, func() (bool, error) {
		found, err := p.readRule(ctx, n, name)
		if err != nil || found == nil {
			return err == nil, err
		}
		id := requestID()
		op, err := client.Delete(ctx, &computepb.DeleteFirewallRequest{Project: project, Firewall: name, RequestId: &id})
		return ruleChanged(p.waitOperation(ctx, op, err), "removing firewall rule %s", name)
	})
}

// removePrerequisite deletes every rule of a prerequisite.
func (p *Provider) removePrerequisite(ctx context.Context, o provision.Object, prefix string) error {
	ends, known := ruleEnds[o.Kind]
	if !known {
		return fmt.Errorf("terminating %s: objects of kind %s have no firewall rules, got handle %q", o.ID, o.Kind, o.Handle)
	}
	for _, end := range ends {
		if err := p.removeRule(ctx, note{Object: o}, nameOf(prefix, end)); err != nil {
			return err
		}
	}
	return nil
}
