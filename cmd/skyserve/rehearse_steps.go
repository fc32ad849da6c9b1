package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// rehearsalStep is one step of a rehearsal. The report is made from the table of steps.
type rehearsalStep struct {
	Name   string `json:"step"`
	Proves string `json:"proves"`
	run    func(*rehearsal, context.Context) error
	// hint is the next step after a failure whose error has none.
	hint string
	// always runs the step after a failure too: it deletes what was created.
	always bool
	// applies reports whether a rehearsal has the step; nil = always.
	applies func(*rehearsal) bool
}

// rehearsalSteps are the steps in their order. The steps from plan to replicas observe one run of `up`.
var rehearsalSteps = []rehearsalStep{
	{Name: "leftovers", Proves: "nothing of an earlier rehearsal remains", run: (*rehearsal).deleteLeftovers},
	{Name: "plan", Proves: "credentials, regions, networks, quotas and the program are valid; the cost is known", run: (*rehearsal).planUp},
	{
		Name: "identities", Proves: "roles or service accounts of machines exist", run: (*rehearsal).awaitIdentities,
		hint: "compare the permissions of your credentials with docs/clouds.md",
	},
	{
		Name: "firewalls", Proves: "firewalls of balancers and replicas exist", run: (*rehearsal).awaitFirewalls,
		hint: "compare the permissions of your credentials with docs/clouds.md",
	},
	{
		Name: "machines", Proves: "the clouds accept the launches: images, networks, permissions, capacity", run: (*rehearsal).awaitMachines,
		hint: "the message of the cloud names what it rejected",
	},
	{
		Name: "boot", Proves: "balancers boot, download the program and run the agent, which can be reached", run: (*rehearsal).awaitBoot,
		hint: "read the console output of the machine while it exists; check that machines can download skyserve (from the bucket, or --program URL) and that subnets route to the internet",
	},
	{
		Name: "enrolment", Proves: "the clouds report the keys of balancers, which receive certificates and configurations", run: (*rehearsal).awaitEnrolment,
		hint: "at AWS the key is read from the console output, at Google from guest attributes (compute.disableGuestAttributesAccess must not be enforced)",
	},
	{Name: "balancers", Proves: "balancers, controller and store run", run: (*rehearsal).awaitBalancers, hint: "the reason is the last one that the agent reported"},
	{
		Name: "replicas", Proves: "replicas boot, are enrolled through balancers, and their simulated engines serve", run: (*rehearsal).awaitReplicas,
		hint: "the reason is the last one that the agent reported",
	},
	{Name: "name", Proves: "the DNS name has a record for each balancer", run: (*rehearsal).checkPublishedName, applies: func(r *rehearsal) bool { return r.spec.DNS != nil }},
	{
		Name: "request", Proves: "a balancer in each region serves a request with its replica, over mutual TLS, and rejects another API key", run: (*rehearsal).sendRequests,
		hint: "check that this machine can reach the public port of machines",
	},
	{
		Name: "interruption", Proves: "the controller replaces a replica whose machine was terminated, with the identity of its machine", run: (*rehearsal).interruptReplicas,
		hint: "the identity of balancers may not launch machines; 'skyserve doctor' checks the service accounts of Google",
	},
	{Name: "down", Proves: "down deletes everything", run: (*rehearsal).down, always: true},
	{Name: "gc", Proves: "the clouds list nothing of the service any more", run: (*rehearsal).verifyNothingIsLeft, always: true},
}

// deleteLeftovers deletes what a killed rehearsal of this machine left. A service of that name that is
// not a rehearsal is an error.
func (r *rehearsal) deleteLeftovers(ctx context.Context) error {
	_, err := r.home.Find(r.name)
	var none *local.NoServiceError
	if errors.As(err, &none) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(r.svc.SpecFile()); errors.Is(err, fs.ErrNotExist) { // killed before it created anything
		unlock, err := r.svc.LockWait(ctx, nil)
		if err != nil {
			return err
		}
		defer unlock()
		r.svc.RemoveUnused()
		return nil
	}
	is, err := isRehearsal(r.svc)
	if err != nil {
		return err
	}
	if !is {
		return usage(fmt.Errorf("the service %s exists and is not a rehearsal", r.name), "rename it, or rehearse a service with another name")
	}
	fmt.Fprintf(r.errOut, "deleting what an earlier rehearsal left\n")
	return r.down(ctx)
}

