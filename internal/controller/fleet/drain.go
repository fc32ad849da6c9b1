package fleet

import (
	"context"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Bounds of emptying a replica, each with its reason.
const (
	// drainTimeout is how long a replica may finish what it has: an answer of 4,000
	// tokens at 25 a second takes 160 s, and few are longer.
	drainTimeout = 3 * time.Minute
	// adminTimeout bounds one question to a balancer half a world away that is busy.
	adminTimeout = 5 * time.Second
	// drainLook is how often a replica that is emptied, or used again, is looked at.
	drainLook = 500 * time.Millisecond
	// useTimeout is how long a balancer may take to find that a replica serves again: it
	// asks ten times a second.
	useTimeout = 10 * time.Second
	// peersHear is how long other balancers may take to hear of it: likewise.
	peersHear = time.Second
)

// administered is a balancer by its admin API.
type administered struct{ *telemetry.Client }

// admins does something with each balancer that has an address, all of them at once.
func (h *Handover) admins(do func(administered)) {
	h.eachBalancer(func(_ provision.Object, a administered) { do(a) })
}

// adminURL is where this program reaches the admin API of a balancer.
func (h *Handover) adminURL(b provision.Object) string {
	if b.ID == h.Self {
		return "https://" + cloud.EndpointsOf(b).Inside.Admin
	}
	return AdminURL(b)
}

// Drain has every balancer send a replica nothing new, and returns when it has finished
// what they sent it, or after 3 minutes. A balancer that does not answer is not waited
// for: it sends nothing.
func (h *Handover) Drain(ctx context.Context, o provision.Object) {
	if o.Kind != provision.KindReplica {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	h.admins(func(b administered) {
		if !b.stopSending(ctx, o.ID) {
			return
		}
		for w, known := b.worker(ctx, o.ID); known && w.Outstanding > 0; w, known = b.worker(ctx, o.ID) {
			if !pause(ctx, drainLook) {
				return
			}
		}
	})
}

// Resume has balancers use replicas again that Drain took from them, whoever called it;
// what a person or a controller drained is left so. A balancer that does not answer, and
// comes back, starts with its replicas as they are wanted.
func (h *Handover) Resume(ctx context.Context, replicas []provision.Object) {
	h.admins(func(b administered) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		workers, err := b.Workers(ctx)
		if err != nil {
			return
		}
		for _, w := range workers {
			if w.State == service.StateDraining && w.DrainedBy == telemetry.ByUp && slices.ContainsFunc(replicas, func(o provision.Object) bool { return o.ID == w.ID }) {
				_, _ = b.AddWorker(ctx, w.ReplicaConfig) // refused where a controller gave it to another balancer meanwhile
			}
		}
	})
}

// Use is Resume of one replica, and returns once a balancer that has it finds that it
// serves, and the others may know; or after 10 s.
func (h *Handover) Use(ctx context.Context, o provision.Object) {
	h.Resume(ctx, []provision.Object{o})
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	h.admins(func(b administered) {
		for w, known := b.worker(ctx, o.ID); known && w.State != service.StateReady && w.State != service.StateDraining; w, known = b.worker(ctx, o.ID) {
			if !pause(ctx, drainLook) {
				return
			}
		}
	})
	pause(ctx, peersHear)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stopSending lets a replica of a balancer finish what it has and get nothing new; false
// when the balancer does not have it, or does not answer.
func (b administered) stopSending(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	return b.DrainWorker(ctx, id, telemetry.ByUp) == nil
}

// worker is a replica as a balancer has it; false when it does not, or does not answer.
func (b administered) worker(ctx context.Context, id string) (telemetry.Worker, bool) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	workers, err := b.Workers(ctx)
	i := slices.IndexFunc(workers, func(w telemetry.Worker) bool { return w.ID == id })
	if err != nil || i < 0 {
		return telemetry.Worker{}, false
	}
	return workers[i], true
}
