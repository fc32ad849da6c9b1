package lbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/service"
	"skyserve/lbd/cacheevents"
	"skyserve/lbd/cachemap"
	"skyserve/lbd/core"
	"skyserve/lbd/prefix"
	"skyserve/lbd/proxy"
	"skyserve/lbd/wire"
)

// cacheFeed receives the cache events of replicas that publish them, and tells core what they mean for
// prefixes. Events name blocks of tokens, and core's keys are hashes of bytes. To relate them, the engine that received a
// new prompt tokenizes it: after the prompt was sent, and one prompt at a time.
type cacheFeed struct {
	step     func(core.Event)
	tokenize func(ctx context.Context, replica string, body []byte) ([]uint32, error)
	dial     wire.DialFunc
	secure   wire.DialFunc // to the proxies of replicas' agents, with mTLS; nil without an identity
	log      *slog.Logger
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	samples  chan proxy.SentPrompt // to be tokenized

	mu      sync.Mutex
	models  map[string]*modelCaches
	feeds   map[string]*feed // by replica
	targets []string         // ids of core's targets by slot; empty = free

	messages, resets, tokenized, failed prometheus.Counter
}

// modelCaches are the caches of all engines of one model.
type modelCaches struct {
	*cachemap.Map
	// learned contains hashes of prompts that were tokenized, by adapter, at every learnStride-th block and
	// at the end. forgotten is the value of Map.Forgotten since it was last cleared: see clearIfForgotten.
	learned   map[learnedHash]struct{}
	forgotten int
}

type learnedHash struct {
	adapter string
	hash    uint64
}

// feed is the subscription to one replica.
type feed struct {
	cfg   service.ReplicaConfig
	stop  context.CancelFunc
	done  sync.WaitGroup
	slots []int // by rank
	up    []bool
}

const (
	// maxSamples bounds the prompts that wait for a tokenizer; further ones are not learned.
	maxSamples = 64
	// maxSampleBytes bounds the body of a prompt that is learned.
	maxSampleBytes  = 4 << 20
	tokenizeTimeout = 5 * time.Second
	// learnStride is the number of blocks, 1 KB, that must be new for a prompt to be tokenized.
	learnStride = 16
	// maxLearned bounds the hashes of learned prompts; then all are learned again.
	maxLearned = 1 << 18
)

func newCacheFeed(runtime *proxy.Runtime, log *slog.Logger, allow func(netip.Addr) error, secure *tls.Config) *cacheFeed {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "skyserve_cache_events_" + name, Help: help})
	}
	f := &cacheFeed{
		step: runtime.Step, tokenize: runtime.Tokenize, log: log, samples: make(chan proxy.SentPrompt, maxSamples),
		models: map[string]*modelCaches{}, feeds: map[string]*feed{},
		messages:  counter("messages_total", "Messages about changes of engines' caches."),
		resets:    counter("resets_total", "Times that an engine's cache contents became unknown or empty: lost messages, restarts, cleared caches."),
		tokenized: counter("tokenized_total", "Prompts that engines tokenized to match blocks to prefixes."),
		failed:    counter("tokenize_failures_total", "Prompts that an engine could not tokenize."),
	}
	f.dial = (&net.Dialer{Timeout: tokenizeTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		ip, err := netip.ParseAddrPort(address)
		if err != nil || allow == nil {
			return err
		}
		return allow(ip.Addr())
	}}).DialContext
	if secure != nil {
		f.secure = wire.DialTLS(f.dial, secure)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.running.Go(f.learnSamples)
	return f
}

func (f *cacheFeed) close() {
	f.cancel()
	f.mu.Lock()
	feeds := f.feeds
	f.feeds = map[string]*feed{}
	f.mu.Unlock()
	for _, x := range feeds {
		x.done.Wait()
	}
	f.running.Wait()
}

// start subscribes to a replica that publishes cache events. A subscription with the same addresses and
// model is kept.
func (f *cacheFeed) start(cfg service.ReplicaConfig) {
	f.mu.Lock()
	old := f.feeds[cfg.ID]
	f.mu.Unlock()
	if old != nil {
		if old.cfg.CacheEvents == cfg.CacheEvents && old.cfg.CacheReplays == cfg.CacheReplays && old.cfg.Model == cfg.Model && old.cfg.URL == cfg.URL && old.cfg.Ranks() == cfg.Ranks() {
			return
		}
		f.stop(cfg.ID)
	}
	dial, err := f.dialFor(cfg)
	if cfg.CacheEvents == "" || cfg.Model == "" || f.ctx.Err() != nil {
		return
	}
	if err != nil {
		f.log.Error("cache events of a replica cannot be read", "replica", cfg.ID, "err", err)
		return
	}
	x := &feed{cfg: cfg}
	ctx, stop := context.WithCancel(f.ctx)
	x.stop = stop
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.models[cfg.Model] == nil {
		f.models[cfg.Model] = &modelCaches{Map: cachemap.New(0), learned: map[learnedHash]struct{}{}}
	}
	f.feeds[cfg.ID] = x
	for rank := range cfg.Ranks() {
		x.slots, x.up = append(x.slots, f.allocate(cfg.RankID(rank))), append(x.up, false)
		s := cacheevents.NewSubscriber(cacheevents.Options{
			Dial: dial, Endpoint: portOfRank(cfg.CacheEvents, rank), Replay: portOfRank(cfg.CacheReplays, rank), Logger: f.log,
			Handle: func(u cacheevents.Update) { f.handle(x, rank, &u) },
		})
		x.done.Go(func() { s.Run(ctx) })
	}
}