// planUp starts `up` for the service of the rehearsal, and returns when its changes are planned and
// confirmed.
func (r *rehearsal) planUp(ctx context.Context) error {
	options := &upOptions{
		file: r.spec.Name + ".yaml", yes: true, wait: waitReplicas, timeout: r.o.timeout,
		clouds: r.o.clouds, programURL: r.o.programURL, replaceAfter: defaultReplaceAfter,
	}
	u := &up{upOptions: options, out: io.Discard, errOut: r.errOut, started: time.Now(), observer: r.up}
	r.up.started = true
	go func() { r.up.recordEnd(deployService(ctx, u, r.in, r.spec, r.text)) }()
	return r.up.await(ctx, func() bool { return r.up.planned != nil })
}

func (r *rehearsal) awaitIdentities(ctx context.Context) error {
	close(r.up.release)
	return r.up.await(ctx, func() bool { return r.up.hasLaunched(provision.KindIdentity) })
}

func (r *rehearsal) awaitFirewalls(ctx context.Context) error {
	return r.up.await(ctx, func() bool { return r.up.hasLaunched(provision.KindFirewall) })
}

func (r *rehearsal) awaitMachines(ctx context.Context) error {
	return r.up.await(ctx, func() bool { return r.up.hasLaunched(provision.KindBalancer, provision.KindReplica) })
}

func (r *rehearsal) awaitBoot(ctx context.Context) error {
	return r.up.await(ctx, func() bool {
		return r.up.allStatuses(provision.KindBalancer, func(s agent.Status) bool { return s.Phase != agent.PhaseWaiting || s.Reason == deploy.WaitingForKey })
	})
}

func (r *rehearsal) awaitEnrolment(ctx context.Context) error {
	return r.up.await(ctx, func() bool {
		return r.up.allStatuses(provision.KindBalancer, func(s agent.Status) bool { return s.Phase != agent.PhaseWaiting })
	})
}

func (r *rehearsal) awaitBalancers(ctx context.Context) error {
	return r.up.await(ctx, func() bool {
		return r.up.allStatuses(provision.KindBalancer, func(s agent.Status) bool { return s.Phase == agent.PhaseReady })
	})
}

// awaitReplicas waits for the end of `up`, which waits for the replicas.
func (r *rehearsal) awaitReplicas(ctx context.Context) error {
	return r.up.await(ctx, func() bool { return r.up.ended && r.up.err == nil })
}

// checkPublishedName checks that the hosted zone has a record for each balancer.
func (r *rehearsal) checkPublishedName(ctx context.Context) error {
	zone, err := r.o.clouds.nameZone(ctx, r.spec, nil)
	if err != nil {
		return err
	}
	n, err := zone.Get(ctx, r.spec.DNS.Zone, r.spec.DNS.Name)
	if err == nil && len(n.Records) != len(r.spec.Regions) {
		err = fmt.Errorf("%s has %d records, want %d", r.spec.DNS.Name, len(n.Records), len(r.spec.Regions))
	}
	return err
}

// sendRequests sends requests to the balancer of each region.
func (r *rehearsal) sendRequests(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, servedTimeout, fmt.Errorf("no request was served within %s", servedTimeout))
	defer cancel()
	balancers, err := r.machines(ctx, provision.KindBalancer)
	if err != nil {
		return err
	}
	for _, region := range r.spec.Regions {
		if err := r.awaitServed(ctx, region.Name, deploy.PublicURL(r.spec, balancers[region.Name])); err != nil {
			return err
		}
		if err := r.checkRejectsOtherKey(ctx, region.Name, deploy.PublicURL(r.spec, balancers[region.Name])); err != nil {
			return err
		}
	}
	return nil
}

