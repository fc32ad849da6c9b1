package store

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// healAfter is how long streams have fewer members than replicas, although enough members of the cluster respond, before
// the cluster's leader steps down.
const healAfter = 10 * time.Second

// healing decides when the leader of a cluster whose streams lack members steps down. NATS gives a stream another
// member when one of its members is removed, when a new member sends its first status, and when a leader is
// elected (reconcilePeerAssignments in jetstream_cluster.go of nats-server 2.15.2). NATS chooses among the members of
// the cluster that respond at that moment, and does not try again when another one responds later. The streams would
// then lack a copy until the leader changes, and the loss of another copy would stop writes.
type healing struct {
	since time.Time // when members were first missing; zero = none is missing
}

// isDue reports whether the leader steps down now. missing means that streams have too few copies although enough members
// of the cluster respond.
func (h *healing) isDue(now time.Time, missing bool) bool {
	switch {
	case !missing:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
	case now.Sub(h.since) >= healAfter:
		h.since = now // wait for healAfter again before another step-down
		return true
	}
	return false
}

// heal makes this member, the leader of the cluster, step down if streams have lacked members for healAfter.
func (m *maintainer) heal(ctx context.Context, status ClusterStatus, streams []*jetstream.StreamInfo) error {
	if !m.healing.isDue(time.Now(), status.online() >= Replicas && lacksMember(streams)) {
		return nil
	}
	var response server.JSApiLeaderStepDownResponse
	if err := call(ctx, m.system, server.JSApiLeaderStepDown, server.JSApiLeaderStepdownRequest{}, &response); err != nil {
		return fmt.Errorf("changing the leader of the store's cluster: %w", err)
	}
	m.s.log.Info("the leader of the store's cluster steps down, because streams lack members", "for", healAfter)
	return nil
}

// lacksMember reports whether a stream has fewer members than the replicas in its configuration.
func lacksMember(streams []*jetstream.StreamInfo) bool {
	for _, info := range streams {
		if info.Cluster != nil && info.Cluster.Leader != "" && 1+len(info.Cluster.Replicas) < info.Config.Replicas {
			return true
		}
	}
	return false
}
