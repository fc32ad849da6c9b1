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
	// Listers contains the lister of each region there.
	Listers map[service.Region]Lister
	// UserData returns the cloud-init document of a machine, as `up` does.
	UserData func(cloud.MachineInput) (string, error)
	// RecordUpdater changes the DNS records of the public name with the machine's identity; nil = its cloud has no hosted zones.
	RecordUpdater provision.RecordUpdater
}

// Reconciler reconciles the replicas of a service in clouds with the desired state: it launches a
// replacement where a machine no longer exists or is about to be interrupted, delivers deployments to new
// machines, and updates balancers; and it applies the changes of strategies (see Apply). It changes
// replicas, replaces lost balancers in a service in clouds with three or more (cloud.ReplacesBalancers), and restarts
// balancers on this computer. It reads the existing objects from the clouds' tags each time, so that it can
// be stopped at any moment. It calls its own cloud directly and other clouds through balancers there.
// It changes nothing in a region that does not respond.
type Reconciler struct {
	// Dir is the folder of the controller's configuration: see ReadBundle.
	Dir string
	// Open connects to the regions in the reconciler's own cloud, which are all regions of spec. config is
	// ControllerBundle.CloudConfig.
	Open func(ctx context.Context, config json.RawMessage, spec *service.Spec, owner string) (CloudAccess, error)
	// Federate returns the calls to the cloud of the regions of spec, which is not the reconciler's own, by workload identity
	// federation; nil, or a nil result = only machines there call it. home is the region of the reconciler's machine.
	Federate func(ctx context.Context, config json.RawMessage, spec *service.Spec, owner string, home service.Region) (remote.CallFunc, error)
	// Logger logs the changes; nil = no logging.
	Logger *slog.Logger
	// Now is the clock for certificates, launches and the times of replicas and balancers; nil = time.Now.
	Now func() time.Time
	// DecisionsFile is the file of decisions about replicas, which commands change too; empty = they are in
	// the store.
	DecisionsFile string
	// Lock locks the service against other changes until unlock is called; controller.ErrBusy means
	// that another process has the lock. nil = there are no other processes.
	Lock func() (unlock func(), err error)

	eventSink     func(telemetry.Event) // nil = events are not recorded
	lastFailure   time.Time             // of the last recorded failure
	failed        map[string]bool       // machines whose failure was recorded
	priceRequests sync.WaitGroup        // running price requests

	// reconcileMu is held while machines are observed or changed. It guards the fields down to prober.
	reconcileMu        sync.Mutex
	bundle             *bundleState                          // nil before the first iteration
	lastError          string                                // the last logged error
	lastErrorAt        time.Time                             // the time of lastError
	lastObjects        map[service.Region][]provision.Object // the objects of each region at its last response
	seen               map[string]AgentReport                // machine statuses at the last observation, by ID
	ownReadySince      map[string]time.Time                  // since when their own balancer reports replicas ready, see confirmedReady
	unusedReplicas     map[string]bool                       // replicas that no balancer used at the last observation
	excessOutOfRegion  map[string]bool                       // IDs of no longer needed replicas: outside their region, or overprovisioned
	replacementsSeenAt map[string]time.Time                  // the first observation of each replacement, by handle
	costlierTriedAt    time.Time                             // when a cheaper offering was last tried
	spot               provision.SpotHistory                 // of every deployer
	readySince         map[string]time.Time                  // see settlingSpotReplicas, by handle
	settlingSpot       map[string]bool                       // see settlingSpotReplicas
	storeRecords       controller.Records                    // of this term; nil before the first
	launches           *launchState                          // nil before the first iteration of a term
	storedSpot         provision.SpotRecord                  // the record of spot in the store
	enrolments         *Enrolments                           // see useEnrolments; nil before the first iteration of a term
	watched            map[string]watchedBalancer            // see observeBalancers, by ID
	admitted           map[string]string                     // the configurations of admitReplaced, by ID of the firewall
	moved              movedRecords                          // see moveRecords
	unhealthy          map[string]seenReplica                // replicas that are being taken out, by ID

	relay        func(o provision.Object) remote.CallFunc                // calls the cloud through a machine; nil = through its agent
	prober       func(have []provision.Object) map[string]AgentReport    // reads machine statuses; nil = from the agents
	usedReplicas func() map[string]bool                                  // reads which replicas balancers use; nil = from the balancers
	logs         func(context.Context, provision.Object) ([]byte, error) // reads the log of an engine; nil = from the agents

	mu              sync.Mutex          // guards the fields below
	storedDecisions ReplicaDecisions    // where they are in the store
	view            *serviceView        // of the last observation; nil before the first
	expiries        CertificateExpiries // at the last observation
	serviceName     string              // name of the service
	failures        []telemetry.Alert   // about failed replicas, at the last observation

	shownLaunches *telemetry.Launches // nil before the first observation
	launchAlerts  []telemetry.Alert

	balancerStarts map[string]balancerStart // of balancers on this computer, by ID
	balancerAlerts []telemetry.Alert        // about lost balancers, at the last observation
}

