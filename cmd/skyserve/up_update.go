package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// The time in which a replaced balancer must become ready, with its controller, and after that the time in which the store
// must be replicated: a lost member leaves after half a minute. A machine in a cloud boots and copies the store; a process on
// this computer starts within seconds, also on a busy one.
const (
	cloudUpdateTimeout = 15 * time.Minute
	localUpdateTimeout = 2 * time.Minute
)

// isUpdate reports whether a change replaces the machine of a balancer that works. One that does not respond has no hash:
// see deploy.Deployer's PlanReplacing. Such machines are replaced together, because a store without a majority waits for all.
func isUpdate(c provision.Change) bool {
	return c.Kind() == provision.KindBalancer && c.Action == provision.ActionReplace && c.Observed.TerminatedReason == "" && c.Observed.SpecHash != ""
}

// removesMember reports whether a change terminates the machine of a controller whose member of the store belongs to a
// cluster that remains. Without its disk the cluster may have no majority: members that were removed shortly before count
// until they have left. A process on this computer that has ended restarts with its disk; a machine in a cloud does not.
// Which of those that have ended had a controller is not known if an earlier `up` was interrupted, so that all count.
func (u *upRun) removesMember(c provision.Change) bool {
	isMember := slices.Contains(u.controllers, c.ID())
	if c.Observed.TerminatedReason != "" {
		isMember = cloud.RunsOnThisComputer(c.Region())
	}
	return isMember && c.Kind() == provision.KindBalancer && c.Action == provision.ActionTerminate && u.spec.Store.URL == "" &&
		!slices.ContainsFunc(u.changes.Desired, func(w provision.Desired) bool { return w.ID == c.ID() }) &&
		len(deploy.ControlMachines(u.spec, u.changes.Observed, u.controllers)) >= cloud.ControlMachineCount
}

