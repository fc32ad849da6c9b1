package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

// ReplicaScaler changes the replicas of a running service in all kinds of regions: it applies a plan to all of
// them, or changes one replica that an operator selects. Each method returns once its change is
// complete. All methods are idempotent and safe to run again after a crash.
type ReplicaScaler struct {
	*Deployer
	// Decisions are the existing decisions about replicas.
	Decisions ReplicaDecisions
	// Store stores decisions before they are applied.
	Store func(ReplicaDecisions) error
	// UpdateBalancers configures balancers to use the replicas of a plan except idle, the drained and donated
	// ones, and returns once they do. fresh are the replicas that balancers did not use before.
	UpdateBalancers func(ctx context.Context, p *MachinePlan, idle, fresh map[string]bool) error
	// Progress is called for launched and removed machines; may be nil.
	Progress provision.ProgressFunc
	// BeforeRemoval is called before an allowed change that takes an operator-selected replica out of service;
	// an error ends the change. It may be nil.
	BeforeRemoval func(ctx context.Context) error
	// AnnounceRemoval tells a controller in a cloud that replicas are being removed, which it would otherwise replace; may be
	// nil. One on this computer reads Decisions.
	AnnounceRemoval func(ctx context.Context, replicas []provision.Object)
	// OnDrained is called for drained replicas that stay; may be nil.
	OnDrained func(id string)
	// OnEnded is called for a machine that ended while ApplyDesired waited for it, before the remaining
	// changes are planned again; may be nil.
	OnEnded func(*MachineEndedError)
	// Changed is true once a change has been made.
	Changed bool
}

// DesiredReplicas is the desired number of replicas.
type DesiredReplicas struct {
	// Counts are the counts of regions whose machines the service creates.
	Counts map[cloud.ReplicaGroup]provision.ClassCounts
	// StaticDelta is the number of additional machines of static regions that should serve; negative for
	// fewer.
	StaticDelta map[cloud.ReplicaGroup]int
}

// DesiredBy returns the desired replicas of a proposal.
func DesiredBy(spec *service.Spec, p plan.Proposal) DesiredReplicas {
	w := DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{}, StaticDelta: map[cloud.ReplicaGroup]int{}}
	for _, c := range p.Changes {
		g := cloud.ReplicaGroup{Model: c.Model, Region: service.Region(c.Region)}
		if g.Region.Cloud() == service.CloudStatic {
			w.StaticDelta[g] += c.Delta
			continue
		}
		if w.Counts[g] == nil {
			w.Counts[g] = provision.ClassCounts{}
		}
		w.Counts[g][classOf(spec, c)] += c.Planned
	}
	return w
}

// classOf returns the class of a row of a plan. A simulated engine of a model without GPUs runs on
// any machine, whatever the plan's GPU, and on this computer nothing is billed.
func classOf(spec *service.Spec, c plan.ReplicaChange) provision.ReplicaClass {
	gpus, capacity := c.GPU, ""
	if m := spec.ModelByName(c.Model); m != nil && len(m.GPUs) == 0 {
		gpus = ""
	}
	if c.CapacityType != nil && !cloud.RunsOnThisComputer(service.Region(c.Region)) {
		capacity = *c.CapacityType
	}
	return provision.ParseReplicaClass(gpus, capacity)
}

