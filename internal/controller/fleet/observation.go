package fleet

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

// listTimeout is how long a region may take to be listed, or to say what it offers, for a
// reconciler: one that works answers within a second or two, and the others are not to wait for
// one that does not.
const listTimeout = 5 * time.Second

// observation is what the reconciler sees of a service at one look. A region that does not answer hides
// none of the others, and nothing is changed in it.
type observation struct {
	spec *service.Spec
	// have is what there is in the regions that answered.
	have []provision.Object
	// silent is why the others did not.
	silent map[service.Region]error
	// known is what there was in silent regions when they last answered, or when the
	// controller was handed what it keeps; handed are those of which only the latter is known.
	known  []provision.Object
	handed map[service.Region]bool
	// blind are silent regions of which nothing is known.
	blind map[service.Region]bool
}

// observe lists all regions. It is an error if none answers.
func (k *Reconciler) observe(ctx context.Context, o *opened) (*observation, error) {
	l, err := o.inspector.List(ctx)
	if err != nil {
		return nil, err
	}
	s := &observation{spec: o.content.Spec, have: l.Have, silent: l.Silent, handed: map[service.Region]bool{}, blind: map[service.Region]bool{}}
	for _, r := range cloud.Regions(s.spec) {
		if s.silent[r] == nil {
			k.last[r] = in(l.Have, r)
			continue
		}
		last, listed := k.last[r]
		switch {
		case listed:
			s.known = append(s.known, last...)
		case !isHome(s.spec, r):
			s.known, s.handed[r] = append(s.known, in(o.elsewhere, r)...), true
		default:
			s.blind[r] = true
		}
	}
	// What claims to be a balancer is asked nothing, and does not stand before the one of its id.
	// Nor is the second machine of an id, which is about to go.
	o.handover.Have = provision.OneOfEach(nil, slices.DeleteFunc(s.all(), func(have provision.Object) bool { return !o.content.trusts(have) }))
	return s, nil
}

// in are the objects of a region.
func in(have []provision.Object, r service.Region) []provision.Object {
	return slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.Region != r })
}

// all is what there is, and of silent regions what there was.
func (s *observation) all() []provision.Object { return slices.Concat(s.have, s.known) }

// without is the service less some of its regions.
func without(spec *service.Spec, regions func(service.Region) bool) *service.Spec {
	less := *spec
	less.Regions = slices.DeleteFunc(slices.Clone(spec.Regions), func(r service.RegionSpec) bool { return regions(r.Name) })
	return &less
}

// view is what others are told of: of a region that is silent what there was, and nothing of
// one of which that is not known for certain.
func (s *observation) view(seen map[string]Seen) *view {
	unsure := func(r service.Region) bool { return s.handed[r] || s.blind[r] }
	have := slices.DeleteFunc(s.all(), func(o provision.Object) bool { return unsure(o.Region) })
	return &view{spec: without(s.spec, unsure), have: have, seen: seen}
}

// certain takes out the deployments that could be wrong because of silent regions: those of
// machines there that may be others by now, and of all balancers while some may not be known,
// since what is not known would be taken from them.
func (s *observation) certain(deployments map[string]agent.Deployment) {
	for _, o := range s.all() {
		if s.handed[o.Region] || len(s.blind) > 0 && o.Kind == provision.KindBalancer {
			delete(deployments, o.ID)
		}
	}
}

// failure is why regions are silent, in their order; nil when all answered.
func (s *observation) failure() error {
	var all []error
	for _, r := range slices.Sorted(maps.Keys(s.silent)) {
		all = append(all, s.silent[r])
	}
	return errors.Join(all...)
}

// beyond is why parts of a change cannot be carried out now: they are about silent regions.
func (s *observation) beyond(change controller.Change) error {
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
		if why := s.silent[r]; why != nil {
			all = append(all, fmt.Errorf("changing replicas in %s: %w", r, why))
		}
	}
	return errors.Join(all...)
}

// plans makes the fleet plan for the regions that answered, and said what they offer: at
// times they are asked that again. The error is of those that did not say.
func (k *Reconciler) plans(ctx context.Context, o *opened, s *observation) error {
	var due []service.Region
	for _, r := range cloud.Regions(s.spec) {
		if s.silent[r] == nil && time.Since(o.looked[r]) > offersHold {
			due = append(due, r)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("no answer within %s", listTimeout))
	defer cancel()
	failed := o.fleet.ask(ctx, due)
	var all []error
	for _, r := range due {
		if all = append(all, failed[r]); failed[r] == nil {
			o.looked[r] = time.Now()
		}
	}
	o.fleet.Spec = without(s.spec, func(r service.Region) bool {
		_, offered := o.fleet.offers[r]
		return s.silent[r] != nil || !offered
	})
	return errors.Join(all...)
}

// homeCloud is the cloud that the controller of a service is in.
func homeCloud(spec *service.Spec) string { return cloud.Regions(spec)[0].Cloud() }

// isHome says whether the controller of a service acts in a region itself.
func isHome(spec *service.Spec, r service.Region) bool {
	home := cloud.Regions(spec)[0]
	return r.Cloud() == home.Cloud() || cloud.IsHere(r) && cloud.IsHere(home)
}

// abroad are the clouds of a service that its controller is not in.
func abroad(spec *service.Spec) []string {
	return slices.DeleteFunc(cloud.Clouds(spec), func(name string) bool { return name == homeCloud(spec) })
}

// regionOf lists one region of a cloud by way of machines there.
type regionOf struct {
	*remote.Client
	region service.Region
}

// List implements Lister.
func (r regionOf) List(ctx context.Context, service string) ([]provision.Object, error) {
	return r.ListIn(ctx, service, r.region)
}

// witnesses read keys in the controller's own cloud by one, and in others by way of
// machines there.
type witnesses struct {
	home  string
	own   provision.Witness
	other provision.Places
}

// Fingerprint implements provision.Witness.
func (w witnesses) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	if o.Region.Cloud() == w.home || cloud.IsHere(o.Region) {
		return w.own.Fingerprint(ctx, o)
	}
	return w.other.Fingerprint(ctx, o)
}

// ways are the machines of a cloud that act there for the controller: its balancers, first
// those that answered at the last look.
func (k *Reconciler) ways(h *Handover, name string) []remote.Ask {
	var balancers []provision.Object
	for _, o := range h.Have {
		if o.Kind == provision.KindBalancer && o.Gone == "" && o.Region.Cloud() == name && Reachable(o) {
			balancers = append(balancers, o)
		}
	}
	slices.SortStableFunc(balancers, func(a, b provision.Object) int {
		switch silent := [2]bool{k.seen[a.ID].Err != nil, k.seen[b.ID].Err != nil}; silent {
		case [2]bool{true, false}:
			return 1
		case [2]bool{false, true}:
			return -1
		}
		return 0
	})
	var ways []remote.Ask
	for _, b := range balancers {
		operator, machine := h.Operator(b), h.Machine(b)
		ways = append(ways, func(ctx context.Context, call remote.Call, body []byte) ([]byte, error) {
			return operator.Cloud(ctx, machine, string(call), body)
		})
	}
	return ways
}
