package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"skyserve/internal/testkit"
)

// A member without a majority says so, and which members do not respond; it recovers with them.
func TestMemberReportsMissingQuorum(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start(c.nodes...)
	c.waitReplicated()
	for _, s := range c.servers {
		if p := s.Outage(); p != nil {
			t.Errorf("a healthy member: %v", p)
		}
	}
	for _, n := range []string{"b", "c"} {
		c.servers[n].Close()
		delete(c.servers, n)
	}
	testkit.Eventually(t, "the survivor reports it", func() bool {
		p := c.servers["a"].Outage()
		return p != nil && errors.Is(p, ErrNoQuorum) && p.Err.Error() == "no majority of the store's members responds: no response from b, c"
	})
	c.start("b")
	testkit.Eventually(t, "two are a majority", func() bool { return c.servers["a"].Outage() == nil && c.servers["b"].Outage() == nil })
}

// onOpening calls a function when a member logs that it has opened the cluster, before its next observation.
type onOpening struct {
	slog.Handler
	f func()
}

func (onOpening) Enabled(context.Context, slog.Level) bool { return true }

func (h onOpening) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "the store's cluster is open" {
		h.f()
	}
	return nil
}

// While a member restores its single store into the cluster, it already reports the leader, and no outage.
func TestNoOutageDuringRestoreOfSingleStore(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	single := c.options("a")
	single.Cluster = nil
	srv := must[*Server](t)(Serve(t.Context(), single))
	t.Cleanup(srv.Close)
	put(t, c.client("a"), "desired.x", "1")
	srv.Close()

	o, served, during := c.options("a"), make(chan *Server, 1), make(chan ClusterStatus, 1)
	o.Logger = slog.New(onOpening{slog.DiscardHandler, sync.OnceFunc(func() { during <- (<-served).Cluster() })})
	c.start("b", "c")
	a := must[*Server](t)(Serve(t.Context(), o))
	t.Cleanup(a.Close)
	served <- a
	got := next(t, during)
	if got.Leader == "" || strings.Contains(got.NotReplicatedReason(), "no majority") {
		t.Errorf("got %+v: %s", got, got.NotReplicatedReason())
	}
	s := &Server{leaderless: time.Now().Add(-time.Minute), cluster: ClusterStatus{Open: true, Unreplicated: []string{"S"}, UnreplicatedSince: time.Unix(1, 0)}}
	s.setObserved(ClusterStatus{Clustered: true, Leader: "a"})
	p := s.Outage()
	if got = s.Cluster(); p != nil || got.Leader != "a" || !got.Open || len(got.Unreplicated) != 1 || !got.UnreplicatedSince.Equal(time.Unix(1, 0)) {
		t.Errorf("got %v, %+v", p, got)
	}
}

// Messages of members expire, and invalid ones are ignored.
func TestMemberHealthExpires(t *testing.T) {
	var r receivedHealth
	for _, text := range []string{`{`, `{"node":""}`, `{"node":"a b"}`, `{"node":"a","problem":"full"}`} {
		r.receive(&nats.Msg{Data: []byte(text)})
	}
	now := time.Now()
	if got := r.recentMessages(now, time.Second); len(got) != 1 || got["a"].Problem != "full" {
		t.Errorf("got %+v", got)
	}
	if got := r.recentMessages(now.Add(2*time.Second), time.Second); len(got) != 0 {
		t.Errorf("later: %+v", got)
	}
}
