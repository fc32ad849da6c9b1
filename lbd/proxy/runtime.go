package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/oidc"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// tickInterval is the interval of ticks: core's resolution of waiting times, and the time for which
// streamed tokens are summed before they are reported to core.
const tickInterval = 100 * time.Millisecond

// Options are the options of New.
type Options struct {
	// Self is this balancer's own configuration. Self.Region and Self.ID appear in headers; PeerToken
	// authenticates forwarded requests.
	Self service.BalancerConfig
	// Core configures the decisions; Core.Policy must be set.
	Core core.Config
	// Keys are the API keys that clients may present. Only their hashes are kept. Limits and usage are
	// stored by name.
	Keys []service.APIKey
	// Tokens verifies the identity tokens that clients may present instead of keys; nil = none. Without
	// keys and tokens, clients are not authenticated.
	Tokens *oidc.Verifier
	// Record receives every event and action as JSON lines; nil = none.
	Record io.Writer
	// Logger receives the log of the balancer, such as failures, fallbacks and the access log (see AccessLog);
	// nil = none.
	Logger *slog.Logger
	// Transport sends requests to replicas, and to peers that were added without their own transport;
	// nil = NewTransport(nil).
	Transport http.RoundTripper
	// MTLSTransport sends requests to replicas with mTLS; nil = replicas with mTLS are rejected.
	MTLSTransport http.RoundTripper
	// NoContinue makes every stream whose target fails midway end in an error event. Otherwise another
	// target continues it if possible.
	NoContinue bool
	// CheckContinuation checks whether the engine of each replica that becomes ready can continue a
	// stream. Otherwise the check precedes the first continuation at the replica.
	CheckContinuation bool
	// SharePrefixes allows requests of one tenant to match prefixes of another.
	SharePrefixes bool
	// ExposeCache sends the number of cached prompt tokens to clients with a key.
	ExposeCache bool
	// AllowParameters lists the guarded parameters that requests may use: see
	// service.GuardedParameters.
	AllowParameters []string
	// AccessLog writes each request's log line at level info; otherwise the level is debug.
	AccessLog bool
	// Tracer traces requests; nil = no traces.
	Tracer Tracer
	// Suspect is called with the id of a replica whose engine may have crashed (core.Outcome.EngineMayHaveDied),
	// or that rejected the balancer's API key, so that its next probes also request /health and check the
	// key; nil = none.
	Suspect func(replica string)
	// Version is the version of the binary, for /version.
	Version string
	// Recheck is called with the id of a replica that does not serve a requested name, so that its model
	// list is read again; nil = none.
	Recheck func(replica string)
	// Attached returns the number of attached replicas, with those whose model is not known yet; nil = all are known.
	Attached func() int
	// Sent is called with each prompt of a chat or a completion, before it is sent to a replica with cache
	// events; nil = none. The request waits until Sent returns, so it must be fast.
	Sent   func(*SentPrompt)
	Limits Limits
	// ServedByAdmin reports whether the balancer's admin API has a path; nil = there is none.
	ServedByAdmin func(path string) bool
}

