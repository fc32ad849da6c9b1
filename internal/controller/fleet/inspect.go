package fleet

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
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Bounds of a look, each with its reason.
const (
	regionTimeout  = 10 * time.Second // a cloud half a world away may throttle, and is then asked again
	machineTimeout = 2 * time.Second  // five round trips by way of a balancer half a world away take 1.5 s
)

// Lister lists the objects of a service in one region: a provision.Provider.
type Lister interface {
	List(ctx context.Context, service string) ([]provision.Object, error)
}

// Inspector looks at a service in clouds and changes nothing. A region or a machine
// that hangs hides none of the others. It is for one caller at a time.
type Inspector struct {
	// Fleet is the service as `up` wants it. Without its UserData it is not known what
	// `up` would change.
	Fleet *Fleet
	// Lists says who lists each of the service's rented regions. Objects that several
	// of them list, such as a cloud's identities, count once.
	Lists map[service.Region]Lister
	// Ask asks the agent of a machine, one of all there are, how it does.
	Ask func(ctx context.Context, have []provision.Object, o provision.Object) (agent.Status, error)
	// Snapshot asks a balancer what it says of the service; nil = nobody does.
	Snapshot func(ctx context.Context, o provision.Object) (*telemetry.Snapshot, error)
	// Decisions are those about replicas on this computer, Problem what is wrong with what is kept.
	Decisions Decisions
	Problem   string
	// Enrolments are the balancers that were launched here; nil = that is not known here. File is
	// the service.yaml that is named to those who have to bring the service up again.
	Enrolments *Enrolments
	File       string
	// Operator is who asks: see Ends. It is for alerts.
	Operator Ends
	// Now tells the time that certificates are alerted of; nil = time.Now.
	Now func() time.Time
	// Timeout is how long a region may take to be listed; default 10 s.
	Timeout time.Duration

	offered bool // Fleet knows what the regions offer, which changes slowly
	priced  bool // it asked for their prices
}

// Listing is what clouds say there is of a service.
type Listing struct {
	Have []provision.Object
	// Silent is why a region said nothing, for each that did not.
	Silent map[service.Region]error
}

// Machines are the machines among what there is, balancers first in each region.
func (l Listing) Machines() []provision.Object {
	return slices.DeleteFunc(slices.Clone(l.Have), func(o provision.Object) bool {
		return !o.Kind.IsMachine()
	})
}

// Problems say why regions said nothing, a line each, in the order of the regions.
func (l Listing) Problems() []string {
	problems := []string{}
	for _, r := range slices.Sorted(maps.Keys(l.Silent)) {
		problems = append(problems, l.Silent[r].Error())
	}
	return problems
}

// List asks all regions at once what there is, each for as long as Timeout. It is an error
// if none answers, or if the service is somebody else's: *provision.CredentialsError
// and *provision.OwnedError among others.
func (i *Inspector) List(ctx context.Context) (Listing, error) {
	regions := slices.Sorted(maps.Keys(i.Lists))
	lists, errs := make([][]provision.Object, len(regions)), make([]error, len(regions))
	var wg sync.WaitGroup
	for n, r := range regions {
		wg.Go(func() { lists[n], errs[n] = i.listRegion(ctx, r) })
	}
	wg.Wait()
	l := Listing{Silent: map[service.Region]error{}}
	for n, r := range regions {
		if errs[n] != nil {
			l.Silent[r] = errs[n]
		}
	}
	if len(l.Silent) == len(regions) {
		return l, oneOf(errs)
	}
	l.Have = distinct(slices.Concat(lists...))
	return l, i.Fleet.owned(l.Have)
}

// listRegion asks one region what there is.
func (i *Inspector) listRegion(ctx context.Context, r service.Region) ([]provision.Object, error) {
	timeout := cmp.Or(i.Timeout, regionTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	have, err := i.Lists[r].List(ctx, i.Fleet.Spec.Name)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // rather than what the cloud's client makes of it
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s in %s: %w", i.Fleet.Spec.Name, r, err)
	}
	return have, nil
}

// oneOf is the error of a service of which no region could be listed. Credentials that
// are refused are so in all of a cloud's regions: they are told once.
func oneOf(errs []error) error {
	all := errors.Join(errs...)
	var credentials *provision.CredentialsError
	if errors.As(all, &credentials) {
		return credentials
	}
	return all
}

// distinct sorts objects and leaves one of each.
func distinct(have []provision.Object) []provision.Object {
	order := func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Handle, b.Handle))
	}
	slices.SortFunc(have, order)
	return slices.CompactFunc(have, func(a, b provision.Object) bool { return order(a, b) == 0 })
}