// Preview returns the changes of ApplyDesired: the machines to launch and remove, and the replicas to
// replace.
func (s *ReplicaScaler) Preview(ctx context.Context, w DesiredReplicas) (*MachinePlan, []ClassMismatch, error) {
	have, err := s.listForChange(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, _ := diffReplicas(s.Spec, have, s.Decisions, w.Counts)
	p := &MachinePlan{Observed: have}
	if len(d.launch) > 0 {
		defer func() { s.Counts = nil }()
		if p, err = s.planMore(have, d.launch); err != nil {
			return nil, nil, err
		}
	}
	_, removed := s.splitExcess(have, d.excess)
	p.Changes = append(p.Changes, deletionOf(removed, reasonExcess)...)
	return p, d.replace, nil
}

// ApplyDesired applies the desired replicas: it donates or resumes machines of static regions, reclaims
// donated replicas, launches missing ones, replaces replicas on another GPU or capacity type, and
// donates or removes excess ones once the others are ready. It applies as many changes as possible;
// the error for the others is a *PartialError. While UpdateBalancers returns a *MachineEndedError, it plans again and
// applies the difference, up to maxReplans times, as UpAndAwait does.
func (s *ReplicaScaler) ApplyDesired(ctx context.Context, w DesiredReplicas) error {
	errs, err := s.scaleStatic(ctx, w.StaticDelta)
	if err != nil {
		return err
	}
	return retryEnded(func() error { return s.applyCounts(ctx, w.Counts, errs) }, func(ended *MachineEndedError) error {
		if s.OnEnded != nil {
			s.OnEnded(ended)
		}
		return nil
	})
}

// applyCounts changes the replicas of regions whose machines the service creates to counts. errs are what could
// not be applied before.
func (s *ReplicaScaler) applyCounts(ctx context.Context, counts map[cloud.ReplicaGroup]provision.ClassCounts, errs []error) error {
	have, err := s.listForChange(ctx)
	if err != nil {
		return err
	}
	d, outOfBounds := diffReplicas(s.Spec, have, s.Decisions, counts)
	errs = slices.Concat(errs, outOfBounds)
	to := s.Decisions
	for _, id := range d.reclaim {
		to = to.Reclaimed(id)
	}
	if err := s.applyDecisions(ctx, to); err != nil {
		return err
	}
	if err := s.launchReplicas(ctx, d.launch); err != nil {
		return err
	}
	for {
		refused, replaced, err := s.replaceMismatched(ctx, counts)
		if err != nil {
			return err
		}
		changed, err := s.removeExcess(ctx, counts)
		if err != nil {
			return err
		}
		if len(refused) > 0 && (replaced || changed) {
			continue // the removed replicas freed capacity for others
		}
		if errs = append(errs, refused...); len(errs) > 0 {
			return &PartialError{errs}
		}
		return nil
	}
}

// PartialError contains the parts that cannot be applied: *BoundsError, *ReplacementRefusedError, and errors
// about static regions.
type PartialError struct{ Errs []error }

// Error returns a message with all errors.
func (e *PartialError) Error() string {
	var all []string
	for _, err := range e.Errs {
		all = append(all, err.Error())
	}
	return "applied partially: " + strings.Join(all, "; ")
}

// Unwrap returns all errors.
func (e *PartialError) Unwrap() []error { return e.Errs }

// PlanAddition returns the desired replicas with n more replicas of a model in a region, on a class. Those on this computer
// whose process has ended count: they are started again, and n others are added.
func (s *ReplicaScaler) PlanAddition(ctx context.Context, g cloud.ReplicaGroup, n int, class provision.ReplicaClass) (DesiredReplicas, error) {
	if g.Region.Cloud() == service.CloudStatic {
		return DesiredReplicas{}, fmt.Errorf("%s: %w", g.Region, ErrNotManaged)
	}
	have, err := s.listForChange(ctx)
	if err != nil {
		return DesiredReplicas{}, err
	}
	counts := provision.ClassCounts{}
	serving, drained := servingAndDrained(replicasIn(withEnded(have), g), s.Decisions)
	for _, o := range serving {
		counts[replicaClassOf(o)]++
	}
	counts[class] += n
	if b, n := s.Spec.BoundsFor(g.Model, g.Region), counts.Total()+len(drained); n > b.Max {
		return DesiredReplicas{}, &BoundsError{Model: g.Model, Region: g.Region, Count: n, Drained: drained, Bounds: b}
	}
	return DesiredReplicas{Counts: map[cloud.ReplicaGroup]provision.ClassCounts{g: counts}}, nil
}

// PlanRemoval returns the plan of removing one replica, which the caller applies. On this computer, its process may have
// ended. It calls BeforeRemoval.
func (s *ReplicaScaler) PlanRemoval(ctx context.Context, id string) (*MachinePlan, error) {
	if isStaticReplica(s.Spec, id) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotManaged)
	}
	have, err := s.listForChange(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkRemovable(withEnded(have), id); err != nil {
		return nil, err
	}
	if err := s.callBeforeRemoval(ctx); err != nil {
		return nil, err
	}
	removed := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.ID != id || o.Kind != provision.KindReplica })
	return &MachinePlan{Observed: have, Changes: deletionOf(removed, "removed by the operator")}, nil
}

// Remove drains a replica and deletes its machine, as planned by PlanRemoval.
func (s *ReplicaScaler) Remove(ctx context.Context, p *MachinePlan, id string) error {
	if err := s.applyPlan(ctx, p); err != nil {
		return err
	}
	next := s.Decisions.WithDrained(id, false).Reclaimed(id) // its ID may be reused
	if next.equal(s.Decisions) {
		return nil
	}
	s.Decisions = next
	return s.Store(next)
}

// Drain drains a replica, or resumes it.
func (s *ReplicaScaler) Drain(ctx context.Context, id string, drained bool) error {
	err := s.checkStorable(ctx, id)
	if err == nil && drained {
		err = s.callBeforeRemoval(ctx)
	}
	if err != nil {
		return err
	}
	return s.applyDecisions(ctx, s.Decisions.WithDrained(id, drained))
}

