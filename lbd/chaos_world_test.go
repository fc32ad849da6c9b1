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

// world is a service of two regions with a controller, whose every connection can
// come to harm.
type world struct {
	*testing.T
	seed    uint64
	policy  string
	engines []*mortal
	seats   []*seat
	control *watcher
	wishes  []wish
	calls   atomic.Int64
	done    context.Context // ends when no new requests are to be made

	mu       sync.Mutex
	attempts []*attempt
	tallies  map[*node]*tally
	deaths   []*death
	history  []string
}

// mortal is an engine at the end of a line.
type mortal struct {
	id     string
	direct string // past the line
	line   *line
	region service.Region
}

// seat is a balancer's place in the service; one that is killed is followed by
// another.
type seat struct {
	cfg                service.BalancerConfig
	front, back, admin *line // for clients, peers and the controller

	mu   sync.Mutex
	node *node  // nil while it is dead
	died *death // while it is dead
}

func (s *seat) now() (*node, *death) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node, s.died
}

// death is a balancer that was killed, and what became of its clients.
type death struct {
	seat     *seat
	at       time.Time
	alone    bool          // it was the only one of its region
	orphans  int           // requests that it had
	decided  int           // probes of the controller until it was taken for dead
	probes   int           // until the first replica was adopted; 0 = none yet
	adopted  time.Duration // until then
	served   []time.Duration
	adoption chan struct{} // closed at the first
}

// tally counts how clients saw the requests of one balancer end. Of an unclear one
// the balancer may have heard or not, and may have ended it in any way.
type tally struct {
	ends    map[fate]int
	unclear int
}

// limits are those of a balancer that does not wait long for what has died.
var hasty = proxy.Limits{FirstByte: 1500 * time.Millisecond, Idle: 2 * time.Second, Answer: 3 * time.Second, Silent: 400 * time.Millisecond, Decisions: 1 << 16}

// newWorld makes a service with two balancers and four replicas in the one region,
// and one balancer and two replicas in the other.
func newWorld(t *testing.T, seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, 0))
	w := &world{T: t, seed: seed, policy: policyOf(seed), tallies: map[*node]*tally{}}
	w.wishes = wishes(t, random)
	w.control = &watcher{Handler: slog.DiscardHandler, world: w}
	control := service.ControllerConfig{
		Service: "chat", Listen: "127.0.0.1:0", StoreListen: "127.0.0.1:0", StoreDir: t.TempDir(),
		RTT: map[string]time.Duration{"us-eu": 4 * time.Millisecond},
	}
	for _, place := range []string{"us-0", "us-1", "eu-0"} {
		region := service.Region("local/" + place[:2])
		s := &seat{cfg: service.BalancerConfig{Service: "chat", ID: "lb-" + place, Region: region, PeerToken: "peers only"}}
		s.cfg.Balancer = service.BalancerSpec{Policy: w.policy, MaxWait: 3 * time.Second}
		s.front, s.back, s.admin = newLine(t, ""), newLine(t, ""), newLine(t, "")
		for i := range 2 {
			e := newMortal(t, fmt.Sprintf("%s%c", place, 'a'+i), region)
			w.engines = append(w.engines, e)
			r := service.ReplicaConfig{ID: e.id, URL: e.line.url(), Model: "llama", Kind: service.EngineSim, Region: region}
			s.cfg.Replicas = append(s.cfg.Replicas, r)
			control.Replicas = append(control.Replicas, service.ControlledReplica{ReplicaConfig: r, Home: s.cfg.ID})
		}
		control.Balancers = append(control.Balancers, service.ControlledBalancer{ID: s.cfg.ID, Region: region, Admin: s.admin.url()})
		w.seats = append(w.seats, s)
	}
	for _, s := range w.seats {
		for _, o := range w.seats {
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

// policyOf is each policy in turn.
func policyOf(seed uint64) string {
	names := slices.DeleteFunc(policy.Names(), func(name string) bool { return strings.Contains(name, ":") })
	return names[seed%uint64(len(names))]
}

func newMortal(t *testing.T, id string, region service.Region) *mortal {
	t.Helper()
	// How many tokens an event holds differs from engine to engine.
	interval := 1 + 3*(int(id[len(id)-1]+id[len(id)-2])%3)
	sim, err := server.New(server.Options{Model: "llama", Speed: 16, Seed: voice, StreamInterval: interval})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(&talker{t: t, sim: sim.Handler(), pace: 20 * time.Millisecond})
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		sim.Close()
	})
	return &mortal{id: id, direct: web.URL, line: newLine(t, web.Listener.Addr().String()), region: region}
}

