package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// controlPlane is the machines that run a controller, sorted by ID: either one or cloud.ControlMachineCount. Without
// store.url each also runs a store: a single one, or a member of a cluster.
type controlPlane struct {
	chosen    []cloud.BalancerMachine
	addressed []provision.Object // those of chosen whose machines have addresses
}

// chooseControlPlane chooses the machines of the controllers. running are the IDs of those that run one now. A
// cluster begins once all of its machines have addresses; until then the single store stays.
func chooseControlPlane(spec *service.Spec, have []provision.Object, running []string) (p controlPlane) {
	at := func(id string) int {
		return slices.IndexFunc(have, func(o provision.Object) bool {
			return o.ID == id && o.Kind == provision.KindBalancer && o.PublicIP.IsValid()
		})
	}
	all := cloud.ControlCandidates(spec, have)
	var members []cloud.BalancerMachine // those that can be members of a cluster, or standbys of an external store
	for i, c := range all {
		o := at(c.ID)
		all[i].Alive = c.Alive || o >= 0 && cloud.RunsOnThisComputer(c.Region) // it restarts with its disk
		external := spec.Store.URL != "" && cloud.RunsOnThisComputer(c.Region)
		if o < 0 || external || cloud.EndpointsOf(have[o]).Listen.Routes != "" {
			members = append(members, all[i])
		}
	}
	var ids []string
	if len(members) >= cloud.ControlMachineCount {
		ids = cloud.ChooseControlMachines(members, running)
		missing := slices.ContainsFunc(ids, func(id string) bool { return at(id) < 0 })
		kept := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !slices.Contains(running, id) })
		if missing && len(kept) < 2 {
			ids = nil
		}
	}
	if ids == nil { // a single store never moves: its data is on one disk; of several members the first live balancer keeps it
		rank := func(id string) int {
			i := slices.IndexFunc(all, func(c cloud.BalancerMachine) bool { return c.ID == id })
			if i >= 0 && !all[i].Alive {
				i += len(all)
			}
			return i
		}
		running = slices.SortedStableFunc(slices.Values(running), func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		for i := range all {
			all[i].Alive = true
		}
		ids = cloud.ChooseControlMachines(all, running)
		ids = ids[:min(len(ids), 1)]
	}
	for _, c := range all {
		if !slices.Contains(ids, c.ID) {
			continue
		}
		if p.chosen = append(p.chosen, c); at(c.ID) >= 0 {
			p.addressed = append(p.addressed, have[at(c.ID)])
		}
	}
	slices.SortFunc(p.chosen, func(a, b cloud.BalancerMachine) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(p.addressed, func(a, b provision.Object) int { return cmp.Compare(a.ID, b.ID) })
	return p
}

// ids returns the IDs of all controllers.
func (p controlPlane) ids() (ids []string) {
	for _, c := range p.chosen {
		ids = append(ids, c.ID)
	}
	return ids
}

// clusterIDs returns the IDs of all controllers; nil if there is one.
func (p controlPlane) clusterIDs() []string {
	if len(p.chosen) < cloud.ControlMachineCount {
		return nil
	}
	return p.ids()
}

// ControlMachines returns the IDs of the machines that run a controller, sorted: see chooseControlPlane.
func ControlMachines(spec *service.Spec, have []provision.Object, running []string) []string {
	return chooseControlPlane(spec, have, running).ids()
}

// runs reports whether a machine runs a controller.
func (p controlPlane) runs(id string) bool {
	return slices.ContainsFunc(p.addressed, func(o provision.Object) bool { return o.ID == id })
}

// storeURLs returns the URLs of the stores for a machine: its own first, then those of its region. A machine may
// not reach its own advertised address.
func (p controlPlane) storeURLs(id string, region service.Region) []string {
	distance := func(o provision.Object) int {
		switch {
		case o.ID == id:
			return 0
		case o.Region == region:
			return 1
		}
		return 2
	}
	order := slices.Clone(p.addressed)
	slices.SortStableFunc(order, func(a, b provision.Object) int { return cmp.Compare(distance(a), distance(b)) })
	var urls []string
	for _, o := range order {
		address := cloud.EndpointsOf(o).Advertised.Store
		if o.ID == id {
			address = cloud.EndpointsOf(o).Listen.Store
		}
		urls = append(urls, "tls://"+address)
	}
	return urls
}

// storeCluster returns the cluster of a controller's store; nil for a single store.
func (p controlPlane) storeCluster(machine provision.Object) *service.StoreCluster {
	if p.clusterIDs() == nil {
		return nil
	}
	at := cloud.EndpointsOf(machine)
	c := &service.StoreCluster{Listen: at.Listen.Routes, Advertise: at.Advertised.Routes, Members: p.clusterIDs(), Routes: []string{}}
	c.Clients = p.storeURLs(machine.ID, machine.Region)[1:]
	for _, o := range p.addressed {
		switch to := cloud.EndpointsOf(o); {
		case o.ID == machine.ID:
		case cloud.SharesNetwork(o.Region, machine.Region): // firewalls admit private addresses of the network
			c.Routes = append(c.Routes, to.Listen.Routes)
		default:
			c.Routes = append(c.Routes, to.Advertised.Routes)
		}
	}
	for len(c.Routes) < 2 { // the machines of others are lost: the member's own address completes the two routes that a cluster must have
		c.Routes = append(c.Routes, at.Listen.Routes)
	}
	return c
}

// useStore configures a balancer's store: those of the controllers, or the one of service.yaml.
func (d *deploymentBuilder) useStore(c *service.BalancerConfig) {
	c.StoreFiles = d.spec.Store.Files
	if c.StoreURL = d.spec.Store.URL; c.StoreURL == "" && len(d.control.addressed) > 0 {
		c.StoreURL, c.StoreMTLS = strings.Join(d.control.storeURLs(c.ID, c.Region), ","), true
	}
}

// RunningControllers returns the IDs of the machines that run a controller, as their agents report, sorted.
func RunningControllers(seen map[string]AgentReport) []string {
	var ids []string
	for id, s := range seen {
		if runsController(s.Status) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// runsController reports whether a machine runs a controller, as its agent reports.
func runsController(s agent.Status) bool {
	return slices.ContainsFunc(s.Units, func(u agent.UnitStatus) bool { return u.Name == UnitController })
}

// hasController reports whether a deployment contains a controller.
func hasController(d agent.Deployment) bool {
	return slices.ContainsFunc(d.Units, func(u agent.Unit) bool { return u.Name == UnitController })
}

// UpdateControllers delivers the deployments of the controllers before anything else is changed, so that they and
// `up` have the same desired state. running are the machines that run one now. Controllers that move away are stopped
// last: the new store first copies the data from them. It does
// nothing where there is no controller yet, and fails if one does not respond within 5 s: with its old
// deployment it could relaunch machines that are being removed. If copying fails, it
// returns a *StoreMoveError and stops no controller.
func (dl *Delivery) UpdateControllers(ctx context.Context, deployments map[string]agent.Deployment, running []string) error {
	var updated, stopping []provision.Object
	for _, o := range dl.Machines {
		d, wanted := deployments[o.ID]
		switch {
		case !wanted || o.TerminatedReason != "" || !Reachable(o):
		case hasController(d):
			updated = append(updated, o)
		case slices.Contains(running, o.ID):
			stopping = append(stopping, o)
		}
	}
	var failure error
	timeout := deliveryTimeout
	if len(stopping) > 0 {
		timeout = moveTimeout
	}
	all := slices.Concat(updated, stopping)
	seen := dl.readStatusesOf(ctx, all) // at once: each that does not respond takes 5 s
	for _, o := range all {
		if err := dl.updateController(ctx, o, seen[o.ID], deployments[o.ID], timeout); err != nil {
			failure = errors.Join(failure, fmt.Errorf("%s: %w", o.ID, err))
			if len(stopping) > 0 {
				return &StoreMoveError{Err: failure}
			}
		}
	}
	return failure
}

// StoreMoveError means that the store could not take over the data of members that are to be stopped.
type StoreMoveError struct{ Err error }

// Error describes the failure.
func (e *StoreMoveError) Error() string {
	return "copying the data of store members that are to be stopped: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *StoreMoveError) Unwrap() error { return e.Err }

// updateController delivers the deployment of a controller's machine and waits until it is ready. It does nothing
// if the machine is not enrolled yet.
func (dl *Delivery) updateController(ctx context.Context, o provision.Object, s AgentReport, d agent.Deployment, timeout time.Duration) error {
	switch {
	case errors.Is(s.Err, identity.ErrUntrusted): // it is not enrolled yet
		return nil
	case s.Err != nil:
		return s.Err
	case s.Revision == d.Revision:
		return nil
	}
	return dl.deliverWithin(ctx, o, d, timeout, 0)
}

// moveTimeout is the timeout of an update in which a store takes over the data of its former cluster: gigabytes of
// history may have to be copied.
const moveTimeout = 5 * time.Minute

// stopTimeout is the maximum time in which a controller's machine stops its units.
const stopTimeout = time.Minute

// revisionStopped is the revision of a machine without units.
const revisionStopped = "dismissed"

// StopControllers stops everything on the machines of controllers, and returns when they have stopped: from then
// on nothing relaunches the machines that `down` deletes. It does nothing on a machine that was never
// enrolled. It fails if a balancer's machine, which may run a controller, does not respond, or has not stopped its
// units within a minute.
func (dl *Delivery) StopControllers(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(dl.Machines))
	for i, o := range dl.Machines {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" && Reachable(o) {
			wg.Go(func() { errs[i] = dl.stopController(ctx, o) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stopController stops everything on a machine if it runs a controller.
func (dl *Delivery) stopController(ctx context.Context, o provision.Object) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, fmt.Errorf("%s has not stopped its units within %s", o.ID, stopTimeout))
	defer cancel()
	client, m := dl.AgentClient(o), dl.Machine(o)
	statusCtx, done := context.WithTimeout(ctx, statusTimeout)
	s, err := client.Status(statusCtx, m)
	done()
	if errors.Is(err, identity.ErrUntrusted) || err == nil && !runsController(s) {
		return nil
	}
	for err == nil {
		var s agent.Status
		if s, err = client.Ensure(ctx, m, agent.Deployment{Revision: revisionStopped}); err == nil && s.Phase != agent.PhasePreparing {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(shortPollInterval):
		}
	}
	return err
}