// callBeforeRemoval calls BeforeRemoval.
func (s *ReplicaScaler) callBeforeRemoval(ctx context.Context) error {
	if s.BeforeRemoval == nil {
		return nil
	}
	return s.BeforeRemoval(ctx)
}

// Donate donates a replica. A machine of a static region stays donated, any other is
// removed after autoscale.donate_for.
func (s *ReplicaScaler) Donate(ctx context.Context, id string) error {
	if err := s.checkStorable(ctx, id); err != nil {
		return err
	}
	have, err := s.listObjects(ctx)
	if err != nil {
		return err
	}
	if err := s.checkRemovable(have, id); err != nil {
		return err
	}
	if err := s.callBeforeRemoval(ctx); err != nil {
		return err
	}
	return s.applyDecisions(ctx, s.withDonated(s.Decisions, id))
}

// Reclaim reclaims a donated replica.
func (s *ReplicaScaler) Reclaim(ctx context.Context, id string) error {
	if err := s.checkStorable(ctx, id); err != nil {
		return err
	}
	return s.applyDecisions(ctx, s.Decisions.Reclaimed(id))
}

// withDonated returns the decisions with a replica donated now.
func (s *ReplicaScaler) withDonated(d ReplicaDecisions, id string) ReplicaDecisions {
	now := time.Now().UTC().Round(0)
	donation := service.Donation{Since: now, Until: now.Add(s.Spec.Autoscale.DonateFor)}
	if isStaticReplica(s.Spec, id) {
		donation.Until = time.Time{}
	}
	return d.WithDonated(id, donation)
}

// splitExcess divides excess replicas into those to donate and those to remove. Replaced ones are removed.
func (s *ReplicaScaler) splitExcess(have, excess []provision.Object) (donated, removed []provision.Object) {
	replaced := withReplacement(have)
	for _, o := range excess {
		if s.Spec.Autoscale.Donates(o.Region) && !replaced[o.ID] {
			donated = append(donated, o)
		} else {
			removed = append(removed, o)
		}
	}
	return donated, removed
}

// checkStorable returns an error where the service has no such replica, or decisions about it would not be
// stored.
func (s *ReplicaScaler) checkStorable(ctx context.Context, id string) error {
	have, err := s.listForChange(ctx)
	switch {
	case err != nil:
		return err
	case !isStaticReplica(s.Spec, id) && !isRunning(have, id):
		return notRunningError(have, id)
	case cloud.UsesClouds(s.Spec) && isStaticReplica(s.Spec, id):
		return fmt.Errorf("%s: %w", id, ErrNoStaticDecisions)
	case cloud.UsesClouds(s.Spec):
		return fmt.Errorf("%s: %w", id, ErrNoManualDecisions)
	}
	return nil
}

// checkRemovable returns an error where a replica cannot be removed.
func (s *ReplicaScaler) checkRemovable(have []provision.Object, id string) error {
	g, ids, err := groupOf(s.Spec, have, id)
	if err != nil || s.Decisions.Donation(id) != nil {
		return err
	}
	others := slices.DeleteFunc(ids, func(other string) bool { return other == id || s.Decisions.Donation(other) != nil })
	if b, n := s.Spec.BoundsFor(g.Model, g.Region), len(others); n < b.Min {
		return &BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	return nil
}

// groupOf returns the model and region of a replica, and the IDs of all replicas of both.
func groupOf(spec *service.Spec, have []provision.Object, id string) (g cloud.ReplicaGroup, ids []string, err error) {
	for _, o := range have {
		if o.ID == id && o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			g = cloud.ReplicaGroup{Model: o.Labels["model"], Region: o.Region}
			for _, other := range replicasIn(have, g) {
				ids = append(ids, other.ID)
			}
			return g, ids, nil
		}
	}
	listed := staticReplicas(spec)
	i := slices.IndexFunc(listed, func(c service.ReplicaConfig) bool { return c.ID == id })
	switch {
	case i < 0:
		return g, nil, &NoReplicaError{ID: id}
	case listed[i].Model == "":
		return g, nil, &ModelUnknownError{ID: id}
	}
	g = cloud.ReplicaGroup{Model: listed[i].Model, Region: listed[i].Region}
	for _, c := range listed {
		if c.Model == g.Model && c.Region == g.Region {
			ids = append(ids, c.ID)
		}
	}
	return g, ids, nil
}

