package lbd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// world is a service of two regions with a controller. Faults can be injected into each of its
// connections.
type world struct {
	*testing.T
	seed    uint64
	policy  string
	engines []*chaosEngine
	slots   []*balancerSlot
	control *watcher
	wishes  []chaosRequest
	calls   atomic.Int64
	done    context.Context // ends when no new requests should be sent

	mu       sync.Mutex
	attempts []*attempt
	tallies  map[*node]*tally
	deaths   []*death
	history  []string
}

// chaosEngine is an engine behind a link.
type chaosEngine struct {
	id     string
	direct string // without the link
	line   *link
	region service.Region
}

// balancerSlot is a place for a balancer in the service; one that is killed is replaced by another.
type balancerSlot struct {
	cfg                service.BalancerConfig
	front, back, admin *link // for clients, peers and the controller

	mu   sync.Mutex
	node *node  // nil while it is dead
	died *death // while it is dead
}

func (s *balancerSlot) now() (*node, *death) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node, s.died
}

// death is a killed balancer, with the results of its clients.
type death struct {
	slot     *balancerSlot
	at       time.Time
	alone    bool          // it was the only balancer in its region
	orphans  int           // its requests at the time
	decided  int           // probes by the controller until it counted as dead
	probes   int           // until the first replica was adopted
	adopted  time.Duration // until then
	served   []time.Duration
	adoption chan struct{} // closed at the first
}

// tally counts the results of one balancer's requests for its clients. An unclear request may not
// have reached the balancer, and may have had any result there.
type tally struct {
	ends    map[outcome]int
	unclear int
}

// hasty returns limits of a balancer that detects failures quickly.
var hasty = proxy.Limits{FirstByteTimeout: 1500 * time.Millisecond, IdleTimeout: 2 * time.Second, ResponseTimeout: 3 * time.Second, SilenceTimeout: 400 * time.Millisecond, MaxDecisions: 1 << 16}

// newWorld returns a service with two balancers and four replicas in one region, and one balancer and
// two replicas in the other.
func newWorld(t *testing.T, seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, 0))
	w := &world{T: t, seed: seed, policy: policyOf(seed), tallies: map[*node]*tally{}}
	w.wishes = chaosRequests(t, random)
	w.control = &watcher{Handler: slog.DiscardHandler, world: w}
	control := service.ControllerConfig{
		Service: "chat", Listen: "127.0.0.1:0", StoreListen: "127.0.0.1:0", StoreDir: t.TempDir(),
		RTT: map[string]time.Duration{"us-eu": 4 * time.Millisecond},
	}
	for _, place := range []string{"us-0", "us-1", "eu-0"} {
		region := service.Region("local/" + place[:2])
		s := &balancerSlot{cfg: service.BalancerConfig{Service: "chat", ID: "lb-" + place, Region: region, PeerToken: "peers only"}}
		s.cfg.Balancer = service.BalancerSpec{Policy: w.policy, MaxWait: 3 * time.Second}
		s.front, s.back, s.admin = newLink(t, ""), newLink(t, ""), newLink(t, "")
		for i := range 2 {
			e := newChaosEngine(t, fmt.Sprintf("%s%c", place, 'a'+i), region)
			w.engines = append(w.engines, e)
			r := service.ReplicaConfig{ID: e.id, URL: e.line.url(), Model: "llama", Kind: service.EngineSim, Region: region}
			s.cfg.Replicas = append(s.cfg.Replicas, r)
			control.Replicas = append(control.Replicas, service.ControlledReplica{ReplicaConfig: r, Primary: s.cfg.ID})
		}
		control.Balancers = append(control.Balancers, service.ControlledBalancer{ID: s.cfg.ID, Region: region, Admin: s.admin.url()})
		w.slots = append(w.slots, s)
	}
	for _, s := range w.slots {
		for _, o := range w.slots {
			if o != s {
				p := service.PeerConfig{ID: o.cfg.ID, Region: o.cfg.Region, URL: o.back.url()}
				if o.cfg.Region != s.cfg.Region {
					p.EmulateRTT = 4 * time.Millisecond
				}
				s.cfg.Peers = append(s.cfg.Peers, p)
			}
		}
		w.sit(s)
	}
	w.controlled(control)
	return w
}

// policyOf returns the policies in rotation.
func policyOf(seed uint64) string {
	names := slices.DeleteFunc(policy.Names(), func(name string) bool { return strings.Contains(name, ":") })
	return names[seed%uint64(len(names))]
}

func newChaosEngine(t *testing.T, id string, region service.Region) *chaosEngine {
	t.Helper()
	// The number of tokens per event differs between engines.
	interval := 1 + 3*(int(id[len(id)-1]+id[len(id)-2])%3)
	sim, err := server.New(server.Options{Model: "llama", Speed: 16, Seed: voice, StreamInterval: interval})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(&scriptedEngine{t: t, sim: sim.Handler(), pace: 20 * time.Millisecond})
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		sim.Close()
	})
	return &chaosEngine{id: id, direct: web.URL, line: newLink(t, web.Listener.Addr().String()), region: region}
}

// sit starts a balancer in a slot.
func (w *world) sit(s *balancerSlot) {
	n := start(w.T, s.cfg, Options{DrainTimeout: time.Millisecond, limits: hasty})
	for l, base := range map[*link]string{s.front: n.public, s.back: n.public, s.admin: n.adminURL} {
		l.lead(strings.TrimPrefix(base, "http://"))
		l.clearFault()
	}
	w.mu.Lock()
	w.tallies[n] = &tally{ends: map[outcome]int{}}
	w.mu.Unlock()
	s.mu.Lock()
	s.node, s.died = n, nil
	s.mu.Unlock()
}