// checkStoreKept returns an error if no machine with the embedded store stays: the store would start empty. A machine in a
// cloud that has ended has no store any more; --replace gives up that of another one.
func (u *upRun) checkStoreKept() error {
	if u.filter != nil || u.spec.Store.URL != "" {
		return nil
	}
	chosen := deploy.ControlMachines(u.spec, u.changes.Observed, u.controllers)
	var ids []string
	var regions []service.Region
	for _, o := range u.changes.Observed {
		lost := o.TerminatedReason != "" && !cloud.RunsOnThisComputer(o.Region)
		switch {
		case o.Kind != provision.KindBalancer || lost || !slices.Contains(u.controllers, o.ID) || slices.Contains(u.replace, o.ID):
		case slices.Contains(chosen, o.ID):
			return nil
		default:
			ids = append(ids, o.ID)
			regions = union(regions, []service.Region{o.Region})
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(regions)
	removed := "the only region with the store"
	if len(regions) > 1 {
		removed = "all regions with the store"
	}
	hint := fmt.Sprintf("to keep them, run 'skyserve backup FILE', 'skyserve up %s --replace %s' and 'skyserve restore FILE'; without the backup, the service starts with an empty store", u.file, strings.Join(ids, " --replace "))
	if len(cloud.ControlCandidates(u.spec, nil)) >= cloud.ControlMachineCount-1 { // together with a kept one
		hint = fmt.Sprintf("to keep them, first add one of these regions to %s, run 'skyserve up %s' and wait until 'skyserve status %s' shows 'store: replicated'; then remove it and run 'skyserve up %s' again; to start with an empty store, run 'skyserve down %s' first", u.file, u.file, u.spec.Name, u.file, u.spec.Name)
	}
	return usage(fmt.Errorf("updating %s: %s removes %s (%s): history, usage, events, plans and batches would be lost; nothing was changed", u.spec.Name, u.file, removed, joinRegions(regions, ", ")), hint)
}

// printSingleStore says that the changes leave the controller and the store on one machine, if they are on several now.
func (u *upRun) printSingleStore(w io.Writer) {
	if len(u.controllers) >= cloud.ControlMachineCount && len(cloud.ControlCandidates(u.spec, nil)) < cloud.ControlMachineCount {
		fmt.Fprintf(w, "  the controller and the store will be on one machine instead of %d: while it is lost, nothing is planned, scaled or\n  replaced, and without its disk the data is lost; three balancers or more avoid this\n", len(u.controllers))
	}
}

// endedMembers returns the changes of balancers on this computer that have ended with a disk that may hold a member of the
// store, if updateBalancers terminates one of them: together they have a majority.
func (u *upRun) endedMembers() (ended provision.Changes) {
	restarts := func(c provision.Change) bool {
		return c.Kind() == provision.KindBalancer && c.Action == provision.ActionLaunch && c.Observed.TerminatedReason != "" && cloud.RunsOnThisComputer(c.Region()) && c.Desired.SpecHash == c.Observed.SpecHash
	}
	if !slices.ContainsFunc(u.changes.Changes, u.removesMember) {
		return nil
	}
	for _, c := range u.changes.Changes {
		if restarts(c) || u.removesMember(c) && c.Observed.TerminatedReason != "" {
			ended = append(ended, c)
		}
	}
	return ended
}

// startEndedMembers starts the machines of endedMembers with their disks and their last configurations, before the
// configurations change. Those that updateBalancers terminates keep this configuration until then, because another one would
// stop their members.
func (u *upRun) startEndedMembers(ctx context.Context) {
	if len(u.controllers) < cloud.ControlMachineCount {
		return
	}
	for _, c := range u.endedMembers() {
		w, err := c.Desired, error(nil)
		if c.Action == provision.ActionTerminate {
			w, err = u.restartOf(c.Observed)
		}
		if err == nil {
			_, err = u.places.Launch(ctx, w)
		}
		switch {
		case c.Action != provision.ActionTerminate: // its launch follows, and reports the result
		case err != nil:
			u.printLine("%s has ended, may hold a copy of the store and does not start: %v", c.ID(), err)
		default:
			u.printLine("started %s, which may hold a copy of the store, until the store is replicated", c.ID())
		}
	}
}

// restartOf returns a balancer on this computer that has ended as desired, with its disk.
func (u *upRun) restartOf(o provision.Object) (provision.Desired, error) {
	w := provision.Desired{
		ID: o.ID, Kind: o.Kind, Service: o.Service, Owner: o.Owner, Region: o.Region, SpecHash: o.SpecHash, ImmutableHash: o.ImmutableHash,
		Labels: o.Labels, CostPerHour: o.CostPerHour, Machine: &provision.MachineConfig{Role: provision.Role(o.Kind)},
	}
	if o.Offering != nil {
		w.Offerings = provision.Offerings{*o.Offering}
	}
	var err error
	w.Machine.UserData, err = u.deployer.UserData(cloud.MachineInput{ID: o.ID, Kind: o.Kind, Region: o.Region})
	return w, err
}

// updateBalancers replaces the machines of balancers, one at a time, where several run a controller: the next one only once
// this one is ready and the store is replicated, so that a majority of its members always has the data. If one does not
// become ready, its earlier version is launched again, and the others keep theirs. In the same way it terminates those of
// removed regions. Other machines are launched before;
// replicas are replaced after, so that a version whose balancers fail does not reach them. It returns what remains to be done.
func (u *upRun) updateBalancers(ctx context.Context) (remaining *deploy.MachinePlan, err error) {
	if len(u.controllers) < cloud.ControlMachineCount || !slices.ContainsFunc(u.changes.Changes, func(c provision.Change) bool { return isUpdate(c) || u.removesMember(c) }) {
		return u.changes, nil
	}
	first := *u.changes
	done, others, err := u.deployer.UpSelected(ctx, &first, isBeforeUpdates, u.progress)
	applied, all := slices.Concat(done.Applied, done.Changes), *done
	all.Changes = slices.Concat(done.Changes, others)
	u.usePlan(&all)
	if err != nil {
		return nil, err
	}
	have, err := u.awaitAdmitted(ctx, done)
	replicated := slices.ContainsFunc(applied, func(c provision.Change) bool { return c.Kind() == provision.KindBalancer })
	if err == nil && replicated {
		err = u.awaitUpdated(ctx, have, func(o provision.Object) bool { return o.Kind == provision.KindBalancer })
	}
	if err != nil {
		return nil, u.keptMemberError(err, others)
	}
	apply := func(c provision.Change) ([]provision.Object, error) {
		plan := *u.changes
		plan.Changes = provision.Changes{c}
		if _, err := u.deployer.Up(ctx, &plan, u.progress); err != nil {
			return nil, err
		}
		return u.awaitAdmitted(ctx, &plan)
	}
	rest := *u.changes
	rest.Changes = nil
	for _, c := range others {
		if u.removesMember(c) {
			if err := u.removeMember(ctx, c, have, replicated); err != nil {
				return nil, u.keptMemberError(err, others)
			}
			applied, replicated = append(applied, c), false
			continue
		}
		if !isUpdate(c) {
			rest.Changes = append(rest.Changes, c)
			continue
		}
		have, failure := apply(c)
		if failure == nil {
			failure = u.awaitUpdated(ctx, have, hasID(c.ID()))
		}
		if failure != nil && ctx.Err() == nil {
			failure = u.rollBack(ctx, c, failure, apply)
		}
		if failure == nil && u.zone != nil && u.spec.DNS != nil {
			failure = (&publisher{up: u, have: have}).publish(ctx, nil)
		}
		if failure != nil {
			return nil, failure
		}
		u.printLine("updated %s", c.ID())
		applied, replicated = append(applied, c), true
	}
	rest.Applied = applied
	return &rest, nil
}

// removeMember terminates the machine of a member of the store, once the store is replicated unless it is.
func (u *upRun) removeMember(ctx context.Context, c provision.Change, have []provision.Object, replicated bool) error {
	if !replicated {
		if err := u.awaitStore(ctx, &deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: have}); err != nil {
			return err
		}
	}
	plan := *u.changes
	plan.Changes = provision.Changes{c}
	_, err := u.deployer.Up(ctx, &plan, u.progress)
	return err
}

// keptMemberError adds to an error what helps where a member of the store was kept whose process had ended: the others may
// have no majority without it.
func (u *upRun) keptMemberError(err error, kept provision.Changes) error {
	i := slices.IndexFunc(kept, func(c provision.Change) bool { return u.removesMember(c) && c.Observed.TerminatedReason != "" })
	if i < 0 {
		return err
	}
	return &exitError{code: exitPartial, err: withoutRepeats(err), hint: fmt.Sprintf("%s is kept, because the store may have no majority without its copy; 'skyserve status %s' shows which members respond and 'skyserve logs %s' why others do not; correct the cause, then run 'skyserve up %s' again; if it gets no majority, only 'skyserve down' helps, which deletes the history", kept[i].ID(), u.spec.Name, u.spec.Name, u.file)}
}

// isBeforeUpdates reports whether updateBalancers applies a change before it replaces balancers: launches and repairs.
func isBeforeUpdates(c provision.Change) bool {
	return !isUpdate(c) && c.Action != provision.ActionTerminate && (c.Kind() != provision.KindReplica || c.Action == provision.ActionLaunch)
}

// awaitAdmitted waits until each machine of a plan that was applied has its addresses, and the firewalls admit them.
func (u *upRun) awaitAdmitted(ctx context.Context, p *deploy.MachinePlan) ([]provision.Object, error) {
	have, err := u.awaitAddresses(ctx, p)
	if err == nil {
		err = u.deployer.AdmitPeers(ctx, have, u.progress)
	}
	return have, err
}

// replaceNotServingFirst reorders the changes so that replicas that do not serve are replaced before others.
func (u *upRun) replaceNotServingFirst(ctx context.Context) {
	replaced := slices.DeleteFunc(slices.Clone(u.changes.Changes), func(c provision.Change) bool {
		return c.Kind() != provision.KindReplica || c.Action != provision.ActionReplace
	})
	if len(replaced) < 2 {
		return
	}
	h := deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: u.changes.Observed}
	seen := h.ReadStatuses(ctx)
	u.changes.Changes.ReplaceFirst(u.changes.Observed, func(o provision.Object) bool {
		return seen[o.ID].Err != nil || seen[o.ID].Phase != agent.PhaseReady
	})
}