// dialFor returns how a replica's cache events are reached: directly, or through the proxy of its agent. Both
// are limited to the addresses that replicas may have.
func (f *cacheFeed) dialFor(cfg service.ReplicaConfig) (wire.DialFunc, error) {
	if !cfg.MTLS {
		return f.dial, nil
	}
	at, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	if f.secure == nil {
		return nil, errors.New("mtls requires an identity of the balancer")
	}
	return wire.DialThrough(f.secure, at.Host), nil
}

// portOfRank returns the address of a data-parallel rank: the port of rank 0 plus the rank.
func portOfRank(address string, rank int) string {
	host, text, err := net.SplitHostPort(address)
	port, bad := strconv.Atoi(text)
	if err != nil || bad != nil {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(port+rank))
}

// allocate returns a free slot for a target; f.mu must be held.
func (f *cacheFeed) allocate(target string) int {
	slot := slices.Index(f.targets, "")
	if slot < 0 {
		slot = len(f.targets)
		f.targets = append(f.targets, "")
	}
	f.targets[slot] = target
	return slot
}

// stop ends the subscription to a replica.
func (f *cacheFeed) stop(id string) {
	f.mu.Lock()
	x := f.feeds[id]
	delete(f.feeds, id)
	f.mu.Unlock()
	if x == nil {
		return
	}
	x.stop()
	x.done.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, slot := range x.slots {
		f.models[x.cfg.Model].Clear(slot)
		f.targets[slot] = ""
	}
}

// handle applies an update of a rank.
func (f *cacheFeed) handle(x *feed, rank int, u *cacheevents.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x.up[rank] = x.up[rank] && !u.Disconnected || u.Connected
	m, slot := f.models[x.cfg.Model], x.slots[rank]
	if u.Reset {
		f.log.Info("an engine's cache contents are unknown", "replica", f.targets[slot], "cause", u.Reason)
		f.clear(m, slot)
	}
	if u.Batch == nil {
		return
	}
	f.messages.Inc()
	for i := range u.Batch.Events {
		switch e := &u.Batch.Events[i]; {
		case e.Kind == cacheevents.AllBlocksCleared:
			f.clear(m, slot)
		case !e.OnGPU() || e.Group > 0: // ignored: it is in slower memory, or a further group of layers with the same tokens
		case e.Kind == cacheevents.BlockStored:
			f.apply(m.Store(slot, cachemap.Stored{
				Hashes: hashesOf(e.Hashes), Parent: cachemap.Hash(e.Parent), Root: e.Root,
				Tokens: e.Tokens, BlockSize: e.BlockSize, Adapter: e.Adapter, Extra: e.Extra,
			}))
		case e.Kind == cacheevents.BlockRemoved:
			f.apply(m.Remove(slot, hashesOf(e.Hashes)))
		}
	}
}

func hashesOf(hashes []cacheevents.BlockHash) []cachemap.Hash {
	all := make([]cachemap.Hash, len(hashes))
	for i, h := range hashes {
		all[i] = cachemap.Hash(h)
	}
	return all
}

// clear forgets a target's cache; f.mu must be held.
func (f *cacheFeed) clear(m *modelCaches, slot int) {
	f.resets.Inc()
	m.Clear(slot)
	f.step(core.Event{Kind: core.EventCacheChanged, Target: f.targets[slot], CacheChanges: []core.CacheChange{{Kind: core.CacheCleared}}})
}

// apply sends changes to core, those of one target together; f.mu must be held, so that they arrive in order.
func (f *cacheFeed) apply(changes []cachemap.Change) {
	for len(changes) > 0 {
		target, n := changes[0].Target, 0
		var all []core.CacheChange
		for ; n < len(changes) && changes[n].Target == target; n++ {
			c := core.CacheChange{Kind: core.CacheStored, Key: changes[n].Key}
			if changes[n].Evicted {
				c.Kind, c.KeptHashes = core.CacheEvicted, changes[n].Keep
			}
			all = append(all, c)
		}
		if id := f.targets[target]; id != "" {
			f.step(core.Event{Kind: core.EventCacheChanged, Target: id, CacheChanges: all})
		}
		changes = changes[n:]
	}
}