// listForChange lists the objects. At the first call it also reads the regions' offerings.
func (s *ReplicaScaler) listForChange(ctx context.Context) ([]provision.Object, error) {
	if s.offers == nil {
		if err := s.readPrices(ctx); err != nil {
			return nil, err
		}
	}
	return s.listObjects(ctx)
}

// applyDecisions applies decisions, and returns once drained replicas have completed their requests and
// resumed ones are ready. An *UnconfirmedError means that both hold at the balancers that respond.
func (s *ReplicaScaler) applyDecisions(ctx context.Context, to ReplicaDecisions) error {
	if to.equal(s.Decisions) {
		return nil
	}
	if err := s.Store(to); err != nil {
		return err
	}
	before, after := s.Decisions.NotServing(), to.NotServing()
	s.Decisions, s.Changed = to, true
	have, err := s.listObjects(ctx)
	if err != nil {
		return err
	}
	err = s.startAndUpdateBalancers(ctx, &MachinePlan{Observed: have}, after, subtract(before, after))
	if err != nil && !errors.As(err, new(*UnconfirmedError)) {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(subtract(after, before))) {
		if s.Deployer.Drain != nil {
			s.Deployer.Drain(ctx, provision.Object{ID: id, Kind: provision.KindReplica})
		}
		if s.OnDrained != nil {
			s.OnDrained(id)
		}
	}
	return err
}

// applyPlan applies the changes of a plan of replicas and updates the balancers.
func (s *ReplicaScaler) applyPlan(ctx context.Context, p *MachinePlan) error {
	if len(p.Changes) == 0 {
		return nil
	}
	s.Changed = true
	if err := s.announceRemoval(ctx, p.Changes); err != nil {
		return err
	}
	_, err := provision.Apply(ctx, p.Changes, s.launcher(), s.applyOptions(p, s.Progress))
	if err != nil {
		return err
	}
	return s.updateBalancers(ctx, p)
}

// updateBalancers counts the replicas and updates the balancers after a plan was applied.
func (s *ReplicaScaler) updateBalancers(ctx context.Context, p *MachinePlan) error {
	if err := s.CountReplicas(ctx); err != nil {
		return err
	}
	fresh := map[string]bool{}
	for _, c := range p.Changes {
		if c.Action == provision.ActionLaunch {
			fresh[c.ID()] = true
		}
	}
	return s.startAndUpdateBalancers(ctx, p, s.Decisions.NotServing(), fresh)
}

// startAndUpdateBalancers starts the balancers on this computer that have ended, and calls UpdateBalancers, which waits for
// them.
func (s *ReplicaScaler) startAndUpdateBalancers(ctx context.Context, p *MachinePlan, idle, fresh map[string]bool) error {
	if !cloud.UsesClouds(s.Spec) {
		have, err := s.listObjects(ctx)
		if err == nil {
			err = s.restartBalancers(ctx, have, s.Progress)
		}
		if err != nil {
			return err
		}
	}
	return s.UpdateBalancers(ctx, p, idle, fresh)
}

// launchReplicas launches more replicas.
func (s *ReplicaScaler) launchReplicas(ctx context.Context, more map[cloud.ReplicaGroup]provision.ClassCounts) error {
	have, err := s.listObjects(ctx)
	if err != nil || len(more) == 0 {
		return err
	}
	s.Changed = true
	p, launched, err := s.launchMore(ctx, have, more, s.Progress)
	if err = errors.Join(err, s.countLaunched(have, launched)); err != nil {
		return err
	}
	return s.updateBalancers(ctx, p)
}

// replaceMismatched launches replacements for replicas of another class than desired, which then are excess.
// refused are *ReplacementRefusedError.
func (s *ReplicaScaler) replaceMismatched(ctx context.Context, counts map[cloud.ReplicaGroup]provision.ClassCounts) (refused []error, replaced bool, err error) {
	have, err := s.listObjects(ctx)
	if err != nil {
		return nil, false, err
	}
	d, _ := diffReplicas(s.Spec, have, s.Decisions, counts)
	p := &MachinePlan{Observed: have}
	for _, swap := range d.replace {
		c, err := s.ReplaceReplica(ctx, p.Observed, swap.Replica, swap.Class, s.Progress)
		var stays *ReplacementRefusedError
		if errors.As(err, &stays) {
			refused = append(refused, stays)
			continue
		}
		if err != nil {
			return refused, replaced, err
		}
		s.Changed, replaced = true, true
		p.Desired, p.Changes = append(p.Desired, c.Desired), append(p.Changes, c)
		if p.Observed, err = s.listObjects(ctx); err != nil {
			return refused, replaced, err
		}
	}
	if !replaced {
		return refused, false, nil
	}
	return refused, true, s.updateBalancers(ctx, p)
}

