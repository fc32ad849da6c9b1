package deploy

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
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/remote"
)

// Intervals of the reconciler, with their reasons.
const (
	// offersTTL is how long a region's offerings are cached: spot prices change hourly.
	offersTTL = 30 * time.Minute
	// repeatLogInterval is the interval at which an error is logged again if only generated IDs in
	// it have changed.
	repeatLogInterval = 10 * time.Minute
	// pricesTTL is how long prices are cached: list prices change monthly, and a provider caches
	// them for hours. While some are unknown, they are requested every pricesRetry: machines of
	// other clouds may not have responded yet.
	pricesTTL   = 30 * time.Minute
	pricesRetry = 5 * time.Minute
)

// CloudAccess is the reconciler's access to its own cloud.
type CloudAccess struct {
	Provider provision.Provider
	Attestor provision.KeyAttestor
	// Lists contains the lister of each region there.
	Lists map[service.Region]Lister
	// UserData returns the cloud-init document of a machine, as `up` does.
	UserData func(cloud.MachineInput) (string, error)
}

// Reconciler reconciles the replicas of a service in clouds with the desired state: it launches a
// replacement where a machine no longer exists or is about to be interrupted, delivers deployments to new
// machines, and updates balancers; and it applies the changes of strategies (see Apply). It changes
// replicas, and replaces lost balancers where every balancer's machine runs a controller. It reads the existing objects from the clouds' tags each time, so that it can
// be stopped at any moment. It calls its own cloud directly and other clouds through balancers there.
// It changes nothing in a region that does not respond.
type Reconciler struct {
	// Dir is the folder of the controller's configuration: see ReadBundle.
	Dir string
	// Open connects to the regions in the reconciler's own cloud, which are all regions of spec.
	Open func(ctx context.Context, means json.RawMessage, spec *service.Spec, owner string) (CloudAccess, error)
	// Logger logs the changes; nil = no logging.
	Logger *slog.Logger
	// Now is the clock for certificates; nil = time.Now.
	Now func() time.Time
	// Decisions is the file of decisions about replicas, which commands change too; empty = they are in
	// the store.
	Decisions string
	// Lock locks the service against other changes until unlock is called; controller.ErrBusy means
	// that another process has the lock. nil = there are no other processes.
	Lock func() (unlock func(), err error)

	record        func(telemetry.Event) // nil = events are not recorded
	lastFailure   time.Time             // of the last recorded failure
	failed        map[string]bool       // machines whose failure was recorded
	priceRequests sync.WaitGroup        // running price requests

	// working is held while machines are observed or changed. It guards the fields down to prober.
	working         sync.Mutex
	bundle          *bundleState                          // nil before the first iteration
	lastError       string                                // the last logged error
	lastErrorAt     time.Time                             // the time of lastError
	lastObjects     map[service.Region][]provision.Object // the objects of each region at its last response
	seen            map[string]AgentReport                // machine statuses at the last observation, by ID
	unusedReplicas  map[string]bool                       // replicas that no balancer used at the last observation
	excess          map[string]bool                       // fallback replicas that are no longer needed
	successorsSeen  map[string]time.Time                  // the first observation of each replacement, by handle
	costlierTriedAt time.Time                             // when a cheaper offering was last tried
	spot            provision.SpotHistory                 // of every deployer
	readySince      map[string]time.Time                  // see heldReplacements, by handle
	held            map[string]bool                       // see heldReplacements
	records         controller.Records                    // of this term; nil before the first
	launches        *launchState                          // nil before the first iteration of a term
	storedSpot      provision.SpotRecord                  // the record of spot in the store
	enrolments      *Enrolments                           // see useEnrolments; nil before the first iteration of a term
	watched         map[string]watchedBalancer            // see observeBalancers, by ID
	admitted        map[string]string                     // the configurations of admitReplaced, by ID of the firewall
	retired         map[string]seenReplica                // replicas that are being taken out, by ID

	prober  func(have []provision.Object) map[string]AgentReport    // reads machine statuses; nil = from the agents
	servers func() map[string]bool                                  // reads which replicas balancers use; nil = from the balancers
	logs    func(context.Context, provision.Object) ([]byte, error) // reads the log of an engine; nil = from the agents

	mu          sync.Mutex          // guards the fields below
	decided     Decisions           // where they are in the store
	view        *serviceView        // of the last observation; nil before the first
	expiries    CertificateExpiries // at the last observation
	serviceName string              // name of the service
	failures    []telemetry.Alert   // about failed replicas, at the last observation

	shownLaunches *telemetry.Launches // nil before the first observation
	launchAlerts  []telemetry.Alert

	balancerAlerts []telemetry.Alert // about lost balancers, at the last observation
}

