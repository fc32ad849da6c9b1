package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// Defaults and bounds, with reasons.
const (
	defaultInterval = 100 * time.Millisecond // ten probes a second: about the duration of a prefill on an L4
	defaultTimeout  = time.Second            // the core marks a replica lost after a second without reports
	aliveInterval   = time.Second            // for requests that do not return the load: /health of engines without metrics, pages without figures, and pages of engines whose load endpoint is read
	suspicionTime   = time.Second            // time for which probes request /health after a failed request: ten probes
	healthTimeout   = 250 * time.Millisecond // SGLang's /health generates a token, which may take over a second: the core needs reports meanwhile; also for load endpoints and pages that wait for an engine's step
	listInterval    = 3 * time.Second        // an adapter loaded at run time is usable within seconds; a list costs as much as a few probes
	recheckInterval = time.Second            // between two readings of the list caused by rejections
	listTimeout     = 250 * time.Millisecond // of reading the list again; as healthTimeout
	maxBackoff      = time.Second            // a replica that recovers is used within a second
	dialTimeout     = time.Second            // included in Options.Timeout
	jitterShare     = 0.1                    // spreads the probes of many replicas and balancers
	maxPage         = 4 << 20                // vLLM's page is 30 KB, with many ranks and LoRAs 1 MB
	idleTimeout     = 30 * time.Second       // for https: longer than any interval
)

// Options configure a Prober. Only Sink is required.
type Options struct {
	// Sink receives the reports. It is called from many goroutines and must not block. The event's
	// pointers are valid only during the call.
	Sink func(core.Event)
	// Identified is called with the model of a replica that was started without one, and with its kind if
	// it was not given and its metrics or load endpoint show it. They may be identified again after a
	// failure. Each call precedes the next ready report of the replica.
	Identified func(service.ReplicaConfig)
	// Listed is called with the model list of a replica when it is verified, when the list changes,
	// and with the first list that is read after Recheck. Each call precedes the next ready report of the
	// replica.
	Listed func(id string, list ModelList)
	// ListInterval is the time between two readings of a replica's model list; default 3 s.
	ListInterval time.Duration
	// Interval is the time between two probes of a replica; default 100 ms.
	Interval time.Duration
	// Timeout is the timeout of each request of a probe; default 1 s.
	Timeout time.Duration
	// Seed seeds the jitter.
	Seed uint64
	// Transport sends the probes; nil = one that keeps a connection to each replica.
	Transport http.RoundTripper
	// TLS is the configuration for replicas that are probed over mTLS; nil = none.
	TLS *tls.Config
	// Allow is called with each address before connecting, if Transport is nil; nil = all are
	// allowed.
	Allow func(netip.Addr) error
	// Logger receives changes of state; nil = no logs.
	Logger *slog.Logger
}

// Prober probes a changing set of replicas. All methods may be called from many
// goroutines.
type Prober struct {
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	watches map[string]*watch
	groups  []*group
}

// New returns a Prober without replicas. Close it after use.
func New(opts Options) *Prober {
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.Timeout = cmp.Or(opts.Timeout, defaultTimeout)
	opts.ListInterval = cmp.Or(opts.ListInterval, listInterval)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Prober{opts: opts, watches: map[string]*watch{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Start starts to probe a replica. It ignores a replica that is already probed, unless the URL, mTLS,
// model, kind, key or number of ranks changed; then it starts again.
func (p *Prober) Start(cfg service.ReplicaConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	if w := p.watches[cfg.ID]; w != nil {
		if w.config.URL == cfg.URL && w.config.MTLS == cfg.MTLS && w.config.Model == cfg.Model && w.config.Kind == cfg.Kind && w.config.Key == cfg.Key && w.config.Ranks() == cfg.Ranks() {
			return
		}
		p.stopWatch(w)
	}
	ctx, stop := context.WithCancel(p.ctx)
	w := &watch{
		prober: p, config: cfg, stop: stop,
		jitter: rand.New(rand.NewPCG(p.opts.Seed, seedOf(cfg.ID))),
		status: ReplicaStatus{Replica: cfg, Reason: "no response yet"}, tick: make(chan struct{}, 1),
	}
	p.watches[cfg.ID] = w
	p.joinGroup(w)
	p.wg.Go(func() { w.runWatch(ctx) })
}

// stopWatch stops probing a replica; p.mu must be held.
func (p *Prober) stopWatch(w *watch) {
	w.stop()
	p.leaveGroup(w)
	delete(p.watches, w.config.ID)
}

// seedOf returns a different jitter seed for every replica.
func seedOf(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

// Suspect makes the probes of a replica request /health too for a second, because the replica
// failed a request. An unknown id is ignored.
func (p *Prober) Suspect(id string) {
	p.mu.Lock()
	w := p.watches[id]
	p.mu.Unlock()
	if w != nil {
		w.suspectedAt.Store(time.Now().UnixNano())
	}
}

// Recheck makes a probe of a replica read its model list soon, because the replica rejected a name. Two
// readings are at least a second apart. If the engine does not list its adapters, the list is read at its
// usual time. An unknown id is ignored.
func (p *Prober) Recheck(id string) {
	p.mu.Lock()
	w := p.watches[id]
	p.mu.Unlock()
	if w != nil {
		w.doubted.Store(true)
	}
}

// Stop stops probing a replica; a probe in progress does not report its result.
func (p *Prober) Stop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.watches[id]; w != nil {
		p.stopWatch(w)
	}
}

// Close stops all probes and waits for them to end.
func (p *Prober) Close() {
	p.mu.Lock() // a Start in progress adds goroutines
	p.cancel()
	p.mu.Unlock()
	p.wg.Wait()
	if t, ok := p.opts.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// ReplicaStatus is the state of a replica according to its probes. core.ReplicaView is its state in
// the balancer.
type ReplicaStatus struct {
	// Replica is the configuration passed to Start, with the identified model and kind.
	Replica service.ReplicaConfig
	// Ready: the last probe found it ready.
	Ready bool
	// WasReady: a probe found it ready at least once.
	WasReady bool
	// Reason explains why it is not ready.
	Reason string
	// Misconfigured is set if it is not ready because of its configuration.
	Misconfigured service.Misconfiguration
	// HitRate is the share of prompt tokens that the engine found in its prefix cache, according to
	// its own metrics: over the last minute, or the recent rate that it reports.
	HitRate policy.Maybe[float64]
}

// Status lists all replicas, sorted by id.
func (p *Prober) Status() []ReplicaStatus {
	p.mu.Lock()
	watches := make([]*watch, 0, len(p.watches))
	for _, w := range p.watches {
		watches = append(watches, w)
	}
	p.mu.Unlock()
	all := make([]ReplicaStatus, len(watches))
	for i, w := range watches {
		all[i] = w.currentStatus()
	}
	slices.SortFunc(all, func(a, b ReplicaStatus) int { return cmp.Compare(a.Replica.ID, b.Replica.ID) })
	return all
}
