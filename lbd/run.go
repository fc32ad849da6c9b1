package lbd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/acme"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/lbd/admin"
	"skyserve/lbd/batch"
	"skyserve/lbd/discover"
	"skyserve/lbd/health"
	"skyserve/lbd/oidc"
	"skyserve/lbd/peer"
	"skyserve/lbd/proxy"
	"skyserve/lbd/trace"
	"skyserve/lbd/wire"
)

// Limits of the servers, each with its reason.
const (
	readHeaderTimeout = 10 * time.Second // a header fits one packet; a slower client is an attacker
	idleTimeout       = 2 * time.Minute  // clients send the next request within a turn of their conversation
	maxHeaderBytes    = 64 << 10         // enough for long cookies and tokens
	flushTimeout      = time.Second      // for sending complete responses at shutdown
	drainTimeout      = 10 * time.Second // a third of the 30 s after which Kubernetes kills a pod
)

// Options are the settings of a balancer in addition to its configuration.
type Options struct {
	// Logger receives log messages; nil = none. Secrets are never logged.
	Logger *slog.Logger
	// AdminToken must be sent with every request to the admin listener, except over mTLS. It may be
	// empty only on loopback or with an identity.
	AdminToken string
	// InsecureNoAuth allows other machines to use the public listener without API keys.
	InsecureNoAuth bool
	// AllowCIDRs are networks whose replicas may be attached by /add_worker, in addition to this
	// machine and private networks.
	AllowCIDRs []netip.Prefix
	// Store stores the history; nil = the store at StoreURL, if any.
	Store PointStore
	// Files stores the files of batches; nil = in the store at StoreURL.
	Files store.CloudBucket
	// UsageStore stores the usage of API keys; nil = the store at StoreURL, if any.
	UsageStore UsageStore
	// DrainTimeout is the maximum time for requests in flight at shutdown; default 10 s.
	DrainTimeout time.Duration
	// ReadConfig reads the configuration for a reload; nil = the configuration passed to Run is kept, and
	// only keys and certificates are read again.
	ReadConfig func() (service.BalancerConfig, error)
	// ReloadSignals triggers a reload with each value, like POST /reload; nil = none.
	ReloadSignals <-chan os.Signal
	// OnReload is called with the Revision of a configuration once it is completely applied.
	OnReload func(revision string)
	// NewDNSRecords creates the writer of DNS records for dns-01 challenges; nil = none.
	NewDNSRecords func(ctx context.Context, c service.CertificateConfig) (acme.Records, error)
	// Resolver resolves the DNS names of replicas; nil = the system's.
	Resolver discover.Resolver
	// Version is the version of the binary, as exported in metrics and traces.
	Version string
	// OnListening is called with the base URLs of both listeners once they accept requests.
	OnListening func(public, admin string)

	limits  proxy.Limits  // zero = the proxy's defaults
	batches batch.Options // limits of files and batches; zero = the defaults
}

// ListenError is a failure to listen on an address.
type ListenError struct {
	// Flag is the flag, and the key of the configuration, that sets the address.
	Flag string
	Addr string
	Err  error
}

