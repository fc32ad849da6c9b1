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

// isolatedAfter is the time without an answer to a write, or with only failed reads, after which a client connects to
// another member. It is longer than an election, during which no member can write.
const isolatedAfter = electionMax + time.Second

// ensureStream creates a stream, or updates those of its fields that this package sets. A cluster
// of three or more holds Replicas of it. prepare, if not nil, completes the configuration of a new one.
func ensureStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, config jetstream.StreamConfig, prepare func(context.Context, jetstream.JetStream, *jetstream.StreamConfig) error) (jetstream.Stream, error) {
	cluster := nc.ConnectedClusterName()
	embedded := strings.HasPrefix(cluster, clusterPrefix)
	if embedded {
		if _, err := openExisting(ctx, nc, js, clusterStream); err != nil {
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil, fmt.Errorf("%w: its cluster %s is starting", ErrUnavailable, cluster)
			}
			return nil, fmt.Errorf("%w: opening its cluster %s: %w", ErrUnavailable, cluster, err)
		}
	}
	old, err := openExisting(ctx, nc, js, config.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if prepare != nil {
			if err := prepare(ctx, js, &config); err != nil {
				return nil, err
			}
		}
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
	if cluster != "" && !embedded && next.Replicas < Replicas { // an embedded cluster replicates its streams itself
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

// withReplicas calls create with the number of replicas that a new bucket gets: Replicas in a cluster, and 1
// if the cluster has fewer members.
func withReplicas(nc *nats.Conn, create func(replicas int) error) error {
	if nc.ConnectedClusterName() == "" {
		return create(1)
	}
	err := create(Replicas)
	if lacksServers(err) {
		err = create(1)
	}
	return err
}

// readAttempt is the timeout of one attempt to read from a cluster: far longer than a round trip.
const readAttempt = time.Second

// retryRead calls f, which only reads, again if it times out, until ctx ends or the connection is lost: the members of a
// cluster do not respond to requests that they receive while a stream has no leader. With a single store it calls f once.
func retryRead(ctx context.Context, nc *nats.Conn, f func(context.Context) error) error {
	if nc == nil || nc.ConnectedClusterName() == "" {
		return f(ctx)
	}
	for {
		octx, cancel := context.WithTimeout(ctx, readAttempt)
		err := f(octx)
		cancel()
		if err == nil || ctx.Err() != nil || !nc.IsConnected() || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
	}
}

// openExisting opens a stream.
func openExisting(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, name string) (stream jetstream.Stream, err error) {
	err = retryRead(ctx, nc, func(ctx context.Context) (err error) {
		stream, err = js.Stream(ctx, name)
		return err
	})
	return stream, err
}

// creationFailure returns the error of ensureStream that createBackoff records. It is nil for a cluster, whose servers
// return the same errors while they elect a leader.
func creationFailure(nc *nats.Conn, err error) error {
	if nc.ConnectedClusterName() != "" {
		return nil
	}
	return err
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

// switchServer connects to another member after a failed operation: the present one may be partitioned from the others.
// It does so if the last write failed and no write was answered for isolatedAfter, or if all reads have failed for as
// long. Reads count, because a process that waits for a lease only reads it. The caller holds mu.
func (s *Store) switchServer(err error) {
	now := s.now()
	cannotWrite := s.writeOutage != nil && now.Sub(s.lastWrite) >= isolatedAfter
	cannotRead := s.readOutage != nil && now.Sub(s.readOutage.Since) >= isolatedAfter
	if !cannotWrite && !cannotRead || now.Sub(s.lastSwitch) < isolatedAfter || s.nc == nil || !s.nc.IsConnected() || len(s.nc.Servers()) < 2 {
		return
	}
	s.log.Warn("operations of the store fail; connecting to another of its members", "err", err)
	s.lastSwitch = now
	nc := s.nc
	go func() { _ = nc.ForceReconnect() }() // fails only after Close
}

// memberCheck is the time without an answer after which a client with several servers checks the server by a read.
const memberCheck = 3 * time.Second

// checkMember checks the server of a client that has several, until ctx ends. It reads from the store whenever no
// operation was answered for memberCheck, or the last read failed. A client that only watches would otherwise never
// leave a member that is partitioned from the others: its watches stay silent, although the connection is up.
func (s *Store) checkMember(ctx context.Context) {
	for sleep(ctx, time.Second) {
		nc, err := s.conn()
		start := s.now()
		if err != nil || len(nc.Servers()) < 2 || !s.lacksAnswer(start) {
			continue
		}
		octx, cancel := context.WithTimeout(ctx, isolatedAfter)
		_, err = newestRevision(octx, nc, s.stateBucketName(), ">")
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			err = nil // this is an answer, too
		}
		if ctx.Err() == nil && nc.IsConnected() {
			s.recordResultSince(&s.readOutage, start, err)
		}
	}
}

// lacksAnswer reports whether the last read failed, or no operation was answered for memberCheck.
func (s *Store) lacksAnswer(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readOutage != nil || now.Sub(s.lastAnswer) >= memberCheck
}