// sent considers a prompt for tokenization. It is called on the request's path, for replicas with
// cache_events only, and never waits for a network.
func (f *cacheFeed) sent(p *proxy.SentPrompt) {
	if len(p.Key) == 0 || len(p.Body) > maxSampleBytes {
		return
	}
	f.mu.Lock()
	wanted := len(f.samples) < maxSamples && f.isNew(p)
	f.mu.Unlock()
	if !wanted {
		return
	}
	kept := *p
	kept.Body = slices.Clone(p.Body)
	select {
	case f.samples <- kept:
	default:
	}
}

// isNew reports whether enough of a prompt is unknown; f.mu must be held.
func (f *cacheFeed) isNew(p *proxy.SentPrompt) bool {
	m := f.models[p.Model]
	return m != nil && f.feeds[p.Replica] != nil && m.unlearned(p.Adapter, p.Key) >= learnStride
}

// clearIfForgotten clears learned if the map has forgotten learned prompts, or if learned is full: then all are learned
// again.
func (m *modelCaches) clearIfForgotten() {
	if n := m.Forgotten(); n != m.forgotten || len(m.learned) > maxLearned {
		clear(m.learned)
		m.forgotten = n
	}
}

// unlearned returns how many blocks at the end of a key are not in a learned prompt.
func (m *modelCaches) unlearned(adapter string, key prefix.Key) int {
	m.clearIfForgotten()
	if _, known := m.learned[learnedHash{adapter, key[len(key)-1]}]; known {
		return 0
	}
	for i := len(key) / learnStride * learnStride; i > 0; i -= learnStride {
		if _, known := m.learned[learnedHash{adapter, key[i-1]}]; known {
			return len(key) - i
		}
	}
	return len(key)
}

// learnSamples tokenizes samples one after the other.
func (f *cacheFeed) learnSamples() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case s := <-f.samples:
			f.learn(s)
		}
	}
}

func (f *cacheFeed) learn(p proxy.SentPrompt) {
	f.mu.Lock()
	wanted := f.isNew(&p) // many requests with one prompt may wait
	f.mu.Unlock()
	if !wanted {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, tokenizeTimeout)
	defer cancel()
	tokens, err := f.tokenize(ctx, p.Replica, p.Body)
	if err != nil {
		f.failed.Inc()
		f.log.Debug("a prompt is not matched to blocks", "err", err)
		return
	}
	f.tokenized.Inc()
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.models[p.Model]
	changes := m.Learn(tokens, p.Adapter, p.Key, p.Bytes)
	m.clearIfForgotten() // Learn may forget other prompts
	for i := learnStride; i <= len(p.Key); i += learnStride {
		m.learned[learnedHash{p.Adapter, p.Key[i-1]}] = struct{}{}
	}
	m.learned[learnedHash{p.Adapter, p.Key[len(p.Key)-1]}] = struct{}{}
	f.apply(changes)
}

var (
	cacheEventsUp = prometheus.NewDesc("skyserve_cache_events_connected", "1 when the cache events of all ranks of a replica are received.", []string{"replica"}, nil)
	cacheBlocks   = prometheus.NewDesc("skyserve_cache_events_blocks", "Blocks of tokens that are recorded: in engines' caches, or in prompts that were tokenized.", []string{"model"}, nil)
)

// Describe implements prometheus.Collector.
func (f *cacheFeed) Describe(out chan<- *prometheus.Desc) {
	out <- cacheEventsUp
	out <- cacheBlocks
	for _, c := range []prometheus.Counter{f.messages, f.resets, f.tokenized, f.failed} {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (f *cacheFeed) Collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Counter{f.messages, f.resets, f.tokenized, f.failed} {
		c.Collect(out)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, x := range f.feeds {
		up := 1.0
		if slices.Contains(x.up, false) {
			up = 0
		}
		out <- prometheus.MustNewConstMetric(cacheEventsUp, prometheus.GaugeValue, up, id)
	}
	for model, m := range f.models {
		n, _ := m.Blocks()
		out <- prometheus.MustNewConstMetric(cacheBlocks, prometheus.GaugeValue, float64(n), model)
	}
}

// maxPort is the highest TCP port.
const maxPort = 1<<16 - 1

// checkCacheEvents checks the addresses of a replica's cache events.
func checkCacheEvents(p *problems, key string, r service.ReplicaConfig) {
	for _, a := range []struct{ name, address string }{{"cache_events", r.CacheEvents}, {"cache_replays", r.CacheReplays}} {
		if a.address == "" {
			continue
		}
		_, text, err := net.SplitHostPort(a.address)
		port, bad := strconv.Atoi(text)
		lastRank := r.Ranks() - 1
		switch {
		case err != nil || bad != nil || port < 1 || port > maxPort:
			p.addProblem(key+"."+a.name, fmt.Sprintf("must be HOST:PORT, got %q", a.address), "")
		case port+lastRank > maxPort:
			p.addProblem(key+"."+a.name, fmt.Sprintf("the port of rank %d must be at most %d, got %d", lastRank, maxPort, port+lastRank),
				"rank n uses the port of rank 0 plus n: use a lower port for rank 0")
		}
	}
	if r.CacheReplays != "" && r.CacheEvents == "" {
		p.addProblem(key+".cache_replays", "requires cache_events", "")
	}
}
