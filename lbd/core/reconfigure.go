package core

import (
	"cmp"
	"slices"
	"time"
)

// Reconfigure makes cfg the configuration from now on and returns what to do
// about it, in order: requests that wait may have a place now. The actions are
// valid until the next Step. cfg.Policy must be a fresh instance.
//
// Nothing that is known is lost: the trees, the paces, the counts, what each
// tenant was served, and where every request is. Requests that wait stay in the
// queue, in the new order; none ends here. What they wait for beyond a new bound
// ends them at the next tick, and what is in the queue beyond a new QueueLimit
// stays. TreeBytes, TreeOrder and ShareBytes are fixed for a balancer's life:
// those of cfg are not looked at.
func (b *Balancer) Reconfigure(now time.Duration, cfg Config) []Action {
	b.actions, b.decisions = b.actions[:0], b.decisions[:0]
	old, held := b.cfg, b.traits.Holds
	cfg.TreeBytes, cfg.TreeOrder, cfg.ShareBytes = old.TreeBytes, old.TreeOrder, old.ShareBytes
	b.cfg, b.traits = cfg, cfg.Policy.Traits()
	b.retries.rebound(&old, &cfg)
	b.rebreak(now)
	b.rebatch()
	b.requeueAll(now, b.traits.Holds != held || cfg.SessionLead != old.SessionLead)
	b.drainAll(now)
	return b.actions
}

// rebound brings the stock of retries within a new bound; where there was none
// there was no stock either, and it begins full.
func (r *retryBudget) rebound(old, cfg *Config) {
	if old.RetryBurst <= 0 {
		r.stock = float64(cfg.RetryBurst)
		return
	}
	r.stock = min(r.stock, float64(max(0, cfg.RetryBurst)))
}

// rebreak takes back the ejections that the configuration would not make.
func (b *Balancer) rebreak(now time.Duration) {
	for _, t := range b.replicas {
		switch k := &t.breaker; {
		case b.cfg.EjectAfter <= 0:
			*k = breaker{}
		case k.ejected(now):
			k.until = min(k.until, now+b.cfg.EjectMost)
		}
	}
}

// rebatch begins or ends to keep what is known of each target for a policy that
// decides for whole pools.
func (b *Balancer) rebatch() {
	kept := b.batch.policy != nil
	b.batch = newBatch(b.cfg.Policy)
	if kept == (b.batch.policy != nil) {
		return
	}
	flying := b.inFlight()
	for _, r := range flying { // their targets too, some of which were removed
		r.pooled = pooled{}
		if r.target != nil {
			r.target.there, r.target.talking, r.target.each = nil, 0, 0
		}
	}
	if kept {
		return
	}
	for _, r := range flying {
		if r.target == nil {
			continue
		}
		b.joined(r.target, r)
		if r.prefilled {
			b.talks(r)
		}
	}
	for _, r := range flying {
		if r.talks { // how much of the target's tokens was r's, nobody counted: an equal part
			r.eachAt = -float64(r.target.work.generated) / float64(r.target.talking)
		}
	}
}

// inFlight lists all requests in the order in which they came.
func (b *Balancer) inFlight() []*request {
	all := make([]*request, 0, len(b.requests))
	for _, r := range b.requests {
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y *request) int { return cmp.Compare(x.seq, y.seq) })
	return all
}

// requeueAll puts the requests that wait where the configuration says, as if
// none had been weighed before. With rank, all requests get a rank of their own
// again, those at targets too: they may come back.
func (b *Balancer) requeueAll(now time.Duration, rank bool) {
	for _, t := range b.replicas {
		t.held = 0
	}
	for _, q := range b.queues {
		b.pool = q.all(b.pool[:0])
		for _, r := range b.pool {
			q.sit(r)
		}
	}
	flying := b.inFlight()
	for _, r := range flying {
		r.kept = nil
		if rank {
			b.rank(r)
		}
	}
	for _, q := range b.queues {
		q.reorder(now, b.cfg.ordering(q.model))
	}
	for _, r := range flying {
		if r.target == nil && !r.parked {
			r.weighed = false
			b.queue(r.Model).stand(r)
		}
	}
}

// reorder gives a queue another order; all that wait in it must sit.
func (q *queue) reorder(now time.Duration, o ordering) {
	q.clock, q.ordering = max(q.clock, now), o
	q.passed, q.unweighed = false, q.n
}
