package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/remote"
)

const (
	// neverListedTimeout is how long a balancer's machine that no list of this leader contained must be missing in the lists
	// of its cloud until it is replaced. One that was listed must be missing for unlistedAfterListing, and not respond.
	neverListedTimeout = 30 * time.Second
	// unresponsiveTimeout is how long the agent of a machine that its cloud lists as running must not respond until it is
	// replaced, as the default of `up --replace-after`.
	unresponsiveTimeout = 3 * time.Minute
)

// watchedBalancer is what a leader has observed of the machine of a balancer.
type watchedBalancer struct {
	object            provision.Object // as last listed
	unlistedSince     time.Time        // since when its cloud does not list it, or does not respond; zero = it is listed
	unresponsiveSince time.Time        // since when it does not respond; zero = it responds
	failure           string           // why no controller can replace it; empty = no reason is known
	refused           string           // why its last launch failed, which is tried again; empty = it did not fail
}

// lostBalancer is a balancer whose machine cannot return.
type lostBalancer struct {
	id     string
	region service.Region
	reason string
	// running is the machine that its cloud lists as running; it is terminated first. nil = it has ended.
	running *provision.Object
	listed  bool // its cloud lists it as ended
}

// observeBalancers returns the balancers that are lost. A region that does not respond proves nothing about its
// machines.
func (rc *Reconciler) observeBalancers(ctx context.Context, bs *bundleState, s *observation, seen map[string]AgentReport) (lost []lostBalancer) {
	if rc.watched == nil {
		rc.watched = map[string]watchedBalancer{}
	}
	for _, c := range cloud.Balancers(s.spec, nil) {
		w := rc.watched[c.ID]
		l := rc.observeBalancer(ctx, bs, s, c, seen, &w)
		if l == nil && w.unlistedSince.IsZero() && w.unresponsiveSince.IsZero() {
			w.failure, w.refused = "", ""
		}
		rc.watched[c.ID] = w
		if l != nil {
			lost = append(lost, *l)
		}
	}
	return lost
}

// observeBalancer updates what was observed of a balancer's machine; nil = it is not lost.
func (rc *Reconciler) observeBalancer(ctx context.Context, bs *bundleState, s *observation, c cloud.BalancerMachine, seen map[string]AgentReport, w *watchedBalancer) *lostBalancer {
	since := func(t *time.Time) time.Duration {
		if t.IsZero() {
			*t = rc.now()
		}
		return rc.now().Sub(*t)
	}
	if why := s.unresponsive[c.Region]; why != nil {
		w.unresponsiveSince = time.Time{}
		if errors.Is(why, remote.ErrNoMachine) && since(&w.unlistedSince) >= unresponsiveTimeout {
			w.failure = fmt.Sprintf("only a balancer in %s can launch machines there, and none responds", c.Region.Cloud())
			var rejected *provision.CredentialsError
			if errors.As(why, &rejected) {
				w.failure = fmt.Sprintf("no balancer in %s responds, and the controllers in the other cloud have no access there: %v", c.Region.Cloud(), rejected)
			}
		}
		return nil
	}
	var running, ended, unknown *provision.Object
	for _, have := range s.have {
		switch {
		case have.ID != c.ID || have.Kind != provision.KindBalancer:
		case have.TerminatedReason != "":
			ended = &have
		case bs.content.trusts(have):
			running = &have
		default:
			unknown = &have
		}
	}
	if running == nil || running.Handle != w.object.Handle || !bs.delivery.isUnresponsive(*running, seen, bs.controllers()) {
		w.unresponsiveSince = time.Time{}
	} else if since(&w.unresponsiveSince) >= unresponsiveTimeout {
		return &lostBalancer{id: c.ID, region: c.Region, reason: fmt.Sprintf("no response for %s", rc.now().Sub(w.unresponsiveSince).Round(time.Second)), running: running}
	}
	if running != nil {
		w.object, w.unlistedSince = *running, time.Time{}
		return nil
	}
	missing, limit := since(&w.unlistedSince), unlistedAfterListing
	if w.object.Handle == "" {
		limit = neverListedTimeout
	}
	switch {
	case unknown != nil:
		w.failure = fmt.Sprintf("another machine (%s) has its tags, and neither 'skyserve up' nor a controller launched it", unknown.Handle)
		return nil
	case ended != nil:
		return &lostBalancer{id: c.ID, region: c.Region, reason: ended.TerminatedReason, listed: true}
	case missing < limit || rc.responds(ctx, bs, w.object):
		return nil
	}
	return &lostBalancer{id: c.ID, region: c.Region, reason: "its cloud no longer lists it"}
}

