package deploy

import (
	"context"
	"errors"
	"slices"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// surge returns the replacement that runs beside a machine in a cloud until it serves; nil where the machine is terminated
// first. The replacement of a balancer has the same ID, because two such machines are harmless. The replacement of a
// replica has another ID, as if the cloud interrupted the old one: balancers use both, and if this program ends, the
// controller drains and deletes the old one once the new one serves. It is nil where replicas.max or the budget does not
// allow both.
func (dp *Deployer) surge(ctx context.Context, p *MachinePlan, c provision.Change) (*provision.Replacement, error) {
	if _, dead := dp.replacementReason(c); dead || cloud.RunsOnThisComputer(c.Region()) { // two machines with one ID cannot coexist here
		return nil, nil
	}
	if dp.Gate != nil && !dp.Gate.Fits(c.Desired) {
		return nil, nil
	}
	if c.Kind() == provision.KindBalancer {
		return &provision.Replacement{Desired: c.Desired}, nil
	}
	dp.surging.Lock()
	defer dp.surging.Unlock()
	have, err := dp.listObjects(ctx) // an earlier replacement of this plan has changed them
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(have, func(o provision.Object) bool { return isReplacementOf(o, c.Observed) }); i >= 0 {
		p.replaced = append(p.replaced, replacedReplica{id: c.ID()})
		return &provision.Replacement{Running: &have[i]}, nil
	}
	launch, own, err := dp.planReplacement(have, c.Observed)
	if held := new(provision.HeldError); errors.As(err, &held) || err == nil && own == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.replaced = append(p.replaced, replacedReplica{c.ID(), &launch.Desired})
	return &provision.Replacement{Desired: launch.Desired}, nil
}

// replacedReplica is a replica that a plan replaces by one with another ID.
type replacedReplica struct {
	id string
	by *provision.Desired // nil = it was desired before
}

// useReplacements makes the plan desire the replacements with other IDs in place of the replicas that were replaced.
func (p *MachinePlan) useReplacements() {
	for _, r := range p.replaced {
		p.Desired = slices.DeleteFunc(slices.Clone(p.Desired), func(d provision.Desired) bool { return d.ID == r.id })
		if r.by != nil {
			p.Desired = append(p.Desired, *r.by)
		}
	}
	p.replaced = nil
}
