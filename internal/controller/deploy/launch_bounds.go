package deploy

import (
	"errors"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// boundsOf returns the bounds of a service's launches. Machines that are processes of this computer cost
// nothing: their number has no bound by default.
func boundsOf(spec *service.Spec) provision.LaunchBounds {
	bounds := provision.LaunchBounds{LaunchesPerHour: spec.LaunchesPerHour(), BudgetPerHour: spec.BudgetPerHour()}
	if spec.Autoscale.MaxLaunchesPerHour == 0 && !cloud.UsesClouds(spec) {
		bounds.LaunchesPerHour = 0
	}
	return bounds
}

// LimitToBudget makes the deployer launch within the service's budget only. Launches that an operator
// confirms have no maximum number.
func (dp *Deployer) LimitToBudget() {
	if dp.Spec.BudgetPerHour() == 0 {
		return
	}
	dp.Gate = provision.NewLaunchGate(&provision.LaunchRecord{}, dp.clock(), cloud.RunsOnThisComputer)
	dp.Bounds = provision.LaunchBounds{BudgetPerHour: dp.Spec.BudgetPerHour()}
}

// removeHeldLaunches removes the launches of a plan that its bounds do not admit. Replicas for replicas.min are
// admitted first, then the others, each in the order of service.yaml.
func (dp *Deployer) removeHeldLaunches(p *MachinePlan) {
	if dp.Gate == nil {
		return
	}
	billed := slices.Concat(p.Observed, dp.Unlisted)
	for _, c := range p.Changes { // an operator launches balancers together with replicas
		if c.Action == provision.ActionLaunch && !dp.Gate.IsBounded(c.Desired) {
			billed = append(billed, provision.Object{ID: c.ID(), CostPerHour: c.CostPerHour})
		}
	}
	dp.Gate.Observe(dp.Bounds, billed)
	minimum := launchesForMinimum(dp.Spec, p)
	p.Changes, p.Held = dp.Gate.RemoveHeld(p.Changes, func(c provision.Change) bool { return minimum[c.ID()] })
}

// launchesForMinimum returns the IDs of the launches without which a group has fewer than replicas.min.
func launchesForMinimum(spec *service.Spec, p *MachinePlan) map[string]bool {
	count, ids := map[cloud.ReplicaGroup]int{}, map[string]bool{}
	for _, o := range p.Observed {
		if o.Kind == provision.KindReplica && o.TerminatedReason == "" {
			count[cloud.ReplicaGroup{Model: o.Labels["model"], Region: o.Region}]++
		}
	}
	for _, c := range p.Changes {
		g := cloud.ReplicaGroup{Model: c.Desired.Labels["model"], Region: c.Region()}
		if c.Kind() == provision.KindReplica && c.Action == provision.ActionLaunch && count[g] < spec.BoundsFor(g.Model, g.Region).Min {
			count[g]++
			ids[c.ID()] = true
		}
	}
	return ids
}

// heldError returns the error of the launches of a plan that its bounds do not admit; nil without any.
func (p *MachinePlan) heldError() error {
	var all []error
	for _, h := range p.Held {
		all = append(all, h)
	}
	return errors.Join(all...)
}

// heldErrors returns the held launches in an error.
func heldErrors(err error) []*provision.HeldError { return errorsIn[*provision.HeldError](err) }

// errorsIn returns all errors of a type in an error, which may join and wrap several.
func errorsIn[E error](err error) []E {
	if e, ok := err.(E); ok { //nolint:errorlint // what wraps it is unwrapped below
		return []E{e}
	}
	switch wrapper := err.(type) { //nolint:errorlint // it finds the wrappers themselves
	case interface{ Unwrap() []error }:
		var all []E
		for _, e := range wrapper.Unwrap() {
			all = append(all, errorsIn[E](e)...)
		}
		return all
	case interface{ Unwrap() error }:
		return errorsIn[E](wrapper.Unwrap())
	}
	return nil
}