// Error returns the address and the cause.
func (e *ListenError) Error() string {
	cause := e.Err
	var op *net.OpError
	if errors.As(cause, &op) && op.Err != nil {
		cause = op.Err
	}
	return fmt.Sprintf("listening on %s: %s", e.Addr, strings.TrimPrefix(cause.Error(), "bind: "))
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// Run runs a balancer until ctx ends. Then it waits for the requests in flight and shuts down. It
// returns nil after an orderly shutdown, a *ConfigError for an invalid configuration, and a
// *ListenError for an address that is in use.
func Run(ctx context.Context, cfg service.BalancerConfig, opts Options) error {
	opts.DrainTimeout = cmp.Or(opts.DrainTimeout, drainTimeout)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := CheckConfig(cfg, opts); err != nil {
		return err
	}
	b := &balancer{cfg: cfg, configured: cfg, opts: opts, log: opts.Logger}
	defer b.release()
	if err := b.acquire(); err != nil {
		return err
	}
	if err := b.assemble(ctx); err != nil {
		return err
	}
	return b.runBalancer(ctx)
}

// balancer is one balancer process.
type balancer struct {
	cfg     service.BalancerConfig                 // as started, with the ports in use
	current atomic.Pointer[service.BalancerConfig] // the same with the changes of reloads
	opts    Options
	log     *slog.Logger

	public, adminPort net.Listener
	challengeListener net.Listener     // for HTTP challenges; nil = none
	cert              *certificate     // nil without TLS
	identity          *serviceIdentity // nil without one
	record            *os.File

	reloading  sync.Mutex             // guards the following fields, and serializes reloads
	configured service.BalancerConfig // as last loaded: current with the configured addresses, whose port may be 0
	keys       []service.APIKey
	engineKeys engineKeys // as read at the start; the fleet has later ones
	providers  []proxy.ProviderAccess
	metrics    metrics

	runtime          *proxy.Runtime
	fleet            *fleet
	peers            *peer.Client
	discovery        *discover.Discovery // nil before the replicas are attached
	history          *history
	tracer           *trace.Tracer // nil = no traces
	registry         *prometheus.Registry
	usage            *usage
	tokens           *oidc.Verifier
	review           latest[telemetry.Review]
	scaling          latest[telemetry.Scaling]
	controllerAlerts latest[telemetry.Alerts]
	launches         latest[telemetry.BalancerLaunches]
	lease            leaseWatch
	watch            health.Watch        // of replicas, peers and traffic
	shared           map[string][]string // sharedReplicas at the last observation; used only by observeHealth
	api              *admin.API
	store            *store.Store   // the one at StoreURL; nil = another or none
	events           *serviceEvents // nil without a store
	batches          *batch.Service // nil without a store
	draining         atomic.Bool
}

// acquire opens the files, listeners and connections that may be missing or in use.
func (b *balancer) acquire() (err error) {
	if b.keys, err = apiKeys(b.cfg); err != nil {
		return err
	}
	var p problems
	b.engineKeys, b.providers = readEngineKeys(&p, b.cfg), readProviders(&p, b.cfg)
	if len(p) > 0 {
		return p.first()
	}
	b.warnOfReadableSecrets(b.cfg)
	if t := b.cfg.Balancer.TLS; t != nil && t.ACME == nil {
		pair, err := loadPair(*t)
		if err != nil {
			return &ConfigError{Key: "balancer.tls", Problem: err.Error()}
		}
		b.cert = &certificate{}
		b.cert.replace(pair)
	}
	if b.identity, err = newServiceIdentity(b.cfg.Identity); err != nil {
		return err
	}
	if b.public, err = net.Listen("tcp", b.cfg.Listen); err != nil {
		return &ListenError{Flag: "listen", Addr: b.cfg.Listen, Err: err}
	}
	if b.adminPort, err = net.Listen("tcp", b.cfg.Admin); err != nil {
		return &ListenError{Flag: "admin", Addr: b.cfg.Admin, Err: err}
	}
	b.cfg.Listen = actualAddr(b.cfg.Listen, b.public)
	b.cfg.Admin = actualAddr(b.cfg.Admin, b.adminPort)
	live := b.cfg
	b.current.Store(&live)
	if b.cfg.Record != "" {
		// It contains prompts only as hashes, but also the tenant, model and time of each request.
		b.record, err = os.OpenFile(b.cfg.Record, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return &ConfigError{Key: "record", Problem: err.Error()}
		}
	}
	return nil
}

// actualAddr returns a listen address with the actual port.
func actualAddr(requested string, l net.Listener) string {
	host, _, err := net.SplitHostPort(requested)
	_, port, err2 := net.SplitHostPort(l.Addr().String())
	if err != nil || err2 != nil {
		return l.Addr().String()
	}
	return net.JoinHostPort(host, port)
}

// release closes what acquire and assemble opened.
func (b *balancer) release() {
	for _, l := range []net.Listener{b.public, b.adminPort, b.challengeListener} {
		if l != nil {
			l.Close()
		}
	}
	if m := b.manager(); m != nil {
		m.Close()
	}
	if b.tokens != nil {
		b.tokens.Close()
	}
	if b.store != nil {
		b.store.Close()
	}
	b.sendLastSpans()
	if b.record != nil {
		if err := b.record.Close(); err != nil {
			b.log.Error("closing the --record file failed", "file", b.cfg.Record, "err", err)
		}
	}
}

// assemble creates and connects the parts, without starting them.
func (b *balancer) assemble(ctx context.Context) error {
	coreCfg, err := coreConfig(b.cfg)
	if err != nil {
		return err
	}
	allow := admin.RejectMetadataAddresses(b.opts.AllowCIDRs)
	o := proxy.Options{Self: b.cfg, Core: coreCfg, Keys: b.keys, Logger: b.log, AccessLog: b.cfg.Balancer.AccessLog, Limits: b.limits(), Transport: proxy.NewTransport(allow)}
	b.tokens = oidc.New(oidc.Options{Logger: b.log})
	o.Tokens = b.tokens
	b.configureTokens(b.cfg)
	o.NoContinue, o.AllowParameters = !continuesStreams(b.cfg), b.cfg.Balancer.AllowParameters
	o.CheckContinuation = true
	o.Version = b.opts.Version
	o.SharePrefixes, o.ExposeCache = b.cfg.Balancer.SharePrefixes, b.cfg.Balancer.ExposeCache
	secure := b.identity.clientTLS(identity.Replica)
	if secure != nil {
		o.MTLSTransport = wire.NewTransport(wire.Options{Allow: allow, Direct: true, TLS: secure})
	}
	if err := b.setUpTracing(ctx, &o); err != nil {
		return err
	}
	if b.record != nil {
		o.Record = b.record
	}
	o.Suspect = func(id string) { b.fleet.suspect(id) } // b.fleet is set before the first request
	o.Recheck = func(id string) { b.fleet.recheck(id) }
	o.Attached = func() int { return b.fleet.size() }
	o.ServedByAdmin = func(path string) bool { return b.api.HasPath(path) } // so is b.api
	o.Sent = func(p *proxy.SentPrompt) { b.fleet.caches.sent(p) }
	if b.runtime, err = proxy.New(o); err != nil {
		return err
	}
	b.setCORS(b.cfg)
	b.runtime.SetTenants(tenantLimits(b.cfg))
	if err := b.runtime.SetProviders(b.providers); err != nil {
		return err
	}
	points, err := b.pointStore(ctx)
	if err != nil {
		return err
	}
	if err := b.openACME(ctx); err != nil {
		return err
	}
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, b.cfg.ID)
	b.fleet = newFleet(b.cfg, b.runtime, b.log, seed.Sum64(), allow, secure)
	b.fleet.setKeys(b.engineKeys)
	b.peers = peer.NewClient(peer.Options{
		Self: b.cfg.ID, Region: b.cfg.Region, Token: b.cfg.PeerToken, Keys: b.runtime.KeyFingerprint(), Sink: b.runtime.Step, Seed: seed.Sum64(), Logger: b.log,
	})
	b.peers.FollowOtherRegions(coreCfg.ForwardsToCaches())
	b.history = newHistory(b.cfg.ID, b.runtime.History, points, b.log)
	b.usage = newUsage(b.cfg, b.runtime, b.usageStore(), b.log)
	b.registry = b.newRegistry()
	b.metrics = newMetrics(b.registry, b.cert, b.identity)
	starts := newStartMetrics(b.registry, time.Now())
	b.scaling.changed = func(s *telemetry.Scaling) { starts.count(time.Now(), s) }
	b.registry.MustRegister(alertCollector{b}, b.tokens, b.fleet.caches)
	if b.events != nil {
		b.registry.MustRegister(store.EventMetrics{Queue: b.events.queue})
	}
	b.setUpBatches()
	b.api = admin.New(admin.Options{
		Self: b.cfg, Version: b.opts.Version, Workers: b.fleet, Traffic: b.runtime, Decisions: b.runtime, Requests: b.runtime.Requests, History: b.history, Usage: b.usage, Limited: b.limited,
		Peers: b.peers.Status, ServiceYAML: b.specReader(), Reload: b.reload, Certificate: b.cert.status, Review: b.review.newest, Scaling: b.scaling.newest, Alerts: func() []telemetry.Alert { return b.alerts(time.Now()) }, ServiceAlerts: b.serviceAlerts, Control: b.control, BalancerLaunches: b.balancerLaunches, Events: b.eventLog(), Removals: b.removals(), Batches: b.openBatches, Backup: b.backupStore(), Draining: b.draining.Load, Registry: b.registry, Token: b.opts.AdminToken,
		AllowCIDRs: b.opts.AllowCIDRs, Logger: b.log,
	})
	return nil
}