// removeExcess donates or removes excess replicas.
func (s *ReplicaScaler) removeExcess(ctx context.Context, counts map[cloud.ReplicaGroup]provision.ClassCounts) (changed bool, err error) {
	have, err := s.listObjects(ctx)
	if err != nil {
		return false, err
	}
	d, _ := diffReplicas(s.Spec, have, s.Decisions, counts)
	to := s.Decisions
	donated, removed := s.splitExcess(have, d.excess)
	for _, o := range donated {
		to = s.withDonated(to, o.ID)
	}
	if err := s.applyDecisions(ctx, to); err != nil {
		return false, err
	}
	return len(d.excess) > 0, s.applyPlan(ctx, &MachinePlan{Observed: have, Changes: deletionOf(removed, reasonExcess)})
}

// scaleStatic donates excess machines of static regions, the last of the list first, and resumes
// drained and donated ones.
func (s *ReplicaScaler) scaleStatic(ctx context.Context, more map[cloud.ReplicaGroup]int) (errs []error, err error) {
	to := s.Decisions
	for _, r := range s.Spec.Regions {
		for i := range s.Spec.Models {
			g := cloud.ReplicaGroup{Model: s.Spec.Models[i].Name, Region: r.Name}
			delta := more[g]
			if delta < 0 && cloud.UsesClouds(s.Spec) {
				errs = append(errs, fmt.Errorf("%s in %s: remove %d: %w", g.Model, g.Region, -delta, ErrNoStaticDecisions))
				continue
			}
			replicas := static.Replicas(s.Spec, r)
			slices.Reverse(replicas)
			for _, c := range replicas {
				idle := to.NotServing()[c.ID]
				switch {
				case c.Model != g.Model:
				case delta < 0 && !idle:
					to, delta = s.withDonated(to, c.ID), delta+1
				case delta > 0 && idle:
					to, delta = to.WithDrained(c.ID, false).Reclaimed(c.ID), delta-1
				}
			}
			switch {
			case delta > 0:
				errs = append(errs, fmt.Errorf("%s in %s: add %d: list the machines under endpoints in service.yaml", g.Model, g.Region, delta))
			case delta < 0:
				errs = append(errs, fmt.Errorf("%s in %s: remove %d: service.yaml does not state which machines serve %s; drain them manually", g.Model, g.Region, -delta, g.Model))
			}
		}
	}
	return errs, s.applyDecisions(ctx, to)
}

// reasonExcess is the reason for removing excess replicas.
const reasonExcess = "exceeds the plan"

// deletionOf returns the deletion of machines with a reason.
func deletionOf(removed []provision.Object, why string) provision.Changes {
	changes := provision.Diff(nil, removed)
	for i := range changes {
		changes[i].Reason = why
	}
	return changes
}

// removeMachines deletes machines; why is passed to progress.
func (dp *Deployer) removeMachines(ctx context.Context, removed []provision.Object, why string, progress provision.ProgressFunc) error {
	_, err := provision.Apply(ctx, deletionOf(removed, why), dp.Provider, provision.ApplyOptions{Parallel: parallel, Progress: progress})
	return err
}

// launchMore launches additional replicas of classes and returns the final plan and what it has launched, also where it
// fails.
func (dp *Deployer) launchMore(ctx context.Context, have []provision.Object, more map[cloud.ReplicaGroup]provision.ClassCounts, progress provision.ProgressFunc) (*MachinePlan, []provision.Object, error) {
	defer func() { dp.Counts, dp.launched = nil, nil }() // Up replans where there is no capacity
	p, err := dp.planMore(have, more)
	if err != nil {
		return p, nil, err
	}
	dp.launched = &launchedObjects{}
	p, err = dp.Up(ctx, p, progress)
	return p, dp.launched.objects, err
}

// planMore returns the plan of launchMore and sets Counts accordingly.
func (dp *Deployer) planMore(have []provision.Object, more map[cloud.ReplicaGroup]provision.ClassCounts) (*MachinePlan, error) {
	dp.Counts = map[cloud.ReplicaGroup]provision.ClassCounts{}
	for g, counts := range more {
		dp.Counts[g] = maps.Clone(counts)
		for _, o := range replicasIn(have, g) {
			if !dp.NeedReplacement[o.ID] {
				dp.Counts[g][replicaClassOf(o)]++
			}
		}
	}
	dp.Filter = func(_ *MachinePlan, c provision.Change) bool {
		return c.Kind() == provision.KindReplica && c.Action == provision.ActionLaunch
	}
	return dp.planFor(have, nil)
}
