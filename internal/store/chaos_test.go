package store

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// Flags of TestClusterKills: make chaos-store sets them.
var (
	chaosSeeds = flag.Int("store.seeds", 1, "number of seeds")
	chaosFirst = flag.Uint64("store.seed", 1, "first seed")
	chaosKills = flag.Int("store.kills", 1, "kills per seed")
	chaosRTT   = flag.Duration("store.rtt", 0, "round-trip time between members")
)

// memberEnv contains the options of a member: the test binary then runs it instead of tests.
const memberEnv = "SKYSERVE_TEST_STORE_MEMBER"

// processOptions are the options of a member in a process of its own.
type processOptions struct {
	Dir, Listen        string
	Node, ListenRoutes string
	Members, Routes    []string
}

// runMember runs the member that the environment describes until its standard input ends.
func runMember(text string) int {
	var o processOptions
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		_, err = Serve(context.Background(), Options{
			Dir: o.Dir, Listen: o.Listen, Token: "secret", Logger: log,
			Cluster:       &Cluster{Name: ClusterName("chat"), Node: o.Node, Listen: o.ListenRoutes, Members: o.Members, Routes: o.Routes},
			maintainEvery: 100 * time.Millisecond, removeAfter: time.Second,
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// processCluster is a cluster whose members are processes, which can be killed.
type processCluster struct {
	*testCluster
	processes map[string]*exec.Cmd
	routes    map[string][]string // by the node that dials
}

func newProcessCluster(t *testing.T, nodes ...string) *processCluster {
	c := &processCluster{&testCluster{t: t, dir: t.TempDir(), nodes: nodes, ports: map[string]string{}, clients: map[string]string{}}, map[string]*exec.Cmd{}, map[string][]string{}}
	for _, n := range nodes {
		c.ports[n], c.clients[n] = testkit.FreeAddr(), testkit.FreeAddr()
	}
	network := &testkit.Network{Delay: func(string, string) time.Duration { return *chaosRTT }}
	for _, from := range nodes {
		c.routes[from] = []string{c.ports[from]}
		for _, to := range nodes {
			switch {
			case from == to:
			case *chaosRTT == 0:
				c.routes[from] = append(c.routes[from], c.ports[to])
			default:
				c.routes[from] = append(c.routes[from], testkit.NewProxy(t, "127.0.0.1:0", c.ports[to], to, func(net.Addr, net.Addr) string { return from }, network).Addr())
			}
		}
	}
	t.Cleanup(func() {
		for n := range c.processes {
			c.kill(n)
		}
	})
	return c
}

// start starts a member.
func (c *processCluster) start(node string) {
	c.t.Helper()
	o := processOptions{
		Dir: filepath.Join(c.dir, node), Listen: c.clients[node], Node: node, ListenRoutes: c.ports[node], Members: c.nodes, Routes: c.routes[node],
	}
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), memberEnv+"="+string(text))
	log, err := os.OpenFile(filepath.Join(c.dir, node+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	p.Stderr = log
	if _, err := p.StdinPipe(); err != nil { // it ends with this process
		c.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.processes[node] = p
}

// kill kills a member as kill -9 does.
func (c *processCluster) kill(node string) {
	p := c.processes[node]
	delete(c.processes, node)
	_ = p.Process.Kill() // it may have ended
	_ = p.Wait()
}

// leaderOf returns the node that leads the state of the service; empty if none does.
func (c *processCluster) leaderOf(st *Store) string {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	nc, err := st.conn()
	if err != nil {
		return ""
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return ""
	}
	stream, err := js.Stream(ctx, "KV_"+st.namespace+"_state")
	if err != nil || stream.CachedInfo().Cluster == nil || len(unreplicated([]*jetstream.StreamInfo{stream.CachedInfo()})) > 0 {
		return ""
	}
	return nodeOf(stream.CachedInfo().Cluster.Leader)
}

// chaosRun is what one seed observed.
type chaosRun struct {
	mu        sync.Mutex
	acked     map[string]uint64 // the revision of each acknowledged write, by key
	failed    map[string]int    // failed writes, by error
	conflicts []string
	leases    []*Lease
	failovers []time.Duration
}

// write writes keys until ctx ends.
func (r *chaosRun) write(ctx context.Context, st *Store, writer string) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s.%d", writer, n)
		octx, cancel := context.WithTimeout(ctx, 2*time.Second)
		revision, err := st.Put(octx, key, []byte(key))
		cancel()
		if err != nil {
			r.mu.Lock()
			r.failed[err.Error()]++
			r.mu.Unlock()
			pause(ctx, nil, 50*time.Millisecond)
			continue
		}
		r.mu.Lock()
		r.acked[key] = revision
		r.mu.Unlock()
	}
}

// contend acquires and renews a lease until ctx ends. Whenever it holds the lease, nobody else may.
func (r *chaosRun) contend(ctx context.Context, st *Store, holder string) {
	ttl := time.Second + 4**chaosRTT
	for ctx.Err() == nil {
		l, err := st.Acquire(ctx, "controller", holder, ttl)
		if err != nil {
			return
		}
		r.mu.Lock()
		for _, other := range r.leases {
			// other first: it may expire between the two
			if other.Valid() && l.Valid() || other.Token() >= l.Token() {
				r.conflicts = append(r.conflicts, fmt.Sprintf("%s acquired token %d beside token %d", holder, l.Token(), other.Token()))
			}
		}
		r.leases = append(r.leases, l)
		r.mu.Unlock()
		// It stops renewing after a while without a release, as a process that hangs.
		for range 8 {
			if !l.Valid() || ctx.Err() != nil {
				break
			}
			octx, cancel := context.WithTimeout(ctx, ttl/2)
			_ = l.Renew(octx) // Valid decides
			cancel()
			pause(ctx, nil, ttl/4)
		}
	}
}

// checkAcked compares the store with all acknowledged writes.
func (r *chaosRun) checkAcked(t *testing.T, st *Store) {
	t.Helper()
	for key, revision := range r.acked {
		value, got, err := read(t, st, key)
		if err != nil || string(value) != key || got != revision {
			t.Errorf("the acknowledged write of %s at %d is lost: got %q at %d, %v", key, revision, value, got, err)
		}
	}
}

// Members are killed at random, the leader of the state most often, and restarted. No acknowledged write is lost,
// and the lease never has two holders.
func TestClusterKills(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for seed := *chaosFirst; seed < *chaosFirst+uint64(*chaosSeeds); seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := runKills(t, rand.New(rand.NewPCG(seed, 0)), *chaosKills)
			all = append(all, r.failovers...)
			t.Logf("%d kills, %d acknowledged writes, %d leases, failover %v", *chaosKills, len(r.acked), len(r.leases), r.failovers)
		})
	}
	if slices.Sort(all); len(all) > 0 {
		t.Logf("%d kills of the leader: failover median %s, max %s", len(all), all[len(all)/2], all[len(all)-1])
	}
}

