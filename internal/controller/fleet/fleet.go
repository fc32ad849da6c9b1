package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Fleet is the machines of one service in clouds.
type Fleet struct {
	Spec *service.Spec
	// Owner is whose service it is: provision.Want.Owner.
	Owner string
	// Provider is all clouds of the service as one.
	Provider provision.Provider
	// UserData is the cloud-init document of a machine.
	UserData func(cloud.Node) (string, error)
	// Settle returns when a machine does its work; nil = being launched is enough.
	Settle func(ctx context.Context, o provision.Object) error
	// Drain returns when a machine has nothing left to finish; nil = it has nothing.
	Drain func(ctx context.Context, o provision.Object)
	// Enrolments is where balancers are noted that are launched; nil = none is.
	Enrolments *Enrolments
	// Have lists what there is; nil = the Provider does.
	Have func(ctx context.Context) ([]provision.Object, error)
	// Now is the clock by which refused offerings are remembered; nil = time.Now.
	Now func() time.Time

	// Going, Counts and ZoneID are those of cloud.Input.
	Going  map[string]bool
	Counts map[cloud.Group]provision.Counts
	ZoneID string
	// Build is the program that machines on this computer are to run; empty = whichever they do.
	Build string
	// Only says which changes are carried out; nil = all of them.
	Only func(*Plan, provision.Change) bool

	exhausted provision.Exhausted
	replaced  map[string]string                      // see Replacing
	offers    map[service.Region]provision.Offerings // at list prices
	prices    Prices
}

// Plan is what has to change in the clouds.
type Plan struct {
	Have    []provision.Object
	Wants   []provision.Want
	Changes provision.Changes
	// Missing are replicas that no region has room for, by the model and the region
	// that lacks them.
	Missing map[cloud.Group]int
	// Unpriced says by region why its cloud did not tell prices, or not all of them: list
	// prices stand in.
	Unpriced map[service.Region]error
}

// CostPerHour is what the machines cost an hour, now and once the changes are
// done, in USD.
func (p *Plan) CostPerHour() (now, then float64) {
	for _, o := range p.Have {
		if o.Gone == "" {
			now += o.CostPerHour
		}
	}
	return now, now + p.Changes.CostPerHour()
}

// Bills says whether carrying the plan out makes or removes what is billed, so that
// a person should be asked.
func (p *Plan) Bills() bool {
	return slices.ContainsFunc(p.Changes, func(c provision.Change) bool {
		machine := (c.Kind() == provision.KindBalancer || c.Kind() == provision.KindReplica) && !cloud.IsHere(c.Region())
		return machine && c.Action != provision.ActionReload
	})
}

// Plan looks at the clouds and says what has to change. Nothing is changed. Errors
// include *provision.SpecError, *provision.CredentialsError, and
// *provision.OwnedError where the name is somebody else's service.
func (f *Fleet) Plan(ctx context.Context) (*Plan, error) {
	if err := cloud.Check(f.Spec); err != nil {
		return nil, err
	}
	if err := f.lookAtPrices(ctx); err != nil {
		return nil, err
	}
	return f.plan(ctx, nil)
}

// plan is Plan with what could not be had a moment ago.
func (f *Fleet) plan(ctx context.Context, short map[cloud.Group]int) (*Plan, error) {
	have, err := f.list(ctx)
	if err != nil {
		return nil, err
	}
	return f.planFor(have, short)
}

// planFor is what has to change where have is what there is.
func (f *Fleet) planFor(have []provision.Object, short map[cloud.Group]int) (*Plan, error) {
	l, err := cloud.Plan(cloud.Input{
		Spec: f.Spec, Owner: f.Owner, Offers: priced(f.offers, f.prices), Have: have, Short: short, Going: f.Going, Counts: f.Counts, ZoneID: f.ZoneID, UserData: f.UserData,
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Wants {
		if l.Wants[i].Machine != nil && cloud.IsHere(l.Wants[i].Region) {
			l.Wants[i].Build = f.Build
		}
	}
	p := &Plan{
		Have: have, Wants: l.Wants, Changes: provision.Diff(l.Wants, f.unlike(have)), Missing: l.Missing, Unpriced: f.prices.Unknown,
	}
	for i, c := range p.Changes {
		if reason, is := f.replacement(c); is {
			p.Changes[i].Reason = reason
		}
	}
	if f.Only != nil {
		p.Changes = slices.DeleteFunc(p.Changes, func(c provision.Change) bool { return !f.Only(p, c) })
	}
	return p, nil
}

// list is what there is of the service; an error where it is somebody else's.
func (f *Fleet) list(ctx context.Context) ([]provision.Object, error) {
	if f.Have != nil {
		return f.Have(ctx)
	}
	have, err := f.Provider.List(ctx, f.Spec.Name)
	if err != nil {
		return nil, err
	}
	return have, f.owned(have)
}

// owned is an error where objects are somebody else's.
func (f *Fleet) owned(have []provision.Object) error {
	for _, o := range have {
		if o.Owner == "" && (cloud.IsHere(o.Region) || o.Region == "") {
			continue // a process of a version before machines had owners here
		}
		if o.Owner != f.Owner {
			return &provision.OwnedError{What: "the service " + f.Spec.Name, Where: string(o.Region), Owner: o.Owner}
		}
	}
	return nil
}

// look asks every rented region at once what it offers.
func (f *Fleet) look(ctx context.Context) error {
	f.offers = map[service.Region]provision.Offerings{}
	return f.joined(f.ask(ctx, cloud.Regions(f.Spec)))
}

// joined is the errors of rented regions as one, in their order; nil without any.
func (f *Fleet) joined(failed map[service.Region]error) error {
	var all []error
	for _, r := range cloud.Regions(f.Spec) {
		all = append(all, failed[r])
	}
	return errors.Join(all...)
}

// ask asks regions at once what they offer, and returns why some did not say: of those it
// is known what they said before.
func (f *Fleet) ask(ctx context.Context, regions []service.Region) map[service.Region]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := map[service.Region]error{}
	for _, r := range regions {
		wg.Go(func() {
			offers, err := f.Provider.Offerings(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[r] = fmt.Errorf("asking %s what it offers: %w", r, err)
				return
			}
			f.offers[r] = offers
		})
	}
	wg.Wait()
	return failed
}
