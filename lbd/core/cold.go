package core

import (
	"maps"
	"slices"
	"time"

	"skyserve/internal/service"
)

// A model of Config.ScaleToZero may have no ready replica in any region. It is then cold: its
// requests wait for a replica that the controller launches because of them, for at most MaxColdWait.
// They fill at most a part of the queue, so that they cannot block the requests of other models: see
// coldQueueFull.

// QueuedForStart is the Reason of ActionQueue for a request that waits for a replica to start.
const QueuedForStart = "replica_starting"

// IsCold reports whether requests for a model wait for a replica to start: the model scales to zero,
// and neither this balancer nor a peer has a live replica of it.
func (b *Balancer) IsCold(now time.Duration, model string) bool {
	return b.cfg.ScaleToZero[model] && !b.modelServedLocally(now, model) && !b.servedByPeer(now, model)
}

// servedByPeer reports whether a live peer reports live replicas of the model.
func (b *Balancer) servedByPeer(now time.Duration, model string) bool {
	if !b.cfg.Forward {
		return false
	}
	for _, t := range b.peers {
		if l := t.modelLoad(model); l != nil && l.Replicas > 0 && t.live(now, &b.cfg) {
			return true
		}
	}
	return false
}

// queueReason returns the reason for which a request waits; empty if it waits for capacity.
func (b *Balancer) queueReason(now time.Duration, r *request) string {
	switch {
	case b.IsCold(now, r.Model):
		return QueuedForStart
	case r.awaitsPrefill:
		return QueuedForPrefill
	}
	return ""
}

// coldShare is the part of Config.QueueLimit that requests of cold models may fill. A start takes
// minutes, in which they would fill the whole queue.
const coldShare = 0.5

// coldQueueFull reports whether r is for a cold model and the requests of cold models have filled
// their part of the queue. A request of the tenant with the most waiting requests of the model gives
// way to one of a tenant with fewer.
func (b *Balancer) coldQueueFull(now time.Duration, r *request) bool {
	if !b.IsCold(now, r.Model) {
		return false
	}
	waiting := 0
	for _, q := range b.queues {
		if q.Len()+q.Parked() > 0 && b.IsCold(now, q.model) {
			waiting += q.Len() + q.Parked()
		}
	}
	if waiting < max(1, int(coldShare*float64(b.cfg.QueueLimit))) {
		return false
	}
	i := b.queueIndex(r.Model)
	return !b.evictFrom(now, r, b.queues[i:i+1])
}

// trackActivity records at a tick whether the queue's model is in use, and whether it is cold.
func (b *Balancer) trackActivity(now time.Duration, q *queue) {
	if q.busy() {
		q.activeAt = now
	}
	if q.cold = q.Len()+q.Parked() > 0 && b.IsCold(now, q.model); q.cold {
		q.coldAt = now
	}
}

// busy reports whether the model has a request, waiting or at a target.
func (q *queue) busy() bool { return q.Len()+q.Parked()+q.outstanding > 0 }

// idle returns the time since the model was last in use: since it had a request, or since a replica
// of it was added or became ready.
func (q *queue) idle(now time.Duration) time.Duration {
	if q.busy() {
		return 0
	}
	return now - q.activeAt
}

// waited returns the part of r's time in the queue that counts towards maxWait: not the time for
// which its model was cold, because r could not be sent then.
func (b *Balancer) waited(now time.Duration, r *request) time.Duration {
	if r.MaxWait > 0 || len(b.cfg.ScaleToZero) == 0 {
		return now - r.WaitingSince
	}
	return now - max(r.WaitingSince, b.queue(r.Model).coldAt)
}

// waitExceeded returns, at a tick, the reason to reject r because it has waited for as long as it may;
// empty if it has not.
func (b *Balancer) waitExceeded(now time.Duration, q *queue, r *request) string {
	switch {
	case q.cold && r.MaxWait == 0:
		if now-r.WaitingSince >= b.maxColdWait(r) {
			return RejectStartExceeded
		}
	case b.waited(now, r) >= b.maxWait(r):
		return RejectWaitExceeded
	}
	return ""
}

// maxColdWait returns the maximum time of r in the queue of a cold model. A deferred request may wait
// until its deadline.
func (b *Balancer) maxColdWait(r *request) time.Duration {
	if r.Tier == service.TierDeferred {
		return max(b.cfg.MaxColdWait, b.maxWait(r))
	}
	return b.cfg.MaxColdWait
}

// addColdQueues creates the queues of the models that scale to zero, so that their time without use
// starts now.
func (b *Balancer) addColdQueues(now time.Duration) {
	for _, model := range slices.Sorted(maps.Keys(b.cfg.ScaleToZero)) {
		if i := b.queueIndex(model); i == len(b.queues) || b.queues[i].model != model {
			b.queue(model).activeAt = now
		}
	}
}