// limits returns the limits of requests: the proxy's defaults, with the memory from the
// configuration.
func (b *balancer) limits() proxy.Limits {
	l := b.opts.limits
	m := b.cfg.Balancer.WithDefaults().Memory
	l.Memory, l.TenantMemory = cmp.Or(l.Memory, int64(m.Requests)), cmp.Or(l.TenantMemory, int64(m.Tenant))
	l.StreamWindow = cmp.Or(l.StreamWindow, proxy.DefaultLimits().StreamWindow)
	return l
}

// pointStore returns the store of the history; nil if it is kept only in memory.
func (b *balancer) pointStore(ctx context.Context) (PointStore, error) {
	if b.opts.Store != nil || b.cfg.StoreURL == "" {
		return b.opts.Store, nil
	}
	options := []store.Option{store.ForService(b.cfg.Service), store.Lazy(), store.ClientName(b.cfg.ID), store.Logger(b.log), store.FilesIn(b.opts.Files)}
	if b.cfg.StoreMTLS {
		options = append(options, store.Secure(b.identity.clientTLS(identity.Controller)))
	}
	s, err := store.Connect(ctx, b.cfg.StoreURL, b.cfg.StoreToken, options...)
	if err != nil {
		return nil, &ConfigError{Key: "store_url", Problem: err.Error()}
	}
	b.store = s
	b.events = newServiceEvents(s, b, time.Now())
	return s, nil
}

