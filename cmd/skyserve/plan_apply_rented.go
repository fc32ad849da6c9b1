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

// carryOutRented makes the replicas of a service in clouds as many as a proposal says:
// first those that are added, and once they serve it takes away those that are too many,
// emptied. Nothing else is changed.
func (o *planOptions) carryOutRented(ctx context.Context, p plan.Proposal, in io.Reader, svc local.Service, spec *service.Spec) error {
	unlock, err := svc.LockSoon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil {
		return fmt.Errorf("reading the service: %w", err)
	}
	u := &upRun{
		up: &up{upOptions: &upOptions{file: svc.SpecFile(), yes: o.yes, timeout: waitForMachines, clouds: o.clouds}, talk: o.talk, begun: time.Now()},
		in: in, svc: svc, spec: spec, text: text, counts: countsOf(p, spec), only: replicasOnly,
	}
	if err := u.open(ctx); err != nil {
		return cloudError(specUsage(err))
	}
	swaps := fleet.Swaps(u.changes.Have, u.counts)
	for _, s := range swaps {
		fmt.Fprintf(u.talk, "  ~ %s\t%s\t%s -> %s\n", s.Of.ID, s.Of.Region, provision.ClassOf(*s.Of.Offering), s.On)
	}
	if err := u.confirm(); err != nil || len(u.changes.Changes) == 0 && len(swaps) == 0 {
		return err
	}
	if len(u.changes.Changes) == 0 && !u.yes {
		if err := ask(in, u.talk, "changes what is billed"); err != nil {
			return err
		}
	}
	refused, err := u.fleet.Follow(ctx, u.progress, u.use)
	if err != nil {
		return u.failure(ctx, err)
	}
	if refused != nil {
		return &exitError{code: exitPartial, err: refused, hint: fmt.Sprintf("'skyserve plan %s --apply' tries again", spec.Name)}
	}
	fmt.Fprintf(o.talk, "%s runs what the plan proposes\n", spec.Name)
	return o.exit(p)
}

// step makes the changes of replicas of one kind, and has balancers use what there is then.
func (u *upRun) step(ctx context.Context, action provision.Action) error {
	_, err := u.fleet.Step(ctx, action, u.progress, u.use)
	return err
}

// use has balancers use what there is once a plan was carried out.
func (u *upRun) use(ctx context.Context, plan *fleet.Plan) error {
	u.changes = plan
	have, err := u.located(ctx, plan)
	if err != nil {
		return err
	}
	if err := u.handOver(ctx, have, nil); err != nil || u.clouds.here == nil {
		return err
	}
	return u.awaitServing(ctx, have)
}

// replicasOnly are the changes that a plan asks for.
func replicasOnly(_ *fleet.Plan, c provision.Change) bool {
	return c.Kind() == provision.KindReplica && (c.Action == provision.ActionLaunch || c.Action == provision.ActionTerminate)
}

// countsOf is how many replicas a proposal wants of each model in each rented region, and on
// what.
func countsOf(p plan.Proposal, spec *service.Spec) map[cloud.Group]provision.Counts {
	rented := map[service.Region]bool{}
	for _, r := range cloud.Rented(spec) {
		rented[r] = true
	}
	counts := map[cloud.Group]provision.Counts{}
	for _, c := range p.Changes {
		r := service.Region(c.Region)
		if !rented[r] {
			continue
		}
		g := cloud.Group{Model: c.Model, Region: r}
		if counts[g] == nil {
			counts[g] = provision.Counts{}
		}
		capacity := ""
		if c.Capacity != nil {
			capacity = *c.Capacity
		}
		counts[g][classOf(spec, c.Model, c.GPU, capacity)] += c.Then
	}
	return counts
}

// classOf is the class that a plan's row asks for. A simulated engine of a model without GPUs
// runs on any machine, whatever a plan calls it.
func classOf(spec *service.Spec, model, gpus, capacity string) provision.Class {
	if m := spec.ModelByName(model); m != nil && len(m.GPUs) == 0 {
		gpus = ""
	}
	return provision.ClassNamed(gpus, capacity)
}
