package store

import (
	"context"
	"errors"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// move gives a member that is not running another machine: another address and an empty disk.
func (c *testCluster) move(node string) {
	c.t.Helper()
	c.ports[node], c.clients[node] = testkit.FreeAddr(), testkit.FreeAddr()
	for _, n := range c.nodes {
		if n != node {
			c.links[n][node], c.links[node][n] = newProxy(c.t, c.ports[node]), newProxy(c.t, c.ports[n])
		}
	}
	if err := os.RemoveAll(c.options(node).Dir); err != nil {
		c.t.Fatal(err)
	}
}

// A machine that was lost is replaced at another address: the other members and their clients follow while they run,
// the new one joins, the lost one leaves, and no other one restarts.
func TestMembersFollowReplacedMachine(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	leader := c.leader()
	others := slices.DeleteFunc(slices.Clone(c.nodes), func(n string) bool { return n == leader })
	lost, stays := others[0], others[1]
	running := func(n string) any {
		s := c.servers[n]
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.maintainer.ns
	}
	before := map[string]any{leader: running(leader), stays: running(stays)}
	client := c.client(lost)
	testkit.Eventually(t, "a write", func() bool {
		_, err := client.Put(t.Context(), "key", []byte("1"))
		return err == nil
	})

	c.servers[lost].Close()
	delete(c.servers, lost)
	c.move(lost)
	for _, n := range []string{leader, stays} {
		o := c.options(n).Cluster
		if err := c.servers[n].SetMembers(o.Routes, o.Members); err != nil {
			t.Fatal(err)
		}
	}
	c.start(lost)
	c.waitReplicated()
	for _, m := range c.servers[leader].Cluster().Members {
		if m.State == MemberOffline {
			t.Errorf("the lost member did not leave: %+v", c.servers[leader].Cluster())
		}
	}
	for n, ns := range before { // another one may lead now: a busy machine delays the leader's heartbeats
		if running(n) != ns {
			t.Errorf("%s has restarted", n)
		}
	}

	// Only the new member remains in the list of the client, which reconnects to it.
	if err := client.SetURL("nats://" + c.clients[lost]); err != nil {
		t.Fatal(err)
	}
	client.newestConn().ForceReconnect()
	testkit.Eventually(t, "the client uses the new member", func() bool {
		value, _, err := client.Get(context.WithoutCancel(t.Context()), "key")
		return err == nil && string(value) == "1" && client.newestConn().ConnectedAddr() == c.clients[lost]
	})
}

// A change of members while a member dials others that do not respond: NATS sorts the routes in use in place when it
// reloads options, while it dials them. A route that it finds twice or not at all in the meantime is dialled no more.
func TestRoutesInUseKeepTheirOrder(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	o := c.options("a")
	o.Cluster.Routes = []string{c.ports["b"], c.ports["c"]}
	for range 2 {
		slices.Reverse(o.Cluster.Routes)
		var used []string
		for _, u := range must[[]*url.URL](t)(o.Cluster.routes()) {
			used = append(used, u.String())
		}
		if !slices.IsSorted(used) {
			t.Errorf("of %q: got %q, which NATS sorts while it dials them", o.Cluster.Routes, used)
		}
	}
	slices.Sort(o.Cluster.Routes)
	slices.Reverse(o.Cluster.Routes)
	s := must[*Server](t)(Serve(t.Context(), o))
	t.Cleanup(s.Close)
	if err := s.SetMembers([]string{"127.0.0.1:1", "127.0.0.1:2"}, c.nodes); err != nil { // the race detector judges it
		t.Fatal(err)
	}
}

// Members are checked before anything changes.
func TestSetMembersRejectsInvalidOnes(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	before := c.servers["a"].members()
	for name, change := range map[string]struct{ routes, members []string }{
		"two members":   {[]string{"127.0.0.1:1", "127.0.0.1:2"}, []string{"a", "b"}},
		"a route":       {[]string{"127.0.0.1"}, c.nodes},
		"a bad node":    {[]string{"127.0.0.1:1", "127.0.0.1:2"}, []string{"a", "b", "c.d"}},
		"without route": {nil, c.nodes},
	} {
		if err := c.servers["a"].SetMembers(change.routes, change.members); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if got := c.servers["a"].members(); !slices.Equal(got, before) {
		t.Errorf("got %q, want %q", got, before)
	}
	c.waitReplicated()
}

// After a change that fails, the maintainer continues with the members from before, and the same change can be made
// again.
func TestFailedChangeOfMembersIsRepeated(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	s, before := c.servers["a"], c.servers["a"].members()
	routes := slices.Clone(c.options("a").Cluster.Routes)
	slices.Reverse(routes)
	s.mu.Lock()
	ns := s.maintainer.ns
	s.mu.Unlock()
	valid := ns.options
	ns.options = valid.Clone()
	ns.options.ServerName = "other" // which a running server cannot change
	if err := s.SetMembers(routes, []string{"c", "b", "a"}); err == nil {
		t.Fatal("accepted")
	}
	s.mu.Lock()
	member := s.maintainer != nil
	s.mu.Unlock()
	if got := s.members(); !member || !slices.Equal(got, before) {
		t.Errorf("after the failure: maintainer %t of %q, want %q", member, got, before)
	}
	ns.options = valid
	if err := s.SetMembers(routes, []string{"c", "b", "a"}); err != nil {
		t.Fatal(err)
	}
	if got := s.members(); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("the repeated change was not made: %q", got)
	}
	c.waitReplicated()
}

// A member whose connection to its own server fails during a change of members has the new ones, and its maintainer
// again as soon as the connection succeeds.
func TestMaintainerReturnsAfterFailedStart(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	s := c.servers["a"]
	routes := slices.Clone(c.options("a").Cluster.Routes)
	slices.Reverse(routes)
	exchangeSecret := func(with string) (before string) {
		s.changing.Lock()
		defer s.changing.Unlock()
		before, s.opts.secret = s.opts.secret, with
		return before
	}
	secret := exchangeSecret("which its server rejects")
	if err := s.SetMembers(routes, []string{"c", "b", "a"}); err != nil {
		t.Fatal(err)
	}
	if got := s.members(); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("the change was not made: %q", got)
	}
	if got := s.Cluster().Problem; !strings.Contains(got, "own NATS server") {
		t.Errorf("meanwhile the status is %q", got)
	}
	exchangeSecret(secret)
	testkit.Eventually(t, "the member observes its cluster again", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.maintainer != nil && s.cluster.Problem == ""
	})
	c.waitReplicated()
}

// A detachment by another member was given up, and the maintainer was started again since this member recorded it: the
// member forgets it. Otherwise its next start would delete its data.
func TestFailedDetachIsForgottenAfterMaintainerRestarts(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	s := c.servers["a"]
	s.changing.Lock()
	s.mu.Lock()
	m := s.maintainer
	s.mu.Unlock()
	s.stopMaintainer()
	err := errors.Join(m.recordDataMoved(), s.startMaintainer(m.ctx, m.ns, m.offline))
	s.changing.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the directory no longer says that another member holds all data", func() bool {
		own, err := readMember(c.options("a").Dir)
		return err == nil && own.ID == s.member.ID && !own.DataMoved
	})
}