// usageStore returns the store of the usage of API keys; nil if it is kept only in memory.
func (b *balancer) usageStore() UsageStore {
	if b.opts.UsageStore != nil || b.store == nil {
		return b.opts.UsageStore
	}
	return b.store
}

// specReader returns a function that reads the service.yaml of the balancer; nil without one.
func (b *balancer) specReader() func() ([]byte, error) {
	if b.cfg.SpecFile == "" {
		return nil
	}
	return func() ([]byte, error) { return os.ReadFile(b.current.Load().SpecFile) }
}

// watchForReloads reloads the configuration on request, and certificates that were renewed.
func (b *balancer) watchForReloads(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	if b.cert != nil || b.identity != nil {
		watching.Go(func() { runEvery(ctx, certificateInterval, b.reloadCertificates) })
	}
	if b.identity != nil {
		watching.Go(func() { runEvery(ctx, revokedInterval, b.reloadRevoked) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.opts.ReloadSignals:
			b.reloadRevoked()
			_, _ = b.reload() // reload logs its result
		}
	}
}

// runBalancer serves until ctx ends or a listener fails, then shuts everything down in order.
func (b *balancer) runBalancer(ctx context.Context) error {
	// The parts that serve requests continue during the drain.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	b.runtime.Start(life)
	b.attachTargets()

	handler := b.reportPanics(b.handler())
	public, adminSrv := b.server(handler), b.server(b.reportPanics(b.adminHandler(handler)))
	enableHTTP2(public, b.limits().StreamWindow)
	front, err := wire.NewFastPath(b.publicListener(), handler, wire.FastPathOptions{
		HeadTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeadBytes: maxHeaderBytes, Log: public.ErrorLog,
	})
	if err != nil {
		return fmt.Errorf("serving requests: %w", err)
	}
	failed := make(chan error, 2)
	var serving sync.WaitGroup
	serving.Go(func() { failed <- public.Serve(front) })
	serving.Go(func() { failed <- adminSrv.Serve(b.adminListener()) })
	serving.Go(func() { b.watchForReloads(life) })
	serving.Go(func() { runEvery(life, observeInterval, b.observeHealth) })
	batches, endBatches := context.WithCancel(ctx) // ends before the drain, so that other balancers continue
	defer endBatches()
	var executing sync.WaitGroup
	if b.batches != nil {
		executing.Go(func() { b.batches.RunWorker(batches) })
	}
	storing, endStoring := context.WithCancel(life)
	defer endStoring()
	var stored sync.WaitGroup
	stored.Go(func() { b.history.runHistory(storing) })
	stored.Go(func() { b.usage.runUsage(storing) })
	if m := b.manager(); m != nil {
		stored.Go(func() { m.Run(storing) })
	}
	challenges := b.challengeServer()
	if challenges != nil {
		serving.Go(func() {
			if err := challenges.Serve(b.challengeListener); !errors.Is(err, http.ErrServerClosed) {
				b.log.Error("serving ACME challenges failed", "err", err)
			}
		})
	}
	if b.store != nil {
		follow := func(prefix string) <-chan store.KeyChange { return b.store.WatchReadOnly(storing, prefix) }
		stored.Go(func() { b.events.queue.Run(storing) })
		stored.Go(func() { b.events.follow(b.store.FollowEvents(storing)) })
		stored.Go(func() { b.review.watchKey(telemetry.ReviewKey(b.cfg.Service), follow(telemetry.ReviewPrefix), b.log) })
		stored.Go(func() {
			b.scaling.watchKey(telemetry.ScalingKey(b.cfg.Service), follow(telemetry.ScalingPrefix), b.log)
		})
		stored.Go(func() {
			b.controllerAlerts.watchKey(telemetry.AlertsKey(b.cfg.Service), follow(telemetry.AlertsPrefix), b.log)
		})
		stored.Go(func() {
			b.launches.watchKey(telemetry.BalancerLaunchesKey(b.cfg.Service), follow(telemetry.BalancerLaunchesPrefix), b.log)
		})
		stored.Go(func() {
			b.lease.watchLease(store.LeaseKey(telemetry.ControllerLease(b.cfg.Service)), follow(store.LeasePrefix))
		})
	}
	if b.opts.OnListening != nil {
		b.opts.OnListening(b.publicURL(), b.adminURL())
	}

	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serving requests: %w", err)
	}
	endBatches()
	executing.Wait()
	if b.drain(life) {
		flush(life, public, front)
	}
	_ = public.Close() // requests that did not end in time are aborted
	front.CloseConnections()
	endStoring()
	stored.Wait()
	b.peers.Close()
	b.discovery.Close()
	b.fleet.close()
	_ = adminSrv.Close()
	if challenges != nil {
		_ = challenges.Close()
	}
	end()
	serving.Wait()
	return errors.Join(err, b.runtime.Close())
}

