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
	// missingAfter is how long a balancer's machine that no list of this leader contained must be missing in the lists
	// of its cloud until it is replaced. One that was listed must be missing for unlistedAfterListing, and not respond.
	missingAfter = 30 * time.Second
	// silentAfter is how long the agent of a machine that its cloud lists as running must not respond until it is
	// replaced, as the default of `up --replace-after`.
	silentAfter = 3 * time.Minute
)

// watchedBalancer is what a leader has observed of the machine of a balancer.
type watchedBalancer struct {
	object  provision.Object // as last listed
	missing time.Time        // since when it, or its cloud, is missing; zero = it is not
	silent  time.Time        // since when it does not respond; zero = it responds
	failure string           // why it could not be replaced; empty = it was not tried
}

// lostBalancer is a balancer whose machine cannot return.
type lostBalancer struct {
	id     string
	reason string
	// running is the machine that its cloud lists as running; it is terminated first. nil = it has ended.
	running *provision.Object
	listed  bool // its cloud lists it as ended
}

// observeBalancers returns the balancers that are lost, in services in which controllers replace them. A region that
// does not respond proves nothing about its machines.
func (k *Reconciler) observeBalancers(ctx context.Context, o *bundleState, s *observation, seen map[string]AgentReport) (lost []lostBalancer) {
	if k.watched == nil {
		k.watched = map[string]watchedBalancer{}
	}
	for _, c := range cloud.ControlCandidates(s.spec, nil) {
		w := k.watched[c.ID]
		l := k.observeBalancer(ctx, o, s, c, seen, &w)
		if l == nil && w.missing.IsZero() && w.silent.IsZero() {
			w.failure = ""
		}
		k.watched[c.ID] = w
		if l != nil {
			lost = append(lost, *l)
		}
	}
	return lost
}

// observeBalancer updates what was observed of a balancer's machine; nil = it is not lost.
func (k *Reconciler) observeBalancer(ctx context.Context, o *bundleState, s *observation, c cloud.ControlCandidate, seen map[string]AgentReport, w *watchedBalancer) *lostBalancer {
	since := func(t *time.Time) time.Duration {
		if t.IsZero() {
			*t = k.now()
		}
		return k.now().Sub(*t)
	}
	if why := s.unresponsive[c.Region]; why != nil {
		w.silent = time.Time{}
		if errors.Is(why, remote.ErrNoMachine) && since(&w.missing) >= silentAfter {
			w.failure = fmt.Sprintf("only a balancer in %s can launch machines there, and none responds", c.Region.Cloud())
		}
		return nil
	}
	var running, ended, stranger *provision.Object
	for _, have := range s.have {
		switch {
		case have.ID != c.ID || have.Kind != provision.KindBalancer:
		case have.TerminatedReason != "":
			ended = &have
		case o.content.trusts(have):
			running = &have
		default:
			stranger = &have
		}
	}
	if running == nil || running.Handle != w.object.Handle || !o.delivery.isSilent(c.ID, *running, seen) {
		w.silent = time.Time{}
	} else if since(&w.silent) >= silentAfter {
		return &lostBalancer{id: c.ID, reason: fmt.Sprintf("no response for %s", k.now().Sub(w.silent).Round(time.Second)), running: running}
	}
	if running != nil {
		w.object, w.missing = *running, time.Time{}
		return nil
	}
	missing, limit := since(&w.missing), unlistedAfterListing
	if w.object.Handle == "" {
		limit = missingAfter
	}
	switch {
	case stranger != nil:
		w.failure = fmt.Sprintf("%s has its tags, and neither 'skyserve up' nor a controller launched it", stranger.Handle)
		return nil
	case ended != nil:
		return &lostBalancer{id: c.ID, reason: ended.TerminatedReason, listed: true}
	case missing < limit || k.responds(ctx, o, w.object):
		return nil
	}
	return &lostBalancer{id: c.ID, reason: "its cloud no longer lists it"}
}

// isSilent reports whether a balancer's machine, which had time to boot, does not respond while all other balancers
// are ready: then the network of this machine is not the cause, and every acknowledged write of the store is on the
// disks of the others.
func (h *Delivery) isSilent(id string, machine provision.Object, seen map[string]AgentReport) bool {
	return len(h.unresponsiveAmong([]provision.Object{machine}, seen)) > 0 && !slices.ContainsFunc(h.Have, func(b provision.Object) bool {
		return b.Kind == provision.KindBalancer && b.TerminatedReason == "" && b.ID != id && (seen[b.ID].Err != nil || seen[b.ID].Phase != agent.PhaseReady)
	})
}

// responds reports whether a machine that its cloud does not list responds at its last address.
func (k *Reconciler) responds(ctx context.Context, o *bundleState, machine provision.Object) bool {
	if k.prober != nil {
		report, polled := k.prober([]provision.Object{machine})[machine.ID]
		return polled && report.Err == nil
	}
	if !Reachable(machine) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	_, err := o.delivery.Operator(machine).Status(ctx, o.delivery.Machine(machine))
	return err == nil
}