// isUnresponsive reports whether a balancer's machine, which had time to boot, does not respond while most other balancers
// are ready: then the network of this machine is not the cause. If it runs a controller, all other controllers must be
// ready too: every acknowledged write of the store is then on their disks.
func (dl *Delivery) isUnresponsive(machine provision.Object, seen map[string]AgentReport, controllers []string) bool {
	if len(dl.unresponsiveAmong([]provision.Object{machine}, seen)) == 0 {
		return false
	}
	others, ready := 0, 0
	for _, b := range dl.Machines {
		if b.Kind != provision.KindBalancer || b.TerminatedReason != "" || b.ID == machine.ID {
			continue
		}
		isReady := seen[b.ID].Err == nil && seen[b.ID].Phase == agent.PhaseReady
		if others++; isReady {
			ready++
		} else if slices.Contains(controllers, machine.ID) && slices.Contains(controllers, b.ID) {
			return false
		}
	}
	return 2*ready > others
}

// controllers returns the IDs of the machines that run a controller.
func (bs *bundleState) controllers() []string {
	return chooseControlPlane(bs.content.Spec, bs.delivery.Machines, bs.content.Controllers).ids()
}

// responds reports whether a machine that its cloud does not list responds at its last address.
func (rc *Reconciler) responds(ctx context.Context, bs *bundleState, machine provision.Object) bool {
	if rc.prober != nil {
		report, polled := rc.prober([]provision.Object{machine})[machine.ID]
		return polled && report.Err == nil
	}
	if !Reachable(machine) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	_, err := bs.delivery.AgentClient(machine).Status(ctx, bs.delivery.Machine(machine))
	return err == nil
}

// Why a lost balancer waits for `up`.
const (
	notReplaced   = "controllers launch balancers only in a service with three or more balancers"
	spareAccounts = "gcp.spare_account is not set, so all balancers at Google have the same permissions, and these do not include launching balancers"
)

// replaceBalancers replaces the machines of lost balancers, in services in which controllers do that. It waits between
// two launches of one balancer. In other services in clouds an alert names lost balancers.
func (rc *Reconciler) replaceBalancers(ctx context.Context, bs *bundleState, s *observation, seen map[string]AgentReport, checkLeadership func() error) (changed bool, err error) {
	if rc.enrolments == nil {
		if cloud.UsesClouds(s.spec) {
			for _, l := range rc.observeBalancers(ctx, bs, s, seen) {
				w := rc.watched[l.id]
				w.failure = notReplaced
				rc.watched[l.id] = w
			}
		}
		rc.setBalancerAlerts(balancerAlerts(s.spec, bs.content, s.have, rc.watched, nil, rc.moved))
		return false, nil
	}
	for _, l := range rc.observeBalancers(ctx, bs, s, seen) {
		if !cloud.ReplacesBalancersIn(s.spec, l.region.Cloud()) {
			w := rc.watched[l.id]
			w.failure = spareAccounts
			rc.watched[l.id] = w
			continue
		}
		if rc.now().Before(rc.enrolments.nextLaunch(l.id, l.listed)) {
			continue
		}
		tried, failure := rc.replaceBalancer(ctx, bs, s, l, checkLeadership)
		changed = changed || tried
		w := rc.watched[l.id]
		w.failure, w.refused = "", ""
		if failure != nil {
			w.refused = failure.Error()
			err = errors.Join(err, fmt.Errorf("replacing %s (%s): %w; 'skyserve up' replaces it", l.id, l.reason, failure))
		}
		rc.watched[l.id] = w
	}
	denied := rc.admitReplaced(ctx, bs, s, checkLeadership)
	failure := rc.moveRecords(ctx, bs, checkLeadership)
	rc.setBalancerAlerts(balancerAlerts(s.spec, bs.content, s.have, rc.watched, denied, rc.moved))
	return changed, errors.Join(err, denied, failure)
}

// admitReplaced repairs the firewalls at AWS that admit the other balancers by address, after a controller replaced
// one. Those at Google stay until `up`: machines there connect to the new one themselves, and members of the store
// need a connection in one direction.
func (rc *Reconciler) admitReplaced(ctx context.Context, bs *bundleState, s *observation, checkLeadership func() error) (failure error) {
	have := slices.DeleteFunc(slices.Clone(bs.delivery.Machines), func(b provision.Object) bool {
		return b.Kind != provision.KindBalancer || b.TerminatedReason != ""
	})
	replaced := slices.ContainsFunc(have, bs.content.isReplaced)
	if !replaced || len(s.unknown) > 0 || slices.ContainsFunc(have, func(b provision.Object) bool { return !b.PublicIP.IsValid() }) {
		return nil
	}
	wants, err := cloud.PeerFirewalls(s.spec, bs.deployer.Owner, have)
	if err != nil {
		return err
	}
	for _, desired := range wants {
		if desired.Region.Cloud() != service.CloudAWS || s.unresponsive[desired.Region] != nil || rc.admitted[desired.ID] == desired.SpecHash {
			continue
		}
		if err := checkLeadership(); err != nil {
			return errors.Join(failure, err)
		}
		if _, err := bs.launchers.Launch(ctx, desired); err != nil {
			failure = errors.Join(failure, fmt.Errorf("adding the addresses of the balancers to firewall %s: %w; 'skyserve up' adds them", desired.ID, err))
			continue
		}
		if rc.admitted == nil {
			rc.admitted = map[string]string{}
		}
		rc.admitted[desired.ID] = desired.SpecHash
		rc.log().Info("firewall admits the balancers", "id", desired.ID, "region", string(desired.Region), "peers", desired.SameRole)
	}
	return failure
}

