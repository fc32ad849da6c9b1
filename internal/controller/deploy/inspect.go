package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Timeouts of an observation, with their reasons.
const (
	regionTimeout  = 10 * time.Second // a distant cloud may throttle requests, which are then retried
	machineTimeout = 2 * time.Second  // five round trips through a distant balancer take 1.5 s
)

// Lister lists the objects of a service in one region: a provision.Provider.
type Lister interface {
	List(ctx context.Context, service string) ([]provision.Object, error)
}

// Inspector observes a service in clouds and changes nothing. A region or machine that does not
// respond does not prevent the observation of the others. It is not safe for concurrent use.
type Inspector struct {
	// Deployer is the desired service of `up`. Without its UserData the changes of `up` are unknown.
	Deployer *Deployer
	// Listers contains the lister of each cloud region of the service. Objects that several of them
	// list, such as a cloud's identities, count once.
	Listers map[service.Region]Lister
	// ReadStatus reads the status of a machine's agent; have is all machines.
	ReadStatus func(ctx context.Context, have []provision.Object, o provision.Object) (agent.Status, error)
	// CheckKey returns an *identity.PinError if a machine presents another key than the one with this fingerprint; nil =
	// not checked.
	CheckKey func(ctx context.Context, o provision.Object, fingerprint string) error
	// Snapshot reads a balancer's snapshot of the service; nil = not read.
	Snapshot func(ctx context.Context, o provision.Object) (*telemetry.Snapshot, error)
	// Decisions are the decisions about replicas that this computer stores, StateError is the error in the
	// service's local state; empty = none.
	Decisions  ReplicaDecisions
	StateError string
	// Images are the recorded digests of the service's images.
	Images Images
	// Enrolments records the balancers that were launched from this machine; nil = unknown. Signers verifies the
	// record of those that controllers launched. File is the service.yaml in messages about running `up` again.
	Enrolments *Enrolments
	Signers    identity.Party
	File       string
	// OperatorExpiry contains the expiry of the operator's certificate, for alerts: see CertificateExpiries.
	OperatorExpiry CertificateExpiries
	// Now is the clock for certificate alerts and the boot of machines; nil = time.Now.
	Now func() time.Time
	// Timeout is the timeout for listing a region; default 10 s.
	Timeout time.Duration

	hasOfferings bool // the offerings, which change slowly, were read
	hasPrices    bool // their prices were read
}

// Listing contains the objects of a service in clouds.
type Listing struct {
	Objects []provision.Object
	// Failed contains the error of each region that could not be listed.
	Failed map[service.Region]error
}

// Machines returns the machines, balancers first in each region.
func (l Listing) Machines() []provision.Object {
	return slices.DeleteFunc(slices.Clone(l.Objects), func(o provision.Object) bool {
		return !o.Kind.IsMachine()
	})
}

// Problems returns why regions could not be listed, one line each, in the order of the regions.
func (l Listing) Problems() []string {
	problems := []string{}
	for _, r := range slices.Sorted(maps.Keys(l.Failed)) {
		problems = append(problems, l.Failed[r].Error())
	}
	return problems
}

// List lists all regions concurrently, each within Timeout. It returns an error if no region could be
// listed, or if the service belongs to another owner: *provision.CredentialsError and *provision.OwnedError among
// others.
func (i *Inspector) List(ctx context.Context) (Listing, error) {
	regions := slices.Sorted(maps.Keys(i.Listers))
	lists, errs := make([][]provision.Object, len(regions)), make([]error, len(regions))
	var wg sync.WaitGroup
	for n, r := range regions {
		wg.Go(func() { lists[n], errs[n] = i.listRegion(ctx, r) })
	}
	wg.Wait()
	l := Listing{Failed: map[service.Region]error{}}
	for n, r := range regions {
		if errs[n] != nil {
			l.Failed[r] = errs[n]
		}
	}
	if len(l.Failed) == len(regions) {
		return l, joinListErrors(errs)
	}
	l.Objects = sortDistinct(slices.Concat(lists...))
	return l, i.Deployer.checkOwner(l.Objects)
}

