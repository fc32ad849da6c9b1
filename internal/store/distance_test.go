package store

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// Complaint: with a round trip of 250 ms between the members no controller ever acquired the lease: the round trips of one
// attempt took longer than its timeout.
func TestLeaseIsAcquiredAcrossRegions(t *testing.T) {
	t.Parallel()
	const rtt = 250 * time.Millisecond
	c := newTestCluster(t, "a", "b", "c")
	var distant atomic.Bool
	network := &testkit.Network{Delay: func(string, string) time.Duration {
		if distant.Load() {
			return rtt
		}
		return 0
	}}
	c.through = func(from, to string) string {
		return testkit.NewProxy(t, "127.0.0.1:0", c.ports[to], to, func(net.Addr, net.Addr) string { return from }, network).Addr()
	}
	c.start("a", "b", "c")
	c.waitReplicated()
	distant.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	for _, n := range c.nodes { // at most one of them is where the leader of the state is
		l, err := c.client(n).Acquire(ctx, "controller-"+n, n, 3*time.Second)
		if err != nil {
			t.Fatalf("from %s: %v", n, err)
		}
		if err := l.Renew(ctx); err != nil || !l.Valid() {
			t.Errorf("from %s: %v", n, err)
		}
	}
}