// interruptReplicas terminates the machine of each replica, as a cloud does at the end of a spot
// machine, and waits until the controller has replaced all.
func (r *rehearsal) interruptReplicas(ctx context.Context) error {
	balancers, err := r.machines(ctx, provision.KindBalancer)
	if err != nil {
		return err
	}
	before, err := r.machines(ctx, provision.KindReplica)
	if err != nil {
		return err
	}
	for _, region := range r.spec.Regions {
		fmt.Fprintf(r.errOut, "terminating the machine of the replica in %s\n", region.Name)
		if err := r.places.Terminate(ctx, before[region.Name]); err != nil {
			return fmt.Errorf("terminating the replica of %s: %w", region.Name, err)
		}
	}
	if err := r.awaitReplacements(ctx, before); err != nil {
		return err
	}
	for _, region := range r.spec.Regions {
		if err := r.awaitServed(ctx, region.Name, deploy.PublicURL(r.spec, balancers[region.Name])); err != nil {
			return fmt.Errorf("waiting for the replacement to serve: %w", err)
		}
	}
	return nil
}

// awaitReplacements waits until the clouds list a replica other than the terminated one in each region.
// A response to a request proves no replacement: a terminated engine serves until its machine is off.
func (r *rehearsal) awaitReplacements(ctx context.Context, before map[service.Region]provision.Object) error {
	for {
		after, err := r.machines(ctx, provision.KindReplica)
		for _, region := range cloud.Regions(r.spec) {
			if err == nil && after[region].Handle == before[region].Handle && region.Cloud() == service.CloudAWS { // names of Google are used again
				err = fmt.Errorf("the replica of %s was terminated and still runs", region)
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the controller to replace the replica: %w: %w", context.Cause(ctx), err)
		case <-time.After(requestInterval):
		}
	}
}

// machines returns the running machine of a kind in each region of the rehearsal. A region without one
// is an error.
func (r *rehearsal) machines(ctx context.Context, kind provision.ObjectKind) (map[service.Region]provision.Object, error) {
	have, err := r.places.List(ctx, r.name)
	if err != nil {
		return nil, err
	}
	found := map[service.Region]provision.Object{}
	for _, o := range have {
		if o.Kind == kind && o.TerminatedReason == "" {
			found[o.Region] = o
		}
	}
	for _, region := range cloud.Regions(r.spec) {
		if _, ok := found[region]; !ok {
			return nil, fmt.Errorf("the clouds list no %s in %s", kind, region)
		}
	}
	return found, nil
}

// down deletes the service of the rehearsal; nothing where there is none.
func (r *rehearsal) down(ctx context.Context) error {
	err := runDown(ctx, &downOptions{name: r.name, yes: true, clouds: r.o.clouds}, nil, io.Discard, r.errOut)
	var none *local.NoServiceError
	if errors.As(err, &none) {
		return nil
	}
	return err
}

// verifyNothingIsLeft checks, like `gc`, that the clouds list no object and no name of the service. After
// calls were cut off it waits until lists contain what they created, and deletes that first.
func (r *rehearsal) verifyNothingIsLeft(ctx context.Context) error {
	if r.cut {
		select {
		case <-time.After(rehearsalSettleTime):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		late, err := r.remaining(ctx)
		if err == nil && len(late.objects)+len(late.names) > 0 {
			err = late.deleteOrphans(ctx, r.errOut)
		}
		if err != nil {
			return err
		}
	}
	found, err := r.remaining(ctx)
	if err != nil {
		return err
	}
	var remaining []string
	for _, o := range found.objects {
		remaining = append(remaining, fmt.Sprintf("%s %s in %s (%s)", o.Kind, o.ID, o.Region, o.Handle))
	}
	for _, n := range found.names {
		remaining = append(remaining, "DNS name "+n.Name)
	}
	if len(remaining) > 0 {
		return fmt.Errorf("%s left:\n  %s", printable.Count(len(remaining), "object"), strings.Join(remaining, "\n  "))
	}
	return nil
}

// remaining returns what the clouds list of the service of the rehearsal.
func (r *rehearsal) remaining(ctx context.Context) (*orphans, error) {
	o := &gcOptions{clouds: r.o.clouds, unknown: r.name}
	for _, region := range r.spec.Regions {
		o.regions = append(o.regions, string(region.Name))
	}
	if r.spec.DNS != nil {
		o.zones = []string{r.spec.DNS.Zone}
	}
	found, err := findOrphans(ctx, o)
	if err != nil {
		return nil, err
	}
	found.objects = slices.DeleteFunc(found.objects, func(o provision.Object) bool { return o.Service != r.name })
	found.names = slices.DeleteFunc(found.names, func(n provision.PublicName) bool { return n.Service != r.name })
	return found, nil
}
