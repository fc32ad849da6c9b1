package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// deliverAndPublish delivers every machine's configuration and waits until all are ready. It
// adds each balancer to the public name as soon as it is ready, since replicas take much longer.
// After a timeout the name points to the balancers that are ready.
func (u *upRun) deliverAndPublish(ctx context.Context, have []provision.Object) error {
	if u.zone == nil {
		return u.deliver(ctx, have, nil)
	}
	p := &publisher{up: u, have: have, pending: u.launchedBalancers(), ready: make(chan struct{}, 1)}
	if u.spec.DNS == nil { // remove the name that the service had before
		if err := u.deliver(ctx, have, nil); err != nil {
			return err
		}
		return p.publish(ctx, nil)
	}
	var publishing sync.WaitGroup
	publishing.Go(func() { p.publishChanges(ctx) })
	err := u.deliver(ctx, have, p.markReady)
	close(p.ready)
	publishing.Wait()
	if err != nil {
		return err
	}
	return p.publish(ctx, nil) // including balancers that were ready before
}

// launchedBalancers returns the ids of the balancers that this run launched.
func (u *upRun) launchedBalancers() map[string]bool {
	ids := map[string]bool{}
	for _, c := range u.changes.Changes {
		if c.Kind() == provision.KindBalancer && c.Action != provision.ActionTerminate {
			ids[c.ID()] = true
		}
	}
	return ids
}

// publisher publishes the name of a service while its machines come up.
type publisher struct {
	up    *upRun
	have  []provision.Object
	ready chan struct{} // receives a value when another balancer is ready

	mu      sync.Mutex
	pending map[string]bool // balancers that are not ready yet, by id
}

// markReady marks a machine as ready and triggers publication if it is a balancer of this run.
func (p *publisher) markReady(id string) {
	p.mu.Lock()
	waited := p.pending[id]
	delete(p.pending, id)
	p.mu.Unlock()
	if !waited {
		return
	}
	select {
	case p.ready <- struct{}{}:
	default: // a publication is pending already
	}
}

// publishInterval is the time after which a publication that failed is tried again: a limit of the rate of Route 53's API
// has passed by then.
const publishInterval = 10 * time.Second

// publishChanges publishes the name whenever another balancer is ready, until the channel is closed, and again after a
// failure, the last time when the channel is closed. It prints errors.
func (p *publisher) publishChanges(ctx context.Context) {
	published, failed := false, false
	for open := true; open; {
		var retry <-chan time.Time
		if failed {
			retry = time.After(publishInterval)
		}
		select {
		case _, open = <-p.ready:
			if !open && !failed {
				return
			}
		case <-retry:
		}
		p.mu.Lock()
		waits := maps.Clone(p.pending)
		p.mu.Unlock()
		err := p.publish(ctx, waits)
		failed = err != nil && ctx.Err() == nil
		switch {
		case failed && open:
			p.up.printLine("publishing %s failed, will retry: %v", p.up.spec.DNS.Name, err)
		case failed:
			p.up.printLine("publishing %s failed: %v", p.up.spec.DNS.Name, err)
		case err == nil && !published:
			published = true
			p.up.printLine("published %s", p.up.spec.DNS.Name)
		}
	}
}

// publish sets the name's records to all balancers except those in without.
func (p *publisher) publish(ctx context.Context, without map[string]bool) error {
	have := slices.DeleteFunc(slices.Clone(p.have), func(o provision.Object) bool { return without[o.ID] })
	err := deploy.PublishName(ctx, p.up.zone, p.up.svc, publicName(p.up.spec, p.up.operator.owner, have))
	if err == nil {
		p.up.delivered.setPublished()
	}
	return err
}

// grantRecords lets controllers change the health checks of the published records, which are known only now.
func (u *upRun) grantRecords(ctx context.Context, have []provision.Object) error {
	if u.filter != nil || !cloud.UpdatesRecords(u.spec) {
		return nil
	}
	published, err := u.clouds.hostedZone(ctx, u.spec, u.operator.owner)
	if err != nil || slices.Equal(published.HealthChecks, u.hostedZone.HealthChecks) {
		return err
	}
	u.hostedZone = published
	if err := u.svc.StoreValue(noteZone, u.hostedZone); err != nil {
		return err
	}
	return u.deployer.GrantRecords(ctx, have, published.HealthChecks, u.progress)
}
