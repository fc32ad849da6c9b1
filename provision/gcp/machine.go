package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/service"
	"skyserve/provision"
)

// machines lists the machines of a service; those of every service for the empty name. One of an
// earlier version has no kind.
func (p *Provider) machines(ctx context.Context, name string) ([]provision.Object, error) {
	client, project, err := through(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return nil, explain(err, "listing machines")
	}
	filter := "labels." + serviceLabel + ":*"
	if name != "" {
		filter = fmt.Sprintf("labels.%s=%q", serviceLabel, labelled(name))
	}
	var all []provision.Object
	for scope, err := range client.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{Project: project, Filter: &filter}).All() {
		if err != nil {
			return nil, explain(err, "listing the machines of project %s", project)
		}
		// each scope without machines warns of just that; any other warning may mean that some are left out
		if code := scope.Value.GetWarning().GetCode(); code != "" && code != "NO_RESULTS_ON_PAGE" {
			return nil, fmt.Errorf("listing the machines of project %s: %s does not answer in full: %s", project, scope.Key, code)
		}
		for _, i := range scope.Value.GetInstances() {
			if o, ours := objectOf(i); ours && p.looksIn(o.Region) && (name == "" || o.Service == name && (o.Kind != "" || isEarlier(i.GetName(), name))) {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// objectOf is a machine as an object; false when it was not made here.
func objectOf(i *computepb.Instance) (provision.Object, bool) {
	n, ours := noteIn(i)
	if !ours {
		return provision.Object{}, false
	}
	o, zone := n.Object, path.Base(i.GetZone())
	if kind := kindIn(i.GetName(), n.Service); kind != n.Kind {
		o.Kind, o.Spec, o.Fixed = kind, "", ""
	}
	o.Region = regionOf(zone)
	o.Handle = fmt.Sprintf("%s/%s/%d", zone, i.GetName(), i.GetId())
	o.Gone = goneFor(i)
	o.PublicIP, o.PrivateIP = addressesOf(i)
	// a time that cannot be read is not known: it is only shown
	o.Started, _ = time.Parse(time.RFC3339, cmp.Or(i.GetLastStartTimestamp(), i.GetCreationTimestamp()))
	return o, true
}

func noteIn(i *computepb.Instance) (note, bool) {
	items := i.GetMetadata().GetItems()
	at := slices.IndexFunc(items, func(item *computepb.Items) bool { return item.GetKey() == noteKey })
	if at < 0 {
		return note{}, false
	}
	return readNote(items[at].GetValue())
}

// kindIn is the kind of machine of a service that a name says; empty where it is that of none. A
// note is whatever was written by who made the machine, and the name is what their role lets them
// write: a balancer's account makes replicas of its own service, whatever they say of themselves.
func kindIn(name, service string) provision.Kind {
	for _, kind := range []provision.Kind{provision.KindBalancer, provision.KindReplica} {
		if strings.HasPrefix(name, machinePrefix(kind, service)) {
			return kind
		}
	}
	return ""
}

// isEarlier says whether a name is one that earlier versions gave to machines of a service, whose
// names did not say their kind. What the account of a balancer makes never has one.
func isEarlier(name, service string) bool {
	for _, kind := range []provision.Kind{provision.KindBalancer, provision.KindReplica} {
		if strings.HasPrefix(name, "skyserve-"+string(kind)+"-") && strings.Contains(name, "--") {
			return false
		}
	}
	return strings.HasPrefix(name, "skyserve-"+service+"-")
}

// goneFor is why a machine does not run; empty while it does, or soon will.
func goneFor(i *computepb.Instance) string {
	switch i.GetStatus() {
	case "STOPPING", "STOPPED", "TERMINATED", "PENDING_STOP", "DEPROVISIONING":
		if i.GetScheduling().GetProvisioningModel() == spotModel {
			return "interrupted: the cloud took the spot machine back"
		}
		return "stopped"
	case "SUSPENDING", "SUSPENDED":
		return "suspended"
	}
	return ""
}

// addressesOf are where a machine is in the world and in its network; zero where it
// has no such address, or not yet.
func addressesOf(i *computepb.Instance) (public, private netip.Addr) {
	for _, nic := range i.GetNetworkInterfaces() {
		private = cmp.Or(private, addressIn(nic.GetNetworkIP()))
		for _, c := range nic.GetAccessConfigs() {
			public = cmp.Or(public, addressIn(c.GetNatIP()))
		}
	}
	return public, private
}

// addressIn is the address in a text; zero where there is none.
func addressIn(text string) netip.Addr {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return address
}

// launchMachine makes a machine on its offering; have is what the service has.
func (p *Provider) launchMachine(ctx context.Context, w provision.Want, have []provision.Object) (provision.Object, error) {
	for _, o := range have {
		if o.ID == w.ID && o.Gone == "" && isWanted(w, o) {
			return o, nil
		}
	}
	for _, o := range have {
		if o.ID == w.ID && o.Gone != "" {
			if err := p.Terminate(ctx, o); err != nil {
				return provision.Object{}, err
			}
		}
	}
	if len(w.Offers) != 1 {
		return provision.Object{}, fmt.Errorf("launching %s in %s: it needs one offering to run on, got %d", w.ID, w.Region, len(w.Offers))
	}
	zones := []string{w.Offers[0].Zone}
	if zones[0] == "" {
		var err error
		if zones, err = p.zones(ctx, w.Region.Place()); err != nil {
			return provision.Object{}, err
		}
	}
	var refused *provision.CapacityError
	for _, zone := range zones {
		offer := w.Offers[0]
		offer.Zone = zone
		o, err := p.makeIn(ctx, w, offer)
		if !errors.As(err, &refused) || refused.Scope != provision.ScopeZone {
			return o, err
		}
	}
	if w.Offers[0].Zone == "" { // every zone of the region was tried
		refused.Offering.Zone, refused.Scope = "", provision.ScopeRegion
	}
	return provision.Object{}, refused
}

// isWanted says whether nothing has to be done for an object to be what is wanted.
func isWanted(w provision.Want, o provision.Object) bool {
	return len(provision.Diff([]provision.Want{w}, []provision.Object{o})) == 0
}

// makings is how often a machine is made that went while it was being made, such as
// one that another program had asked for and was refused. Of some programs that want
// the same one, each try lets one know for good.
const makings = 5

// makeIn makes a machine in the zone of an offering. Its name is derived from what it
// is, so if it is there already, made by whomever, then that is the one; what is
// left of one that went is removed first.
func (p *Provider) makeIn(ctx context.Context, w provision.Want, offer provision.Offering) (provision.Object, error) {
	n := noteOf(w, &offer)
	s, err := p.open(ctx)
	if err != nil {
		return provision.Object{}, explain(err, "launching %s", offer)
	}
	wanted, err := p.instanceOf(w, n, s.project)
	if err != nil {
		return provision.Object{}, err
	}
	for range makings {
		if err := p.insert(ctx, offer, wanted); err != nil {
			return provision.Object{}, err
		}
		made, err := p.made(ctx, offer.Zone, wanted.GetName())
		if err != nil {
			return provision.Object{}, err
		}
		if made == nil {
			continue
		}
		if found, ours := noteIn(made); !ours || !found.same(n) {
			return provision.Object{}, &provision.OwnedError{What: "machine " + made.GetName(), Where: offer.Zone, Owner: found.Owner}
		}
		o, _ := objectOf(made)
		if o.Gone == "" {
			return o, nil
		}
		if err := p.Terminate(ctx, o); err != nil {
			return provision.Object{}, err
		}
	}
	return provision.Object{}, fmt.Errorf("launching %s as machine %s in %s: it was made %d times and each time did not stay", w.ID, wanted.GetName(), offer.Zone, makings)
}

// insert asks for a machine and waits until it is there. One that is there already is
// no error. After an error nothing is there that this call made.
func (p *Provider) insert(ctx context.Context, offer provision.Offering, wanted *computepb.Instance) error {
	client, project, err := through(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return explain(err, "launching %s", offer)
	}
	id := requestID()
	op, err := client.Insert(ctx, &computepb.InsertInstanceRequest{Project: project, Zone: offer.Zone, InstanceResource: wanted, RequestId: &id})
	err = p.settle(ctx, op, err)
	if err == nil || isTaken(err) {
		return nil
	}
	var ended *operationError
	if errors.As(err, &ended) {
		number := strconv.FormatUint(op.Proto().GetTargetId(), 10)
		if err := p.removeMachine(ctx, offer.Zone, wanted.GetName(), number); err != nil {
			return err
		}
	}
	if refused, ok := capacityError(offer, err); ok {
		return refused
	}
	return explain(err, "launching %s", offer)
}

// made waits until a machine has been made, by whomever, and returns it; nil when
// there is none.
func (p *Provider) made(ctx context.Context, zone, name string) (found *computepb.Instance, err error) {
	err = p.wait(ctx, "machine "+name, func() (bool, error) {
		var err error
		found, err = p.machine(ctx, zone, name)
		return found.GetStatus() != "PROVISIONING" && found.GetStatus() != "STAGING", err
	})
	return found, err
}

// machine reads a machine; nil when there is none.
func (p *Provider) machine(ctx context.Context, zone, name string) (*computepb.Instance, error) {
	client, project, err := through(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return nil, explain(err, "reading machine %s", name)
	}
	found, err := client.Get(ctx, &computepb.GetInstanceRequest{Project: project, Zone: zone, Instance: name})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, explain(err, "reading machine %s in %s", name, zone)
	}
	return found, nil
}

// removeMachine deletes the machine of a name that has a number, and its disk with
// it, and returns when it is gone. Another machine that has the name is left alone.
func (p *Provider) removeMachine(ctx context.Context, zone, name, number string) error {
	client, project, err := through(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return explain(err, "terminating machine %s", name)
	}
	return p.wait(ctx, "the end of machine "+name, func() (bool, error) {
		found, err := p.machine(ctx, zone, name)
		if err != nil || found == nil || strconv.FormatUint(found.GetId(), 10) != number {
			return err == nil, err
		}
		if _, ours := noteIn(found); !ours {
			return true, nil
		}
		id := requestID()
		op, err := client.Delete(ctx, &computepb.DeleteInstanceRequest{Project: project, Zone: zone, Instance: name, RequestId: &id})
		err = p.settle(ctx, op, err)
		switch {
		case err == nil || isMissing(err):
			return true, nil
		case isBusy(err): // it is going already
			return false, nil
		}
		return false, explain(err, "terminating machine %s in %s", name, zone)
	})
}

// spotModel is Compute Engine's word for what may be interrupted.
const spotModel = "SPOT"

// isSpot says whether an offering may be interrupted.
func isSpot(o provision.Offering) bool { return o.Capacity == service.CapacitySpot }