// bundleState is the state that the reconciler derived from its bundle.
type bundleState struct {
	content           DeploymentInput    // of the newest bundle
	otherClouds       []provision.Object // machines in other clouds at the bundle's delivery
	deployer          *Deployer
	inspector         *Inspector
	delivery          *Delivery
	launchers         provision.MultiCloud         // launch and terminate balancers, and repair their firewalls
	recordUpdater     provision.RecordUpdater      // changes the DNS records of the public name; nil = no machine can
	offersReadAt      map[service.Region]time.Time // when the offerings of each region were read
	pricesRequestedAt time.Time                    // when prices were last requested
	newPrices         chan Prices                  // the result of a price request
	unpriced          string                       // the last logged error about unknown prices
	spot              map[service.Region]*spotState
	spotError         string // the last logged error of observeSpot
}

// serviceView is the state of a service in clouds at the reconciler's last observation.
type serviceView struct {
	spec         *service.Spec // without regions in unknown state
	have         []provision.Object
	seen         map[string]AgentReport
	settlingSpot map[string]bool // see settlingSpotReplicas
	// unhealthy are the replicas that are being taken out, by ID.
	unhealthy map[string]seenReplica
	// offers are the regions' offerings at the known prices.
	offers       map[service.Region]provision.Offerings
	reservations map[service.Region][]provision.Reservation
}

var _ controller.MachineReconciler = (*Reconciler)(nil)

// Reconcile implements controller.MachineReconciler. A failure is logged once until it changes.
func (rc *Reconciler) Reconcile(ctx context.Context, checkLeadership func() error) (busy bool) {
	rc.reconcileMu.Lock()
	defer rc.reconcileMu.Unlock()
	busy, err := rc.reconcileOnce(ctx, checkLeadership)
	rc.logError(ctx, err)
	return busy && err == nil
}

// Wait implements controller.MachineReconciler.
func (rc *Reconciler) Wait() { rc.priceRequests.Wait() }

func (rc *Reconciler) log() *slog.Logger {
	if rc.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return rc.Logger
}

// logError logs an error once until it changes. If only the IDs have changed that clouds generate for
// each response, it logs the error again after repeatLogInterval.
func (rc *Reconciler) logError(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		rc.lastError = ""
		return
	}
	text := err.Error()
	if text == rc.lastError || withoutIDs(text) == withoutIDs(rc.lastError) && time.Since(rc.lastErrorAt) < repeatLogInterval {
		return
	}
	rc.log().Error("reconciling machines failed", "err", err)
	rc.recordFailure(text)
	rc.lastError, rc.lastErrorAt = text, time.Now()
}

// withoutIDs returns a text without its long words with digits: request IDs, address pairs with ports,
// opaque cloud messages.
func withoutIDs(text string) string {
	const long = 24 // most names of regions and replicas are shorter
	return strings.Join(slices.DeleteFunc(strings.Fields(text), func(word string) bool {
		return len(word) > long && strings.ContainsAny(word, "0123456789")
	}), " ")
}

