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
	bounds := provision.LaunchBounds{PerHour: spec.LaunchesPerHour(), Budget: spec.BudgetPerHour()}
	if spec.Autoscale.MaxLaunchesPerHour == 0 && !cloud.UsesClouds(spec) {
		bounds.PerHour = 0
	}
	return bounds
}

// LimitToBudget makes the deployer launch within the service's budget only. Launches that an operator
// confirms have no maximum number.
func (f *Deployer) LimitToBudget() {
	if f.Spec.BudgetPerHour() == 0 {
		return
	}
	f.Gate = provision.NewLaunchGate(&provision.LaunchRecord{}, f.clock(), cloud.RunsOnThisComputer)
	f.Bounds = provision.LaunchBounds{Budget: f.Spec.BudgetPerHour()}
}

// cutLaunches removes the launches of a plan that its bounds do not admit: first come replicas for
// replicas.min, then the others, each in the order of service.yaml.
func (f *Deployer) cutLaunches(p *Plan) {
	if f.Gate == nil {
		return
	}
	billed := slices.Concat(p.Have, f.Unlisted)
	for _, c := range p.Changes { // an operator launches balancers together with replicas
		if c.Action == provision.ActionLaunch && !f.Gate.Bounds(c.Desired) {
			billed = append(billed, provision.Object{ID: c.ID(), CostPerHour: c.CostPerHour})
		}
	}
	f.Gate.Observe(f.Bounds, billed)
	minimum := forMinimum(f.Spec, p)
	p.Changes, p.Held = f.Gate.Cut(p.Changes, func(c provision.Change) bool { return minimum[c.ID()] })
}

// forMinimum returns the IDs of the launches without which a group has fewer than replicas.min.
func forMinimum(spec *service.Spec, p *Plan) map[string]bool {
	count, ids := map[cloud.ReplicaGroup]int{}, map[string]bool{}
	for _, o := range p.Have {
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
func (p *Plan) heldError() error {
	var all []error
	for _, h := range p.Held {
		all = append(all, h)
	}
	return errors.Join(all...)
}

// heldIn returns the held launches in an error.
func heldIn(err error) []*provision.HeldError {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*provision.HeldError
		for _, e := range joined.Unwrap() {
			all = append(all, heldIn(e)...)
		}
		return all
	}
	var held *provision.HeldError
	if errors.As(err, &held) {
		return []*provision.HeldError{held}
	}
	return nil
}