// Runtime runs one core.Balancer in real time. All its methods are safe for concurrent use.
type Runtime struct {
	self           service.BalancerConfig
	limits         Limits
	log            *slog.Logger
	transport      http.RoundTripper
	mtlsTransport  http.RoundTripper // nil if no replica uses mTLS
	keys           atomic.Pointer[quota.Keyring]
	keyNames       atomic.Pointer[keyNames] // of accountOf; nil = not needed yet
	batches        atomic.Pointer[BatchHandler]
	identityTokens *identityTokens
	ledger         *quota.Ledger
	seed           uint64 // seed of prefix keys; see keySeed and seedOf
	startedAt      time.Time
	// noContinue is Options.NoContinue until SetContinuation is called.
	noContinue         atomic.Bool
	checksContinuation bool        // Options.CheckContinuation
	checking           atomic.Bool // a check that startChecks started is in progress
	// sharePrefixes is Options.SharePrefixes until SetSharePrefixes is called.
	sharePrefixes atomic.Bool
	// exposeCache is Options.ExposeCache until SetExposeCache is called.
	exposeCache atomic.Bool
	// allowedParameters is Options.AllowParameters until SetAllowedParameters is called.
	allowedParameters atomic.Uint32
	// sendsHeartbeats: a model scales to zero, see earlystream.go.
	sendsHeartbeats atomic.Bool
	// origins is set by SetCORS; nil = none.
	origins       atomic.Pointer[originRules]
	accessLog     bool                   // Options.AccessLog
	tracer        Tracer                 // nil = none
	suspect       func(replica string)   // Options.Suspect
	version       string                 // Options.Version
	recheck       func(replica string)   // Options.Recheck
	servedByAdmin func(path string) bool // Options.ServedByAdmin
	attached      func() int             // Options.Attached
	sent          func(*SentPrompt)      // Options.Sent

	// mu guards everything down to the next blank line.
	mu            sync.Mutex
	core          *core.Balancer
	coreCfg       core.Config
	inFlight      map[string]*inFlight
	replicas      map[string]*replica
	ranks         map[string]rank // by core's target id
	peers         map[string]*peer
	providers     map[string]*provider
	removedEpochs map[string]uint64 // epochs of replicas that were removed
	attachments   uint64            // number of replicaCounts that were created
	declared      []service.BalancerModel
	splits        []service.Split
	peerModels    map[string][]string     // models by peer, as last reported
	served        map[string]ServedModels // by replica; missing = unknown
	peerNames     map[string][]listedName // aliases and adapters by peer, as last reported
	ring          ring
	newRecords    []record.RequestRecord // request records that the current step changed, for subscribers
	idle          chan struct{}          // closed when the last request ends; nil unless draining
	ticks         int

	draining         atomic.Bool
	models           atomic.Pointer[modelTable]
	fallbackStatuses fallbackStatuses
	providerLedger   *quota.Ledger
	storedResponses  *responses
	lookups          *lookups
	sockets          sockets
	memory           *quota.MemoryLedger
	record           *recorder
	stats            *stats
	points           *points
	metrics          *metrics
	subs             subscribers
	goroutines       sync.WaitGroup // goroutines that Start started
}