// hasID selects a machine.
func hasID(id string) func(provision.Object) bool {
	return func(o provision.Object) bool { return o.ID == id }
}

// awaitUpdated delivers the configuration of new machines of balancers, and waits until they are ready and the store is
// replicated.
func (u *upRun) awaitUpdated(ctx context.Context, have []provision.Object, awaited func(provision.Object) bool) error {
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	h.Awaited, h.UntilDelivered = awaited, false
	for _, o := range have {
		if o.Kind == provision.KindReplica {
			delete(deployments, o.ID) // it may run the earlier version
		}
	}
	for _, c := range u.changes.Changes {
		if u.removesMember(c) && c.Observed.TerminatedReason != "" { // see startEndedMembers
			delete(deployments, c.ID())
		}
	}
	ready := min(u.updateTimeout(), u.timeout)
	readyCtx, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("not ready within %s", ready))
	defer cancel()
	if err := h.Deliver(readyCtx, deployments); err != nil {
		return err
	}
	return u.awaitStore(ctx, h)
}

// awaitStore waits until the store is replicated.
func (u *upRun) awaitStore(ctx context.Context, h *deploy.Delivery) error {
	u.printLine("waiting until the store is replicated")
	limit := u.updateTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not replicated within %s", limit))
	defer cancel()
	return h.AwaitStore(ctx, u.controllers)
}

