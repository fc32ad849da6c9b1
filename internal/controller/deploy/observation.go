package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/remote"
)

// listTimeout is the reconciler's timeout for listing a region or its offerings. A working region
// responds within a second or two; the other regions wait no longer than listTimeout for one that
// does not.
const listTimeout = 5 * time.Second

// observation is one observation of a service by the reconciler. A region that does not respond
// does not prevent the observation of the others, and nothing is changed in it.
type observation struct {
	spec *service.Spec
	// have contains the objects in the regions that responded.
	have []provision.Object
	// unresponsive contains the errors of the other regions.
	unresponsive map[service.Region]error
	// known contains the last known objects of unresponsive regions: those at their last response, or
	// those at the delivery of the controller's bundle. fromBundle are the regions with the latter.
	known      []provision.Object
	fromBundle map[service.Region]bool
	// unknown are unresponsive regions without known objects.
	unknown map[service.Region]bool
}

// observe lists all regions. It returns an error if none responds.
func (rc *Reconciler) observe(ctx context.Context, bs *bundleState) (*observation, error) {
	l, err := bs.inspector.List(ctx)
	if err != nil {
		return nil, err
	}
	if err := rc.recordLaunched(bs, l.Objects); err != nil {
		return nil, err
	}
	s := &observation{spec: bs.content.Spec, have: l.Objects, unresponsive: l.Failed, fromBundle: map[service.Region]bool{}, unknown: map[service.Region]bool{}}
	for _, r := range cloud.ManagedRegions(s.spec) {
		if s.unresponsive[r] == nil {
			rc.lastObjects[r] = objectsIn(l.Objects, r)
			continue
		}
		last, listed := rc.lastObjects[r]
		switch {
		case listed:
			s.known = append(s.known, last...)
		case !bs.content.isDirect(r):
			s.known, s.fromBundle[r] = append(s.known, objectsIn(bs.otherClouds, r)...), true
		default:
			s.unknown[r] = true
		}
	}
	// Machines that are falsely tagged as balancers are not contacted. Neither they nor a duplicate
	// of an ID, which will be removed, replace the real machine in this list.
	bs.delivery.Machines = provision.OnePerID(nil, slices.DeleteFunc(s.knownObjects(), func(have provision.Object) bool { return !bs.content.trusts(have) }))
	return s, nil
}

// objectsIn returns the objects of a region.
func objectsIn(have []provision.Object, r service.Region) []provision.Object {
	return slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Region != r })
}

// knownObjects returns the current objects, and the last known ones of unresponsive regions.
func (s *observation) knownObjects() []provision.Object { return slices.Concat(s.have, s.known) }

// withoutRegions returns the service without some of its regions.
func withoutRegions(spec *service.Spec, regions func(service.Region) bool) *service.Spec {
	less := *spec
	less.Regions = slices.DeleteFunc(slices.Clone(spec.Regions), func(r service.RegionSpec) bool { return regions(r.Name) })
	return &less
}

// view returns the state for readers, with the last known state of unresponsive regions, and without
// regions whose state is uncertain.
func (s *observation) view(seen map[string]AgentReport) *serviceView {
	unsure := func(r service.Region) bool { return s.fromBundle[r] || s.unknown[r] }
	have := slices.DeleteFunc(s.knownObjects(), func(o provision.Object) bool { return unsure(o.Region) })
	return &serviceView{spec: withoutRegions(s.spec, unsure), have: have, seen: seen}
}

// dropUncertain removes the deployments that could be wrong because of unresponsive regions. These are
// the deployments of machines there that may have been replaced. While some objects may be unknown,
// they are also the deployments of all balancers, which would not contain those objects.
func (s *observation) dropUncertain(deployments map[string]agent.Deployment) {
	for _, o := range s.knownObjects() {
		if s.fromBundle[o.Region] || len(s.unknown) > 0 && o.Kind == provision.KindBalancer {
			delete(deployments, o.ID)
		}
	}
}

// failure returns the errors of unresponsive regions, in their order; nil when all responded.
func (s *observation) failure() error {
	var all []error
	for _, r := range slices.Sorted(maps.Keys(s.unresponsive)) {
		all = append(all, s.unresponsive[r])
	}
	return errors.Join(all...)
}

// unreachableParts returns an error for the parts of a change that cannot be applied now, because their
// regions do not respond.
func (s *observation) unreachableParts(change controller.CapacityChange) error {
	about := map[service.Region]bool{}
	for _, l := range change.Launch {
		about[l.Region] = true
	}
	for _, o := range s.known {
		if slices.Contains(change.Remove, o.ID) {
			about[o.Region] = true
		}
	}
	var all []error
	for _, r := range slices.Sorted(maps.Keys(about)) {
		if why := s.unresponsive[r]; why != nil {
			all = append(all, fmt.Errorf("changing the replicas in %s: %w", r, why))
		}
	}
	return errors.Join(all...)
}