// kill ends the balancer in a slot without a shutdown.
func (w *world) kill(s *balancerSlot) *death {
	d := &death{slot: s, at: time.Now(), alone: w.nearest(s)[1].cfg.Region != s.cfg.Region, adoption: make(chan struct{})}
	s.mu.Lock()
	n := s.node
	s.node, s.died = nil, d
	s.mu.Unlock()
	w.mu.Lock()
	w.deaths = append(w.deaths, d)
	w.mu.Unlock()
	s.admin.setFault(linkFault{away: true, counts: "GET /healthz "}) // the controller's probes
	s.admin.reset()
	s.front.cut()
	s.back.cut()
	n.stop()
	_ = n.wait() // its requests end with an error
	return d
}

// controlled runs the controller until the test ends.
func (w *world) controlled(cfg service.ControllerConfig) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx, cfg, slog.New(w.control)) }()
	w.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.Errorf("controller: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

// watcher extracts the controller's actions from its log.
type watcher struct {
	slog.Handler
	world    *world
	assigned atomic.Bool
}

func (c *watcher) Enabled(context.Context, slog.Level) bool { return true }

func (c *watcher) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "assignment published":
		c.assigned.Store(true)
	case "balancer does not respond; other balancers adopt its replicas":
		c.world.decided(attribute(r, "balancer"))
	case "replica attached":
		c.world.attached(attribute(r, "replica"))
	}
	return nil
}

// attribute returns the value of an attribute of a log line.
func attribute(r slog.Record, key string) (value string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			value = a.Value.String()
		}
		return value == ""
	})
	return value
}

// decided records that a balancer counts as dead.
func (w *world) decided(id string) {
	for _, s := range w.slots {
		if _, d := s.now(); d != nil && s.cfg.ID == id {
			w.mu.Lock()
			d.decided = s.admin.callers()
			w.mu.Unlock()
		}
	}
}

// attached records that a replica was assigned to a balancer.
func (w *world) attached(replica string) {
	for _, s := range w.slots {
		_, d := s.now()
		home := slices.ContainsFunc(s.cfg.Replicas, func(r service.ReplicaConfig) bool { return r.ID == replica })
		if d == nil || !home {
			continue
		}
		w.mu.Lock()
		select {
		case <-d.adoption:
		default:
			d.probes, d.adopted = s.admin.callers(), time.Since(d.at)
			close(d.adoption)
		}
		w.mu.Unlock()
	}
}

// note records an action for the failure report.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// client sends requests, each to its own balancer or, if that is dead, to the next one, until done
// ends.
func (w *world) client(i int) {
	random := rand.New(rand.NewPCG(w.seed, uint64(1000+i)))
	hc := &http.Client{Transport: &http.Transport{DialContext: w.dial}}
	defer hc.CloseIdleConnections()
	home := w.slots[i%len(w.slots)]
	for w.done.Err() == nil {
		request := w.wishes[random.IntN(len(w.wishes))]
		for _, s := range w.nearest(home) {
			if a := w.try(hc, home, s, request, random); a.fate != unreached && a.fate != orphaned {
				break
			}
		}
	}
}

// dated is a client's connection that stores how often its link had failed before.
type dated struct {
	net.Conn
	breaks int
}

// dial connects a client to a slot.
func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	breaks := 0
	for _, s := range w.slots {
		if s.front.addr == addr {
			breaks = s.front.broken()
		}
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &dated{c, breaks}, nil
}

// nearest returns the slots in the order in which a client tries them.
func (w *world) nearest(home *balancerSlot) []*balancerSlot {
	list := []*balancerSlot{home}
	for _, near := range []bool{true, false} {
		for _, s := range w.slots {
			if s != home && (s.cfg.Region == home.cfg.Region) == near {
				list = append(list, s)
			}
		}
	}
	return list
}

// try sends one request to one slot.
func (w *world) try(hc *http.Client, home, s *balancerSlot, request chaosRequest, random *rand.Rand) *attempt {
	a := &attempt{chaosRequest: request, id: fmt.Sprintf("c%d", w.calls.Add(1))}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if random.IntN(8) == 0 {
		timer := time.AfterFunc(time.Duration(random.IntN(150))*time.Millisecond, leave)
		defer timer.Stop()
	}
	tier := []string{"IW-F", "IW-N", "NIW"}[random.IntN(3)]
	slow := random.IntN(10) == 0
	before, death := s.now()
	var breaks atomic.Int64 // of the link when the connection was opened, possibly for an earlier request
	breaks.Store(int64(s.front.broken()))
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if c, ok := i.Conn.(*dated); ok {
			breaks.Store(int64(c.breaks))
		}
	}})
	gone := func() bool { return int64(s.front.broken()) != breaks.Load() }
	a.send(ctx, hc, s.front.url(), tier, slow, gone)
	after, since := s.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts = append(w.attempts, a)
	for _, n := range slices.Compact([]*node{before, after}) {
		if t := w.tallies[n]; t != nil && (before != after || a.fate == cancelled || a.fate == unreached) {
			t.unclear++
		} else if t != nil {
			t.ends[a.fate]++
		}
	}
	if death == nil {
		death = since
	}
	if a.fate == orphaned && death != nil {
		death.orphans++
	}
	if _, d := home.now(); d != nil && a.fate == served && a.first.After(d.at) {
		d.served = append(d.served, a.first.Sub(d.at))
	}
	return a
}