// updateTimeout returns the time for each step of a balancer's update.
func (u *upRun) updateTimeout() time.Duration {
	if cloud.UsesClouds(u.spec) {
		return cloudUpdateTimeout
	}
	return localUpdateTimeout
}

// awaitReplaced delivers the configuration of a replica or a balancer that replaces another one, and waits until it serves:
// others are replaced only then. updateBalancers waits for the balancers of a service with several controllers itself.
func (u *upRun) awaitReplaced(ctx context.Context, o provision.Object) error {
	here := cloud.RunsOnThisComputer(o.Region)
	if o.Kind != provision.KindReplica && (o.Kind != provision.KindBalancer || len(u.controllers) >= cloud.ControlMachineCount) {
		return nil
	}
	u.replacing.Lock() // replicas of several regions may be replaced at the same time
	defer u.replacing.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	await := u.awaitReplacedInCloud
	switch {
	case here:
		await = u.awaitReplacedHere
	case o.Kind == provision.KindBalancer:
		await = u.awaitBalancerInCloud
	}
	err := await(ctx, o)
	if err == nil {
		u.printLine("ready %s (replacement)", o.ID)
	}
	return err
}

// awaitReplacedHere is awaitReplaced for a machine on this computer.
func (u *upRun) awaitReplacedHere(ctx context.Context, o provision.Object) error {
	have := slices.Clone(u.changes.Observed)
	i := slices.IndexFunc(have, func(other provision.Object) bool { return other.ID == o.ID })
	moved := i < 0 || have[i].Address != o.Address
	have = append(slices.DeleteFunc(have, hasID(o.ID)), o)
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	h.Awaited, h.UntilDelivered = hasID(o.ID), false
	err = h.Deliver(ctx, map[string]agent.Deployment{o.ID: deployments[o.ID]})
	if err == nil && o.Kind == provision.KindReplica && !moved { // balancers do not know another address yet
		h.ResumeAndWait(ctx, o)
	}
	return err
}

