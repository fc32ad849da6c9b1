package deploy

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Timeouts and intervals of draining a replica, with their reasons.
const (
	// drainTimeout is the maximum time in which a replica completes its requests: a response of
	// 4,000 tokens at 25 per second has a duration of 160 s, and few are longer.
	drainTimeout = 3 * time.Minute
	// adminTimeout is the timeout of one request to a busy balancer on another continent.
	adminTimeout = 5 * time.Second
	// drainPollInterval is the polling interval of a replica that is draining or resuming.
	drainPollInterval = 500 * time.Millisecond
	// useTimeout is the maximum time in which a balancer detects that a replica is ready again: it
	// polls ten times per second.
	useTimeout = 10 * time.Second
	// peerDelay is the maximum time until the state of a replica has reached other balancers.
	peerDelay = time.Second
)

// adminClient is a client of a balancer's admin API.
type adminClient struct{ *telemetry.Client }

// eachAdmin calls do for each balancer with an address, concurrently.
func (dl *Delivery) eachAdmin(do func(adminClient)) {
	dl.eachBalancer(func(_ provision.Object, a adminClient) { do(a) })
}

// adminURL returns the URL at which this program reaches a balancer's admin API.
func (dl *Delivery) adminURL(b provision.Object) string {
	if b.ID == dl.Self {
		return "https://" + cloud.EndpointsOf(b).Listen.Admin
	}
	return AdminURL(b)
}

// Drain drains a replica at every balancer, and returns when its outstanding requests have
// completed there and at its agent (a controller may have moved it to another balancer), or after 3 minutes. It does
// not wait for machines that do not respond.
func (dl *Delivery) Drain(ctx context.Context, o provision.Object) {
	if o.Kind != provision.KindReplica {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	dl.eachAdmin(func(b adminClient) {
		if !b.drainReplica(ctx, o.ID) {
			return
		}
		for w, known := b.replicaState(ctx, o.ID); known && w.Outstanding > 0; w, known = b.replicaState(ctx, o.ID) {
			if !sleep(ctx, drainPollInterval) {
				return
			}
		}
	})
	for dl.readStatusesOf(ctx, []provision.Object{o})[o.ID].InFlight > 0 && sleep(ctx, drainPollInterval) {
	}
}

// Resume makes balancers use replicas again that Drain drained; replicas that an operator or a
// controller drained stay drained. A balancer that does not respond receives the current replicas
// when it restarts.
func (dl *Delivery) Resume(ctx context.Context, replicas []provision.Object) {
	dl.attachAgain(ctx, telemetry.DrainedByUp, func(id string) bool {
		return slices.ContainsFunc(replicas, func(o provision.Object) bool { return o.ID == id })
	})
}

// Undrain makes balancers use a replica again that an operator drained by their admin API, waits until one reports it ready,
// for at most 10 s, and reports whether any had it drained. Decisions of operators are not changed: see ReplicaDecisions.
func (dl *Delivery) Undrain(ctx context.Context, id string) bool {
	if !dl.attachAgain(ctx, "", func(other string) bool { return other == id }) {
		return false
	}
	dl.awaitReady(ctx, id)
	return true
}

// attachAgain attaches replicas again at the balancers where they are drained by a program, or by an operator if by is
// empty. It reports whether there was one.
func (dl *Delivery) attachAgain(ctx context.Context, by string, selected func(id string) bool) bool {
	var found atomic.Bool
	dl.eachAdmin(func(b adminClient) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		workers, err := b.Workers(ctx)
		if err != nil {
			return
		}
		for _, w := range workers {
			if w.State == service.StateDraining && w.DrainedBy == by && selected(w.ID) {
				found.Store(true)
				_, _ = b.AddWorker(ctx, w.ReplicaConfig) // rejected where a controller moved it to another balancer meanwhile
			}
		}
	})
	return found.Load()
}

// ResumeAndWait resumes one replica, and returns once a balancer reports it ready and peerDelay has passed,
// or after 10 s.
func (dl *Delivery) ResumeAndWait(ctx context.Context, o provision.Object) {
	dl.Resume(ctx, []provision.Object{o})
	dl.awaitReady(ctx, o.ID)
	sleep(ctx, peerDelay)
}

// awaitReady returns once no balancer that uses a replica waits for it, or after useTimeout.
func (dl *Delivery) awaitReady(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	dl.eachAdmin(func(b adminClient) {
		for w, known := b.replicaState(ctx, id); known && w.State != service.StateReady && w.State != service.StateDraining; w, known = b.replicaState(ctx, id) {
			if !sleep(ctx, drainPollInterval) {
				return
			}
		}
	})
}

// sleep waits; it returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// drainReplica drains a replica at a balancer. It returns false when the replica is not attached to
// the balancer, or the balancer does not respond.
func (b adminClient) drainReplica(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	return b.DrainWorker(ctx, id, telemetry.DrainedByUp) == nil
}

// replicaState returns the state of a replica at a balancer; false when the replica is not attached to it,
// or the balancer does not respond.
func (b adminClient) replicaState(ctx context.Context, id string) (telemetry.Worker, bool) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	workers, err := b.Workers(ctx)
	i := slices.IndexFunc(workers, func(w telemetry.Worker) bool { return w.ID == id })
	if err != nil || i < 0 {
		return telemetry.Worker{}, false
	}
	return workers[i], true
}