// limitPlanning limits planning to the regions that responded and whose offerings are known, which it
// refreshes periodically. It returns the errors of reading offerings.
func (rc *Reconciler) limitPlanning(ctx context.Context, bs *bundleState, s *observation) error {
	var due []service.Region
	for _, r := range cloud.ManagedRegions(s.spec) {
		outdated := time.Since(bs.offersReadAt[r]) > offersTTL || bs.deployer.reservationsChanged(r, bs.offersReadAt[r], time.Now())
		if s.unresponsive[r] == nil && outdated {
			due = append(due, r)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("no response within %s", listTimeout))
	defer cancel()
	bs.deployer.Spec = s.spec // names the reservations to read
	bs.deployer.Bounds, bs.deployer.Unlisted = boundsOf(s.spec), s.known
	failed := bs.deployer.queryOfferings(ctx, due)
	var all []error
	for _, r := range due {
		if all = append(all, failed[r]); failed[r] == nil {
			bs.offersReadAt[r] = time.Now()
		}
	}
	bs.deployer.Spec = withoutRegions(s.spec, func(r service.Region) bool {
		_, offered := bs.deployer.offers[r]
		return s.unresponsive[r] != nil || !offered
	})
	return errors.Join(all...)
}

// controllerRegion returns the region of the machine of the controller that has this content.
func (c DeploymentInput) controllerRegion() service.Region {
	managed := cloud.ManagedRegions(c.Spec)
	for _, candidate := range cloud.ControlCandidates(c.Spec, nil) {
		if candidate.ID == c.Self {
			return candidate.Region
		}
	}
	return managed[0]
}

// isDirect reports whether the controller calls a region's API itself.
func (c DeploymentInput) isDirect(r service.Region) bool {
	home := c.controllerRegion()
	return r.Cloud() == home.Cloud() || cloud.RunsOnThisComputer(r) && cloud.RunsOnThisComputer(home)
}

// otherClouds returns the clouds of a service except the controller's own.
func (c DeploymentInput) otherClouds() []string {
	return slices.DeleteFunc(cloud.Clouds(c.Spec), func(name string) bool { return name == c.controllerRegion().Cloud() })
}

// regionLister lists one region of a cloud through machines there.
type regionLister struct {
	*remote.Client
	region service.Region
}

// List implements Lister.
func (r regionLister) List(ctx context.Context, service string) ([]provision.Object, error) {
	return r.ListIn(ctx, service, r.region)
}

// isSpare reports whether a balancer's machine may not launch balancers.
func (c DeploymentInput) isSpare(id string) bool { return slices.Contains(cloud.Spares(c.Spec), id) }

// attestors reads the fingerprints of machines' keys: in the controller's own cloud directly, and in other clouds
// through machines there. A controller on a spare reads those of balancers in its own cloud through other balancers
// there (bundleState.launchers).
type attestors struct {
	home      string
	own       provision.KeyAttestor
	other     provision.MultiCloud
	balancers provision.MultiCloud
}

// Fingerprint implements provision.KeyAttestor.
func (w attestors) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	if _, relayed := w.balancers[w.home].(*remote.Client); relayed && o.Kind == provision.KindBalancer && o.Region.Cloud() == w.home {
		return w.balancers.Fingerprint(ctx, o)
	}
	if o.Region.Cloud() == w.home || cloud.RunsOnThisComputer(o.Region) {
		return w.own.Fingerprint(ctx, o)
	}
	return w.other.Fingerprint(ctx, o)
}

// relaysIn returns the ways to call a cloud's API, in the order of attempts: through balancers there that responded to
// the last observation; by federated, from the controller itself with workload identity federation (nil = not possible);
// through balancers there that did not respond. In both groups of balancers, spares are last.
func (rc *Reconciler) relaysIn(dl *Delivery, name string, federated remote.CallFunc) []remote.CallFunc {
	var balancers []provision.Object
	for _, o := range dl.Machines {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" && o.Region.Cloud() == name && Reachable(o) {
			balancers = append(balancers, o)
		}
	}
	spares := cloud.Spares(rc.bundle.content.Spec)
	rank := func(o provision.Object) (n int) {
		if rc.seen[o.ID].Err != nil {
			n = 2
		}
		if slices.Contains(spares, o.ID) {
			n++
		}
		return n
	}
	slices.SortStableFunc(balancers, func(a, b provision.Object) int { return rank(a) - rank(b) })
	var relays []remote.CallFunc
	for _, b := range balancers {
		if federated != nil && rc.seen[b.ID].Err != nil {
			relays, federated = append(relays, federated), nil
		}
		if rc.relay != nil {
			relays = append(relays, rc.relay(b))
			continue
		}
		client, machine := dl.AgentClient(b), dl.Machine(b)
		relays = append(relays, func(ctx context.Context, call remote.CallKind, body []byte) ([]byte, error) {
			return client.CallCloud(ctx, machine, string(call), body)
		})
	}
	if federated != nil {
		relays = append(relays, federated)
	}
	return relays
}