// New returns a runtime without replicas, peers or requests. It serves requests as soon as replicas
// are added and reported ready. Start starts its ticks. New returns an error if no policy is set.
func New(o Options) (*Runtime, error) {
	if o.Core.Policy == nil {
		return nil, fmt.Errorf("creating balancer %q: policy is required", o.Self.ID)
	}
	r := &Runtime{
		self: o.Self, coreCfg: o.Core, limits: o.Limits.orDefault(), log: o.Logger, transport: o.Transport, mtlsTransport: o.MTLSTransport,
		ledger: quota.NewLedger(), providerLedger: quota.NewLedger(), seed: keySeed(o.Self.PeerToken), startedAt: time.Now(), accessLog: o.AccessLog, tracer: o.Tracer, suspect: o.Suspect, recheck: o.Recheck, attached: o.Attached, sent: o.Sent, servedByAdmin: o.ServedByAdmin, version: o.Version, core: core.New(o.Core),
		inFlight: map[string]*inFlight{}, replicas: map[string]*replica{}, ranks: map[string]rank{}, peers: map[string]*peer{},
		removedEpochs: map[string]uint64{}, peerModels: map[string][]string{},
		served: map[string]ServedModels{}, peerNames: map[string][]listedName{},
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.transport == nil {
		r.transport = NewTransport(nil)
	}
	r.identityTokens = newIdentityTokens(o.Tokens, r.ledger, r.Elapsed)
	r.SetKeys(o.Keys)
	r.SetContinuation(!o.NoContinue)
	r.checksContinuation = o.CheckContinuation
	r.SetSharePrefixes(o.SharePrefixes)
	r.SetExposeCache(o.ExposeCache)
	r.SetAllowedParameters(o.AllowParameters)
	r.sendsHeartbeats.Store(len(o.Core.ScaleToZero) > 0)
	r.declared, r.splits = append(r.declared, o.Self.Models...), slices.Clone(o.Self.Splits)
	r.ring = newRing(r.limits.MaxDecisions)
	r.storedResponses = newResponses(r.limits.MaxStoredResponses)
	r.lookups = newLookups(r.limits)
	r.memory = quota.NewMemory(r.limits.Memory, r.limits.TenantMemory)
	r.stats = &stats{}
	r.points = newPoints(o.Self, r.limits.HistoryMinutes)
	r.points.setModels(r.declared)
	r.metrics = newMetrics()
	r.record = newRecorder(o.Record, r.header(), r.limits.RecordBuffer, r.log)
	r.rebuildModels()
	return r, nil
}

// Start runs the ticks and writes the record until ctx ends. It must be called at most once; Close
// waits for the end.
func (r *Runtime) Start(ctx context.Context) {
	r.goroutines.Go(func() { r.tickUntil(ctx) })
	if r.record != nil {
		r.goroutines.Go(func() { r.record.runRecorder(ctx) })
	}
}

// Close waits until the goroutines of Start have ended, and closes idle connections. They end when
// Start's context ends. It returns the error of writing the record.
func (r *Runtime) Close() error {
	r.goroutines.Wait()
	r.closeIdleConnections()
	r.mu.Lock()
	r.record.finish(r.Elapsed())
	r.mu.Unlock()
	return r.record.failure()
}

// closeIdleConnections closes the idle connections to replicas and peers.
func (r *Runtime) closeIdleConnections() {
	r.mu.Lock()
	transports := []http.RoundTripper{r.transport, r.mtlsTransport}
	for _, p := range r.peers {
		transports = append(transports, p.transport)
	}
	r.mu.Unlock()
	for _, t := range transports {
		if t, ok := t.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
}

// Elapsed returns the monotonic time since the runtime was created. It is core's clock.
func (r *Runtime) Elapsed() time.Duration { return time.Since(r.startedAt) }

// Step passes an event to core at the current time, records it and delivers the actions without
// blocking. The caller may reuse the memory that the event refers to, except Request.Prompt and
// Outcome.Key.
func (r *Runtime) Step(ev core.Event) {
	r.subs.publish(r.withLock(func() {
		r.recordReport(&ev)
		r.stepCore(ev)
		if ev.Kind == core.EventPeerReport || ev.Kind == core.EventPeerRemoved {
			r.updatePeerModels(ev)
		}
	}))
}

// stepCore is Step with the lock held. A panic in it ends the process.
func (r *Runtime) stepCore(ev core.Event) {
	defer func() {
		if cause := recover(); cause != nil {
			kept := ev // a copy, because &ev would allocate in every step
			r.crash(cause, &kept)
		}
	}()
	now := r.Elapsed()
	actions := r.core.Step(now, ev)
	r.metrics.step.Observe((r.Elapsed() - now).Seconds())
	for i := range actions {
		r.deliverAction(now, &actions[i])
	}
	r.record.recordStep(now, ev, actions)
}

// deliverAction delivers an action to the goroutine that waits for it. The decision is cloned: core reuses
// its memory in the next step.
func (r *Runtime) deliverAction(now time.Duration, a *core.Action) {
	f := r.inFlight[a.ID]
	if a.Kind == core.ActionQueue {
		if f != nil {
			f.entry.HeldFor, f.entry.Reason = a.Target, a.Reason
		}
		return
	}
	if f == nil {
		r.log.Error("action ignored: its request is not in flight", "request", a.ID, "action", string(a.Kind))
		return
	}
	a.Decision = a.Decision.Clone()
	v := action{kind: a.Kind, target: a.Target, reason: a.Reason, hop: a.Hop, sessionAge: a.SessionAge, wait: a.MaxWait, kills: a.Kills, decision: a.Decision}
	switch a.Kind {
	case core.ActionAbort:
		f.abort()
	case core.ActionDispatch:
		v.rank = r.ranks[a.Target]
	case core.ActionForward:
		v.peer = r.peers[a.Target]
	}
	f.recordAction(now, a)
	r.metrics.countDecision(a, r.coreCfg.Policy.Name(), f.entry)
	if a.Decision != nil && a.Decision.Attempt > 0 {
		f.retries++
	}
	if r.subs.hasAny() {
		r.newRecords = append(r.newRecords, f.entry.Snapshot())
	}
	if a.Kind != core.ActionAbort {
		f.deliver(v)
	}
}

// takeRecords returns the request records that the last step changed.
func (r *Runtime) takeRecords() []record.RequestRecord {
	records := r.newRecords
	r.newRecords = nil
	return records
}

// tickUntil runs ticks until ctx ends.
func (r *Runtime) tickUntil(ctx context.Context) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.tick()
			r.startChecks(ctx)
		}
	}
}

