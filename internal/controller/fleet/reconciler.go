package fleet

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/remote"
)

// Rhythm of the reconciler, each with its reason.
const (
	// offersHold is how long what a region offers is taken for the same: prices of spot
	// change by the hour.
	offersHold = 30 * time.Minute
	// tellEvery is how often a failure is told of that differs by what nobody reads.
	tellEvery = 10 * time.Minute
	// pricesHold is the same of the prices that clouds tell: those of lists change by the
	// month, and a provider holds them for hours. While some are not known they are asked
	// for every pricesAgain: no machine of another cloud may have answered yet.
	pricesHold  = 30 * time.Minute
	pricesAgain = 5 * time.Minute
)

// Reach is how the reconciler reaches the cloud that it is in.
type Reach struct {
	Provider provision.Provider
	Witness  provision.Witness
	// Lists says who lists each region there.
	Lists map[service.Region]Lister
	// UserData is the cloud-init document of a machine, as `up` writes it.
	UserData func(cloud.Node) (string, error)
}

// Reconciler keeps the replicas of a service in clouds as they are wanted: it launches
// another where a machine is gone, or is about to be taken, hands new ones over what they
// are to run, and tells balancers of them; and it carries out what strategies decide (see
// Apply). It changes nothing but replicas. What there is it reads from the clouds' tags
// each time, so that it can be stopped at any moment. In its own cloud it acts itself, in
// others by way of balancers there; a region that does not answer is left as it is.
type Reconciler struct {
	// Dir is the folder of the controller's configuration: see ReadBundle.
	Dir string
	// Open reaches the regions of a service in the reconciler's own cloud, which are all that
	// spec has.
	Open func(ctx context.Context, means json.RawMessage, spec *service.Spec, owner string) (Reach, error)
	// Logger is told what is done; nil = silence.
	Logger *slog.Logger
	// Now tells the time by which certificates are renewed and alerted of; nil = time.Now.
	Now func() time.Time
	// Decisions is the file of what was decided about replicas; empty = one in Dir.
	Decisions string
	// Lock keeps others from changing the service until it is unlocked; an error that is
	// controller.ErrBusy says that somebody does. nil = nobody else is on this computer.
	Lock func() (unlock func(), err error)

	working sync.Mutex     // held while machines are looked at or changed
	asking  sync.WaitGroup // those who ask for prices

	opened *opened                               // guarded by working
	said   string                                // the last error that was told, likewise
	saidAt time.Time                             // when, likewise
	last   map[service.Region][]provision.Object // of each region when it last answered, likewise
	seen   map[string]Seen                       // what machines said at the last look, likewise
	told   map[string]bool                       // replicas that no balancer used at the last look, likewise

	surplus map[string]bool // stood in for others, and need not any more, likewise

	since     map[string]time.Time // when successors were first seen, by handle, likewise
	preferred time.Time            // when something cheaper was last tried, likewise

	eyes func(have []provision.Object) map[string]Seen // how machines do; nil = they are asked

	mu      sync.Mutex
	view    *view  // the newest; nil before the first
	ends    Ends   // as of the last look
	service string // its name
}

// opened is what the reconciler made of what it was handed.
type opened struct {
	content   Content            // the newest
	elsewhere []provision.Object // machines in other clouds when it was handed over
	fleet     *Fleet
	inspector *Inspector
	handover  *Handover
	looked    map[service.Region]time.Time // when it said what it offers
	asked     time.Time                    // when prices were asked for
	answer    chan Prices
	unpriced  string // what was last logged of prices that are not known
}

// view is what a service has in clouds, as its reconciler last saw it.
type view struct {
	spec *service.Spec // less the regions of which that is not known
	have []provision.Object
	seen map[string]Seen
	// offers is what the regions have for renting, at the prices that are known.
	offers map[service.Region]provision.Offerings
}

var _ controller.Machines = (*Reconciler)(nil)

// Reconcile implements controller.Machines. What fails is logged once for as long as it stays
// the same.
func (k *Reconciler) Reconcile(ctx context.Context, may func() error) (busy bool) {
	k.working.Lock()
	defer k.working.Unlock()
	busy, err := k.turn(ctx, may)
	k.tell(ctx, err)
	return busy && err == nil
}

// Wait implements controller.Machines.
func (k *Reconciler) Wait() { k.asking.Wait() }

func (k *Reconciler) log() *slog.Logger {
	if k.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return k.Logger
}

// tell logs an error once for as long as it stays the same, and one that differs by nothing but
// such words as clouds make anew for each answer once in a while.
func (k *Reconciler) tell(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		k.said = ""
		return
	}
	text := err.Error()
	if text == k.said || gist(text) == gist(k.said) && time.Since(k.saidAt) < tellEvery {
		return
	}
	k.log().Error("keeping machines", "err", err)
	k.said, k.saidAt = text, time.Now()
}

// gist is a text without its long words that have digits: numbers of requests, pairs of
// addresses with ports, messages that only a cloud can read.
func gist(text string) string {
	const long = 24 // the names of most regions, and of replicas there, are shorter
	return strings.Join(slices.DeleteFunc(strings.Fields(text), func(word string) bool {
		return len(word) > long && strings.ContainsAny(word, "0123456789")
	}), " ")
}

