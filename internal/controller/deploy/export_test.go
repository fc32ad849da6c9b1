package deploy

import (
	"context"
	"time"

	"skyserve/provision"
)

// SetProber replaces reading the status of machines from their agents. Balancers use every replica
// whose agent reports it ready.
func (k *Reconciler) SetProber(prober func(have []provision.Object) map[string]AgentReport) {
	k.prober = prober
	k.servers = func() map[string]bool {
		ready := map[string]bool{}
		for id := range k.seen {
			ready[id] = true
		}
		return ready
	}
}

// ReadyAtBalancers calls readyAtBalancers.
func (h *Delivery) ReadyAtBalancers(ctx context.Context, seen map[string]AgentReport) map[string]bool {
	return h.readyAtBalancers(ctx, seen)
}

// PollInterval is pollInterval.
const PollInterval = pollInterval

// DrainedBeforeEnd calls drainedBeforeEnd.
func DrainedBeforeEnd(draining map[string]bool, have []provision.Object, seen map[string]AgentReport, now time.Time) map[string]bool {
	return drainedBeforeEnd(draining, have, seen, now)
}

// SetLogs replaces reading the logs of engines from their agents.
func (k *Reconciler) SetLogs(read func(id string) string) {
	k.logs = func(_ context.Context, r provision.Object) ([]byte, error) { return []byte(read(r.ID)), nil }
}

// SetEnrolled sets the machines that are recorded elsewhere.
func (e *Enrolments) SetEnrolled(enrolled map[string][]string) { e.enrolled = enrolled }