// flush waits until complete responses are sent to their clients. Close aborts those that take
// longer.
func flush(ctx context.Context, s *http.Server, f *wire.FastPath) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	_ = s.Shutdown(ctx)
	_ = f.Shutdown(ctx)
}

// attachTargets adds the configured replicas and peers. Targets that do not respond yet are used once they
// respond.
func (b *balancer) attachTargets() {
	for _, p := range b.cfg.Peers {
		b.addPeer(p)
	}
	for _, r := range staticOf(b.cfg.Replicas) {
		if _, err := b.fleet.attach(r, originConfig); err != nil {
			b.log.Error("attaching a replica failed", "replica", r.ID, "err", err)
		}
	}
	b.startDiscovery()
}

// server returns a server with the limits of this package.
func (b *balancer) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(b.log.Handler(), slog.LevelDebug), // client errors do not require attention
	}
}

// reportPanics logs panics of handlers as errors; the servers log them at level debug. A panic ends
// its connection. A panic in lbd/core does not reach it: it ends the process (lbd/proxy/crash.go).
func (b *balancer) reportPanics(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
				b.log.Error("request handler panicked", "path", r.URL.Path, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		h.ServeHTTP(w, r)
	})
}

// publicListener uses TLS if there is a certificate.
func (b *balancer) publicListener() net.Listener {
	if b.cert == nil {
		return b.public
	}
	return tls.NewListener(b.public, b.publicTLS())
}

func (b *balancer) publicURL() string {
	if b.cert != nil {
		return "https://" + b.cfg.Listen
	}
	return "http://" + b.cfg.Listen
}

// handler serves peers on their own paths and clients on all others.
func (b *balancer) handler() http.Handler {
	peers := http.NewServeMux()
	peer.Register(peers, b.cfg.PeerToken, peer.HandlerSource{
		Heartbeat: b.heartbeat, Region: b.api.Region, Learned: b.runtime.CacheUpdates, Keys: b.runtime.KeyFingerprint(),
	})
	peers.HandleFunc("GET "+proxy.PathHasResponse, b.runtime.ServeHasResponse)
	clients := b.runtime.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, "/skyserve/"):
			clients.ServeHTTP(w, r)
		case b.cfg.PeerToken == "" && requiresKeys(b.current.Load()):
			// Without a token, peers are recognised by a connection from this machine. That is not
			// enough if clients must present keys; see CheckConfig.
			http.NotFound(w, r)
		default:
			setWriteDeadline(w)
			peers.ServeHTTP(w, r)
		}
	})
}

// setWriteDeadline sets the write deadline of a response to a peer. The connection may still have the
// expired deadline of an earlier request.
func setWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines may block
}

// heartbeat returns the heartbeat for peers. A draining balancer reports no models.
func (b *balancer) heartbeat() peer.Heartbeat {
	hb := peer.Heartbeat{ID: b.cfg.ID, Region: b.cfg.Region, Draining: b.draining.Load(), Killers: b.runtime.StoppedRequests()}
	if !hb.Draining {
		hb.Models = b.runtime.ModelLoads()
	}
	return hb
}

// drain stops accepting requests and waits for those in flight. It returns false if they did not
// finish in time.
func (b *balancer) drain(ctx context.Context) bool {
	b.draining.Store(true)
	b.log.Info("draining", "at_most", b.opts.DrainTimeout)
	ctx, cancel := context.WithTimeout(ctx, b.opts.DrainTimeout)
	defer cancel()
	if err := b.runtime.Drain(ctx); err != nil {
		b.log.Warn("drain timed out, closing connections", "err", err)
		return false
	}
	return true
}