// turn looks once and mends what it finds; busy says that something is on its way.
func (k *Reconciler) turn(ctx context.Context, may func() error) (busy bool, err error) {
	unlock, err := k.lock()
	if errors.Is(err, controller.ErrBusy) {
		return true, nil // whoever changes the service sees to all of this
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	o, err := k.open(ctx)
	if err != nil {
		return false, err
	}
	s, err := k.observe(ctx, o)
	if err != nil {
		return false, err
	}
	if err := k.keepLeaving(s.spec, s.all(), controller.Change{}); err != nil {
		return false, err
	}
	h := o.handover
	if h.Revoked, err = k.revoked(h.Party.Root); err != nil {
		return false, err
	}
	seen := k.see(ctx, h)
	k.seen = seen
	k.noteEnds(h, seen)
	changed, failure := k.replace(ctx, o, s, seen, may)
	if changed {
		if s, err = k.observe(ctx, o); err != nil {
			return true, errors.Join(failure, err)
		}
	}
	v := s.view(seen)
	v.offers = priced(o.fleet.offers, o.fleet.prices)
	k.show(v)
	if err := may(); err != nil {
		return false, errors.Join(failure, err)
	}
	c := o.content
	c.Leaving = relieved(c.Leaving, s.have, seen)
	maps.Copy(c.Leaving, k.surplus)
	deployments, err := Deployments(c, h.Have)
	if err == nil {
		s.certain(deployments)
		err = errors.Join(h.Tend(ctx, seen, deployments), k.release(ctx, o, s, seen, deployments, may))
	}
	return changed || unsettled(s.have, seen), errors.Join(s.failure(), failure, err)
}

// lock is Lock, where there is one.
func (k *Reconciler) lock() (unlock func(), err error) {
	if k.Lock == nil {
		return func() {}, nil
	}
	return k.Lock()
}

// see asks all machines how they do.
func (k *Reconciler) see(ctx context.Context, h *Handover) map[string]Seen {
	if k.eyes != nil {
		return k.eyes(h.Have)
	}
	return h.Look(ctx)
}

// revoked is the list of revoked certificates that the agent of this machine was handed.
func (k *Reconciler) revoked(root *x509.Certificate) (identity.Revoked, error) {
	return identity.ReadRevoked(filepath.Join(filepath.Dir(k.Dir), agent.FileRevoked), root)
}

// unsettled says whether a machine is about to serve or to go.
func unsettled(have []provision.Object, seen map[string]Seen) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool {
		return o.Kind == provision.KindReplica && seen[o.ID].Phase != agent.PhaseReady
	})
}

// replace launches what is missing; changed says that something may be made by now.
func (k *Reconciler) replace(ctx context.Context, o *opened, s *observation, seen map[string]Seen, may func() error) (changed bool, err error) {
	silent := k.plans(ctx, o, s)
	k.askPrices(ctx, o)
	o.fleet.Going = parting(s.have, seen, k.overdue(s, seen))
	k.surplus = map[string]bool{}
	o.fleet.Only = func(p *Plan, c provision.Change) bool {
		if standsDown(o.fleet.Spec, p, c, seen) {
			k.surplus[c.ID()] = true // it is released once it is empty
		}
		return replacing(p, c)
	}
	p, err := o.fleet.planFor(s.have, nil)
	if err == nil && len(p.Changes) == 0 {
		changed, err = k.prefer(ctx, o, s, seen, may)
		return changed, errors.Join(silent, err)
	}
	if err != nil {
		return false, errors.Join(silent, err)
	}
	if err := may(); err != nil {
		return false, errors.Join(silent, err)
	}
	_, err = o.fleet.Up(ctx, p, k.progress)
	return true, errors.Join(silent, err)
}

// progress logs changes that are done; those that fail are told with the turn.
func (k *Reconciler) progress(c provision.Change, p provision.Phase, _ error) {
	if p == provision.PhaseDone {
		k.log().Info("machine", "change", string(c.Action), "id", c.ID(), "region", string(c.Region()), "why", c.Reason)
	}
}

// going are the replicas that their cloud is about to take, as their agents know.
func going(have []provision.Object, seen map[string]Seen) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if s := seen[o.ID]; o.Kind == provision.KindReplica && s.Err == nil && s.Phase == agent.PhaseInterrupted {
			ids[o.ID] = true
		}
	}
	return ids
}

// relieved are the replicas that balancers are to use no more: those that leave, those
// that are going whose model another replica serves, and those that were replaced. The last
// one of a model serves for as long as its machine lets it.
func relieved(leaving map[string]bool, have []provision.Object, seen map[string]Seen) map[string]bool {
	ids := maps.Clone(leaving)
	serves := map[string]bool{} // models
	for _, o := range have {
		if o.Kind == provision.KindReplica && !leaving[o.ID] && seen[o.ID].Phase == agent.PhaseReady {
			serves[o.Labels["model"]] = true
		}
	}
	leave := going(have, seen)
	for _, o := range have {
		if leave[o.ID] && serves[o.Labels["model"]] {
			ids[o.ID] = true
		}
	}
	maps.Copy(ids, replaced(have, seen))
	return ids
}