// bundleState is the state that the reconciler derived from its bundle.
type bundleState struct {
	content           Content            // of the newest bundle
	otherClouds       []provision.Object // machines in other clouds at the bundle's delivery
	deployer          *Deployer
	inspector         *Inspector
	delivery          *Delivery
	offersReadAt      map[service.Region]time.Time // when the offerings of each region were read
	pricesRequestedAt time.Time                    // when prices were last requested
	newPrices         chan Prices                  // the result of a price request
	unpriced          string                       // the last logged error about unknown prices
	spot              map[service.Region]*spotState
	spotError         string // the last logged error of observeSpot
}

// serviceView is the state of a service in clouds at the reconciler's last observation.
type serviceView struct {
	spec *service.Spec // without regions in unknown state
	have []provision.Object
	seen map[string]AgentReport
	held map[string]bool // see heldReplacements
	// retired are the replicas that are being taken out, by ID.
	retired map[string]seenReplica
	// offers are the regions' offerings at the known prices.
	offers       map[service.Region]provision.Offerings
	reservations map[service.Region][]provision.Reservation
}

var _ controller.Machines = (*Reconciler)(nil)

// Reconcile implements controller.Machines. A failure is logged once until it changes.
func (k *Reconciler) Reconcile(ctx context.Context, may func() error) (busy bool) {
	k.working.Lock()
	defer k.working.Unlock()
	busy, err := k.reconcileOnce(ctx, may)
	k.logError(ctx, err)
	return busy && err == nil
}

// Wait implements controller.Machines.
func (k *Reconciler) Wait() { k.priceRequests.Wait() }

func (k *Reconciler) log() *slog.Logger {
	if k.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return k.Logger
}

// logError logs an error once until it changes. If only the IDs have changed that clouds generate for
// each response, it logs the error again after repeatLogInterval.
func (k *Reconciler) logError(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		k.lastError = ""
		return
	}
	text := err.Error()
	if text == k.lastError || withoutIDs(text) == withoutIDs(k.lastError) && time.Since(k.lastErrorAt) < repeatLogInterval {
		return
	}
	k.log().Error("reconciling machines failed", "err", err)
	k.recordFailure(text)
	k.lastError, k.lastErrorAt = text, time.Now()
}

// withoutIDs returns a text without its long words with digits: request IDs, address pairs with ports,
// opaque cloud messages.
func withoutIDs(text string) string {
	const long = 24 // most names of regions and replicas are shorter
	return strings.Join(slices.DeleteFunc(strings.Fields(text), func(word string) bool {
		return len(word) > long && strings.ContainsAny(word, "0123456789")
	}), " ")
}

