package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"skyserve/internal/telemetry"
)

// SetMembers changes Routes and Members of a member's Cluster while it runs, for example after the machine of another
// member was replaced. The routes to the other members stay connected, and so do clients that authenticate with
// certificates. Invalid routes or members change nothing. If the maintainer of the cluster cannot be started again at
// once, the member retries until it can. For a single store SetMembers does nothing.
func (s *Server) SetMembers(routes, members []string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	before, m := s.opts.Cluster, s.maintainer
	s.mu.Unlock()
	if before == nil || slices.Equal(before.Routes, routes) && slices.Equal(before.Members, members) {
		return nil
	}
	next := *before
	next.Routes, next.Members = routes, members
	if err := next.validate(); err != nil {
		return fmt.Errorf("changing the members of the store's cluster: %w", err)
	}
	s.mu.Lock()
	s.opts.Cluster = &next
	s.mu.Unlock()
	if m == nil {
		return nil // the next start applies them
	}
	urls, err := next.routes()
	if err != nil {
		return err
	}
	options := m.ns.options.Clone()
	options.Routes = urls
	s.stopMaintainer() // a reload disconnects clients with a user name, such as the two connections of the maintainer
	failure := m.ns.ReloadOptions(options)
	if failure != nil { // the maintainer continues with the members from before, and the change can be made again
		s.mu.Lock()
		s.opts.Cluster = before
		s.mu.Unlock()
	}
	if err := s.startMaintainer(m.ctx, m.ns, m.offline); err != nil {
		s.recordMaintainerFailure(err)
		go s.retryMaintainer(m.ctx, m.ns, m.offline)
	}
	if failure != nil {
		return fmt.Errorf("changing the members of the store's cluster: %w", failure)
	}
	return nil
}

// retryMaintainer starts the maintainer of a running server once that is possible, unless the server was restarted or its
// members changed again.
func (s *Server) retryMaintainer(ctx context.Context, ns *runningNATS, offline map[string]time.Time) {
	for sleep(ctx, s.opts.maintainEvery) {
		if s.retryMaintainerOnce(ctx, ns, offline) {
			return
		}
	}
}

// retryMaintainerOnce makes one attempt; done means that no further one is needed.
func (s *Server) retryMaintainerOnce(ctx context.Context, ns *runningNATS, offline map[string]time.Time) (done bool) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	running := s.maintainer != nil
	s.mu.Unlock()
	if running || ctx.Err() != nil || !ns.Running() { // a server that was stopped never runs again
		return true
	}
	err := s.startMaintainer(ctx, ns, offline)
	if err != nil {
		s.recordMaintainerFailure(err)
	}
	return err == nil
}

// recordMaintainerFailure records that a member does not observe or maintain its cluster at the moment.
func (s *Server) recordMaintainerFailure(err error) {
	status := s.Cluster()
	problem := fmt.Sprintf("connecting to this member's own NATS server failed, retrying: %v", err)
	if status.Problem != problem {
		s.log.Warn("maintaining the store's cluster is interrupted", "err", problem)
	}
	status.Problem = problem
	s.setCluster(status)
}

// members returns the nodes of all members of the cluster.
func (s *Server) members() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Cluster.Members
}

// runningNATS is a NATS server with the options that it was started with.
type runningNATS struct {
	*server.Server
	options *server.Options
}

// SetURL changes the servers of a client: see Connect. A connection to a server that is no longer among them stays
// until it is lost.
func (s *Store) SetURL(natsURL string) error {
	if err := CheckURL(natsURL); err != nil {
		return fmt.Errorf("changing the servers of the store: %w", err)
	}
	s.mu.Lock()
	s.servers, s.url = natsURL, telemetry.HideCredentials(natsURL)
	nc := s.nc
	s.mu.Unlock()
	if nc == nil {
		return nil // the next attempt to connect uses them
	}
	return nc.SetServerPool(strings.Split(natsURL, ","))
}
