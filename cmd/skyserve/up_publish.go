package main

import (
	"context"
	"maps"
	"slices"
	"sync"

	"skyserve/internal/controller/fleet"
	"skyserve/provision"
)

// handOverAndPublish has every machine do its work, and has the public name lead to balancers as
// soon as they answer: replicas take much longer. When the wait ends before all work, the name
// stays with those that do.
func (u *upRun) handOverAndPublish(ctx context.Context, have []provision.Object) error {
	if u.zone == nil {
		return u.handOver(ctx, have, nil)
	}
	p := &publisher{up: u, have: have, waits: u.launched(), news: make(chan struct{}, 1)}
	if u.spec.DNS == nil { // the name that the service had goes
		if err := u.handOver(ctx, have, nil); err != nil {
			return err
		}
		return p.publish(ctx, nil)
	}
	var publishing sync.WaitGroup
	publishing.Go(func() { p.run(ctx) })
	err := u.handOver(ctx, have, p.isReady)
	close(p.news)
	publishing.Wait()
	if err != nil {
		return err
	}
	return p.publish(ctx, nil) // those too that nobody waited for, since they worked before
}

// launched are the balancers that this run launched, by id.
func (u *upRun) launched() map[string]bool {
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
	up   *upRun
	have []provision.Object
	news chan struct{} // that another balancer is ready

	mu    sync.Mutex
	waits map[string]bool // balancers that are not ready yet, by id
}

// isReady notes a machine that does its work.
func (p *publisher) isReady(id string) {
	p.mu.Lock()
	waited := p.waits[id]
	delete(p.waits, id)
	p.mu.Unlock()
	if !waited {
		return
	}
	select {
	case p.news <- struct{}{}:
	default: // the news before are not read yet
	}
}

// run publishes whenever another balancer is ready, until nobody tells of any more. What fails is
// told, and tried again in the end.
func (p *publisher) run(ctx context.Context) {
	told := false
	for range p.news {
		p.mu.Lock()
		waits := maps.Clone(p.waits)
		p.mu.Unlock()
		switch err := p.publish(ctx, waits); {
		case err != nil && ctx.Err() == nil:
			p.up.line("the name %s is not published yet: %v", p.up.spec.DNS.Name, err)
		case err == nil && !told:
			told = true
			p.up.line("published %s", p.up.spec.DNS.Name)
		}
	}
}

// publish has the name lead to all balancers but some.
func (p *publisher) publish(ctx context.Context, without map[string]bool) error {
	have := slices.DeleteFunc(slices.Clone(p.have), func(o provision.Object) bool { return without[o.ID] })
	return fleet.Publish(ctx, p.up.zone, p.up.svc, publicName(p.up.spec, p.up.operator.owner, have))
}