// Status asks the clouds what there is, and every machine at once, for at most 2 s,
// how it does. Errors are those of List.
func (i *Inspector) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var looking sync.WaitGroup
	var unknown error
	looking.Go(func() { unknown = i.look(ctx) })
	l, err := i.List(ctx)
	if err != nil {
		cancel()
		looking.Wait()
		return nil, err
	}
	machines := l.Machines()
	answers := i.ask(ctx, machines)
	looking.Wait()
	strangers := i.tellStrangers(machines, answers)
	s := &Status{Service: i.Fleet.Spec.Name, Regions: regionsOf(i.Fleet.Spec, machines, answers), Problems: append(l.Problems(), strangers...)}
	s.Images = imagesOf(i.Fleet.Spec)
	s.PlainHTTP = i.Fleet.Spec.Balancer.TLS == nil && cloud.Rents(i.Fleet.Spec)
	s.Controller, s.Store = controllerOf(i.Fleet.Spec, machines, answers), controller.StoreNotReplicated
	if i.Fleet.Spec.Store.URL != "" {
		s.Store = controller.StoreExternal
	}
	ends := i.Operator
	ends.Machines = map[string]time.Time{}
	for n, o := range machines {
		if o.Gone == "" {
			s.CostPerHour += o.CostPerHour
			ends.Machines[o.ID] = answers[n].status.Expires
		}
	}
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	s.Alerts = CertificateAlerts(ends, now(), "'"+strings.TrimSpace("skyserve up "+i.File)+"'")
	if err := i.drift(ctx, s, l, unknown); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("what 'skyserve up' would change is not known: %v", err))
	}
	i.report(ctx, s, machines, answers)
	s.State = s.overall(len(l.Silent) == 0)
	return s, nil
}

// tellStrangers makes what machines answer that no operator launched an error, and says what to do
// about them.
func (i *Inspector) tellStrangers(machines []provision.Object, answers []answer) (problems []string) {
	if i.Enrolments == nil {
		return nil
	}
	at := func(o provision.Object) *answer {
		n := slices.IndexFunc(machines, func(m provision.Object) bool { return m.Handle == o.Handle && m.Region == o.Region })
		return &answers[n]
	}
	strangers, _ := i.Enrolments.Examine(machines, func(o provision.Object) bool { return Reachable(o) && at(o).err == nil })
	for _, o := range strangers {
		err := &StrangersError{Machines: []provision.Object{o}}
		*at(o) = answer{err: err}
		problems = append(problems, fmt.Sprintf("%v; %s", err, err.Hint(i.File)))
	}
	return problems
}

// look asks the regions what they offer, unless they told before.
func (i *Inspector) look(ctx context.Context) error {
	if i.offered || i.Fleet.UserData == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	err := i.Fleet.look(ctx)
	i.offered = err == nil
	return err
}

// price asks for the prices of what a plan launches, unless they were told before; it
// says whether it did. Where nothing is launched a look is not to wait for them.
func (i *Inspector) price(ctx context.Context, p *Plan) (asked bool) {
	launches := slices.ContainsFunc(p.Changes, func(c provision.Change) bool { return len(c.Want.Offers) > 0 })
	if i.priced || !launches {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	i.Fleet.prices, i.priced = AskPrices(ctx, i.Fleet.Provider, cloud.Regions(i.Fleet.Spec)), true
	return true
}

// drift says what `up` would change; an error where that is not known.
func (i *Inspector) drift(ctx context.Context, s *Status, l Listing, unknown error) error {
	switch {
	case len(l.Silent) > 0:
		return errors.New("a region was not listed")
	case i.Fleet.UserData == nil:
		return errors.New("which program the machines got is noted where the service was brought up")
	case unknown != nil:
		return unknown
	case slices.ContainsFunc(l.Have, IsEarlier):
		return fmt.Errorf("%w: run 'skyserve down %s' first", ErrEarlier, s.Service)
	}
	p, err := i.Fleet.planFor(l.Have, nil)
	if err == nil && i.price(ctx, p) {
		p, err = i.Fleet.planFor(l.Have, nil)
	}
	if err != nil {
		return err
	}
	s.Drift = Told(p.Changes)
	return nil
}

// ask asks all machines that have an address at once; the answers stand in their order.
func (i *Inspector) ask(ctx context.Context, machines []provision.Object) []answer {
	ctx, cancel := context.WithTimeoutCause(ctx, machineTimeout, fmt.Errorf("no answer within %s", machineTimeout))
	defer cancel()
	answers := make([]answer, len(machines))
	var wg sync.WaitGroup
	for n, o := range machines {
		if o.Gone != "" || !Reachable(o) {
			continue
		}
		wg.Go(func() {
			a := &answers[n]
			a.status, a.err = i.Ask(ctx, machines, o)
			if a.err != nil && ctx.Err() != nil {
				a.err = context.Cause(ctx)
			}
			if o.Kind == provision.KindBalancer && a.err == nil && i.Snapshot != nil {
				a.snapshot, _ = i.Snapshot(ctx, o) // its agent says how it does; without an answer nothing is known of this
				if a.snapshot != nil {
					if b := a.snapshot.Balancer(o.ID); b != nil {
						a.certificate = b.Certificate
					}
				}
			}
		})
	}
	wg.Wait()
	return answers
}
