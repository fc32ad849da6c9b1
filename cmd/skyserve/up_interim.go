package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// interimRun is what `up` does for names that its service.yaml gives to other models, for example to a renamed one: it
// first applies the interim service, in which the earlier models still serve, and applies service.yaml once the
// replicas of the new models are ready.
type interimRun struct {
	*deploy.Interim // nil: see problem
	moved           []string
	problem         error // why there can be no interim service
	final           *service.Spec
	finalText       []byte
	active          bool // the interim service is being applied
	launched        provision.Changes
}

// The reasons for terminating replicas of models that service.yaml does not contain any more.
const (
	reasonModelReplaced = "model not in service.yaml; terminated once other replicas are ready"
	reasonModelRemoved  = "model not in service.yaml; terminated before other replicas are ready"
)

// planInterim plans the interim service, if names belong to other models than in the last `up`.
func (u *upRun) planInterim() {
	text, err := os.ReadFile(u.svc.SpecFile())
	if err != nil || u.filter != nil {
		return // there is no earlier service, or only replicas change
	}
	last, err := service.ParseDeployed(u.svc.SpecFile(), text)
	if err != nil {
		return
	}
	i := &interimRun{moved: deploy.MovedNames(u.spec, last), final: u.spec, finalText: u.text}
	if len(i.moved) == 0 {
		return
	}
	if i.problem = u.interimProblem(last); i.problem == nil {
		i.Interim, i.problem = deploy.NewInterim(u.spec, last, u.changes.Observed)
	}
	u.interim = i
	for at := range u.changes.Changes {
		switch c := &u.changes.Changes[at]; {
		case u.isLate(*c):
			c.Reason = reasonModelReplaced
		case i.Interim == nil && c.Action == provision.ActionTerminate && c.Kind() == provision.KindReplica && deploy.ModelNamed(u.spec, c.Observed.Labels["model"]) == nil:
			c.Reason = reasonModelRemoved
		}
	}
}

// interimProblem returns why there can be no interim service; nil if there can. In clouds a controller may not list a new
// machine yet, and would launch another one for the model that is being renamed.
func (u *upRun) interimProblem(last *service.Spec) error {
	if cloud.UsesClouds(u.spec) || cloud.UsesClouds(last) {
		return errors.New("in clouds, the earlier model cannot serve meanwhile; to avoid this, first run 'skyserve up' with both models, and remove the earlier one when clients use the new name")
	}
	return nil
}

// isLate reports whether a change terminates a replica that serves until the replicas of new models are ready.
func (u *upRun) isLate(c provision.Change) bool {
	return c.Action == provision.ActionTerminate && u.isRetained(c.Observed)
}

// print prints the names whose requests wait, and then fail, until the replicas of new models are ready.
func (i *interimRun) print(w io.Writer) {
	if i != nil && i.problem != nil {
		fmt.Fprintf(w, "warning: requests for %s wait until their new models have a ready replica, for at most %s (balancer.max_wait), and then get 503: %s\n",
			strings.Join(i.moved, ", "), service.FormatDuration(i.final.Balancer.MaxWait), oneLine(i.problem))
	}
}

// useInterim makes the run apply the interim service, if there is one.
func (u *upRun) useInterim() {
	if u.interim == nil || u.interim.Interim == nil {
		return
	}
	u.interim.active = true
	u.useSpec(u.interim.Spec, u.interim.Text)
	u.changes.Changes = slices.DeleteFunc(slices.Clone(u.changes.Changes), u.isLate)
}

// launchForInterim launches the replicas of the new models before controllers receive the interim service, in which these
// models lack aliases: a controller would launch them under other IDs, because an ID contains the alias.
func (u *upRun) launchForInterim(ctx context.Context) error {
	if u.interim == nil || !u.interim.active {
		return nil
	}
	var launches, rest provision.Changes
	for _, c := range u.changes.Changes {
		if c.Kind() == provision.KindReplica && c.Action == provision.ActionLaunch {
			launches = append(launches, c)
		} else {
			rest = append(rest, c)
		}
	}
	p := *u.changes
	p.Changes = launches
	_, err := u.deployer.Up(ctx, &p, u.progress)
	if err == nil {
		_, err = u.awaitAddresses(ctx, &p)
	}
	u.interim.launched, u.changes.Changes = launches, rest
	return err
}

// interimLaunches returns the changes of launchForInterim.
func (u *upRun) interimLaunches() provision.Changes {
	if u.interim == nil {
		return nil
	}
	return u.interim.launched
}

// useSpec makes the run apply another service.yaml.
func (u *upRun) useSpec(spec *service.Spec, text []byte) {
	u.spec, u.text, u.deployer.Spec = spec, text, spec
}

// applyFinal applies service.yaml after the interim service, if there was one: balancers first stop using the replicas of
// removed models, which are then drained and terminated.
func (u *upRun) applyFinal(ctx context.Context, have []provision.Object) error {
	if u.interim == nil || !u.interim.active {
		return nil
	}
	u.useSpec(u.interim.final, u.interim.finalText)
	if err := u.deliver(ctx, have, nil); err != nil {
		return err
	}
	if err := u.svc.StoreSpec(u.text); err != nil { // last: until every balancer has it, a run after an interruption begins with the interim service
		return err
	}
	u.interim.active = false
	p, err := u.deployer.Plan(ctx)
	if err != nil {
		return err
	}
	p.Changes = slices.DeleteFunc(p.Changes, func(c provision.Change) bool { return !u.isLate(c) })
	for i := range p.Changes {
		p.Changes[i].Reason = reasonModelReplaced
	}
	u.changes.Changes = append(u.changes.Changes, p.Changes...)
	_, err = u.deployer.Up(ctx, p, u.progress)
	return err
}

// deployments returns the deployments of the machines. Replicas receive that of service.yaml also while the interim service is
// applied, so that they are changed once; those of removed models keep what they run.
func (i *interimRun) deployments(content deploy.DeploymentInput, have []provision.Object) (map[string]agent.Deployment, error) {
	deployments, err := deploy.Deployments(content, have)
	if err != nil || i == nil || i.Interim == nil {
		return deployments, err
	}
	content.Spec, content.SpecYAML = i.final, i.finalText
	final, err := deploy.Deployments(content, have)
	for _, o := range have {
		if d, used := final[o.ID]; i.Retains(o) || !used {
			delete(deployments, o.ID)
		} else if o.Kind == provision.KindReplica {
			deployments[o.ID] = d
		}
	}
	return deployments, err
}

// withoutRemoved returns the machines without the replicas of removed models, for which the run does not wait.
func (u *upRun) withoutRemoved(have []provision.Object) []provision.Object {
	return slices.DeleteFunc(slices.Clone(have), u.isRetained)
}

// isRetained reports whether a machine serves until the replicas of new models are ready.
func (u *upRun) isRetained(o provision.Object) bool {
	return u.interim != nil && u.interim.Interim != nil && u.interim.Retains(o)
}

// printInterim prints, after a failure, that the earlier models still serve.
func (u *upRun) printInterim() {
	if u.interim == nil || !u.interim.active || len(u.interim.Removed) == 0 {
		return
	}
	var names []string
	for _, m := range u.interim.Removed {
		names = append(names, m.Name)
	}
	u.printLine("these models are not in %s, and their replicas still serve: %s", u.file, strings.Join(names, ", "))
}
