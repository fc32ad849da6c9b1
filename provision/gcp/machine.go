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

// listMachines lists the machines of a service; those of every service for the empty name. A machine of an
// earlier version has no kind.
func (p *Provider) listMachines(ctx context.Context, name string) ([]provision.Object, error) {
	client, project, err := newClient(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return nil, wrapError(err, "listing machines")
	}
	filter := "labels." + serviceLabel + ":*"
	if name != "" {
		filter = fmt.Sprintf("labels.%s=%q", serviceLabel, labelValue(name))
	}
	var all []provision.Object
	for scope, err := range client.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{Project: project, Filter: &filter}).All() {
		if err != nil {
			return nil, wrapError(err, "listing the machines of project %s", project)
		}
		// each scope without machines has the warning NO_RESULTS_ON_PAGE; any other means an incomplete list
		if code := scope.Value.GetWarning().GetCode(); code != "" && code != codeNoResults {
			return nil, fmt.Errorf("listing the machines of project %s: incomplete response from %s: %s", project, scope.Key, code)
		}
		for _, i := range scope.Value.GetInstances() {
			if o, owned := objectOf(i); owned && p.hasRegion(o.Region) && (name == "" || o.Service == name && (o.Kind != "" || isLegacyName(i.GetName(), name))) {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// objectOf converts a machine to an object; false when skyserve did not create it.
func objectOf(i *computepb.Instance) (provision.Object, bool) {
	n, owned := noteOfInstance(i)
	if !owned {
		return provision.Object{}, false
	}
	o, zone := n.Object, path.Base(i.GetZone())
	if kind := kindFromName(i.GetName(), n.Service); kind != n.Kind {
		o.Kind, o.SpecHash, o.ImmutableHash = kind, "", ""
	}
	o.Region = regionOf(zone)
	o.Handle = fmt.Sprintf("%s/%s/%d", zone, i.GetName(), i.GetId())
	o.TerminatedReason, o.Interrupted = stoppedReason(i), isPreempted(i)
	o.PublicIP, o.PrivateIP = addressesOf(i)
	// an invalid time is left zero: it is only displayed
	o.Started, _ = time.Parse(time.RFC3339, cmp.Or(i.GetLastStartTimestamp(), i.GetCreationTimestamp()))
	if o.Offering != nil {
		o.Offering.Ends = endOf(i, o.Started)
	}
	return o, true
}

// endOf returns when Google ends a machine that was started at a time; zero if it does not.
func endOf(i *computepb.Instance, started time.Time) time.Time {
	if end, err := time.Parse(time.RFC3339, i.GetResourceStatus().GetScheduling().GetTerminationTimestamp()); err == nil {
		return end
	}
	run := i.GetScheduling().GetMaxRunDuration().GetSeconds()
	if run == 0 || started.IsZero() {
		return time.Time{}
	}
	return started.Add(time.Duration(run) * time.Second)
}

func noteOfInstance(i *computepb.Instance) (note, bool) {
	items := i.GetMetadata().GetItems()
	at := slices.IndexFunc(items, func(item *computepb.Items) bool { return item.GetKey() == noteKey })
	if at < 0 {
		return note{}, false
	}
	return readNote(items[at].GetValue())
}

// kindFromName returns the kind that the name of a service's machine contains; empty if it contains none.
// The kind in the note is not trusted, because the machine's creator writes the note. IAM restricts the
// name: a balancer's service account can create only names of replicas of its own service.
func kindFromName(name, service string) provision.ObjectKind {
	for _, kind := range []provision.ObjectKind{provision.KindBalancer, provision.KindReplica} {
		if strings.HasPrefix(name, machinePrefix(kind, service)) {
			return kind
		}
	}
	return ""
}

// isLegacyName reports whether a name has the form of earlier versions, whose machine names did not
// contain their kind. A balancer's service account cannot create such a name.
func isLegacyName(name, service string) bool {
	for _, kind := range []provision.ObjectKind{provision.KindBalancer, provision.KindReplica} {
		if strings.HasPrefix(name, "skyserve-"+string(kind)+"-") && strings.Contains(name, "--") {
			return false
		}
	}
	return strings.HasPrefix(name, "skyserve-"+service+"-")
}

// stoppedReason returns why a machine does not run; empty while it does, or soon will.
func stoppedReason(i *computepb.Instance) string {
	switch i.GetStatus() {
	case statusStopping, statusStopped, statusTerminated, statusPendingStop, statusDeprovisioning:
		switch i.GetScheduling().GetProvisioningModel() {
		case spotModel:
			return "interrupted: the cloud reclaimed the spot machine"
		case flexModel:
			return "stopped: by a user, or by the cloud at the end of its flex-start run"
		}
		return "stopped"
	case statusSuspending, statusSuspended:
		return "suspended"
	}
	return ""
}

// isPreempted reports whether Google has interrupted a spot machine. A machine that is being deleted is
// stopping but never stopped; a spot machine that a user stopped counts as interrupted.
func isPreempted(i *computepb.Instance) bool {
	stopped := i.GetStatus() == statusTerminated || i.GetStatus() == statusStopped
	return stopped && i.GetScheduling().GetProvisioningModel() == spotModel
}

// addressesOf returns the public and the private address of a machine; zero where it has none, or not
// yet.
func addressesOf(i *computepb.Instance) (public, private netip.Addr) {
	for _, nic := range i.GetNetworkInterfaces() {
		private = cmp.Or(private, parseAddress(nic.GetNetworkIP()))
		for _, c := range nic.GetAccessConfigs() {
			public = cmp.Or(public, parseAddress(c.GetNatIP()))
		}
	}
	return public, private
}

// parseAddress parses an address; zero where it is none.
func parseAddress(text string) netip.Addr {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return address
}

// launchMachine creates a machine on its offering; have contains the machines of the service.
func (p *Provider) launchMachine(ctx context.Context, w provision.Desired, have []provision.Object) (provision.Object, error) {
	for _, o := range have {
		if o.ID == w.ID && o.TerminatedReason == "" && isWanted(w, o) {
			return o, nil
		}
	}
	for _, o := range have {
		if o.ID == w.ID && o.TerminatedReason != "" {
			if err := p.Terminate(ctx, o); err != nil {
				return provision.Object{}, err
			}
		}
	}
	if len(w.Offerings) != 1 {
		return provision.Object{}, fmt.Errorf("launching %s in %s: number of offerings must be 1, got %d", w.ID, w.Region, len(w.Offerings))
	}
	zones := []string{w.Offerings[0].Zone}
	if zones[0] == "" {
		var err error
		if zones, err = p.listZones(ctx, w.Region.ShortName()); err != nil {
			return provision.Object{}, err
		}
	}
	var noCapacity *provision.CapacityError
	for _, zone := range zones {
		offer := w.Offerings[0]
		offer.Zone = zone
		o, err := p.createInZone(ctx, w, offer)
		if !errors.As(err, &noCapacity) || noCapacity.Scope != provision.ScopeZone {
			return o, err
		}
	}
	if w.Offerings[0].Zone == "" { // every zone of the region was attempted
		noCapacity.Offering.Zone, noCapacity.Scope = "", provision.ScopeRegion
	}
	return provision.Object{}, noCapacity
}

// isWanted reports whether an object already matches the desired one.
func isWanted(w provision.Desired, o provision.Object) bool {
	return len(provision.Diff([]provision.Desired{w}, []provision.Object{o})) == 0
}

// maxCreateAttempts is the maximum number of attempts to create a machine that another process deletes
// while it is being created, for instance because the other process's launch failed. When several processes
// create the same machine, at least one of them finishes per attempt.
const maxCreateAttempts = 5

// createInZone creates a machine in the zone of an offering. The name is derived from the configuration, so
// an existing machine of that name is the desired machine. If it is stopped, it is removed and created
// again.
func (p *Provider) createInZone(ctx context.Context, w provision.Desired, offer provision.Offering) (provision.Object, error) {
	n := noteOf(w, &offer)
	s, err := p.openSession(ctx)
	if err != nil {
		return provision.Object{}, wrapError(err, "launching %s", offer)
	}
	wanted, err := p.instanceOf(w, n, s.project)
	if err != nil {
		return provision.Object{}, err
	}
	for range maxCreateAttempts {
		if err := p.insertMachine(ctx, offer, wanted); err != nil {
			return provision.Object{}, err
		}
		created, err := p.waitMachine(ctx, offer.Zone, wanted.GetName())
		if err != nil {
			return provision.Object{}, err
		}
		if created == nil && isFlexStart(offer) {
			return provision.Object{}, &provision.CapacityError{Offering: offer, Scope: provision.ScopeZone, Code: codeNoFlexStart, Err: fmt.Errorf("no capacity within %s", flexWait)}
		}
		if created == nil {
			continue
		}
		if found, owned := noteOfInstance(created); !owned || !found.sameObject(n) {
			return provision.Object{}, &provision.OwnedError{Resource: "machine " + created.GetName(), Where: offer.Zone, Owner: found.Owner}
		}
		o, _ := objectOf(created)
		if o.TerminatedReason == "" {
			return o, nil
		}
		if err := p.Terminate(ctx, o); err != nil {
			return provision.Object{}, err
		}
	}
	return provision.Object{}, fmt.Errorf("launching %s as machine %s in %s: created %d times and deleted each time by another process; find in the audit logs who deletes machines of project %s", w.ID, wanted.GetName(), offer.Zone, maxCreateAttempts, s.project)
}

// insertMachine creates a machine and waits until it exists. An existing machine is not an error. After an
// error it removes the machine that this call created.
func (p *Provider) insertMachine(ctx context.Context, offer provision.Offering, wanted *computepb.Instance) error {
	client, project, err := newClient(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return wrapError(err, "launching %s", offer)
	}
	id := requestID()
	op, err := client.Insert(ctx, &computepb.InsertInstanceRequest{Project: project, Zone: offer.Zone, InstanceResource: wanted, RequestId: &id})
	err = p.waitOperation(ctx, op, err)
	if err == nil || isTaken(err) {
		return nil
	}
	var operation *operationError
	if errors.As(err, &operation) {
		number := strconv.FormatUint(op.Proto().GetTargetId(), 10)
		if err := p.removeMachine(ctx, offer.Zone, wanted.GetName(), number); err != nil {
			return err
		}
	}
	if noCapacity, ok := capacityError(offer, err); ok {
		return noCapacity
	}
	return wrapError(err, "launching %s", offer)
}

// waitMachine waits until no process is creating a machine of this name, and returns the machine; nil when
// there is none.
func (p *Provider) waitMachine(ctx context.Context, zone, name string) (found *computepb.Instance, err error) {
	err = p.pollUntil(ctx, "machine "+name, func() (bool, error) {
		var err error
		found, err = p.readMachine(ctx, zone, name)
		return !slices.Contains([]string{statusPending, statusProvisioning, statusStaging}, found.GetStatus()), err
	})
	return found, err
}

// readMachine reads a machine; nil when there is none.
func (p *Provider) readMachine(ctx context.Context, zone, name string) (*computepb.Instance, error) {
	client, project, err := newClient(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading machine %s", name)
	}
	found, err := client.Get(ctx, &computepb.GetInstanceRequest{Project: project, Zone: zone, Instance: name})
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, wrapError(err, "reading machine %s in %s", name, zone)
	}
	return found, nil
}

// removeMachine deletes the machine with a name and a number (Compute Engine's id), with its disk, and
// returns when it is deleted. It does not delete another machine with the same name.
func (p *Provider) removeMachine(ctx context.Context, zone, name, number string) error {
	client, project, err := newClient(ctx, p, compute.NewInstancesRESTClient)
	if err != nil {
		return wrapError(err, "terminating machine %s", name)
	}
	return p.pollUntil(ctx, "deletion of machine "+name, func() (bool, error) {
		found, err := p.readMachine(ctx, zone, name)
		if err != nil || found == nil || strconv.FormatUint(found.GetId(), 10) != number {
			return err == nil, err
		}
		if _, owned := noteOfInstance(found); !owned {
			return true, nil
		}
		id := requestID()
		op, err := client.Delete(ctx, &computepb.DeleteInstanceRequest{Project: project, Zone: zone, Instance: name, RequestId: &id})
		err = p.waitOperation(ctx, op, err)
		switch {
		case err == nil || isMissing(err):
			return true, nil
		case isBusy(err): // it is already being deleted
			return false, nil
		}
		return false, wrapError(err, "terminating machine %s in %s", name, zone)
	})
}

// isFlexStart reports whether an offering is a flex-start machine.
func isFlexStart(o provision.Offering) bool { return o.Capacity == service.CapacityFlexStart }

// isSpot reports whether an offering may be interrupted.
func isSpot(o provision.Offering) bool { return o.Capacity == service.CapacitySpot }