// awaitReplacedInCloud is awaitReplaced for a replica in a cloud.
func (u *upRun) awaitReplacedInCloud(ctx context.Context, o provision.Object) error {
	have, err := u.deployer.AwaitAddress(ctx, o)
	if err != nil {
		return err
	}
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	h.Awaited, h.UntilDelivered = hasID(o.ID), false
	if err := h.DeliverReplacement(ctx, o, deployments); err != nil {
		return &replacementError{err}
	}
	return nil
}

// replacementError is why the replacement of a replica or a balancer in a cloud does not serve.
type replacementError struct{ error }

func (e *replacementError) Unwrap() error { return e.error }

// replicaError prints the failed replicas of an error and returns what the command returns for it; nil if none failed.
func (u *upRun) replicaError(err error) error {
	if is := new(replacementError); !errors.As(err, &is) {
		return u.failedStartsError(err)
	}
	if replicas := deploy.FailedStarts(err); len(replicas) > 0 {
		u.printFailedStarts(replicas)
	}
	return failed(err, fmt.Sprintf("the machines that were not replaced run the earlier version; run 'skyserve up %s' again with a version that becomes ready", u.file))
}

// drain drains a machine before it is terminated.
func (u *upRun) drain(ctx context.Context, o provision.Object) {
	machines, err := u.places.List(ctx, u.spec.Name) // this run may have replaced balancers
	if err != nil {
		machines = u.changes.Observed
	}
	h := deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: machines}
	h.Drain(ctx, o)
}

// rollBack launches the earlier version of a balancer whose new one failed. It always returns an error.
func (u *upRun) rollBack(ctx context.Context, c provision.Change, failure error, apply func(provision.Change) ([]provision.Object, error)) error {
	failure = fmt.Errorf("updating %s: the new version did not become ready: %w", c.ID(), failure)
	if len(deploy.FailedStarts(failure)) > 0 {
		failure = errors.New(failure.Error()) // the hint is that of the update, not that of a first start
	}
	u.printLine("%v; returning to the earlier version", failure)
	back, err := u.toEarlier(ctx, c)
	var have []provision.Object
	if err == nil {
		have, err = apply(back)
	}
	if err == nil {
		err = u.awaitUpdated(ctx, have, hasID(c.ID()))
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("returning %s to the earlier version: %w", c.ID(), err))
	}
	return failed(fmt.Errorf("%w; it is back on the earlier version; the balancers that were not updated yet still run it", failure),
		fmt.Sprintf("skyserve logs %s; then run 'skyserve up' again with a version that works", u.spec.Name))
}

// toEarlier returns the change with which a replaced balancer returns to its earlier version.
func (u *upRun) toEarlier(ctx context.Context, c provision.Change) (back provision.Change, err error) {
	back = provision.Change{Action: provision.ActionLaunch, Desired: c.Desired, Reason: "returns to the earlier version"}
	if cloud.UsesClouds(u.spec) {
		earlier := newDeployer(u.spec, u.operator.owner, u.places, u.earlierProgram)
		earlier.HostedZoneID, earlier.HealthChecks, earlier.FederatedAccount = u.hostedZone.ID, u.hostedZone.HealthChecks, u.federation.Account
		plan, err := earlier.Plan(ctx)
		if err != nil {
			return back, err
		}
		if i := slices.IndexFunc(plan.Desired, func(w provision.Desired) bool { return w.ID == c.ID() }); i >= 0 {
			back.Desired = plan.Desired[i]
		}
	} else {
		back.Desired.BuildHash = c.Observed.BuildHash
	}
	if back.Desired.SpecHash != c.Observed.SpecHash {
		return back, errors.New("its configuration has changed too, and the earlier one is not stored; run 'skyserve up' with the earlier service.yaml")
	}
	have, err := u.places.List(ctx, u.spec.Name)
	for _, o := range have {
		if o.ID == c.ID() && o.Kind == provision.KindBalancer && o.TerminatedReason == "" && o.Handle != c.Observed.Handle {
			back.Action, back.Observed = provision.ActionReplace, o
		}
	}
	return back, err
}
