package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// isolatedAfter is how long writes fail before a client tries another member: longer than an
// election, after which any member serves again.
const isolatedAfter = 4 * time.Second

// ensureStream creates a stream, or updates those of its fields that this program sets. A cluster
// of three or more holds Replicas of it.
func ensureStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, config jetstream.StreamConfig) (jetstream.Stream, error) {
	cluster := nc.ConnectedClusterName()
	embedded := strings.HasPrefix(cluster, clusterPrefix)
	if embedded {
		if _, err := js.Stream(ctx, clusterStream); err != nil {
			return nil, fmt.Errorf("%w: the store's cluster %s is not open yet: %w", ErrUnavailable, cluster, err)
		}
	}
	old, err := js.Stream(ctx, config.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if cluster == "" {
			return js.CreateStream(ctx, config)
		}
		config.Replicas = Replicas
		stream, err := js.CreateStream(ctx, config)
		if lacksServers(err) {
			config.Replicas = 1
			return js.CreateStream(ctx, config)
		}
		return stream, err
	case err != nil:
		return nil, err
	}
	next := old.CachedInfo().Config
	next.Description, next.Subjects, next.MaxBytes, next.Discard = config.Description, config.Subjects, config.MaxBytes, config.Discard
	next.AllowDirect = config.AllowDirect
	if config.Duplicates != 0 {
		next.Duplicates = config.Duplicates
	}
	if cluster != "" && !embedded && next.Replicas < Replicas { // an embedded one replicates its streams itself
		next.Replicas = Replicas
		if stream, err := js.UpdateStream(ctx, next); !lacksServers(err) {
			return stream, err
		}
		next.Replicas = old.CachedInfo().Config.Replicas
	}
	if reflect.DeepEqual(next, old.CachedInfo().Config) {
		return old, nil
	}
	return js.UpdateStream(ctx, next)
}

// lacksServers reports whether a cluster has too few servers, or too little space on them, for a stream.
func lacksServers(err error) bool {
	var apiError *jetstream.APIError
	if !errors.As(err, &apiError) {
		return false
	}
	switch server.ErrorIdentifier(apiError.ErrorCode) {
	case server.JSClusterNoPeersErrF, server.JSInsufficientResourcesErr, server.JSStreamReplicasNotSupportedErr, server.JSClusterPeerNotMemberErr:
		return true
	}
	return false
}

// leaveMember connects to another member after a write that timed out, or an outage of isolatedAfter: this
// member may be partitioned from the others. The caller holds mu.
func (s *Store) leaveMember(err error, outage *Outage) {
	timeout := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
	if !timeout && s.now().Sub(outage.Since) < isolatedAfter {
		return
	}
	if s.nc == nil || !s.nc.IsConnected() || len(s.nc.Servers()) < 2 {
		return
	}
	s.log.Warn("writes to the store fail; connecting to another of its members", "err", err)
	nc := s.nc
	go func() { _ = nc.ForceReconnect() }() // fails only after Close
}
