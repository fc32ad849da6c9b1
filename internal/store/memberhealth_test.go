package store

import (
	"errors"
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