// tick reports the progress since the last tick to core, then advances its time.
func (r *Runtime) tick() {
	at := r.Elapsed()
	decisions := r.withLock(func() { r.stepTick(at) })
	r.stats.collectTokens(at)
	r.subs.publish(decisions)
}

// stepTick is tick with the lock held.
func (r *Runtime) stepTick(at time.Duration) {
	for _, rep := range r.sortedReplicas() {
		if rep.external != nil {
			r.reportExternal(rep)
		}
		for _, k := range rep.ranks() {
			if n := k.tokens().Swap(0); n > 0 {
				rep.count.silentTicks = 0
				rep.count.rate.addCount(at, n)
				r.stepCore(core.Event{Kind: core.EventProgress, Target: k.id(), Tokens: int(n)})
			}
		}
	}
	r.stepCore(core.Event{Kind: core.EventTick})
	r.stopSilent()
	if r.ticks++; r.ticks%growTicks == 0 {
		r.growReservations(r.Elapsed())
	}
}

// View returns a copy of the balancer's current state.
func (r *Runtime) View() core.BalancerView {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Snapshot(r.Elapsed())
}

// ModelLoads returns the loads that this balancer reports to its peers, sorted by model.
func (r *Runtime) ModelLoads() []core.ModelLoad {
	r.mu.Lock()
	defer r.mu.Unlock()
	loads := r.core.ModelLoads(r.Elapsed())
	r.reportNames(loads)
	if len(r.providers) == 0 {
		return loads
	}
	return slices.DeleteFunc(slices.Clone(loads), func(l core.ModelLoad) bool { // peers have their own providers
		rep := r.replicas[l.Model]
		return rep != nil && rep.external != nil
	})
}

// StoppedRequests returns the requests that this balancer has stopped, for its peers; see
// core.Balancer.StoppedFingerprints.
func (r *Runtime) StoppedRequests() []core.StoppedFingerprint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.StoppedFingerprints(r.Elapsed())
}

// Drain stops accepting requests (readyz returns 503, new requests are rejected) and waits until those
// in flight have ended. If ctx ends first, WebSockets are closed, which takes up to 2 * closeGrace more,
// and the error contains the number of remaining requests, which continue.
func (r *Runtime) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.draining.Store(true)
	if len(r.inFlight) == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	if r.sockets.shutDown() {
		select {
		case <-idle:
			return nil
		case <-time.After(2 * closeGrace):
		}
	}
	r.mu.Lock()
	remaining := len(r.inFlight)
	r.mu.Unlock()
	return fmt.Errorf("draining balancer %q: %s still in flight: %w", r.self.ID, printable.Count(remaining, "request"), context.Cause(ctx))
}