// reconcileOnce observes the service once and applies the necessary changes. It calls may before each change;
// an error means that this controller may not change anything any more. busy means that a change is in
// progress.
func (k *Reconciler) reconcileOnce(ctx context.Context, may func() error) (busy bool, err error) {
	unlock, err := k.lock()
	if errors.Is(err, controller.ErrBusy) {
		return true, nil // the other process makes all necessary changes
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	o, err := k.loadBundle(ctx)
	if err != nil {
		return false, err
	}
	s, err := k.observe(ctx, o)
	if err != nil {
		return false, err
	}
	if err := k.storeDecisions(ctx, s.spec, s.knownObjects(), controller.CapacityChange{}); err != nil {
		return false, err
	}
	h := o.delivery
	if h.Revoked, err = k.revoked(h.Party.Root); err != nil {
		return false, err
	}
	seen := k.readStatuses(ctx, h)
	if k.failed == nil {
		k.failed = map[string]bool{}
	}
	k.recordAll(statusEvents(h.Have, k.seen, seen, k.failed))
	k.seen = seen
	k.storeExpiries(h, seen)
	k.storeFailures(h, seen)
	k.retired = k.retireReplicas(ctx, o, s, seen)
	serving := k.withoutUnconfirmed(ctx, h, o.content.Draining, seen)
	k.held = k.heldReplacements(s.spec, s.have, seen, time.Now())
	changed, failure := k.launchMissing(ctx, o, s, seen, serving, may)
	k.launches.addHeld(failure, k.now())
	failure = errors.Join(failure, k.storeLaunches(ctx, s))
	if changed {
		if s, err = k.observe(ctx, o); err != nil {
			return true, errors.Join(failure, err)
		}
	}
	v := s.view(seen)
	v.held, v.retired = k.held, k.retired
	v.offers, v.reservations = priced(o.deployer.offers, o.deployer.prices), maps.Clone(o.deployer.reservations.ByRegion)
	k.setView(v)
	if err := may(); err != nil {
		return false, errors.Join(failure, err)
	}
	c := o.content
	c.Draining = drained(c.Draining, s.have, serving, k.held)
	maps.Copy(c.Draining, k.excess)
	maps.Copy(c.Draining, drainedBeforeEnd(c.Draining, s.have, serving, time.Now()))
	for id := range k.retired {
		c.Draining[id] = true
	}
	deployments, err := Deployments(c, h.Have)
	if err == nil {
		s.dropUncertain(deployments)
		err = errors.Join(h.DeliverDue(ctx, seen, deployments), k.removeDrained(ctx, o, s, serving, deployments, may))
	}
	return changed || unsettled(s.have, seen), errors.Join(s.failure(), failure, err)
}

// lock calls Lock, if set.
func (k *Reconciler) lock() (unlock func(), err error) {
	if k.Lock == nil {
		return func() {}, nil
	}
	return k.Lock()
}

// readStatuses reads the status of all machines.
func (k *Reconciler) readStatuses(ctx context.Context, h *Delivery) map[string]AgentReport {
	if k.prober != nil {
		return k.prober(h.Have)
	}
	return h.ReadStatuses(ctx)
}

// revoked returns the revocation list that this machine's agent received.
func (k *Reconciler) revoked(root *x509.Certificate) (identity.Revoked, error) {
	return identity.ReadRevoked(filepath.Join(filepath.Dir(k.Dir), agent.FileRevoked), root)
}

// unsettled reports whether a replica is starting or terminating.
func unsettled(have []provision.Object, seen map[string]AgentReport) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool {
		return o.Kind == provision.KindReplica && seen[o.ID].Phase != agent.PhaseReady
	})
}

// launchMissing launches missing replicas and balancers; changed means that a change may have been made. serving
// are the statuses from withoutUnconfirmed.
func (k *Reconciler) launchMissing(ctx context.Context, o *bundleState, s *observation, seen, serving map[string]AgentReport, may func() error) (changed bool, err error) {
	offersErr := k.limitPlanning(ctx, o, s)
	k.refreshPrices(ctx, o)
	balancers, balancersErr := k.replaceBalancers(ctx, o, s, seen, may)
	replicas, err := k.launchMissingReplicas(ctx, o, s, seen, serving, may)
	return balancers || replicas, errors.Join(offersErr, balancersErr, err)
}

// launchMissingReplicas launches missing replicas: see launchMissing.
func (k *Reconciler) launchMissingReplicas(ctx context.Context, o *bundleState, s *observation, seen, serving map[string]AgentReport, may func() error) (changed bool, err error) {
	k.logSpotError(o, k.observeSpot(ctx, o, s))
	o.deployer.recordInterruptions(s.have, seen)
	k.setTerminating(o.deployer, s, seen)
	k.excess = map[string]bool{}
	o.deployer.Only = func(p *Plan, c provision.Change) bool {
		if removesFallback(o.deployer.Spec, p, c, serving) {
			k.excess[c.ID()] = true // it is deleted once it has drained
		}
		return isReconcilerChange(p, c) || k.enrolments != nil && isRemnant(p, c)
	}
	p, err := o.deployer.planFor(s.have, nil)
	if err == nil && len(p.Changes) == 0 {
		if changed, err = k.returnToSpot(ctx, o, s, may); !changed && err == nil {
			changed, err = k.replaceCostlier(ctx, o, s, seen, may)
		}
		return changed, errors.Join(err, p.heldError())
	}
	if err != nil {
		return false, err
	}
	if err := may(); err != nil {
		return false, err
	}
	_, err = o.deployer.Up(ctx, p, k.recordProgress)
	return true, err
}

