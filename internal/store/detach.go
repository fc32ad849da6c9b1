package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// takeTimeout is how long Detach waits for the next stream to be moved to this member: an election and a few requests
	// take seconds.
	takeTimeout = 30 * time.Second
	// movedSubject is the subject of the message with which a member reports that it holds all data. Each other member
	// responds with its node.
	movedSubject = "skyserve_moved"
	// movedTimeout limits the wait for their responses.
	movedTimeout = 10 * time.Second
)

// Detach moves all data of the cluster to this member, which can then become a single store: close the member, stop the
// other members, and start it without Options.Cluster. Clients can write until the member closes.
//
// Detach fails if the cluster has no majority, if ctx ends, or if no stream could be moved for takeTimeout, for example
// because the members that hold it do not respond. It may then be called again, or the member may be started again as a
// member of the cluster. For a single store Detach does nothing.
func (s *Server) Detach(ctx context.Context) error {
	s.mu.Lock()
	m, clustered := s.maintainer, s.opts.Cluster != nil
	s.mu.Unlock()
	if !clustered {
		return nil
	}
	s.detaching.Store(true)
	err := errors.New("this member's NATS server is not running: wait for its restart, or free space on its disk")
	if m != nil {
		err = m.takeOverData(ctx)
	}
	if err == nil {
		detached := s.member
		detached.Detached = true
		err = detached.write(s.opts.Dir)
	}
	if err != nil {
		s.detaching.Store(false)
		return fmt.Errorf("detaching %s from cluster %s: %w", s.member.Node, s.member.Cluster, err)
	}
	return nil
}

// takeOverData moves all streams to this member alone, and informs the other members.
func (m *maintainer) takeOverData(ctx context.Context) error {
	js, err := jetstream.New(m.user)
	if err != nil {
		return err
	}
	if err := m.markDetached(ctx, js); err != nil {
		return err
	}
	// Until the leader has seen the mark, it may still replicate streams.
	sleep(ctx, 2*m.s.opts.maintainEvery)
	if err := m.takeAllStreams(ctx, js); err != nil {
		return err
	}
	if err := m.reportMoved(ctx); err != nil {
		return err
	}
	return m.takeAllStreams(ctx, js) // again: clients may have created streams meanwhile, which other members hold too
}

// markDetached records in the cluster that this member takes over all streams, so that the leader stops replicating them.
func (m *maintainer) markDetached(ctx context.Context, js jetstream.JetStream) error {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	mark, err := openExisting(octx, m.user, js, clusterStream)
	if err != nil {
		return fmt.Errorf("reading stream %s: %w", clusterStream, err)
	}
	config := mark.CachedInfo().Config
	config.Metadata[detachedKey] = m.s.member.ID
	if _, err := js.UpdateStream(octx, config); err != nil {
		return fmt.Errorf("updating stream %s: %w", clusterStream, err)
	}
	return nil
}

// takeAllStreams calls takeStream for all streams in turn, until this member holds each alone. It fails if it moves no
// stream for takeTimeout.
func (m *maintainer) takeAllStreams(ctx context.Context, js jetstream.JetStream) error {
	taken, last := map[string]bool{}, time.Now()
	for {
		names, missing := streamNames(ctx, js)
		for _, name := range names {
			err := m.takeStream(ctx, js, name)
			if err == nil && !taken[name] {
				taken[name], last = true, time.Now()
			}
			if err != nil && missing == nil {
				missing = fmt.Errorf("moving stream %s: %w", name, err)
			}
		}
		if missing == nil {
			return nil
		}
		if waited := time.Since(last); waited >= m.s.opts.takeTimeout {
			return fmt.Errorf("%w; no stream was moved for %s: start the members that hold it", missing, waited.Round(time.Second))
		}
		if !sleep(ctx, m.s.opts.maintainEvery) {
			return errors.Join(ctx.Err(), missing)
		}
	}
}

// streamNames lists the names of all streams. Unlike listStreams, it includes streams whose leader does not respond.
func streamNames(ctx context.Context, js jetstream.JetStream) (names []string, err error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	list := js.StreamNames(octx)
	for name := range list.Name() {
		names = append(names, name)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("listing streams: %w", err)
	}
	if !slices.Contains(names, clusterStream) {
		return nil, fmt.Errorf("listing streams: the list lacks %s", clusterStream)
	}
	return names, nil
}

// reportMoved informs all members that respond that this one holds all data, until each has recorded it.
func (m *maintainer) reportMoved(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, movedTimeout)
	defer cancel()
	waiting, err := m.ping(ctx)
	if err != nil {
		return err
	}
	delete(waiting, m.s.member.Node)
	sub, err := m.user.SubscribeSync(nats.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection closes with the server
	for len(waiting) > 0 {
		if err := m.user.PublishRequest(movedSubject, sub.Subject, []byte(m.s.member.ID)); err != nil {
			return err
		}
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("waiting for %s to leave the cluster: %w; check that they run and can write to their disks", strings.Join(slices.Sorted(maps.Keys(waiting)), ", "), err)
		}
		delete(waiting, string(msg.Data))
	}
	return nil
}

// takeStream makes the next step of moving a stream to this member: it makes this member the stream's leader, and then
// its only replica (a stream that loses replicas keeps its leader). It returns nil once this member holds the stream
// alone, and otherwise an error that says what is missing; the caller then calls it again.
func (m *maintainer) takeStream(ctx context.Context, js jetstream.JetStream, name string) error {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, err := js.Stream(octx, name)
	if err != nil {
		return fmt.Errorf("it has no leader that responds: %w", err)
	}
	own, info := m.s.member.serverName(), stream.CachedInfo()
	var missing error
	switch leads := info.Cluster != nil && info.Cluster.Leader == own; {
	case leads && len(info.Cluster.Replicas) == 0:
		// The server writes the configuration afterwards; a single store refuses one with several replicas.
		stored := storedReplicas(m.s.opts.Dir, name)
		if stored == 1 {
			return nil
		}
		missing = fmt.Errorf("this member holds it alone, but with %d replicas in the configuration on its disk, and %d in the cluster", stored, info.Config.Replicas)
		info.Config.Replicas = 1 // again: the first change may never reach the disk
		_, err = js.UpdateStream(octx, info.Config)
	case leads:
		missing = errors.New("other members hold it too")
		info.Config.Replicas = 1
		_, err = js.UpdateStream(octx, info.Config)
	case info.Config.Replicas < Replicas:
		missing = errors.New("another member holds it alone")
		info.Config.Replicas = Replicas
		_, err = js.UpdateStream(octx, info.Config)
	default:
		missing = errors.New("another member leads it")
		request := server.JSApiLeaderStepdownRequest{Placement: &server.Placement{Preferred: own}}
		err = call(octx, m.user, fmt.Sprintf(server.JSApiStreamLeaderStepDownT, name), request, &server.JSApiStreamLeaderStepDownResponse{})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", missing, err)
	}
	return missing
}

// storedReplicas returns the number of replicas in the configuration of a stream on disk; 0 if it cannot be read.
func storedReplicas(dir, stream string) int {
	data, err := os.ReadFile(filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, server.JetStreamMetaFile))
	var c server.FileStreamInfo
	if err != nil || json.Unmarshal(data, &c) != nil {
		return 0
	}
	return c.Replicas
}
