package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/fleet"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// handOver gives every machine what it is to run and waits until all do. isReady is told of each
// that is; nil = nobody is.
func (u *upRun) handOver(ctx context.Context, have []provision.Object, isReady func(id string)) error {
	h, deployments, err := u.handover(have)
	if err != nil {
		return err
	}
	if tell := h.Progress; isReady != nil {
		h.Progress = func(id string, s agent.Status) {
			tell(id, s)
			if s.Phase == agent.PhaseReady {
				isReady(id)
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	return h.Run(ctx, deployments)
}

// handover is the way to machines, with what each is to run.
func (u *upRun) handover(have []provision.Object) (*fleet.Handover, map[string]agent.Deployment, error) {
	content, err := u.content()
	if err != nil {
		return nil, nil, err
	}
	have = provision.OneOfEach(u.changes.Wants, have) // the controller is about to remove the second machine of an id
	deployments, err := fleet.Deployments(content, have)
	return &fleet.Handover{
		Service: u.spec.Name, Party: u.operator.party, Authority: u.operator.authority, Enrolments: u.enrolments, Revoked: u.operator.revoked, Witness: u.places, Have: have,
		Progress: func(id string, s agent.Status) {
			if u.isReload(id) && s.Phase == agent.PhaseReady {
				u.line("reloaded %s", id)
			} else if cloud.Rents(u.spec) || s.Phase == agent.PhaseFailed || s.Phase == agent.PhaseDraining { // here the rest takes a moment
				u.line("%s %s", id, strings.TrimSpace(string(s.Phase)+" "+s.Reason))
			}
		},
	}, deployments, err
}

// inform tells the controller of a service that runs what is wanted from now on, so that
// it undoes nothing of this. One that does not answer is told of: it has what it had.
func (u *upRun) inform(ctx context.Context) error {
	h, deployments, err := u.handover(u.changes.Have)
	if err != nil {
		return err
	}
	if err := h.Inform(ctx, deployments); err != nil && ctx.Err() == nil {
		u.line("the controller is not told of this yet: %v", err)
	}
	return nil
}

// content is what machines are handed.
func (u *upRun) content() (c fleet.Content, err error) {
	c = fleet.Content{Spec: u.spec, Text: u.text, Secrets: fleet.LocalSecrets, Bundle: &fleet.Bundle{}, Enrolled: u.enrolments.Handles(), Zone: u.hostedZone, Leaving: u.leaving}
	if c.PeerToken, err = u.peerToken(); err != nil {
		return c, err
	}
	if !cloud.Rents(u.spec) {
		if c.Base, err = u.base(); err != nil {
			return c, err
		}
		if c.AdminToken, err = u.svc.NextAdminToken(); err != nil {
			return c, err
		}
	}
	if c.Bundle.Own, c.Bundle.Issuer, err = identityOf(u.svc).Controller(cloud.ControllerMachine(u.spec), time.Now()); err != nil {
		return c, err
	}
	own := means{
		Program: u.program, EndpointGCP: u.clouds.endpointGCP, Project: u.clouds.project, Networks: networksOf(u.spec), Accounts: u.spec.GCP,
		EndpointAWS: cmp.Or(u.clouds.endpointAWS, os.Getenv(envEndpointAWS)), // which its machine does not have
	}
	if !cloud.Rents(u.spec) {
		own.Dir = u.svc.Dir()
	}
	c.Bundle.Means, err = json.Marshal(own)
	return c, err
}

// notePeers is where the token of the balancers is kept.
const notePeers = "peers.json"

// peerToken is the token of the service's balancers, which the machine of its authority
// makes and keeps.
func (u *upRun) peerToken() (string, error) {
	var kept struct {
		Token string `json:"token"`
	}
	if err := u.svc.Note(notePeers, &kept); err != nil || kept.Token != "" {
		return kept.Token, err
	}
	if u.operator.authority == nil {
		return "", failed(fmt.Errorf("handing over: the balancers' token is on the machine that %s was first brought up from", u.spec.Name), "change the service there")
	}
	kept.Token = rand.Text()
	return kept.Token, u.svc.TakeNote(notePeers, kept)
}

// awaitCertificates waits until every balancer has the certificate that it obtains, and tells
// what it waits for; the name is published by then, since an authority may ask for it.
func (u *upRun) awaitCertificates(ctx context.Context, have []provision.Object) error {
	if t := u.spec.Balancer.TLS; t == nil || t.ACME == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
	defer cancel()
	h := fleet.Handover{Party: u.operator.party, Have: have}
	err := fleet.AwaitCertificates(ctx, have, h.Certificate, func(id, why string) { u.line("%s waiting for certificate: %s", id, why) })
	if err == nil {
		u.line("every balancer has a certificate for %s", u.spec.DNS.Name)
	}
	return err
}
