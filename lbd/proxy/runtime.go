package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// tickEvery is the time between two ticks: core's own resolution of waiting,
// and how long progress is gathered.
const tickEvery = 100 * time.Millisecond

// Options is what New needs.
type Options struct {
	// Self is this balancer's own configuration; Self.Region and Self.ID name it
	// in headers, PeerToken authenticates forwarded requests.
	Self service.BalancerConfig
	// Core configures the decisions; Core.Policy must be set.
	Core core.Config
	// Keys are the API keys that clients must present; none = open to everybody.
	// Only their hashes are kept; their limits and usage go by their names.
	Keys []service.APIKey
	// Record receives every event and action as JSON lines; nil = none.
	Record io.Writer
	// Logger receives failures; nil = none.
	Logger *slog.Logger
	// Transport carries requests to replicas, and to peers that were added
	// without one of their own; nil = NewTransport(nil).
	Transport http.RoundTripper
	// Secure carries requests to replicas that are asked over mTLS; nil = there can be
	// none.
	Secure http.RoundTripper
	// NoContinue lets every stream whose target fails in the middle end in an error
	// event, instead of being continued by another one where that can be.
	NoContinue bool
	// SharePrefixes lets what one tenant asked be found for another.
	SharePrefixes bool
	// ExposeCache tells clients that presented a key how much of their prompts was cached.
	ExposeCache bool
	// AllowParameters names the guarded parameters that requests may have: see
	// service.GuardedParameters.
	AllowParameters []string
	// AccessLog writes each request's line at level info; without it that is debug.
	AccessLog bool
	// Tracer follows requests; nil = none does.
	Tracer Tracer
	// Suspect is called with the id of a replica whose engine may have died
	// (core.Outcome.Broke), so that its next probes check its health; nil = none.
	Suspect func(replica string)
	Limits  Limits
}

// Runtime runs one core.Balancer in real time. All its methods are safe for
// concurrent use.
type Runtime struct {
	self      service.BalancerConfig
	limits    Limits
	log       *slog.Logger
	transport http.RoundTripper
	secure    http.RoundTripper // nil where no replica is asked over mTLS
	keys      atomic.Pointer[quota.Keyring]
	ledger    *quota.Ledger
	seed      uint64 // of prefix keys: see keySeed and seedOf
	began     time.Time
	// noContinue is Options.NoContinue until SetContinue.
	noContinue atomic.Bool
	// sharePrefixes is Options.SharePrefixes until SetSharePrefixes.
	sharePrefixes atomic.Bool
	// exposeCache is Options.ExposeCache until SetExposeCache.
	exposeCache atomic.Bool
	// allowed are those of Options.AllowParameters until SetAllowedParameters.
	allowed   atomic.Uint32
	accessLog bool                 // Options.AccessLog
	tracer    Tracer               // nil = none
	suspect   func(replica string) // Options.Suspect

	// mu guards everything down to the next blank line.
	mu            sync.Mutex
	core          *core.Balancer
	coreCfg       core.Config
	inFlight      map[string]*inFlight
	replicas      map[string]*replica
	ranks         map[string]rank // by core's id
	peers         map[string]*peer
	removedEpochs map[string]uint64 // epochs of replicas that were removed
	declared      []service.BalancerModel
	offered       map[string][]string // models by peer, as last reported
	ring          ring
	made          []record.Request // of the step at hand, for subscribers
	idle          chan struct{}    // closed when the last request ends; nil unless draining
	ticks         int

	draining atomic.Bool
	models   atomic.Pointer[modelTable]
	stored   *responses
	lookups  *lookups
	memory   *quota.Memory
	record   *recorder
	stats    *stats
	points   *points
	metrics  *metrics
	subs     subscribers
	running  sync.WaitGroup // goroutines between Start and its end
}

