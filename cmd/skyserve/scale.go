package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// scaling is a change of a running service's replicas, with its progress printed to errOut.
type scaling struct {
	*upRun
	*deploy.ReplicaScaler
}

// openScaling locks a service and reads its desired state. Prompts that read from the in of s do not hold the lock.
func openScaling(ctx context.Context, name string, in io.Reader, errOut io.Writer, yes bool, clouds cloudFlags) (s *scaling, unlock func(), err error) {
	svc, err := findService(name)
	if err != nil {
		return nil, nil, err
	}
	// What is read before may be outdated: the command that holds the lock may deploy another service.yaml.
	lock, err := lockService(ctx, svc, errOut)
	if err != nil {
		return nil, nil, err
	}
	if s, err = openLockedScaling(ctx, svc, in, errOut, yes, clouds); err != nil {
		lock.removeUnused() // another command may have deleted the service, and the lock created its directory again
		lock.release()
		return nil, nil, err
	}
	s.in = lock.input(ctx, in, s.upRun.listObjects)
	return s, lock.release, nil
}

// openLockedScaling is openScaling for a service whose lock is held.
func openLockedScaling(ctx context.Context, svc local.Service, in io.Reader, errOut io.Writer, yes bool, clouds cloudFlags) (*scaling, error) {
	spec, err := deployedSpec("", svc)
	if err != nil {
		return nil, err
	}
	if err := checkObservable(svc, spec); err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, usage(fmt.Errorf("reading service.yaml of %s: it is missing or cannot be read: %s", svc.Name(), svc.SpecFile()), "run 'skyserve up' with the service.yaml, which stores it again")
	}
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil {
		return nil, fmt.Errorf("reading the service file: %w", err)
	}
	u := &upRun{
		up: &up{upOptions: &upOptions{file: svc.SpecFile(), yes: yes, timeout: defaultTimeout(spec), clouds: clouds}, errOut: errOut, started: time.Now(), block: newTerminalBlock(errOut), interrupted: ctx.Done()},
		in: in, svc: svc, spec: spec, text: text, filter: func(*deploy.MachinePlan, provision.Change) bool { return false },
	}
	u.starts = newStartDisplay(u.up)
	if !cloud.UsesClouds(spec) {
		u.clouds.localService = &svc
	}
	decided, err := deploy.ReadReplicaDecisions(decisionsFile(svc))
	if err == nil {
		err = u.openService(ctx)
	}
	if err != nil {
		return nil, cloudError(specUsage(err))
	}
	s := &scaling{u, &deploy.ReplicaScaler{
		Deployer: u.deployer, Decisions: decided, Progress: u.progress, UpdateBalancers: u.deliverReplicas,
		Store:     func(d deploy.ReplicaDecisions) error { return d.Write(decisionsFile(svc)) },
		OnDrained: func(id string) { u.printLine("drained %s", id) },
		OnEnded:   u.printEnded,
	}}
	s.AnnounceRemoval = u.announceRemoval
	drain := u.deployer.Drain
	u.deployer.Drain = func(ctx context.Context, o provision.Object) {
		u.printLine("draining %s", o.ID)
		drain(ctx, o)
	}
	return s, nil
}

// deliverReplicas delivers the balancers' configuration with the plan's replicas, waits until the fresh ones serve, and
// prints a line for each.
func (u *upRun) deliverReplicas(ctx context.Context, p *deploy.MachinePlan, idle, fresh map[string]bool) error {
	u.changes, u.draining, u.onlyReplicas = p, idle, maps.Clone(fresh)
	if fresh == nil {
		u.onlyReplicas = map[string]bool{}
	}
	defer func() { u.onlyReplicas = nil }()
	have, err := u.awaitAddresses(ctx, p)
	if err != nil {
		return err
	}
	if err := u.deliver(ctx, have, nil); err != nil || u.clouds.localService == nil {
		return err
	}
	return u.awaitServing(ctx, have, func(id string) bool { return fresh[id] })
}

// announceRemoval announces to the controller in a cloud, through the first balancer that responds, that replicas are being
// removed. A controller on this computer reads the decisions.
func (u *upRun) announceRemoval(ctx context.Context, replicas []provision.Object) {
	var handles []string
	for _, o := range replicas {
		if o.TerminatedReason == "" && !cloud.RunsOnThisComputer(o.Region) {
			handles = append(handles, o.Handle)
		}
	}
	if len(handles) == 0 {
		return
	}
	_, admins, _, err := knownAdmins(u.svc.Name())
	if err == nil {
		err = tryAdmins(ctx, admins, func(ctx context.Context, api *telemetry.Client) error { return api.AnnounceRemovals(ctx, handles) })
	}
	if err != nil {
		u.printLine("the controller may replace the removed replicas, because no balancer could announce the removal: %v", err)
	}
}

