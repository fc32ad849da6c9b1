package gcp

import (
	"context"
	"fmt"
	"path"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/provision"
)

// rule reads a firewall rule that must be of an object; nil when there is none.
func (p *Provider) rule(ctx context.Context, n note, name string) (*computepb.Firewall, error) {
	client, project, err := through(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return nil, explain(err, "reading firewall rule %s", name)
	}
	found, err := client.Get(ctx, &computepb.GetFirewallRequest{Project: project, Firewall: name})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, explain(err, "reading firewall rule %s", name)
	}
	if has, ours := readNote(found.GetDescription()); !ours || !has.same(n) {
		return nil, &provision.OwnedError{What: "firewall rule " + name, Where: "project " + project, Owner: has.Owner}
	}
	return found, nil
}

// setRule makes a rule what it should be.
func (p *Provider) setRule(ctx context.Context, n note, want *computepb.Firewall) error {
	client, project, err := through(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return explain(err, "making firewall rule %s", want.GetName())
	}
	return p.wait(ctx, "firewall rule "+want.GetName(), func() (bool, error) {
		found, err := p.rule(ctx, n, want.GetName())
		if err != nil || found != nil && sameRule(found, want) {
			return err == nil, err
		}
		if found != nil && path.Base(found.GetNetwork()) != path.Base(want.GetNetwork()) {
			return false, &provision.SpecError{Err: fmt.Errorf("the service %s stands in the network %s, not %s: take it down before it moves", n.Service, path.Base(found.GetNetwork()), path.Base(want.GetNetwork()))}
		}
		id := requestID()
		if found == nil {
			op, err := client.Insert(ctx, &computepb.InsertFirewallRequest{Project: project, FirewallResource: want, RequestId: &id})
			return changed(p.settle(ctx, op, err), "making firewall rule %s", want.GetName())
		}
		op, err := client.Update(ctx, &computepb.UpdateFirewallRequest{Project: project, Firewall: want.GetName(), FirewallResource: want, RequestId: &id})
		return changed(p.settle(ctx, op, err), "changing firewall rule %s", want.GetName())
	})
}

// changed says whether a change of a rule was made; it was not, and has to be looked at
// again, when somebody else was changing the same rule.
func changed(err error, doing, name string) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case isTaken(err), isBusy(err), isMissing(err) && !noNetwork.MatchString(err.Error()):
		return false, nil
	}
	return false, explain(err, doing, name)
}

// removeRule deletes a rule of an object; one that is not there is no error.
func (p *Provider) removeRule(ctx context.Context, n note, name string) error {
	client, project, err := through(ctx, p, compute.NewFirewallsRESTClient)
	if err != nil {
		return explain(err, "removing firewall rule %s", name)
	}
	return p.wait(ctx, "the end of firewall rule "+name, func() (bool, error) {
		found, err := p.rule(ctx, n, name)
		if err != nil || found == nil {
			return err == nil, err
		}
		id := requestID()
		op, err := client.Delete(ctx, &computepb.DeleteFirewallRequest{Project: project, Firewall: name, RequestId: &id})
		return changed(p.settle(ctx, op, err), "removing firewall rule %s", name)
	})
}

// removeFoundation deletes every rule of a foundation.
func (p *Provider) removeFoundation(ctx context.Context, o provision.Object, prefix string) error {
	ends, known := rulesOf[o.Kind]
	if !known {
		return fmt.Errorf("terminating %s: a %s has no firewall rules, although its handle is %q", o.ID, o.Kind, o.Handle)
	}
	for _, end := range ends {
		if err := p.removeRule(ctx, note{Object: o}, nameOf(prefix, end)); err != nil {
			return err
		}
	}
	return nil
}
