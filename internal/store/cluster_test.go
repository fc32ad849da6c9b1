package store

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// testCluster is a cluster of members in this process, whose routes go through proxies.
type testCluster struct {
	t       *testing.T
	dir     string
	nodes   []string
	ports   map[string]string            // the address of the route listener, by node
	clients map[string]string            // the address of the client listener, by node
	links   map[string]map[string]*proxy // by the node that dials and the node that accepts
	servers map[string]*Server
	// through returns the address through which a member reaches another one; nil = their link
	through func(from, to string) string

	takeTimeout, checkEvery time.Duration // 0 = the default
}

func newTestCluster(t *testing.T, nodes ...string) *testCluster {
	c := &testCluster{
		t: t, dir: t.TempDir(), nodes: nodes, ports: map[string]string{}, clients: map[string]string{},
		links: map[string]map[string]*proxy{}, servers: map[string]*Server{},
	}
	for _, n := range nodes {
		c.ports[n], c.clients[n] = testkit.FreeAddr(), testkit.FreeAddr()
	}
	for _, from := range nodes {
		c.links[from] = map[string]*proxy{}
		for _, to := range nodes {
			if from != to {
				c.links[from][to] = newProxy(t, c.ports[to])
			}
		}
	}
	return c
}

// options returns those of a member.
func (c *testCluster) options(node string) Options {
	cluster := &Cluster{
		Name: ClusterName("chat"), Node: node, Listen: c.ports[node], Members: c.nodes,
		Advertise: "127.0.0.1:1", // members only reach each other through proxies
	}
	for _, n := range c.nodes {
		switch {
		case n == node:
		case c.through != nil:
			cluster.Routes = append(cluster.Routes, c.through(node, n))
		default:
			cluster.Routes = append(cluster.Routes, c.links[node][n].addr())
		}
	}
	return Options{
		Dir: filepath.Join(c.dir, node), Listen: c.clients[node], Token: "secret", Cluster: cluster,
		maintainEvery: 100 * time.Millisecond, removeAfter: time.Second, takeTimeout: c.takeTimeout, checkEvery: c.checkEvery,
	}
}

// start starts members.
func (c *testCluster) start(nodes ...string) {
	c.t.Helper()
	for _, n := range nodes {
		s, err := Serve(c.t.Context(), c.options(n))
		if err != nil {
			c.t.Fatal(err)
		}
		c.servers[n] = s
		c.t.Cleanup(s.Close)
	}
}

// isolate cuts a member off from all others, or heals its links.
func (c *testCluster) isolate(node string, cut bool) {
	for _, n := range c.nodes {
		if n != node {
			c.links[node][n].cut(cut)
			c.links[n][node].cut(cut)
		}
	}
}

// client connects to the members, this node's first.
func (c *testCluster) client(first string) *Store {
	c.t.Helper()
	urls := []string{"nats://" + c.clients[first]}
	for _, n := range c.nodes {
		if n != first {
			urls = append(urls, "nats://"+c.clients[n])
		}
	}
	s, err := Connect(c.t.Context(), strings.Join(urls, ","), "secret", ForService("chat"), Lazy())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(s.Close)
	return s
}

// waitReplicated waits until all members that run observe a replicated cluster.
func (c *testCluster) waitReplicated() {
	c.t.Helper()
	logged := map[string]string{}
	testkit.Eventually(c.t, "the cluster is replicated", func() bool {
		for n, s := range c.servers {
			status := s.Cluster()
			if status.Replicated() {
				continue
			}
			if why := status.NotReplicatedReason(); why != logged[n] {
				logged[n] = why
				c.t.Logf("%s, led by %q: %s", n, status.Leader, why)
			}
			return false
		}
		return true
	})
}

// leader returns the leader.
func (c *testCluster) leader() string {
	c.t.Helper()
	var leader string
	testkit.Eventually(c.t, "the cluster has a leader", func() bool {
		for _, s := range c.servers {
			leader = s.Cluster().Leader
		}
		return leader != ""
	})
	return leader
}

// put writes a key until it succeeds.
func put(t *testing.T, s *Store, key, value string) uint64 {
	t.Helper()
	var revision uint64
	logged := ""
	testkit.Eventually(t, "a write succeeds", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		revision, err = s.Put(ctx, key, []byte(value))
		if err != nil && err.Error() != logged {
			logged = err.Error()
			t.Logf("writing %s: %v", key, err)
		}
		return err == nil
	})
	return revision
}