// progress logs completed changes; failures are logged with the iteration.
func (k *Reconciler) progress(c provision.Change, p provision.ChangePhase, _ error) {
	if p == provision.PhaseDone {
		k.log().Info("machine changed", "change", string(c.Action), "id", c.ID(), "region", string(c.Region()), "reason", c.Reason)
	}
}

// interrupted returns the replicas that their cloud is interrupting, as their agents report.
func interrupted(have []provision.Object, seen map[string]AgentReport) map[string]bool {
	ids := map[string]bool{}
	for _, o := range have {
		if s := seen[o.ID]; o.Kind == provision.KindReplica && s.Err == nil && s.Phase == agent.PhaseInterrupted {
			ids[o.ID] = true
		}
	}
	return ids
}

// drained returns the replicas that balancers stop using: those being removed, those being
// interrupted whose model another replica serves, and those that were replaced. The last replica of
// a model serves for as long as its machine exists.
func drained(draining map[string]bool, have []provision.Object, seen map[string]AgentReport, held map[string]bool) map[string]bool {
	ids := maps.Clone(draining)
	serves := map[string]bool{} // models
	for _, o := range have {
		if o.Kind == provision.KindReplica && !draining[o.ID] && seen[o.ID].Phase == agent.PhaseReady {
			serves[o.Labels["model"]] = true
		}
	}
	leave := interrupted(have, seen)
	for _, o := range have {
		if leave[o.ID] && serves[o.Labels["model"]] {
			ids[o.ID] = true
		}
	}
	maps.Copy(ids, replaced(have, seen, held))
	return ids
}

// isReconcilerChange reports whether the reconciler makes a change: it launches missing replicas,
// deletes the remaining objects of terminated ones, and deletes duplicates of an ID. `up` makes all
// other changes.
func isReconcilerChange(p *Plan, c provision.Change) bool {
	switch {
	case c.Kind() != provision.KindReplica:
		return false // see replaceBalancers
	case c.Action == provision.ActionLaunch:
		return true
	}
	return c.Action == provision.ActionTerminate && (c.Observed.TerminatedReason != "" || planContains(p, c.ID()))
}

// isRemnant reports whether a change deletes what is left of the machine of a balancer that was replaced.
func isRemnant(p *Plan, c provision.Change) bool {
	return c.Kind() == provision.KindBalancer && c.Action == provision.ActionTerminate && c.Observed.TerminatedReason != "" && planContains(p, c.ID())
}

// removesFallback reports whether a change removes a fallback replica of another region of spec, or an
// overprovisioned one, while all desired replicas are ready without it.
func removesFallback(spec *service.Spec, p *Plan, c provision.Change, seen map[string]AgentReport) bool {
	if c.Kind() != provision.KindReplica || c.Action != provision.ActionTerminate || c.Observed.TerminatedReason != "" || planContains(p, c.ID()) {
		return false
	}
	fallback := slices.Contains(cloud.ManagedRegions(spec), cloud.FallbackFor(c.Observed)) || cloud.IsOverprovisioned(c.Observed)
	return fallback && !slices.ContainsFunc(p.Wants, func(w provision.Desired) bool {
		return w.Kind == provision.KindReplica && seen[w.ID].Phase != agent.PhaseReady
	})
}

// planContains reports whether a plan contains an ID.
func planContains(p *Plan, id string) bool {
	return slices.ContainsFunc(p.Wants, func(w provision.Desired) bool { return w.ID == id })
}

