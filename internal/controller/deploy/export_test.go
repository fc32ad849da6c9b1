package deploy

import (
	"context"
	"time"

	"skyserve/provision"
	"skyserve/provision/remote"
)

// SetRelay replaces the agents through which the reconciler calls clouds.
func (rc *Reconciler) SetRelay(relay func(o provision.Object) remote.CallFunc) { rc.relay = relay }

// SetProber replaces reading the status of machines from their agents. Balancers use every replica
// whose agent reports it ready.
func (rc *Reconciler) SetProber(prober func(have []provision.Object) map[string]AgentReport) {
	rc.prober = prober
	rc.usedReplicas = func() map[string]bool {
		ready := map[string]bool{}
		for id := range rc.seen {
			ready[id] = true
		}
		return ready
	}
}

// ReadyAtBalancers calls readyAtBalancers.
func (dl *Delivery) ReadyAtBalancers(ctx context.Context, seen map[string]AgentReport) (own, everywhere map[string]bool) {
	return dl.readyAtBalancers(ctx, seen)
}

// PollInterval is pollInterval.
const PollInterval = pollInterval

// DrainedBeforeEnd calls drainedBeforeEnd.
func DrainedBeforeEnd(draining map[string]bool, have []provision.Object, seen map[string]AgentReport, now time.Time) map[string]bool {
	return drainedBeforeEnd(draining, have, seen, now)
}

// SetLogs replaces reading the logs of engines from their agents.
func (rc *Reconciler) SetLogs(read func(id string) string) {
	rc.logs = func(_ context.Context, r provision.Object) ([]byte, error) { return []byte(read(r.ID)), nil }
}

// SetEnrolled sets the machines that are recorded elsewhere.
func (e *Enrolments) SetEnrolled(enrolled map[string][]string) { e.enrolled = enrolled }

// UnreportedStore is unreportedStore.
var UnreportedStore = unreportedStore

// CloseConnections closes the connections for reading statuses.
func (dl *Delivery) CloseConnections() { dl.kept.Close() }