// isReplaced reports whether a controller launched the machine of a balancer after the last `up`.
func (c DeploymentInput) isReplaced(o provision.Object) bool {
	return slices.Contains(c.Launched[o.ID], o.Handle) && !slices.Contains(c.Enrolled[o.ID], o.Handle)
}

// replaceBalancer launches the machine of a lost balancer. It first stores the record of launches: without a majority
// of the store's members nothing is changed.
func (rc *Reconciler) replaceBalancer(ctx context.Context, bs *bundleState, s *observation, l lostBalancer, checkLeadership func() error) (changed bool, err error) {
	dp, running := bs.deployer, map[string]string{}
	if l.running != nil {
		running[l.running.Handle] = l.reason
	}
	dp.Filter = func(_ *MachinePlan, c provision.Change) bool {
		return c.Kind() == provision.KindBalancer && c.ID() == l.id && (c.Action == provision.ActionLaunch || running[c.Observed.Handle] != "")
	}
	p, err := dp.PlanReplacing(&MachinePlan{Observed: s.have}, running)
	dp.replaced = nil
	if err != nil || len(p.Changes) == 0 {
		return false, errors.Join(err, p.heldError())
	}
	for i, c := range p.Changes {
		if c.Observed.ID == "" { // no list contains the machine any more
			p.Changes[i].Observed = provision.Object{ID: l.id, TerminatedReason: l.reason}
			p.Changes[i].Reason = strings.Replace(c.Reason, "new", l.reason, 1)
		}
	}
	if err := errors.Join(checkLeadership(), rc.enrolments.rewrite()); err != nil {
		return false, err
	}
	// nextLaunch determines when it is tried again: each try asks the cloud, also for offerings that replicas skip now.
	own, skipped := dp.Provider, dp.exhausted
	dp.replaced, dp.Provider, dp.exhausted = running, bs.launchers, provision.ExhaustedOfferings{Spot: skipped.Spot}
	_, err = dp.Up(ctx, p, rc.recordProgress)
	dp.replaced, dp.Provider, dp.exhausted = nil, own, skipped
	return true, err
}

// setBalancerAlerts stores the alerts about balancers.
func (rc *Reconciler) setBalancerAlerts(alerts []telemetry.Alert) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.balancerAlerts = alerts
}

// balancerAlerts returns the alerts about balancers that controllers cannot replace, and about replaced ones whose
// address is missing in records, or, because of denied, in firewalls.
func balancerAlerts(spec *service.Spec, c DeploymentInput, have []provision.Object, watched map[string]watchedBalancer, denied error, moved movedRecords) (alerts []telemetry.Alert) {
	for _, of := range cloud.Balancers(spec, have) {
		add := func(format string, args ...any) {
			alerts = append(alerts, telemetry.Alert{
				Severity: telemetry.SeverityWarning, Kind: telemetry.AlertLaunch, Region: of.Region, Object: of.ID, Message: fmt.Sprintf(format, args...),
				NextStep: fmt.Sprintf("run 'skyserve up' with the service.yaml of %s", spec.Name),
			})
		}
		switch w := watched[of.ID]; {
		case w.failure != "":
			add("its machine is lost, and no controller can replace it: %s", w.failure)
		case w.refused != "":
			add("its machine is lost; the controller tries again to replace it, after this failure: %s", w.refused)
		}
		i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == of.ID && o.TerminatedReason == "" && c.isReplaced(o) })
		if i < 0 {
			continue
		}
		if spec.DNS != nil && !moved.contains(have[i]) {
			add("a controller replaced its machine; the records of %s do not contain its new address, so clients reach the other balancers%s", spec.DNS.Name, moved.reason())
		}
		if denied != nil {
			add("a controller replaced its machine, and could not update the firewalls of the others: %v", denied)
		}
	}
	return alerts
}