// loadBundle loads the records of this term and the controller's bundle, and reconnects if that has
// changed.
func (k *Reconciler) loadBundle(ctx context.Context) (*bundleState, error) {
	if err := k.loadRecords(ctx); err != nil {
		return nil, err
	}
	var earlier Content
	if k.bundle != nil {
		earlier = k.bundle.content
	}
	c, otherClouds, err := readBundle(k.Dir, earlier)
	if err != nil {
		return nil, err
	}
	decided, err := k.decisions()
	if err != nil {
		return nil, err
	}
	c.Draining = decided.Idle()
	if o := k.bundle; o != nil && string(o.content.Text) == string(c.Text) && reflect.DeepEqual(o.content.Bundle, c.Bundle) {
		o.content, o.otherClouds, o.deployer.Gate = c, otherClouds, k.launches.gate
		return o, k.useEnrolments(ctx, o)
	}
	party, authority, err := identity.Home{Dir: k.Dir}.ReadController()
	if err != nil {
		return nil, err
	}
	o := &bundleState{content: c, otherClouds: otherClouds, offersReadAt: map[service.Region]time.Time{}, newPrices: make(chan Prices, 1)}
	o.delivery = &Delivery{
		Service: c.Spec.Name, Party: party, Authority: authority, Self: c.Self, Have: otherClouds, Now: k.Now,
		Progress: func(id string, s agent.Status) {
			k.log().Info("machine status changed", "id", id, "phase", string(s.Phase), "reason", s.Reason)
		},
	}
	if err := k.connectClouds(ctx, o, authority.Owner()); err != nil {
		return nil, err
	}
	if k.lastObjects == nil {
		k.lastObjects = map[service.Region][]provision.Object{}
	}
	k.bundle = o
	return o, k.useEnrolments(ctx, o)
}

// connectClouds connects to all clouds: directly to the reconciler's own, to others through balancers
// there.
func (k *Reconciler) connectClouds(ctx context.Context, o *bundleState, owner string) error {
	c, h, home := o.content, o.delivery, o.content.home().Cloud()
	reach, err := k.Open(ctx, c.Bundle.Means, without(c.Spec, func(r service.Region) bool { return !c.isHome(r) }), owner)
	if err != nil {
		return err
	}
	providers, lists := provision.MultiCloud{home: reach.Provider}, maps.Clone(reach.Lists)
	for _, r := range cloud.ManagedRegions(c.Spec) {
		if c.isHome(r) {
			providers[r.Cloud()] = reach.Provider
		}
	}
	for _, name := range c.otherClouds() {
		client := &remote.Client{Cloud: name, Machines: func() []remote.CallFunc { return k.relaysIn(h, name) }}
		providers[name] = client
		for _, r := range cloud.ManagedRegions(c.Spec) {
			if r.Cloud() == name {
				lists[r] = regionLister{client, r}
			}
		}
	}
	h.Attestor = LimitAttestor(attestors{home, reach.Attestor, providers})
	o.deployer = &Deployer{
		Spec: c.Spec, Owner: owner, Provider: providers, UserData: reach.UserData, ZoneID: c.Zone.ID, offers: map[service.Region]provision.Offerings{},
		Have: func(ctx context.Context) ([]provision.Object, error) {
			s, err := k.observe(ctx, o)
			if err != nil {
				return nil, err
			}
			// All replicas of a region that did not respond now, but did while planning, would count
			// as missing.
			o.deployer.Spec = without(o.deployer.Spec, func(r service.Region) bool { return s.unresponsive[r] != nil })
			o.deployer.Unlisted = s.known
			return s.have, nil
		},
		Now: k.Now, Gate: k.launches.gate,
	}
	if k.bundle != nil { // a new configuration does not change what clouds have
		o.deployer.exhausted = k.bundle.deployer.exhausted
	}
	o.deployer.exhausted.Spot = &k.spot
	o.inspector = &Inspector{Deployer: o.deployer, Lists: lists, Timeout: listTimeout}
	return nil
}

// setView stores the last observation.
func (k *Reconciler) setView(v *serviceView) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.view = v
}

// lastView returns the last observation; an error before the first.
func (k *Reconciler) lastView() (*serviceView, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.view == nil {
		return nil, fmt.Errorf("reading the state of the service: %w", errNotObserved)
	}
	return k.view, nil
}

var errNotObserved = fmt.Errorf("the clouds have not been observed yet: %w", controller.ErrBusy)
