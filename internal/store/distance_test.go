package store

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// With a round trip of 250 ms between the members, the round trips of one attempt to acquire the lease take longer than a
// second, the timeout of one request.
func TestLeaseIsAcquiredAcrossRegions(t *testing.T) {
	t.Parallel()
	const rtt = 250 * time.Millisecond
	var distant atomic.Bool
	network := &testkit.Network{Delay: func(string, string) time.Duration {
		if distant.Load() {
			return rtt
		}
		return 0
	}}
	c := newTestCluster(t, "a", "b", "c")
	c.through = func(from, to string) string {
		return testkit.NewProxy(t, "127.0.0.1:0", c.ports[to], to, func(net.Addr, net.Addr) string { return from }, network).Addr()
	}
	c.start("a", "b", "c")
	c.waitReplicated()
	clients := map[string]*Store{}
	for _, n := range c.nodes { // at most one of them is where the leader of the state is
		st := must[*Store](t)(Connect(t.Context(), "nats://"+c.clients[n], "secret", ForService("chat")))
		t.Cleanup(st.Close) // another member, to which a client changes after failures, would be as far from the leader
		clients[n] = st
		put(t, clients[n], "opened."+n, "1")
	}
	distant.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	var acquiring sync.WaitGroup
	for n, st := range clients {
		acquiring.Go(func() {
			if _, err := st.Acquire(ctx, "controller-"+n, n, 3*time.Second); err != nil {
				t.Errorf("from %s: %v", n, err)
			}
		})
	}
	acquiring.Wait()
}