// reconcileOnce observes the service once and applies the necessary changes. It calls checkLeadership before each change;
// an error means that this controller may not change anything any more. busy means that a change is in
// progress.
func (rc *Reconciler) reconcileOnce(ctx context.Context, checkLeadership func() error) (busy bool, err error) {
	unlock, err := rc.lock()
	if errors.Is(err, controller.ErrBusy) {
		return true, nil // the other process makes all necessary changes
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	bs, err := rc.loadBundle(ctx)
	if err != nil {
		return false, err
	}
	s, err := rc.observe(ctx, bs)
	if err != nil {
		return false, err
	}
	if isEnding(s.have, bs.content.Self) {
		return true, nil // this controller's machine ends and receives no newer configuration: the next leader makes all changes
	}
	if err := rc.storeDecisions(ctx, s.spec, s.knownObjects(), controller.CapacityChange{}); err != nil {
		return false, err
	}
	dl := bs.delivery
	if dl.Revoked, err = rc.revoked(dl.Party.Root); err != nil {
		return false, err
	}
	seen := rc.readStatuses(ctx, dl)
	if ctx.Err() != nil {
		return false, context.Cause(ctx) // errors of ctx are not those of machines
	}
	if rc.failed == nil {
		rc.failed = map[string]bool{}
	}
	rc.recordAll(statusEvents(dl.Machines, rc.seen, seen, rc.failed))
	rc.seen = seen
	rc.storeExpiries(dl, seen)
	rc.storeFailures(dl, seen)
	rc.unhealthy = rc.markUnhealthy(ctx, bs, s, seen)
	serving := rc.withConfirmedReadiness(ctx, dl, bs.content.Draining, seen)
	rc.settlingSpot = rc.settlingSpotReplicas(s.spec, s.have, seen, time.Now())
	changed, failure := rc.launchMissing(ctx, bs, s, seen, serving, checkLeadership)
	rc.launches.addHeld(failure, rc.now())
	failure = errors.Join(failure, rc.storeLaunches(ctx, s))
	if changed {
		if s, err = rc.observe(ctx, bs); err != nil {
			return true, errors.Join(failure, err)
		}
	}
	v := s.view(seen)
	v.settlingSpot, v.unhealthy = rc.settlingSpot, rc.unhealthy
	v.offers, v.reservations = withKnownPrices(bs.deployer.offers, bs.deployer.prices), maps.Clone(bs.deployer.reservations.ByRegion)
	rc.setView(v)
	if err := checkLeadership(); err != nil {
		return false, errors.Join(failure, err)
	}
	c := bs.content
	c.Draining = drained(c.Draining, s.have, serving, rc.settlingSpot)
	maps.Copy(c.Draining, rc.excessOutOfRegion)
	maps.Copy(c.Draining, drainedBeforeEnd(c.Draining, s.have, serving, time.Now()))
	for id := range rc.unhealthy {
		c.Draining[id] = true
	}
	deployments, err := Deployments(c, dl.Machines)
	if err == nil {
		s.dropUncertain(deployments)
		err = errors.Join(dl.DeliverDue(ctx, seen, deployments), rc.removeDrained(ctx, bs, s, serving, deployments, checkLeadership))
	}
	return changed || inTransition(s.have, seen), errors.Join(s.failure(), failure, err)
}

// isEnding reports whether the cloud terminates a machine and no other one with its ID has started.
func isEnding(have []provision.Object, id string) bool {
	ending := false
	for _, o := range have {
		if o.ID == id && o.Kind.IsMachine() {
			if o.TerminatedReason == "" {
				return false
			}
			ending = true
		}
	}
	return ending
}

// lock calls Lock, if set.
func (rc *Reconciler) lock() (unlock func(), err error) {
	if rc.Lock == nil {
		return func() {}, nil
	}
	return rc.Lock()
}

// readStatuses reads the status of all machines.
func (rc *Reconciler) readStatuses(ctx context.Context, dl *Delivery) map[string]AgentReport {
	if rc.prober != nil {
		return rc.prober(dl.Machines)
	}
	return dl.ReadStatuses(ctx)
}

// revoked returns the revocation list that this machine's agent received.
func (rc *Reconciler) revoked(root *x509.Certificate) (identity.Revoked, error) {
	return identity.ReadRevoked(filepath.Join(filepath.Dir(rc.Dir), agent.FileRevoked), root)
}

// inTransition reports whether a replica is starting or terminating.
func inTransition(have []provision.Object, seen map[string]AgentReport) bool {
	return slices.ContainsFunc(have, func(o provision.Object) bool {
		return o.Kind == provision.KindReplica && seen[o.ID].Phase != agent.PhaseReady
	})
}

// launchMissing launches missing replicas and balancers; changed means that a change may have been made. serving
// are the statuses from withConfirmedReadiness.
func (rc *Reconciler) launchMissing(ctx context.Context, bs *bundleState, s *observation, seen, serving map[string]AgentReport, checkLeadership func() error) (changed bool, err error) {
	offersErr := rc.limitPlanning(ctx, bs, s)
	rc.refreshPrices(ctx, bs)
	balancers, balancersErr := rc.replaceBalancers(ctx, bs, s, seen, checkLeadership)
	replicas, err := rc.launchMissingReplicas(ctx, bs, s, seen, serving, checkLeadership)
	return balancers || replicas, errors.Join(offersErr, balancersErr, err)
}

// launchMissingReplicas launches missing replicas: see launchMissing.
func (rc *Reconciler) launchMissingReplicas(ctx context.Context, bs *bundleState, s *observation, seen, serving map[string]AgentReport, checkLeadership func() error) (changed bool, err error) {
	rc.logSpotError(bs, rc.observeSpot(ctx, bs, s))
	bs.deployer.recordInterruptions(s.have, seen)
	rc.setNeedReplacement(bs.deployer, s, seen)
	if err := rc.countReplicas(ctx, bs, s); err != nil {
		return false, err
	}
	rc.excessOutOfRegion = map[string]bool{}
	bs.deployer.Filter = func(p *MachinePlan, c provision.Change) bool {
		if removesOutOfRegion(bs.deployer.Spec, p, c, serving) {
			rc.excessOutOfRegion[c.ID()] = true // it is deleted once it has drained
		}
		return isReconcilerChange(p, c) || rc.enrolments != nil && isRemnant(p, c) || rc.restartsBalancer(bs, c)
	}
	p, err := bs.deployer.planFor(s.have, nil)
	if err == nil && len(p.Changes) == 0 {
		if changed, err = rc.returnToSpot(ctx, bs, s, checkLeadership); !changed && err == nil {
			changed, err = rc.replaceCostlier(ctx, bs, s, seen, checkLeadership)
		}
		return changed, errors.Join(err, p.heldError())
	}
	if err != nil {
		return false, err
	}
	if err := checkLeadership(); err != nil {
		return false, err
	}
	rc.countRestarts(p.Changes)
	_, err = bs.deployer.Up(ctx, p, rc.recordProgress)
	return true, err
}

// progress logs completed changes; failures are logged with the iteration.
func (rc *Reconciler) progress(c provision.Change, p provision.ChangePhase, _ error) {
	if p == provision.PhaseDone {
		rc.log().Info("machine changed", "change", string(c.Action), "id", c.ID(), "region", string(c.Region()), "reason", c.Reason)
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
func drained(draining map[string]bool, have []provision.Object, seen map[string]AgentReport, settlingSpot map[string]bool) map[string]bool {
	ids := maps.Clone(draining)
	serves := map[string]bool{} // models
	for _, o := range have {
		if o.Kind == provision.KindReplica && !draining[o.ID] && seen[o.ID].Phase == agent.PhaseReady {
			serves[o.Labels["model"]] = true
		}
	}
	interruptedIDs := interrupted(have, seen)
	for _, o := range have {
		if interruptedIDs[o.ID] && serves[o.Labels["model"]] {
			ids[o.ID] = true
		}
	}
	maps.Copy(ids, replaced(have, seen, settlingSpot))
	return ids
}

// isReconcilerChange reports whether the reconciler makes a change: it launches missing replicas,
// deletes the remaining objects of terminated ones, and deletes duplicates of an ID. `up` makes all
// other changes.
func isReconcilerChange(p *MachinePlan, c provision.Change) bool {
	switch {
	case c.Kind() != provision.KindReplica:
		return false // see replaceBalancers and restartsBalancer
	case c.Action == provision.ActionLaunch:
		return true
	}
	return c.Action == provision.ActionTerminate && (c.Observed.TerminatedReason != "" || planContains(p, c.ID()))
}

// isRemnant reports whether a change deletes what is left of the machine of a balancer that was replaced.
func isRemnant(p *MachinePlan, c provision.Change) bool {
	return c.Kind() == provision.KindBalancer && c.Action == provision.ActionTerminate && c.Observed.TerminatedReason != "" && planContains(p, c.ID())
}

// removesOutOfRegion reports whether a change removes a replica that was launched in this region as a fallback for
// another region of spec (not on demand instead of spot: see onFallback), or an overprovisioned one, while all desired
// replicas are ready without it.
func removesOutOfRegion(spec *service.Spec, p *MachinePlan, c provision.Change, seen map[string]AgentReport) bool {
	if c.Kind() != provision.KindReplica || c.Action != provision.ActionTerminate || c.Observed.TerminatedReason != "" || planContains(p, c.ID()) {
		return false
	}
	fallback := slices.Contains(cloud.ManagedRegions(spec), cloud.FallbackFor(c.Observed)) || cloud.IsOverprovisioned(c.Observed)
	return fallback && !slices.ContainsFunc(p.Desired, func(desired provision.Desired) bool {
		return desired.Kind == provision.KindReplica && seen[desired.ID].Phase != agent.PhaseReady
	})
}

// planContains reports whether a plan contains an ID.
func planContains(p *MachinePlan, id string) bool {
	return slices.ContainsFunc(p.Desired, func(desired provision.Desired) bool { return desired.ID == id })
}

// loadBundle loads the records of this term and the controller's bundle, and reconnects if that has
// changed.
func (rc *Reconciler) loadBundle(ctx context.Context) (*bundleState, error) {
	if err := rc.loadRecords(ctx); err != nil {
		return nil, err
	}
	var earlier DeploymentInput
	if rc.bundle != nil {
		earlier = rc.bundle.content
	}
	c, otherClouds, err := readBundle(rc.Dir, earlier)
	if err != nil {
		return nil, err
	}
	decided, err := rc.decisions()
	if err != nil {
		return nil, err
	}
	c.Draining = decided.NotServing()
	if bs := rc.bundle; bs != nil && string(bs.content.SpecYAML) == string(c.SpecYAML) && reflect.DeepEqual(bs.content.Bundle, c.Bundle) {
		bs.content, bs.otherClouds, bs.deployer.Gate = c, otherClouds, rc.launches.gate
		return bs, rc.useEnrolments(ctx, bs)
	}
	party, authority, err := identity.Home{Dir: rc.Dir}.ReadController()
	if err != nil {
		return nil, err
	}
	bs := &bundleState{content: c, otherClouds: otherClouds, offersReadAt: map[service.Region]time.Time{}, newPrices: make(chan Prices, 1)}
	bs.delivery = &Delivery{
		Service: c.Spec.Name, Party: party, Authority: authority, Self: c.Self, Machines: otherClouds, Now: rc.Now,
		OnChange: func(id string, s agent.Status) {
			rc.log().Info("machine status changed", "id", id, "phase", string(s.Phase), "reason", s.Reason)
		},
	}
	if err := rc.connectClouds(ctx, bs, authority.Owner()); err != nil {
		return nil, err
	}
	if rc.lastObjects == nil {
		rc.lastObjects = map[service.Region][]provision.Object{}
	}
	if rc.bundle != nil {
		rc.bundle.delivery.kept.Close() // its certificate may be an earlier one
	}
	rc.bundle = bs
	return bs, rc.useEnrolments(ctx, bs)
}

// connectClouds connects to all clouds: directly to the reconciler's own, to others through balancers
// there. A spare has no permission to change balancers in its own cloud either: others there do it.
func (rc *Reconciler) connectClouds(ctx context.Context, bs *bundleState, owner string) error {
	c, dl, home := bs.content, bs.delivery, bs.content.controllerRegion().Cloud()
	access, err := rc.Open(ctx, c.Bundle.CloudConfig, withoutRegions(c.Spec, func(r service.Region) bool { return !c.isDirect(r) }), owner)
	if err != nil {
		return err
	}
	providers, lists := provision.MultiCloud{home: access.Provider}, maps.Clone(access.Listers)
	bs.recordUpdater = access.RecordUpdater
	for _, r := range cloud.ManagedRegions(c.Spec) {
		if c.isDirect(r) {
			providers[r.Cloud()] = access.Provider
		}
	}
	for _, name := range c.otherClouds() {
		federated, err := rc.federate(ctx, c, name, owner)
		if err != nil {
			return err
		}
		client := &remote.Client{Cloud: name, Machines: func() []remote.CallFunc { return rc.relaysIn(dl, name, federated) }}
		providers[name] = client
		if name == service.CloudAWS {
			bs.recordUpdater = client
		}
		for _, r := range cloud.ManagedRegions(c.Spec) {
			if r.Cloud() == name {
				lists[r] = regionLister{client, r}
			}
		}
	}
	bs.launchers = maps.Clone(providers)
	if c.isSpare(c.Self) && !cloud.RunsOnThisComputer(c.controllerRegion()) {
		client := &remote.Client{Cloud: home, Machines: func() []remote.CallFunc { return rc.relaysIn(dl, home, nil) }}
		if bs.launchers[home] = client; home == service.CloudAWS {
			bs.recordUpdater = client
		}
	}
	dl.Attestor = LimitAttestor(attestors{home, access.Attestor, providers, bs.launchers})
	bs.deployer = &Deployer{
		Spec: c.Spec, Owner: owner, Provider: providers, UserData: access.UserData, HostedZoneID: c.Zone.ID, offers: map[service.Region]provision.Offerings{},
		ListObserved: func(ctx context.Context) ([]provision.Object, error) {
			s, err := rc.observe(ctx, bs)
			if err != nil {
				return nil, err
			}
			// All replicas of a region that did not respond now, but did while planning, would count
			// as missing.
			bs.deployer.Spec = withoutRegions(bs.deployer.Spec, func(r service.Region) bool { return s.unresponsive[r] != nil })
			bs.deployer.Unlisted = s.known
			return s.have, nil
		},
		Now: rc.Now, Gate: rc.launches.gate,
	}
	if rc.bundle != nil { // a new configuration does not change what clouds have
		bs.deployer.exhausted = rc.bundle.deployer.exhausted
	}
	bs.deployer.exhausted.Spot = &rc.spot
	bs.inspector = &Inspector{Deployer: bs.deployer, Listers: lists, Timeout: listTimeout}
	return nil
}

// federate returns the calls by workload identity federation to another cloud whose only balancer this controller
// replaces; nil for any other cloud.
func (rc *Reconciler) federate(ctx context.Context, c DeploymentInput, name, owner string) (remote.CallFunc, error) {
	if rc.Federate == nil || cloud.FederatedCloud(c.Spec) != name {
		return nil, nil
	}
	there := withoutRegions(c.Spec, func(r service.Region) bool { return r.Cloud() != name })
	return rc.Federate(ctx, c.Bundle.CloudConfig, there, owner, c.controllerRegion())
}

// setView stores the last observation.
func (rc *Reconciler) setView(v *serviceView) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.view = v
}

// lastView returns the last observation; an error before the first.
func (rc *Reconciler) lastView() (*serviceView, error) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.view == nil {
		return nil, fmt.Errorf("reading the state of the service: %w", errNotObserved)
	}
	return rc.view, nil
}

var errNotObserved = fmt.Errorf("the clouds have not been observed yet: %w", controller.ErrBusy)