// acquireSoon acquires a lease whose holder, if any, does not renew it. Acquire retries until its context ends: the limit
// guards against hanging.
func acquireSoon(t *testing.T, s *Store, holder string, ttl time.Duration) *Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	return must[*Lease](t)(s.Acquire(ctx, "controller", holder, ttl))
}

// read reads a key until the store responds.
func read(t *testing.T, s *Store, key string) (value []byte, revision uint64, err error) {
	t.Helper()
	testkit.Eventually(t, "a read succeeds", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		value, revision, err = s.Get(ctx, key)
		return err == nil || errors.Is(err, ErrNotFound)
	})
	return value, revision, err
}

// proxy forwards connections to an address until it is cut: then it accepts none, and those that
// exist carry nothing, as in a network that drops packets.
type proxy struct {
	l  net.Listener
	to string

	mu      sync.Mutex
	blocked bool
	conns   map[net.Conn]bool
	open    sync.WaitGroup
}

func newProxy(t testing.TB, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, conns: map[net.Conn]bool{}}
	p.open.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut(true)
		p.open.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil || !p.keep(in, out) {
			in.Close()
			if err == nil {
				out.Close()
			}
			continue
		}
		p.open.Go(func() { p.forward(in, out) })
		p.open.Go(func() { p.forward(out, in) })
	}
}

func (p *proxy) keep(in, out net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.blocked {
		p.conns[in], p.conns[out] = true, true
	}
	return !p.blocked
}

func (p *proxy) forward(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}

// cut closes all connections and accepts none, until it is called with false.
func (p *proxy) cut(blocked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = blocked
	if blocked {
		for c := range p.conns {
			c.Close()
		}
		clear(p.conns)
	}
}

// A cluster of three replicates everything; with one member offline it still writes and reads.
func TestClusterReplicates(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	st := c.client("a")
	put(t, st, "desired.x", "1")
	if err := st.AppendPoints(t.Context(), []telemetry.Point{{Minute: 1, Balancer: "b", Requests: 3}}); err != nil {
		t.Fatal(err)
	}
	c.waitReplicated()
	t.Log(c.servers["a"].Cluster())
	lost := c.leader()
	c.servers[lost].Close()
	delete(c.servers, lost)
	put(t, st, "desired.y", "2")
	if v, _, err := read(t, st, "desired.x"); err != nil || string(v) != "1" {
		t.Errorf("got %q, %v", v, err)
	}
	testkit.Eventually(t, "the loss is reported", func() bool {
		for _, s := range c.servers {
			if !strings.Contains(s.Cluster().NotReplicatedReason(), "no response from "+lost) {
				return false
			}
		}
		return true
	})
}