// replaceBalancers replaces the machines of lost balancers, in services in which controllers do that. It waits between
// two launches of one balancer.
func (k *Reconciler) replaceBalancers(ctx context.Context, o *bundleState, s *observation, seen map[string]AgentReport, may func() error) (changed bool, err error) {
	if k.enrolments == nil {
		k.setBalancerAlerts(nil)
		return false, nil
	}
	for _, l := range k.observeBalancers(ctx, o, s, seen) {
		if k.now().Before(k.enrolments.nextLaunch(l.id, l.listed)) {
			continue
		}
		tried, failure := k.replaceBalancer(ctx, o, s, l, may)
		changed = changed || tried
		w := k.watched[l.id]
		if w.failure = ""; failure != nil {
			w.failure = failure.Error()
			err = errors.Join(err, fmt.Errorf("replacing %s (%s): %w; 'skyserve up' replaces it", l.id, l.reason, failure))
		}
		k.watched[l.id] = w
	}
	denied := k.admitReplaced(ctx, o, s, may)
	k.setBalancerAlerts(balancerAlerts(s.spec, o.content, s.have, k.watched, denied))
	return changed, errors.Join(err, denied)
}

// admitReplaced repairs the firewalls at AWS that admit the other balancers by address, after a controller replaced
// one. Those at Google stay until `up`: machines there connect to the new one themselves, and members of the store
// need a connection in one direction.
func (k *Reconciler) admitReplaced(ctx context.Context, o *bundleState, s *observation, may func() error) (failure error) {
	have := slices.DeleteFunc(slices.Clone(o.delivery.Have), func(b provision.Object) bool {
		return b.Kind != provision.KindBalancer || b.TerminatedReason != ""
	})
	replaced := slices.ContainsFunc(have, o.content.isReplaced)
	if !replaced || len(s.unknown) > 0 || slices.ContainsFunc(have, func(b provision.Object) bool { return !b.PublicIP.IsValid() }) {
		return nil
	}
	wants, err := cloud.PeerFirewalls(s.spec, o.deployer.Owner, have)
	if err != nil {
		return err
	}
	for _, w := range wants {
		if w.Region.Cloud() != service.CloudAWS || s.unresponsive[w.Region] != nil || k.admitted[w.ID] == w.SpecHash {
			continue
		}
		if err := may(); err != nil {
			return errors.Join(failure, err)
		}
		if _, err := o.deployer.Provider.Launch(ctx, w); err != nil {
			failure = errors.Join(failure, fmt.Errorf("admitting the balancers at %s: %w; 'skyserve up' admits them", w.ID, err))
			continue
		}
		if k.admitted == nil {
			k.admitted = map[string]string{}
		}
		k.admitted[w.ID] = w.SpecHash
		k.log().Info("firewall admits the balancers", "id", w.ID, "region", string(w.Region), "peers", w.Peers)
	}
	return failure
}

// isReplaced reports whether a controller launched the machine of a balancer after the last `up`.
func (c Content) isReplaced(o provision.Object) bool {
	return slices.Contains(c.Launched[o.ID], o.Handle) && !slices.Contains(c.Enrolled[o.ID], o.Handle)
}

// replaceBalancer launches the machine of a lost balancer. It first stores the record of launches: without a majority
// of the store's members nothing is changed.
func (k *Reconciler) replaceBalancer(ctx context.Context, o *bundleState, s *observation, l lostBalancer, may func() error) (changed bool, err error) {
	f, running := o.deployer, map[string]string{}
	if l.running != nil {
		running[l.running.Handle] = l.reason
	}
	f.Only = func(_ *Plan, c provision.Change) bool {
		return c.Kind() == provision.KindBalancer && c.ID() == l.id && (c.Action == provision.ActionLaunch || running[c.Observed.Handle] != "")
	}
	p, err := f.PlanReplacing(&Plan{Have: s.have}, running)
	f.replaced = nil
	if err != nil || len(p.Changes) == 0 {
		return false, errors.Join(err, p.heldError())
	}
	for i, c := range p.Changes {
		if c.Observed.ID == "" { // no list contains the machine any more
			p.Changes[i].Observed = provision.Object{ID: l.id, TerminatedReason: l.reason}
			p.Changes[i].Reason = strings.Replace(c.Reason, "new", l.reason, 1)
		}
	}
	if err := errors.Join(may(), k.enrolments.rewrite()); err != nil {
		return false, err
	}
	f.replaced = running
	_, err = f.Up(ctx, p, k.recordProgress)
	f.replaced = nil
	return true, err
}

// setBalancerAlerts stores the alerts about balancers.
func (k *Reconciler) setBalancerAlerts(alerts []telemetry.Alert) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.balancerAlerts = alerts
}

// balancerAlerts returns the alerts about balancers that controllers cannot replace, and about replaced ones whose
// address is missing in records, or, because of denied, in firewalls.
func balancerAlerts(spec *service.Spec, c Content, have []provision.Object, watched map[string]watchedBalancer, denied error) (alerts []telemetry.Alert) {
	for _, of := range cloud.ControlCandidates(spec, have) {
		add := func(format string, args ...any) {
			alerts = append(alerts, telemetry.Alert{
				Severity: telemetry.SeverityWarning, Kind: telemetry.AlertLaunch, Region: of.Region, Object: of.ID, Message: fmt.Sprintf(format, args...),
				NextStep: fmt.Sprintf("run 'skyserve up' with the service.yaml of %s", spec.Name),
			})
		}
		if w := watched[of.ID]; w.failure != "" {
			add("its machine is lost, and no controller can replace it: %s", w.failure)
		}
		if !slices.ContainsFunc(have, func(o provision.Object) bool { return o.ID == of.ID && o.TerminatedReason == "" && c.isReplaced(o) }) {
			continue
		}
		if spec.DNS != nil {
			add("a controller replaced its machine; the records of %s do not contain its new address, so clients reach the other balancers", spec.DNS.Name)
		}
		if denied != nil {
			add("a controller replaced its machine, and could not update the firewalls of the others: %v", denied)
		}
	}
	return alerts
}
