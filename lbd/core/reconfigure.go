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
	b.retries.Resize(old.RetryBurst, cfg.RetryBurst)
	b.reconfigureBreakers(now)
	b.reconfigureBatch()
	b.requeueAll(now, b.traits.Holds != held || cfg.SessionLead != old.SessionLead)
	b.drainAll(now)
	return b.actions
}

// reconfigureBatch begins or ends to keep what is known of each target for a policy that
// decides for whole pools.
func (b *Balancer) reconfigureBatch() {
	kept := b.batch.policy != nil
	b.batch = newBatch(b.cfg.Policy)
	if kept == (b.batch.policy != nil) {
		return
	}
	inFlight := b.inFlight()
	for _, r := range inFlight { // their targets too, some of which were removed
		r.poolState = poolState{}
		if r.target != nil {
			r.target.requests, r.target.streaming, r.target.tokensEach = nil, 0, 0
		}
	}
	if kept {
		return
	}
	for _, r := range inFlight {
		if r.target == nil {
			continue
		}
		b.addToRank(r.target, r)
		if r.prefilled {
			b.markStreaming(r)
		}
	}
	for _, r := range inFlight {
		if r.streaming { // how much of the target's tokens was r's, nobody counted: an equal part
			r.tokensEachAtStart = -float64(r.target.work.generated) / float64(r.target.streaming)
		}
	}
}

// inFlight lists all requests in the order in which they came.
func (b *Balancer) inFlight() []*request {
	all := make([]*request, 0, len(b.requests))
	for _, r := range b.requests {
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y *request) int { return cmp.Compare(x.Seq, y.Seq) })
	return all
}

// requeueAll puts the requests that wait where the configuration says, as if
// none had been weighed before. With rank, all requests get a rank of their own
// again, those at targets too: they may come back.
func (b *Balancer) requeueAll(now time.Duration, rank bool) {
	for _, t := range b.replicas {
		t.heldRequests = 0
	}
	for _, r := range b.inFlight() {
		r.waitsFor = nil
		if r.nextRank = r.Rank; rank {
			r.nextRank = b.queueRank(r)
		}
		if r.target != nil || r.Parked() { // the rank of a request may not change while it waits
			r.Rank = r.nextRank
		}
	}
	for _, q := range b.queues {
		q.ordering = b.cfg.ordering(q.model)
		q.evaluatedSinceReport, q.unevaluated = false, q.Len()
		q.Reorder(now, q.position, func(r *request) {
			r.evaluated, r.Rank = false, r.nextRank
		})
	}
}
