package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision/local"
)

// guard protects a service from changes that leave a model without a ready replica. A person at a terminal is
// asked; elsewhere --force is required.
type guard struct {
	force  bool
	in     io.Reader
	errOut io.Writer
}

// confirmDanger warns of a danger and asks whether to proceed.
func (g guard) confirmDanger(danger string) error {
	printMessage(g.errOut, labelWarning, "%s", danger)
	if g.force {
		return nil
	}
	if !canPrompt(g.in) {
		return usage(fmt.Errorf("refused: %s", danger), "pass --force to do it anyway")
	}
	return confirmAction(g.in, g.errOut, "")
}

// lastReady returns why replicas must not be taken from a service: models that have no other ready replica;
// empty if there is no such model.
func lastReady(all []listedReplica, ids []string) string {
	taken, left := map[string][]string{}, map[string]bool{}
	var models []string
	for _, r := range all {
		switch {
		case r.State != service.StateReady:
		case !slices.Contains(ids, r.ID):
			left[r.Model] = true
		default:
			if taken[r.Model] == nil {
				models = append(models, r.Model)
			}
			taken[r.Model] = append(taken[r.Model], r.ID)
		}
	}
	var dangers []string
	for _, m := range models {
		if !left[m] {
			dangers = append(dangers, fmt.Sprintf("model %s has no other ready replica than %s", m, strings.Join(taken[m], ", ")))
		}
	}
	return strings.Join(dangers, "; ")
}

// guardReplicas asks before the last ready replicas of a model are taken.
func (o *replicaOptions) guardReplicas(ctx context.Context, g guard, ids []string) error {
	svc, err := findService(o.service)
	if err != nil {
		return err
	}
	all, err := o.replicas(ctx, svc, io.Discard)
	if err != nil {
		return err
	}
	if danger := lastReady(all, ids); danger != "" {
		return g.confirmDanger(danger)
	}
	return nil
}

// removesWhileDown returns the models from which a plan removes replicas while another replica of the model
// is down: the plan counts on a replica that serves nothing. Empty if there is none.
func removesWhileDown(p plan.Proposal, status []listedReplica) string {
	var dangers []string
	for _, c := range p.Changes {
		if c.Delta >= 0 {
			continue
		}
		var down []string
		for _, r := range status {
			if r.Model == c.Model && (r.State == service.StateNotReady || r.State == service.StateFailed) {
				down = append(down, r.ID+" is "+string(r.State))
			}
		}
		danger := fmt.Sprintf("the plan removes replicas of model %s while %s", c.Model, strings.Join(down, ", "))
		if len(down) > 0 && !slices.Contains(dangers, danger) {
			dangers = append(dangers, danger)
		}
	}
	return strings.Join(dangers, "; ")
}

// guardPlan asks before a plan removes replicas of a model while another one is down.
func (o *planOptions) guardPlan(ctx context.Context, g guard, svc local.Service, p plan.Proposal) error {
	if !slices.ContainsFunc(p.Changes, func(c plan.ReplicaChange) bool { return c.Delta < 0 }) {
		return nil
	}
	list := replicaOptions{clouds: o.clouds}
	status, err := list.replicas(ctx, svc, io.Discard)
	if err != nil {
		return err
	}
	if danger := removesWhileDown(p, status); danger != "" {
		return g.confirmDanger(danger)
	}
	return nil
}
