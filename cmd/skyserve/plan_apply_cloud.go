package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// carryOutInClouds makes the replicas of a service in clouds as many as a proposal says:
// first those that are added, and once they serve it takes away those that are too many,
// emptied. Nothing else is changed.
func (o *planOptions) carryOutInClouds(ctx context.Context, p plan.Proposal, in io.Reader, svc local.Service, spec *service.Spec) error {
	unlock, err := svc.LockSoon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil {
		return fmt.Errorf("reading the service: %w", err)
	}
	u := &cloudUp{
		up: &up{upOptions: &upOptions{file: svc.SpecFile(), yes: o.yes, timeout: waitForMachines, clouds: o.clouds}, talk: o.talk, begun: time.Now()},
		in: in, svc: svc, spec: spec, text: text, counts: countsOf(p, spec), only: replicasOnly,
	}
	if err := u.open(ctx); err != nil {
		return cloudError(specUsage(err))
	}
	if err := u.confirm(); err != nil || len(u.changes.Changes) == 0 {
		return err
	}
	for _, action := range []provision.Action{provision.ActionLaunch, provision.ActionTerminate} {
		if err := u.step(ctx, action); err != nil {
			return u.cloudFailure(ctx, err)
		}
	}
	fmt.Fprintf(o.talk, "%s runs what the plan proposes\n", spec.Name)
	return o.exit(p)
}

// replicasOnly are the changes that a plan asks for.
func replicasOnly(_ *fleet.Plan, c provision.Change) bool {
	return c.Kind() == provision.KindReplica && (c.Action == provision.ActionLaunch || c.Action == provision.ActionTerminate)
}

// countsOf is how many replicas a proposal wants of each model in each rented region, on
// whichever GPU can be had.
func countsOf(p plan.Proposal, spec *service.Spec) map[cloud.Group]int {
	rented := map[service.Region]bool{}
	for _, r := range cloud.Regions(spec) {
		rented[r] = true
	}
	counts := map[cloud.Group]int{}
	for _, c := range p.Changes {
		if r := service.Region(c.Region); rented[r] {
			counts[cloud.Group{Model: c.Model, Region: r}] += c.Then
		}
	}
	return counts
}

// step makes the changes of one kind, and has balancers use what there is then.
func (u *cloudUp) step(ctx context.Context, action provision.Action) error {
	u.fleet.Only = func(p *fleet.Plan, c provision.Change) bool { return replicasOnly(p, c) && c.Action == action }
	var err error
	if u.changes, err = u.fleet.Plan(ctx); err != nil || len(u.changes.Changes) == 0 {
		return err
	}
	plan, err := u.fleet.Up(ctx, u.changes, u.progress)
	if err != nil {
		return err
	}
	have, err := u.located(ctx, plan)
	if err != nil {
		return err
	}
	return u.handOver(ctx, have, nil)
}