// A single store becomes a cluster of three and a single store again; nothing is lost and revisions
// keep increasing.
func TestClusterGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	single := c.options("a")
	single.Cluster = nil
	srv := must[*Server](t)(Serve(t.Context(), single))
	t.Cleanup(srv.Close)
	if got := srv.Cluster(); got.Clustered || got.Replicated() {
		t.Errorf("got %+v", got)
	}
	st := c.client("a")
	first := put(t, st, "desired.x", "1")
	points := []telemetry.Point{{Minute: 1, Balancer: "b", Requests: 3}, {Minute: 2000, Balancer: "b", Requests: 4}}
	if err := st.AppendPoints(t.Context(), points); err != nil {
		t.Fatal(err)
	}
	srv.Close()

	c.start("b", "c") // they must not open an empty store
	c.start("a")
	c.waitReplicated()
	check := func(st *Store) {
		t.Helper()
		if v, revision, err := read(t, st, "desired.x"); err != nil || string(v) != "1" || revision != first {
			t.Errorf("got %q at %d, %v; want 1 at %d", v, revision, err, first)
		}
		n := 0
		testkit.Eventually(t, "points are read", func() bool {
			n = 0
			return st.ReadPoints(t.Context(), 0, func(telemetry.Point) error { n++; return nil }) == nil
		})
		if n != len(points) {
			t.Errorf("got %d points, want %d", n, len(points))
		}
	}
	check(st)
	second := put(t, st, "desired.y", "2")
	if second <= first {
		t.Errorf("revision %d after %d", second, first)
	}
	if _, err := os.Stat(filepath.Join(c.dir, "a", singleStoreDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the snapshot was not removed: %v", err)
	}

	if _, err := Serve(t.Context(), Options{Dir: filepath.Join(c.dir, "a"), Listen: "127.0.0.1:0", Token: "secret"}); err == nil {
		t.Error("the directory of a member was served twice")
	}
	testkit.Eventually(t, "b is detached", func() bool { // it is called again after an error, as of a stream without a leader
		err := detach(t, c.servers["b"])
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
	third := put(t, st, "desired.z", "3")
	for _, s := range c.servers {
		s.Close()
	}
	o := c.options("b")
	o.Cluster = nil
	srv = must[*Server](t)(Serve(t.Context(), o))
	t.Cleanup(srv.Close)
	check(st)
	if _, revision, err := read(t, st, "desired.z"); err != nil || revision != third {
		t.Errorf("revision %d, %v; want %d", revision, err, third)
	}
	if last := put(t, st, "desired.x", "4"); last <= third {
		t.Errorf("revision %d after %d", last, third)
	}
	srv.Close()
	o.Cluster = nil
	if m, err := readMember(o.Dir); err != nil || m.ID != "" {
		t.Errorf("a single store is member %v, %v", m, err)
	}

	c.start("a", "c") // what they held is void
	c.start("b")
	c.waitReplicated()
	if _, revision, err := read(t, st, "desired.z"); err != nil || revision != third {
		t.Errorf("revision %d, %v; want %d", revision, err, third)
	}
	if last := put(t, st, "desired.w", "5"); last <= third {
		t.Errorf("revision %d after %d", last, third)
	}
}

// A new member replaces one whose disk is lost, also under the same name: the old one is removed and all
// streams have three replicas again.
func TestClusterReplacesMember(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	st := c.client("b")
	put(t, st, "desired.x", "1")
	c.waitReplicated()
	c.servers["a"].Close()
	old := filepath.Join(c.dir, "old")
	if err := os.Rename(filepath.Join(c.dir, "a"), old); err != nil {
		t.Fatal(err)
	}
	put(t, st, "desired.y", "2")
	c.start("a")
	c.waitMembers("a", "b", "c")
	// The new member has the data: it and b are a majority without c.
	c.servers["c"].Close()
	delete(c.servers, "c")
	put(t, st, "desired.z", "3")
	for key, want := range map[string]string{"desired.x": "1", "desired.y": "2", "desired.z": "3"} {
		if v, _, err := read(t, st, key); err != nil || string(v) != want {
			t.Errorf("%s: got %q, %v", key, v, err)
		}
	}
}

// During a partition only the majority writes, and clients of the minority reach it, also those that only watch; no
// lease has two holders.
func TestClusterPartition(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	put(t, c.client("a"), "desired.x", "0")
	c.waitReplicated()
	minority := c.leader()
	st := c.client(minority)
	put(t, st, "desired.x", "1")
	candidate := c.client(minority) // it only reads while the lease is held: reads that fail must move it too
	testkit.Eventually(t, "the candidate is connected to the minority", func() bool {
		return candidate.Connected() && candidate.newestConn().ConnectedAddr() == c.clients[minority]
	})
	watcher := c.client(minority) // it only watches, and reads the store's time, which a partitioned member knows
	ctx, end := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for sleep(ctx, 200*time.Millisecond) {
			_, _ = watcher.Time(ctx)
		}
	})
	defer func() { end(); reading.Wait() }()
	values, events := watcher.WatchReadOnly(t.Context(), "desired."), watcher.FollowEvents(t.Context())
	if err := st.AppendEvent(t.Context(), telemetry.Event{ID: "1", At: time.Now(), Message: "before"}); err != nil {
		t.Fatal(err)
	}
	if value, event := next(t, values), next(t, events); string(value.Value) != "1" || event.Message != "before" {
		t.Errorf("the watcher received %q, %q", value.Value, event.Message)
	}
	testkit.Eventually(t, "the watcher is connected to the minority", func() bool {
		return watcher.newestConn().ConnectedAddr() == c.clients[minority]
	})
	ttl := time.Second
	lease := acquireSoon(t, st, "old", ttl)
	c.isolate(minority, true)
	majority := c.nodes[0]
	if majority == minority {
		majority = c.nodes[1]
	}
	later := acquireSoon(t, candidate, "new", ttl)
	if lease.Valid() || later.Token() <= lease.Token() {
		t.Errorf("two holders: token %d is valid %t beside %d", lease.Token(), lease.Valid(), later.Token())
	}
	put(t, st, "desired.x", "2") // by way of the majority
	if v, _, err := read(t, c.client(majority), "desired.x"); err != nil || string(v) != "2" {
		t.Errorf("the majority has %q, %v", v, err)
	}
	testkit.Eventually(t, "an event is stored", func() bool {
		return st.AppendEvent(t.Context(), telemetry.Event{ID: "2", At: time.Now(), Message: "during"}) == nil
	})
	if value, event := next(t, values), next(t, events); string(value.Value) != "2" || event.Message != "during" {
		t.Errorf("the watcher received %q, %q", value.Value, event.Message)
	}
	c.isolate(minority, false)
	c.waitReplicated()
	only := must[*Store](t)(Connect(t.Context(), "nats://"+c.clients[minority], "secret", ForService("chat")))
	defer only.Close()
	if v, _, err := read(t, only, "desired.x"); err != nil || string(v) != "2" {
		t.Errorf("the minority has %q, %v after the partition", v, err)
	}
}