func runKills(t *testing.T, rng *rand.Rand, kills int) *chaosRun {
	c := newProcessCluster(t, "a", "b", "c")
	for _, n := range c.nodes {
		c.start(n)
	}
	probe := c.client("a")
	put(t, probe, "probe", "0")
	r := &chaosRun{acked: map[string]uint64{}, failed: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	for i, n := range c.nodes {
		writer, contender := c.client(n), c.client(n)
		running.Go(func() { r.write(ctx, writer, fmt.Sprintf("w%d", i)) })
		running.Go(func() { r.contend(ctx, contender, n) })
	}
	testkit.Eventually(t, "a write is acknowledged", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.acked) > 0 && len(r.leases) > 0
	})
	for range kills {
		var leader string
		testkit.Eventually(t, "the state is replicated", func() bool { leader = c.leaderOf(probe); return leader != "" })
		victims := []string{leader}
		switch rng.IntN(4) {
		case 0: // any member
			victims[0] = c.nodes[rng.IntN(len(c.nodes))]
		case 1: // two members at once: nothing is written until one returns
			victims = append(victims, c.nodes[(slices.Index(c.nodes, leader)+1)%len(c.nodes)])
		}
		for _, v := range victims {
			c.kill(v)
		}
		killed := time.Now()
		if len(victims) > 1 {
			c.start(victims[1])
		}
		testkit.Eventually(t, "a write succeeds", func() bool {
			octx, cancel := context.WithTimeout(ctx, 300*time.Millisecond+4**chaosRTT)
			defer cancel()
			_, err := probe.Put(octx, "probe", nil)
			return err == nil
		})
		if len(victims) == 1 && victims[0] == leader {
			r.failovers = append(r.failovers, time.Since(killed).Round(time.Millisecond))
		}
		c.start(victims[0])
	}
	testkit.Eventually(t, "the state is replicated", func() bool { return c.leaderOf(probe) != "" })
	cancel()
	running.Wait()
	if len(r.conflicts) > 0 {
		t.Errorf("the lease had two holders: %s", strings.Join(r.conflicts, "; "))
	}
	if len(r.acked) == 0 {
		t.Errorf("no write was acknowledged: %v", r.failed)
	}
	r.checkAcked(t, probe)
	return r
}

// Latency of a durable write, by the number of members.
func BenchmarkPut(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprint("members=", members), func(b *testing.B) {
			st := benchStore(b, members)
			var times []time.Duration
			for b.Loop() {
				start := time.Now()
				if _, err := st.Put(b.Context(), "k", []byte("value")); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// benchStore returns a client of a replicated cluster, or of a single store.
func benchStore(b *testing.B, members int) *Store {
	nodes := []string{"a", "b", "c"}[:members]
	var routes []string
	for range nodes {
		routes = append(routes, testkit.FreeAddr())
	}
	var servers []*Server
	for i, n := range nodes {
		o := Options{Dir: b.TempDir(), Listen: "127.0.0.1:0"}
		if members > 1 {
			o.Cluster = &Cluster{Name: ClusterName("chat"), Node: n, Listen: routes[i], Routes: routes, Members: nodes}
		}
		s, err := Serve(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.Close)
		servers = append(servers, s)
	}
	st, err := Connect(b.Context(), servers[0].URL(), "")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	testkit.Eventually(b, "the store is ready", func() bool {
		_, err := st.Put(b.Context(), "k", nil)
		return err == nil && (members == 1 || servers[0].Cluster().Replicated())
	})
	return st
}