// replacing says whether a change is the reconciler's to make: a replica that is missing is
// launched; what is left of one that is gone goes, and of two with one id the second.
// All else that differs is left to `up`.
func replacing(p *Plan, c provision.Change) bool {
	switch {
	case c.Kind() != provision.KindReplica:
		return false
	case c.Action == provision.ActionLaunch:
		return true
	}
	return c.Action == provision.ActionTerminate && (c.Have.Gone != "" || wants(p, c.ID()))
}

// standsDown says whether a change is the end of a replica that stood in for another region, of
// which spec knows, and that all that is wanted serves without.
func standsDown(spec *service.Spec, p *Plan, c provision.Change, seen map[string]Seen) bool {
	if c.Kind() != provision.KindReplica || c.Action != provision.ActionTerminate || c.Have.Gone != "" || wants(p, c.ID()) {
		return false
	}
	return slices.Contains(cloud.Regions(spec), cloud.StandsIn(c.Have)) && !slices.ContainsFunc(p.Wants, func(w provision.Want) bool {
		return w.Kind == provision.KindReplica && seen[w.ID].Phase != agent.PhaseReady
	})
}

// wants says whether an id is wanted.
func wants(p *Plan, id string) bool {
	return slices.ContainsFunc(p.Wants, func(w provision.Want) bool { return w.ID == id })
}

// open takes up what the controller was handed, anew where that is another.
func (k *Reconciler) open(ctx context.Context) (*opened, error) {
	c, elsewhere, err := ReadBundle(k.Dir)
	if err != nil {
		return nil, err
	}
	decided, err := k.decisions()
	if err != nil {
		return nil, err
	}
	c.Leaving = decided.Idle()
	if o := k.opened; o != nil && string(o.content.Text) == string(c.Text) && reflect.DeepEqual(o.content.Bundle, c.Bundle) {
		o.content, o.elsewhere = c, elsewhere
		return o, nil
	}
	party, authority, err := identity.Home{Dir: k.Dir}.ReadController()
	if err != nil {
		return nil, err
	}
	o := &opened{content: c, elsewhere: elsewhere, looked: map[service.Region]time.Time{}, answer: make(chan Prices, 1)}
	o.handover = &Handover{
		Service: c.Spec.Name, Party: party, Authority: authority, Self: cloud.ControllerMachine(c.Spec), Have: elsewhere, Now: k.Now,
		Progress: func(id string, s agent.Status) {
			k.log().Info("machine", "id", id, "phase", string(s.Phase), "reason", s.Reason)
		},
	}
	if err := k.reach(ctx, o, authority.Owner()); err != nil {
		return nil, err
	}
	if k.last == nil {
		k.last = map[service.Region][]provision.Object{}
	}
	k.opened = o
	return o, nil
}

// reach finds the way to all clouds: to the reconciler's own at once, to others by way of
// balancers there.
func (k *Reconciler) reach(ctx context.Context, o *opened, owner string) error {
	c, h, home := o.content, o.handover, homeCloud(o.content.Spec)
	reach, err := k.Open(ctx, c.Bundle.Means, without(c.Spec, func(r service.Region) bool { return !isHome(c.Spec, r) }), owner)
	if err != nil {
		return err
	}
	places, lists := provision.Places{home: reach.Provider}, maps.Clone(reach.Lists)
	for _, r := range cloud.Regions(c.Spec) {
		if isHome(c.Spec, r) {
			places[r.Cloud()] = reach.Provider
		}
	}
	for _, name := range abroad(c.Spec) {
		client := &remote.Client{Cloud: name, Ways: func() []remote.Ask { return k.ways(h, name) }}
		places[name] = client
		for _, r := range cloud.Regions(c.Spec) {
			if r.Cloud() == name {
				lists[r] = regionOf{client, r}
			}
		}
	}
	h.Witness = witnesses{home, reach.Witness, places}
	o.fleet = &Fleet{
		Spec: c.Spec, Owner: owner, Provider: places, UserData: reach.UserData, ZoneID: c.Zone.ID, offers: map[service.Region]provision.Offerings{},
		Have: func(ctx context.Context) ([]provision.Object, error) {
			s, err := k.observe(ctx, o)
			if err != nil {
				return nil, err
			}
			// of a region that has fallen silent since it was planned for, all would be missing
			o.fleet.Spec = without(o.fleet.Spec, func(r service.Region) bool { return s.silent[r] != nil })
			return s.have, nil
		},
	}
	o.inspector = &Inspector{Fleet: o.fleet, Lists: lists, Timeout: listTimeout}
	return nil
}

// show keeps what was seen.
func (k *Reconciler) show(v *view) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.view = v
}

// seenLast is what was seen last; an error before the first look.
func (k *Reconciler) seenLast() (*view, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.view == nil {
		return nil, fmt.Errorf("reading what the service has: %w", errNotLooked)
	}
	return k.view, nil
}

var errNotLooked = fmt.Errorf("its cloud was not asked yet: %w", controller.ErrBusy)