// countReplicas stores how many replicas a service on this computer has after `up`: replicas.min and max may have changed.
func (u *upRun) countReplicas(ctx context.Context) error {
	decided, err := deploy.ReadReplicaDecisions(decisionsFile(u.svc))
	if err != nil {
		return err
	}
	s := deploy.ReplicaScaler{Deployer: u.deployer, Decisions: decided, Store: func(d deploy.ReplicaDecisions) error { return d.Write(decisionsFile(u.svc)) }}
	return s.CountReplicas(ctx)
}

// applyCount changes the replicas to the desired ones. It prompts for confirmation if that
// changes the bill.
func (s *scaling) applyCount(ctx context.Context, w deploy.DesiredReplicas) error {
	p, swaps, err := s.Preview(ctx, w)
	if err == nil {
		err = s.confirmChanges(ctx, p, swaps)
	}
	if err == nil {
		err = s.ApplyDesired(ctx, w)
	}
	return err
}

// removeReplica removes one replica.
func (s *scaling) removeReplica(ctx context.Context, id string) error {
	p, err := s.PlanRemoval(ctx, id)
	if err == nil {
		err = s.confirmChanges(ctx, p, nil)
	}
	if err == nil {
		err = s.Remove(ctx, p, id)
	}
	return err
}

// confirmChanges shows changes of machines, and prompts for confirmation if they change the
// bill.
func (s *scaling) confirmChanges(ctx context.Context, p *deploy.MachinePlan, swaps []deploy.ClassMismatch) (err error) {
	if err := checkBudget(s.spec, p); err != nil {
		return err
	}
	if len(p.Changes) == 0 && len(swaps) == 0 {
		return nil
	}
	if s.quotas, err = checkQuotas(ctx, s.deployer, s.places, p); err != nil {
		return err
	}
	s.changes = p
	for _, swap := range swaps {
		fmt.Fprintf(s.errOut, "  ~ %s\n", swap)
	}
	if err := s.checkSecrets(); err != nil {
		return err
	}
	if len(p.Changes) > 0 {
		return s.confirm()
	}
	if s.yes || !cloud.UsesClouds(s.spec) {
		return nil
	}
	return confirmAction(s.in, s.errOut, "changes the bill")
}

// result returns the error of a change with its exit code and hint.
func (s *scaling) result(ctx context.Context, err error) error {
	name, code := s.spec.Name, exitFailed
	if s.Changed {
		code = exitPartial
	}
	var coded *exitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		fmt.Fprintln(s.errOut, "interrupted; run the command again to continue")
		return &exitError{code: exitInterrupted}
	case errors.As(err, new(*deploy.PartialError)):
		if errors.As(err, new(*deploy.ReplacementRefusedError)) {
			code = exitPartial // the replica keeps serving with its current GPU and capacity type
		}
		return &exitError{code: code, err: err, hint: "all other changes were applied; run the command again to retry"}
	case errors.As(err, new(*deploy.UnconfirmedError)):
		return &exitError{code: code, err: err, hint: fmt.Sprintf("all other balancers have the change; a controller delivers it once 'skyserve status %s' shows that this one responds", name)}
	case errors.Is(err, errDeclined):
		return err
	}
	if known := decisionError(err); known != nil {
		return known
	}
	if ended := (*deploy.ReplicaEndedError)(nil); errors.As(err, &ended) {
		hint := fmt.Sprintf("the controller starts it within seconds; repeat this command once 'skyserve replica list --service %s' shows it READY", name)
		if !ended.IsRestarted {
			hint = fmt.Sprintf("run 'skyserve up %s', which starts it, then repeat this command", upFile(s.svc))
		}
		return &exitError{code: code, err: err, hint: hint}
	}
	if known := cloudError(err); errors.As(known, &coded) {
		return known
	}
	return &exitError{code: code, err: err, hint: s.afterFailure(err)}
}

// decisionError returns the error with a hint if err is a decision that service.yaml does not allow, or about a
// replica that does not exist; nil for any other error.
func decisionError(err error) error {
	var bounds *deploy.BoundsError
	switch {
	case errors.As(err, &bounds) && bounds.Region.Cloud() == service.CloudStatic:
		return usage(err, "set the bounds of the region in service.yaml, for example replicas: {min: 1}, then run 'skyserve up'")
	case bounds != nil:
		return usage(err, "change the bounds in service.yaml, then run 'skyserve up'")
	case errors.Is(err, deploy.ErrNotManaged):
		return usage(err, "change regions[].endpoints in service.yaml, then run 'skyserve up'")
	case errors.Is(err, deploy.ErrNoStaticDecisions):
		return usage(err, "POST /workers/ID/drain at its balancer drains it until the balancer restarts; to stop using it, change regions[].endpoints in service.yaml, then run 'skyserve up'")
	case errors.Is(err, deploy.ErrNoManualDecisions):
		return usage(err, "'skyserve replica remove ID' drains and deletes the VM; POST /workers/ID/drain at its balancer drains it until the balancer restarts")
	case errors.As(err, new(*deploy.NoReplicaError)):
		return notFound(err, "'skyserve replica list' shows the service's replicas")
	case errors.As(err, new(*deploy.ModelUnknownError)):
		return usage(err, "'skyserve replica list' shows the service's replicas and models")
	}
	return nil
}