// listRegion lists one region.
func (i *Inspector) listRegion(ctx context.Context, r service.Region) ([]provision.Object, error) {
	timeout := cmp.Or(i.Timeout, regionTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no response within %s", timeout))
	defer cancel()
	have, err := i.Listers[r].List(ctx, i.Deployer.Spec.Name)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // instead of the cloud client's own error
	}
	if err != nil {
		return nil, fmt.Errorf("listing the objects of %s in %s: %w", i.Deployer.Spec.Name, r, err)
	}
	return have, nil
}

// joinListErrors returns the error of a service without any listed region. Invalid credentials affect all
// regions of a cloud and are reported once.
func joinListErrors(errs []error) error {
	all := errors.Join(errs...)
	var credentials *provision.CredentialsError
	if errors.As(all, &credentials) {
		return credentials
	}
	return all
}

// sortDistinct sorts objects and removes duplicates.
func sortDistinct(have []provision.Object) []provision.Object {
	order := func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Handle, b.Handle))
	}
	slices.SortFunc(have, order)
	return slices.CompactFunc(have, func(a, b provision.Object) bool { return order(a, b) == 0 })
}

// Status lists the clouds, and reads the status of every machine concurrently, within 2 s. It
// returns the errors of List.
func (i *Inspector) Status(ctx context.Context) (*ServiceStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reading sync.WaitGroup
	var unknown error
	reading.Go(func() { unknown = i.readOfferings(ctx) })
	l, err := i.List(ctx)
	if err != nil {
		cancel()
		reading.Wait()
		return nil, err
	}
	machines := l.Machines()
	responses := i.readStatuses(ctx, machines)
	reading.Wait()
	unknownMachines := i.markUnknown(machines, responses)
	s := &ServiceStatus{Service: i.Deployer.Spec.Name, Regions: regionsOf(i.Deployer.Spec, machines, responses), Problems: append(l.Problems(), unknownMachines...)}
	s.Images, s.Reservations = ImagesOf(i.Deployer.Spec, i.Images), i.Deployer.reservations.InOrder(i.Deployer.Spec)
	s.PlainHTTP = i.Deployer.Spec.Balancer.TLS == nil && cloud.UsesClouds(i.Deployer.Spec)
	s.Controller, s.Store = controllerOf(i.Deployer.Spec, machines, responses, ""), unreportedStore(i.Deployer.Spec, machines)
	ends := i.OperatorExpiry
	ends.Machines = map[string]time.Time{}
	for n, o := range machines {
		if o.TerminatedReason == "" {
			s.CostPerHour += o.CostPerHour
			ends.Machines[o.ID] = responses[n].status.Expires
		}
	}
	s.Alerts = CertificateAlerts(ends, i.now(), "'"+strings.TrimSpace("skyserve up "+i.File)+"'")
	for n, o := range machines {
		s.Alerts = append(s.Alerts, failureAlerts(s.Service, o, responses[n].status)...)
	}
	if err := i.setDrift(ctx, s, l, unknown); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the changes that 'skyserve up' would make are unknown: %v", err))
	}
	i.addBalancerReports(ctx, s, machines, responses)
	if s.Leadership != nil {
		s.Controller = controllerOf(i.Deployer.Spec, machines, responses, s.Leadership.Leader)
	}
	if s.FailsOver() && s.StoreState != nil && !s.StoreState.External { // what it reported last may be outdated
		s.Store = "unknown, because the leader is not ready"
	}
	s.State = s.overallState(len(l.Failed) == 0)
	return s, nil
}

// unreportedStore returns the state of the store before a balancer reports it. A cluster of machines that have just
// started is not known to lack a copy.
func unreportedStore(spec *service.Spec, machines []provision.Object) string {
	switch {
	case spec.Store.URL != "":
		return controller.StoreExternal
	case len(ControlMachines(spec, machines, nil)) >= cloud.ControlMachineCount:
		return controller.StoreStarting
	}
	return controller.StoreNotReplicated
}

// now returns the time for alerts and starts.
func (i *Inspector) now() time.Time {
	if i.Now == nil {
		return time.Now()
	}
	return i.Now()
}