func TestClusterRefuses(t *testing.T) {
	c := newTestCluster(t, "a", "b", "c")
	if err := (member{Cluster: ClusterName("other"), Node: "a", ID: "x"}).write(c.dir); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"must be skyserve-":        func(o *Options) { o.Cluster.Name = "chat" },
		"a node must be":           func(o *Options) { o.Cluster.Node = "a.b" },
		"a node must be 1 to 64":   func(o *Options) { o.Cluster.Node = strings.Repeat("a", 65) },
		"3 members or more, got 2": func(o *Options) { o.Cluster.Members = o.Cluster.Members[:2] },
		"starting store: the address for routes: listen must be a loopback address": func(o *Options) { o.Cluster.Listen = "0.0.0.0:0" },
		"set Accept and Dial":    func(o *Options) { o.Cluster.Listen = ":0" },
		"a route must be":        func(o *Options) { o.Cluster.Routes = []string{"b"} },
		"cluster skyserve-other": func(o *Options) { o.Dir = c.dir },
	} {
		o := c.options("a")
		change(&o)
		s, err := Serve(t.Context(), o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, memberFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := c.options("a")
	o.Dir = c.dir
	if _, err := Serve(t.Context(), o); err == nil || !strings.Contains(err.Error(), memberFile) {
		t.Errorf("a damaged file: got %v", err)
	}
}

// A node with a new disk has two members until the earlier one is removed. It responds, so nothing says that it does not.
func TestReplacedMemberDoesNotLookSilent(t *testing.T) {
	c := ClusterStatus{Open: true, Leader: "a", Members: []MemberStatus{
		{Node: "a", State: MemberLeader}, {Node: "b", State: MemberCurrent}, {Node: "c", State: MemberCatchingUp}, {Node: "c", State: MemberOffline, OfflineFor: time.Minute},
	}}
	if got := c.NotReplicatedReason(); !strings.Contains(got, "the earlier member on c is not removed yet") || strings.Contains(got, "no response") {
		t.Errorf("got %q", got)
	}
	c.Members[2].State = MemberOffline
	if got := c.NotReplicatedReason(); !strings.Contains(got, "no response from c") || strings.Contains(got, "earlier") {
		t.Errorf("none responds on c: got %q", got)
	}
}

func TestMembersToRemove(t *testing.T) {
	online := func(nodes ...string) (members []MemberStatus) {
		for _, n := range nodes {
			members = append(members, MemberStatus{Node: n, State: MemberCurrent})
		}
		return members
	}
	offline := func(node string, since time.Duration) MemberStatus {
		return MemberStatus{Node: node, State: MemberOffline, OfflineFor: since, peer: "old"}
	}
	configured := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		members []MemberStatus
		want    bool
	}{
		"all respond":                         {online("a", "b", "c"), false},
		"one is offline, nobody replaces it":  {append(online("a", "b"), offline("c", time.Hour)), false},
		"its node has a new disk":             {append(online("a", "b", "c"), offline("c", time.Minute)), true},
		"its new disk just responds":          {append(online("a", "b", "c"), offline("c", 2*time.Second)), false},
		"its new disk responds for a while":   {append(online("a", "b", "c"), offline("c", 6*time.Second)), true},
		"not configured for a while":          {append(online("a", "b", "c"), offline("d", 6*time.Second)), false},
		"its node is not configured":          {append(online("a", "b", "c"), offline("d", time.Minute)), true},
		"not configured, but needed":          {append(online("a", "b"), offline("d", time.Hour)), false},
		"it may restart":                      {append(online("a", "b", "c"), offline("d", time.Second)), false},
		"its name is unknown, all respond":    {append(online("a", "b", "c"), offline("", time.Minute)), true},
		"its name is unknown, one is missing": {append(online("a", "b", "d"), offline("", time.Minute)), false},
	} {
		if _, got := replacedMember(c.members, configured, time.Minute); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
