package core

import (
	"cmp"
	"slices"
	"time"
)

// Reconfigure replaces the configuration and returns the actions to perform, in order: waiting
// requests may be placed now. The actions are valid until the next Step. cfg.Policy must be a new
// instance.
//
// All state is kept: the trees, the paces, the counts, the tokens that each tenant was served, and
// the place of every request. Waiting requests stay in the queue, in the new order; Reconfigure
// ends none of them. A request that exceeds a new time bound ends at the next tick; requests beyond
// a new QueueLimit stay. TreeBytes, TreeOrder and ShareBytes are fixed for the life of a balancer;
// their values in cfg are ignored.
func (b *Balancer) Reconfigure(now time.Duration, cfg Config) []Action {
	b.actions, b.decisions = b.actions[:0], b.decisions[:0]
	old, held := b.cfg, b.traits.Holds
	cfg.TreeBytes, cfg.TreeOrder, cfg.ShareBytes = old.TreeBytes, old.TreeOrder, old.ShareBytes
	b.cfg, b.traits = cfg, cfg.Policy.Traits()
	b.updateNeighbours()
	b.retries.Resize(old.RetryBurst, cfg.RetryBurst)
	b.reconfigureBreakers(now)
	b.reconfigurePools()
	b.addColdQueues(now)
	b.requeueAll(now, b.traits.Holds != held || cfg.SessionLead != old.SessionLead)
	b.placeAllWaiting(now)
	return b.actions
}

// reconfigurePools starts or stops tracking the targets' streams, which only policies that decide
// for whole pools need.
func (b *Balancer) reconfigurePools() {
	kept := b.pools.policy != nil
	b.pools = newPoolPlacement(b.cfg.Policy)
	if kept == (b.pools.policy != nil) {
		return
	}
	unfinished := b.unfinishedRequests()
	for _, r := range unfinished { // their targets are reset here too, because some were removed
		r.poolState = poolState{rankIndex: r.rankIndex}
		if r.target != nil {
			r.target.streaming, r.target.tokensPerStream = 0, 0
		}
	}
	if kept {
		return
	}
	for _, r := range unfinished {
		if r.target != nil && r.prefilled {
			b.markStreaming(r)
		}
	}
	for _, r := range unfinished {
		if r.streaming { // r's part of the target's tokens was not counted: an equal part is assumed
			r.tokensPerStreamAtStart = -float64(r.target.work.generatedTokens) / float64(r.target.streaming)
		}
	}
}

// unfinishedRequests returns all requests, waiting or sent, in the order of their arrival.
func (b *Balancer) unfinishedRequests() []*request {
	all := make([]*request, 0, len(b.requests))
	for _, r := range b.requests {
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y *request) int { return cmp.Compare(x.Seq, y.Seq) })
	return all
}

// requeueAll moves the waiting requests to their places in the new configuration, as if none had
// been evaluated. With newSortTimes, all requests receive a new sort time, including those at
// targets, because they may return to the queue.
func (b *Balancer) requeueAll(now time.Duration, newSortTimes bool) {
	for _, t := range b.replicas {
		t.heldRequests = 0
	}
	for _, r := range b.unfinishedRequests() {
		r.waitsFor = nil
		if r.nextSortTime = r.SortTime; newSortTimes {
			r.nextSortTime = b.sortTime(r)
		}
		if r.target != nil || r.Parked() { // the sort time of a queued request may change only in Reorder
			r.SortTime = r.nextSortTime
		}
	}
	for _, q := range b.queues {
		q.ordering = b.cfg.ordering(q.model)
		q.evaluatedSinceReport, q.unevaluated = false, q.Len()
		q.Reorder(now, q.position, func(r *request) {
			r.evaluated, r.SortTime = false, r.nextSortTime
		})
	}
}
