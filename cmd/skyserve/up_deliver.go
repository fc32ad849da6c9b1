package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// deliver delivers every machine's configuration and waits until all are ready. It calls markReady,
// unless that is nil, for each machine that becomes ready.
func (u *upRun) deliver(ctx context.Context, have []provision.Object, markReady func(id string)) error {
	h, deployments, err := u.delivery(have)
	if err != nil {
		return err
	}
	if progress := h.OnChange; markReady != nil {
		h.OnChange = func(id string, s agent.Status) {
			progress(id, s)
			if s.Phase == agent.PhaseReady {
				markReady(id)
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	stop := u.starts.run()
	err = h.Deliver(ctx, deployments)
	stop()
	if line := u.starts.slowest(); line != "" && cloud.UsesClouds(u.spec) {
		u.printLine("%s", line)
	}
	return err
}

// delivery returns the delivery to the machines, with each machine's deployment.
func (u *upRun) delivery(have []provision.Object) (*deploy.Delivery, map[string]agent.Deployment, error) {
	content, err := u.deploymentContent()
	if err != nil {
		return nil, nil, err
	}
	have = provision.OnePerID(u.changes.Desired, have) // the controller will remove the second machine of an id
	deployments, err := u.interim.deployments(content, have)
	h := &deploy.Delivery{
		Service: u.spec.Name, Party: u.operator.party, Authority: u.operator.authority, Enrolments: u.enrolments, Revoked: u.operator.revoked, Attestor: u.attestor, Machines: have,
		OnlyReplicas: u.onlyReplicas, Awaited: u.awaited(), Launched: u.isChanged, UntilDelivered: u.wait == waitNone && cloud.UsesClouds(u.spec),
		OnChange: func(id string, s agent.Status) {
			u.delivered.record(id, s)
			u.observer.recordStatus(id, s)
			if u.isReload(id) && s.Phase == agent.PhaseReady {
				u.printLine("reloaded %s", id)
			} else if !cloud.UsesClouds(u.spec) && (s.Phase == agent.PhaseFailed || s.Phase == agent.PhaseDraining) { // local processes pass the other phases at once
				u.printLine("%s %s", id, strings.TrimSpace(string(s.Phase)+" "+s.Reason))
			}
		},
	}
	if cloud.UsesClouds(u.spec) {
		h.OnStatus = u.observeStart(have)
	}
	return h, deployments, err
}

// informControllers sends the new desired state to the controllers, so that they revert none of this run's
// changes. If a controller does not respond, it prints a line: that one still has the old state. It returns an
// error if the store would lose data.
func (u *upRun) informControllers(ctx context.Context) error {
	h, deployments, err := u.delivery(u.changes.Observed)
	if err != nil {
		return err
	}
	err = h.UpdateControllers(ctx, deployments, u.controllers)
	var keep *deploy.StoreMoveError
	if errors.As(err, &keep) {
		return err
	}
	if err != nil && ctx.Err() == nil {
		u.printLine("a controller has not received the new configuration yet: %v", err)
	}
	return nil
}

// noteControllers is the note that stores the machines that ran a controller after the last `up`.
const noteControllers = "controllers.json"

// runningControllers returns the machines that run a controller, and those that did after the last `up` and do not
// respond: a second store must not be started while one exists.
func (u *upRun) runningControllers(ctx context.Context) ([]string, error) {
	balancers := slices.DeleteFunc(slices.Clone(u.changes.Observed), func(o provision.Object) bool { return o.Kind != provision.KindBalancer })
	h := deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: balancers}
	seen := h.ReadStatuses(ctx)
	running := deploy.RunningControllers(seen)
	var last []string
	if err := u.svc.LoadValue(noteControllers, &last); err != nil {
		return nil, err
	}
	for _, id := range last {
		if len(running) >= cloud.ControlMachineCount {
			break // others took the place of those that do not respond
		}
		if s, responds := seen[id]; (!responds || s.Err != nil) && !slices.Contains(running, id) {
			running = append(running, id)
		}
	}
	slices.Sort(running)
	return running, nil
}

// storeControllers stores the machines that run a controller now.
func (u *upRun) storeControllers(have []provision.Object) error {
	return u.svc.StoreValue(noteControllers, deploy.ControlMachines(u.spec, have, u.controllers))
}

// deploymentContent returns the inputs of the machines' configurations.
func (u *upRun) deploymentContent() (c deploy.DeploymentInput, err error) {
	base, err := u.baseDir()
	if err != nil {
		return c, err
	}
	c = deploy.DeploymentInput{Spec: u.spec, SpecYAML: u.text, Secrets: deploy.SecretsBelow(base), Bundle: &deploy.ControllerBundle{}, Enrolled: u.enrolments.Handles(), Zone: u.hostedZone.HostedZone, Draining: u.draining, Controllers: u.controllers, Images: u.images}
	if c.PeerToken, err = u.peerToken(); err != nil {
		return c, err
	}
	if cloud.ReplacesBalancers(u.spec) {
		u.enrolments.LabelKey = c.PeerToken
	}
	if !cloud.UsesClouds(u.spec) {
		c.BaseDir = base
		if c.AdminToken, err = u.svc.NextAdminToken(); err != nil {
			return c, err
		}
	}
	if c.Bundle.Certificate, c.Bundle.DelegatedCA, err = identityOf(u.svc).Controller(time.Now()); err != nil {
		return c, err
	}
	own := cloudAccess{
		Program: u.program, EndpointGCP: u.clouds.endpointGCP, Project: u.clouds.project, Networks: networksOf(u.spec), Accounts: u.spec.GCP, Federation: u.federation,
		EndpointAWS: cmp.Or(u.clouds.endpointAWS, os.Getenv(envEndpointAWS)), // the controller's machine does not have the variable
	}
	if !cloud.UsesClouds(u.spec) {
		own.Dir = u.svc.Dir()
	}
	c.Bundle.CloudConfig, err = json.Marshal(own)
	return c, err
}

// notePeers is the note that stores the balancers' shared token.
const notePeers = "peers.json"

// peerToken returns the token that the service's balancers share. The machine with the
// authority creates and stores it.
func (u *upRun) peerToken() (string, error) {
	var kept struct {
		Token string `json:"token"`
	}
	if err := u.svc.LoadValue(notePeers, &kept); err != nil || kept.Token != "" {
		return kept.Token, err
	}
	if u.operator.authority == nil {
		return "", failed(fmt.Errorf("configuring balancers: this machine does not have the peer token of %s", u.spec.Name), "run 'skyserve up' on the machine that first deployed the service")
	}
	kept.Token = rand.Text()
	return kept.Token, u.svc.StoreValue(notePeers, kept)
}

// awaitCertificates waits until every balancer has obtained its certificate, and prints what it is
// waiting for. The name is published by then, since an authority may resolve it.
func (u *upRun) awaitCertificates(ctx context.Context, have []provision.Object) error {
	if t := u.spec.Balancer.TLS; t == nil || t.ACME == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	h := deploy.Delivery{Party: u.operator.party, Machines: have}
	err := deploy.AwaitCertificates(ctx, have, h.Certificate, func(id, why string) { u.printLine("%s waiting for certificate: %s", id, why) })
	if err == nil {
		u.printLine("every balancer has a certificate for %s", u.spec.DNS.Name)
	}
	return err
}