// New makes a runtime without replicas, peers or requests. It serves as soon
// as replicas are added and reported; Start lets its time pass. It fails when
// no policy is set.
func New(o Options) (*Runtime, error) {
	if o.Core.Policy == nil {
		return nil, fmt.Errorf("making balancer %q: no policy is set", o.Self.ID)
	}
	r := &Runtime{
		self: o.Self, coreCfg: o.Core, limits: o.Limits.orDefault(), log: o.Logger, transport: o.Transport, secure: o.Secure,
		ledger: quota.NewLedger(), seed: keySeed(o.Self.PeerToken), began: time.Now(), accessLog: o.AccessLog, tracer: o.Tracer, suspect: o.Suspect, core: core.New(o.Core),
		inFlight: map[string]*inFlight{}, replicas: map[string]*replica{}, ranks: map[string]rank{}, peers: map[string]*peer{},
		removedEpochs: map[string]uint64{}, offered: map[string][]string{},
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.transport == nil {
		r.transport = NewTransport(nil)
	}
	r.SetKeys(o.Keys)
	r.SetContinue(!o.NoContinue)
	r.SetSharePrefixes(o.SharePrefixes)
	r.SetExposeCache(o.ExposeCache)
	r.SetAllowedParameters(o.AllowParameters)
	r.declared = append(r.declared, o.Self.Models...)
	r.ring = newRing(r.limits.Decisions)
	r.stored = newResponses(r.limits.Responses)
	r.lookups = newLookups(r.limits)
	r.memory = quota.NewMemory(r.limits.Memory, r.limits.TenantMemory)
	r.stats = &stats{}
	r.points = newPoints(o.Self, r.limits.HistoryMinutes)
	r.points.serve(r.declared)
	r.metrics = newMetrics()
	r.record = newRecorder(o.Record, r.header(), r.limits.RecordBuffer, r.log)
	r.rebuildModels()
	return r, nil
}

// Start lets time pass and writes the record until ctx ends. It must be called
// once at most; Close waits for the end.
func (r *Runtime) Start(ctx context.Context) {
	r.running.Go(func() { r.tickUntil(ctx) })
	if r.record != nil {
		r.running.Go(func() { r.record.run(ctx) })
	}
}

// Close waits until what Start began has ended, which it does when Start's
// context does, lets go of the connections that no request uses, and says whether
// the record was written without an error.
func (r *Runtime) Close() error {
	r.running.Wait()
	r.closeIdleConnections()
	r.mu.Lock()
	r.record.finish(r.Elapsed())
	r.mu.Unlock()
	return r.record.failure()
}

// closeIdleConnections closes the connections to replicas and peers that no request uses.
func (r *Runtime) closeIdleConnections() {
	r.mu.Lock()
	transports := []http.RoundTripper{r.transport, r.secure}
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

// Elapsed is the monotonic time since the runtime was made: core's time.
func (r *Runtime) Elapsed() time.Duration { return time.Since(r.began) }

// Step hands core one event at the present time, records it and carries the
// actions out without blocking. What the event points to may be reused
// afterwards, except Request.Prompt and Outcome.Key.
func (r *Runtime) Step(ev core.Event) {
	r.subs.publish(r.locked(func() {
		r.noteSignOfLife(&ev)
		r.step(ev)
		if ev.Kind == core.EventPeerReport || ev.Kind == core.EventPeerRemoved {
			r.noteOffer(ev)
		}
	}))
}

// step is Step with the lock held. A panic in it ends the process.
func (r *Runtime) step(ev core.Event) {
	defer func() {
		if why := recover(); why != nil {
			kept := ev // a copy, since &ev would allocate in every step
			r.crash(why, &kept)
		}
	}()
	now := r.Elapsed()
	actions := r.core.Step(now, ev)
	r.metrics.step.Observe((r.Elapsed() - now).Seconds())
	for i := range actions {
		r.carryOut(now, &actions[i])
	}
	r.record.add(now, ev, actions)
}

// carryOut wakes the goroutine that waits for an action. A decision is copied
// once: core reuses its memory in the next step.
func (r *Runtime) carryOut(now time.Duration, a *core.Action) {
	f := r.inFlight[a.ID]
	if a.Kind == core.ActionHold {
		if f != nil {
			f.entry.KeptFor = a.Target
		}
		return
	}
	if f == nil {
		r.log.Error("an action names a request that is not in flight", "request", a.ID, "action", string(a.Kind))
		return
	}
	a.Decision = a.Decision.Clone()
	v := action{kind: a.Kind, target: a.Target, reason: a.Reason, hop: a.Hop, sessionAge: a.SessionAge, wait: a.Wait, kills: a.Kills, decision: a.Decision}
	switch a.Kind {
	case core.ActionAbort:
		f.abort()
	case core.ActionDispatch:
		v.rank = r.ranks[a.Target]
	case core.ActionForward:
		v.peer = r.peers[a.Target]
	}
	f.note(now, a)
	r.metrics.decided(a, r.coreCfg.Policy.Name(), f.entry)
	if r.subs.any() {
		r.made = append(r.made, f.entry.Snapshot())
	}
	if a.Kind != core.ActionAbort {
		f.deliver(v)
	}
}

// takeMade hands over what the last step decided.
func (r *Runtime) takeMade() []record.Request {
	made := r.made
	r.made = nil
	return made
}

// tickUntil ticks until ctx ends.
func (r *Runtime) tickUntil(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.tick()
		}
	}
}

// tick reports the progress gathered since the last one, then lets time pass.
func (r *Runtime) tick() {
	at := r.Elapsed()
	made := r.locked(func() { r.stepTick(at) })
	r.stats.gather(at)
	r.subs.publish(made)
}

// stepTick is tick with the lock held.
func (r *Runtime) stepTick(at time.Duration) {
	for _, rep := range r.sortedReplicas() {
		for _, k := range rep.ranks() {
			if n := k.tokens().Swap(0); n > 0 {
				rep.count.quiet = 0
				rep.count.rate.add(at, n)
				r.step(core.Event{Kind: core.EventProgress, Target: k.id(), Tokens: int(n)})
			}
		}
	}
	r.step(core.Event{Kind: core.EventTick})
	r.giveUpSilent()
	if r.ticks++; r.ticks%growEvery == 0 {
		r.growReservations(r.Elapsed())
	}
}

// View is a copy of the balancer's state at this instant.
func (r *Runtime) View() core.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.View(r.Elapsed())
}

// Load is what this balancer tells its peers, sorted by model.
func (r *Runtime) Load() []core.ModelLoad {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Load(r.Elapsed())
}

// Killers are the requests that this balancer has stopped, for its peers: see core.
func (r *Runtime) Killers() []core.Killer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Killers(r.Elapsed())
}

// Drain stops accepting requests (readyz answers 503, new ones are refused) and
// waits until those in flight have ended. When ctx ends first it says how many
// are left; they go on.
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
		r.mu.Lock()
		left := len(r.inFlight)
		r.mu.Unlock()
		return fmt.Errorf("draining balancer %q: %d requests are still in flight: %w", r.self.ID, left, context.Cause(ctx))
	}
}