// sit starts a balancer on a seat.
func (w *world) sit(s *seat) {
	n := start(w.T, s.cfg, Options{DrainTimeout: time.Millisecond, limits: hasty})
	for l, base := range map[*line]string{s.front: n.public, s.back: n.public, s.admin: n.adminURL} {
		l.lead(strings.TrimPrefix(base, "http://"))
		l.mend()
	}
	w.mu.Lock()
	w.tallies[n] = &tally{ends: map[fate]int{}}
	w.mu.Unlock()
	s.mu.Lock()
	s.node, s.died = n, nil
	s.mu.Unlock()
}

// kill ends the balancer of a seat without a word to anybody.
func (w *world) kill(s *seat) *death {
	d := &death{seat: s, at: time.Now(), alone: w.nearest(s)[1].cfg.Region != s.cfg.Region, adoption: make(chan struct{})}
	s.mu.Lock()
	n := s.node
	s.node, s.died = nil, d
	s.mu.Unlock()
	w.mu.Lock()
	w.deaths = append(w.deaths, d)
	w.mu.Unlock()
	s.admin.hurt(harm{away: true, counts: "GET /healthz "}) // the controller's probes
	s.admin.reset()
	s.front.cut()
	s.back.cut()
	n.stop()
	_ = n.wait() // what it had ends with an error
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

// watcher hears from the controller's log what it did.
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
	case "balancer is dead; other balancers adopt its replicas":
		c.world.decided(attribute(r, "balancer"))
	case "replica attached":
		c.world.attached(attribute(r, "replica"))
	}
	return nil
}

// attribute is the value of an attribute of a log's line.
func attribute(r slog.Record, key string) (value string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			value = a.Value.String()
		}
		return value == ""
	})
	return value
}

// decided notes that a balancer was taken for dead.
func (w *world) decided(id string) {
	for _, s := range w.seats {
		if _, d := s.now(); d != nil && s.cfg.ID == id {
			w.mu.Lock()
			d.decided = s.admin.callers()
			w.mu.Unlock()
		}
	}
}

// attached notes that a replica was given to a balancer.
func (w *world) attached(replica string) {
	for _, s := range w.seats {
		_, d := s.now()
		home := slices.ContainsFunc(s.cfg.Replicas, func(r service.ReplicaConfig) bool { return r.ID == replica })
		if d == nil || !home {
			continue
		}
		w.mu.Lock()
		if d.probes == 0 {
			d.probes, d.adopted = s.admin.callers(), time.Since(d.at)
			close(d.adoption)
		}
		w.mu.Unlock()
	}
}

// note writes down what was done, for the case that something goes wrong.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// client sends requests, each to the balancer at home or, where that is dead, to
// the next one, until done ends.
func (w *world) client(i int) {
	random := rand.New(rand.NewPCG(w.seed, uint64(1000+i)))
	hc := &http.Client{Transport: &http.Transport{DialContext: w.dial}}
	defer hc.CloseIdleConnections()
	home := w.seats[i%len(w.seats)]
	for w.done.Err() == nil {
		wish := w.wishes[random.IntN(len(w.wishes))]
		for _, s := range w.nearest(home) {
			if a := w.try(hc, home, s, wish, random); a.fate != unreached && a.fate != orphaned {
				break
			}
		}
	}
}

// dated is a client's connection that knows how often its line had broken before.
type dated struct {
	net.Conn
	breaks int
}

// dial connects a client to a seat.
func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	breaks := 0
	for _, s := range w.seats {
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

// nearest lists the seats in the order in which the clients of one try them.
func (w *world) nearest(home *seat) []*seat {
	list := []*seat{home}
	for _, near := range []bool{true, false} {
		for _, s := range w.seats {
			if s != home && (s.cfg.Region == home.cfg.Region) == near {
				list = append(list, s)
			}
		}
	}
	return list
}

// try sends one request to one seat.
func (w *world) try(hc *http.Client, home, s *seat, wish wish, random *rand.Rand) *attempt {
	a := &attempt{wish: wish, id: fmt.Sprintf("c%d", w.calls.Add(1))}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if random.IntN(8) == 0 {
		timer := time.AfterFunc(time.Duration(random.IntN(150))*time.Millisecond, leave)
		defer timer.Stop()
	}
	tier := []string{"IW-F", "IW-N", "NIW"}[random.IntN(3)]
	slow := random.IntN(10) == 0
	before, death := s.now()
	var breaks atomic.Int64 // of the line when the connection was made, which may have been for an earlier request
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