// markUnknown replaces the status of machines that no operator launched with an error, and
// returns how to resolve it.
func (i *Inspector) markUnknown(machines []provision.Object, responses []machineReport) (problems []string) {
	if i.Enrolments == nil {
		return nil
	}
	at := func(o provision.Object) *machineReport {
		n := slices.IndexFunc(machines, func(m provision.Object) bool { return m.Handle == o.Handle && m.Region == o.Region })
		return &responses[n]
	}
	var launched []*telemetry.BalancerLaunches
	for _, a := range responses {
		if a.snapshot != nil {
			launched = append(launched, a.snapshot.BalancerLaunches)
		}
	}
	i.Enrolments.AcceptSigned(launched, i.Signers)
	unknownMachines, _ := i.Enrolments.ClassifyMachines(machines, func(o provision.Object) bool { return Reachable(o) && at(o).err == nil })
	for _, o := range unknownMachines {
		err := &UnknownMachinesError{Machines: []provision.Object{o}}
		*at(o) = machineReport{err: err}
		problems = append(problems, fmt.Sprintf("%v; %s", err, err.Hint(i.File)))
	}
	return problems
}

// readOfferings reads the regions' offerings, unless they are known.
func (i *Inspector) readOfferings(ctx context.Context) error {
	if i.hasOfferings || i.Deployer.UserData == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	err := i.Deployer.readOfferings(ctx)
	i.hasOfferings = err == nil
	return err
}

// readPrices reads the prices of a plan's launches, unless they are known, and reports whether it did.
// Without launches an observation does not wait for prices.
func (i *Inspector) readPrices(ctx context.Context, p *MachinePlan) (queried bool) {
	launches := slices.ContainsFunc(p.Changes, func(c provision.Change) bool { return len(c.Desired.Offerings) > 0 })
	if i.hasPrices || !launches {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	i.Deployer.prices, i.hasPrices = ReadPrices(ctx, i.Deployer.Provider, cloud.ManagedRegions(i.Deployer.Spec)), true
	return true
}

// setDrift sets the changes of `up`; it returns an error where they are unknown.
func (i *Inspector) setDrift(ctx context.Context, s *ServiceStatus, l Listing, unknown error) error {
	switch {
	case len(l.Failed) > 0:
		return errors.New("not every region could be listed")
	case i.Deployer.UserData == nil:
		return errors.New("the version of the machines' binary is recorded only on the machine from which the service was deployed")
	case unknown != nil:
		return unknown
	case slices.ContainsFunc(l.Objects, IsEarlierVersion):
		return fmt.Errorf("%w: run 'skyserve down %s' first", ErrEarlierVersion, s.Service)
	}
	i.Deployer.DesiredCounts = i.Decisions.DesiredCounts(i.Deployer.Owner)
	p, err := i.Deployer.planFor(l.Objects, nil)
	if err == nil && i.readPrices(ctx, p) {
		p, err = i.Deployer.planFor(l.Objects, nil)
	}
	if err != nil {
		return err
	}
	s.Drift = ChangesOf(p.Changes)
	return nil
}

// readStatuses reads the status of all machines with an address concurrently and returns it in their order.
func (i *Inspector) readStatuses(ctx context.Context, machines []provision.Object) []machineReport {
	ctx, cancel := context.WithTimeoutCause(ctx, machineTimeout, fmt.Errorf("no response within %s", machineTimeout))
	defer cancel()
	responses := make([]machineReport, len(machines))
	var wg sync.WaitGroup
	for n, o := range machines {
		if o.TerminatedReason != "" || !Reachable(o) {
			responses[n].start = startOf(o, AgentReport{}, i.now())
			continue
		}
		wg.Go(func() {
			a := &responses[n]
			a.status, a.err = i.ReadStatus(ctx, machines, o)
			if key := i.Enrolments.keyOf(o); i.CheckKey != nil && key != "" && errors.Is(a.err, identity.ErrUntrusted) {
				if err := i.CheckKey(ctx, o, key); errors.Is(err, identity.ErrPin) {
					a.err = err // 'skyserve up' does not enrol it
				}
			}
			a.start = startOf(o, AgentReport{a.status, a.err}, i.now())
			if a.err != nil && ctx.Err() != nil {
				a.err = context.Cause(ctx)
			}
			if o.Kind == provision.KindBalancer && a.err == nil && i.Snapshot != nil {
				a.snapshot, _ = i.Snapshot(ctx, o) // optional: its agent reports its status
				if a.snapshot != nil {
					if b := a.snapshot.Balancer(o.ID); b != nil {
						a.certificate = b.Certificate
					}
				}
			}
		})
	}
	wg.Wait()
	return responses
}
