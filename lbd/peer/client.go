package peer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/wire"
)

// Defaults and bounds, with reasons.
const (
	defaultInterval = 100 * time.Millisecond // SkyLB's heartbeat (section 3.3)
	defaultTimeout  = time.Second            // the core marks a peer as lost after one second without reports
	regionInterval  = time.Second            // the refresh interval of top
	maxInFlight     = 4                      // with round trips of up to 400 ms, a report arrives in each interval
	rttWindow       = 32                     // about three seconds of round trips
	jitterShare     = 0.1                    // spreads the heartbeats of many balancers
	maxHeartbeat    = 1 << 20                // thousands of models
	maxRegion       = 8 << 20                // thousands of replicas
	startGrace      = 3 * time.Second        // without a warning for a new peer, which may be starting at the same time
)

// Options configure a Client. Self and Sink are required.
type Options struct {
	// Self is this balancer's id: a peer that responds with it is this balancer itself.
	Self string
	// Token is the service's peer token; it may be empty if all balancers run on one machine.
	Token string
	// Region is this balancer's region. The client requests the cache updates of the peers in this region, and of
	// others with FollowOtherRegions, unless Keys is empty. Keys is the fingerprint of the key with which prompts are hashed.
	Region service.Region
	Keys   string
	// Sink receives the reports; it is called from many goroutines and must not block.
	Sink func(core.Event)
	// Interval is the time between two heartbeat requests to a peer; default 100 ms.
	Interval time.Duration
	// Timeout is the timeout of one heartbeat request; default 1 s.
	Timeout time.Duration
	// Seed seeds the jitter.
	Seed uint64
	// Logger receives changes of the peers' states; nil = no logs.
	Logger *slog.Logger
}

// Client exchanges state with a changing set of peers. All methods may be called from many
// goroutines.
type Client struct {
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// otherRegions is whether cache updates of other regions are requested.
	otherRegions atomic.Bool

	mu     sync.Mutex
	links  map[string]*link
	tick   *time.Timer // triggers a request on all links; nil before the first
	jitter *rand.Rand
}

// NewClient returns a Client without peers. Close it after use.
func NewClient(opts Options) *Client {
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.Timeout = cmp.Or(opts.Timeout, defaultTimeout)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{opts: opts, links: map[string]*link{}, jitter: rand.New(rand.NewPCG(opts.Seed, 0))}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// FollowOtherRegions sets whether the client requests the cache updates of peers in other regions; false at first.
func (c *Client) FollowOtherRegions(follow bool) { c.otherRegions.Store(follow) }

// Add starts to query a peer. If transport is nil, the peer has its own transport, which emulates
// cfg.EmulateRTT. Add ignores a peer that was already added.
func (c *Client) Add(cfg service.PeerConfig, transport http.RoundTripper) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links[cfg.ID] != nil || c.ctx.Err() != nil {
		return
	}
	if transport == nil {
		transport = NewTransport(cfg.EmulateRTT, nil)
	}
	ctx, stop := context.WithCancel(c.ctx)
	h := fnv.New64a()
	_, _ = h.Write([]byte(cfg.ID))
	l := &link{
		client: c, cfg: cfg, stop: stop, added: time.Now(),
		hc: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		due:   make(chan struct{}, 1),
		back:  make(chan struct{}, 1),
		slots: make(chan struct{}, maxInFlight),
	}
	c.links[cfg.ID] = l
	l.due <- struct{}{}
	if len(c.links) == 1 {
		c.schedule()
	}
	c.wg.Go(func() { l.beat(ctx) })
	c.wg.Go(func() { l.watchRegion(ctx) })
	if c.opts.Keys != "" {
		jitter := rand.New(rand.NewPCG(c.opts.Seed+1, h.Sum64()))
		c.wg.Go(func() { l.followPrefixes(ctx, jitter) })
	}
}

// schedule schedules the next heartbeat requests after an interval; c.mu must be held.
func (c *Client) schedule() {
	wait := c.opts.Interval + time.Duration((2*c.jitter.Float64()-1)*jitterShare*float64(c.opts.Interval))
	if c.tick == nil {
		c.tick = time.AfterFunc(wait, c.beatAll)
		return
	}
	c.tick.Reset(wait)
}

// beatAll makes every link request a heartbeat. All peers are queried at the same moment, because a
// wake-up for each of them costs more than the query.
func (c *Client) beatAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.links) == 0 || c.ctx.Err() != nil {
		return
	}
	c.schedule()
	for _, l := range c.links {
		select {
		case l.due <- struct{}{}:
		default: // the previous tick is still pending
		}
	}
}

// Remove stops querying a peer.
func (c *Client) Remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[id]; l != nil {
		l.stop()
		delete(c.links, id)
	}
	if len(c.links) == 0 && c.tick != nil {
		c.tick.Stop()
	}
}

// Close stops querying all peers and waits for requests in flight.
func (c *Client) Close() {
	c.cancel()
	c.mu.Lock()
	if c.tick != nil {
		c.tick.Stop()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// Health is the state of one peer.
type Health struct {
	Peer service.PeerConfig
	// Region is its last region snapshot, nil before the first. The caller must not change it.
	// RegionAge is the snapshot's age, including half a round trip.
	Region    *telemetry.RegionSnapshot
	RegionAge time.Duration
	// Reported: a heartbeat was received. Silence is the time since the last one, or since the peer was
	// added.
	Reported bool
	Silence  time.Duration
	// RTT is the lowest recent round-trip time; 0 before the first.
	RTT time.Duration
	// Draining: the peer reported that it is shutting down.
	Draining bool
	// Reason is the error of the last heartbeat; empty if it succeeded.
	Reason string
}

// Status returns the state of all peers, sorted by id.
func (c *Client) Status() []Health {
	c.mu.Lock()
	links := make([]*link, 0, len(c.links))
	for _, l := range c.links {
		links = append(links, l)
	}
	c.mu.Unlock()
	all := make([]Health, len(links))
	for i, l := range links {
		all[i] = l.status()
	}
	slices.SortFunc(all, func(a, b Health) int { return cmp.Compare(a.Peer.ID, b.Peer.ID) })
	return all
}

// link queries one peer.
type link struct {
	client *Client
	cfg    service.PeerConfig
	hc     *http.Client
	stop   context.CancelFunc
	due    chan struct{} // receives when a heartbeat is due
	back   chan struct{} // receives when the peer responds for the first time, or again
	slots  chan struct{} // one for each heartbeat in flight
	added  time.Time

	mu         sync.Mutex
	sent       time.Time // when the newest heartbeat request with a response was sent
	draining   bool      // as reported by that heartbeat
	receivedAt time.Time
	rtts       []time.Duration // the last rttWindow, oldest first
	reason     string
	warned     string // the reason that was last logged; empty since the newest response
	region     *telemetry.RegionSnapshot
	regionAt   time.Time // when its figures were measured
}

// beat requests heartbeats until ctx ends. They overlap, so that a distant peer reports as often as a
// near one. It skips a heartbeat when too many have no response yet.
func (l *link) beat(ctx context.Context) {
	defer l.hc.CloseIdleConnections()
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.due:
		}
		select {
		case l.slots <- struct{}{}:
		default:
			continue
		}
		inFlight.Go(func() {
			defer func() { <-l.slots }()
			l.heartbeat(ctx)
		})
	}
}

// heartbeat sends one request and reports the response to the core. After a failure it
// reports nothing: the core detects missing reports.
func (l *link) heartbeat(ctx context.Context) {
	var hb Heartbeat
	sent := time.Now()
	err := l.get(ctx, PathHeartbeat, maxHeartbeat, &hb)
	if ctx.Err() != nil {
		return
	}
	if err == nil && hb.ID == l.client.opts.Self {
		err = fmt.Errorf("it has this balancer's own id %s: set a unique id for each balancer", hb.ID)
	}
	if err != nil {
		l.recordFailure(sent, err)
		return
	}
	models := dropInvalidLoads(hb.Models)
	if hb.Draining {
		models = nil
	}
	trip := time.Since(sent)
	rtt, newest := l.recordResponse(sent, trip, hb.Draining)
	if !newest {
		return // a later heartbeat already has a response
	}
	l.client.opts.Sink(core.Event{
		Kind: core.EventPeerReport, Target: l.cfg.ID,
		PeerReport: &core.PeerReport{Age: trip / 2, RTT: rtt, Models: models, StoppedFingerprints: hb.Killers},
	})
}

// dropInvalidLoads drops impossible figures of a peer's loads and returns one load per model, sorted.
func dropInvalidLoads(loads []core.ModelLoad) []core.ModelLoad {
	loads = slices.DeleteFunc(loads, func(l core.ModelLoad) bool {
		return min(l.Replicas, l.Available, l.Queued, l.Outstanding) < 0
	})
	for i := range loads {
		if kv := loads[i].KV.Value; !(kv >= 0 && kv <= 1) {
			loads[i].KV = policy.Maybe[float64]{}
		}
	}
	slices.SortStableFunc(loads, func(a, b core.ModelLoad) int { return cmp.Compare(a.Model, b.Model) })
	return slices.CompactFunc(loads, func(a, b core.ModelLoad) bool { return a.Model == b.Model })
}

// recordResponse records the response to a heartbeat. It returns the minimum of recent round trips,
// and whether the heartbeat is the newest with a response.
func (l *link) recordResponse(sent time.Time, trip time.Duration, draining bool) (rtt time.Duration, newest bool) {
	l.mu.Lock()
	newest = sent.After(l.sent)
	ends := newest && draining && !l.draining
	if newest {
		l.sent, l.draining = sent, draining
	}
	back := l.reason != "" || l.receivedAt.IsZero()
	l.receivedAt, l.reason, l.warned = time.Now(), "", ""
	if len(l.rtts) == rttWindow {
		l.rtts = append(l.rtts[:0], l.rtts[1:]...)
	}
	l.rtts = append(l.rtts, trip)
	rtt = slices.Min(l.rtts)
	l.mu.Unlock()
	if back {
		select {
		case l.back <- struct{}{}:
		default: // its region is about to be fetched
		}
		l.client.opts.Logger.Info("peer responds", "peer", l.cfg.ID, "region", l.cfg.Region, "rtt", rtt.Round(100*time.Microsecond))
	}
	if ends {
		l.client.opts.Logger.Info("peer draining", "peer", l.cfg.ID, "region", l.cfg.Region)
	}
	return rtt, newest
}

// recordFailure records a failed heartbeat. It ignores one that was sent before the newest
// heartbeat with a response. It logs no failure of a new peer within startGrace.
func (l *link) recordFailure(sent time.Time, err error) {
	reason := explain(err, l.client.opts.Timeout)
	l.mu.Lock()
	newest, starting := !sent.Before(l.sent), l.receivedAt.IsZero() && time.Since(l.added) < startGrace
	warns := newest && !starting && l.warned != reason
	if newest {
		l.reason = reason
	}
	if warns {
		l.warned = reason
	}
	l.mu.Unlock()
	if warns {
		l.client.opts.Logger.Warn("peer heartbeat failed", "peer", l.cfg.ID, "region", l.cfg.Region, "reason", reason)
	}
}

// watchRegion fetches the peer's region snapshot every second, and when the peer responds for the first time or again.
func (l *link) watchRegion(ctx context.Context) {
	defer l.hc.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.back:
		}
		sent := time.Now()
		region := new(telemetry.RegionSnapshot)
		if err := l.get(ctx, PathRegion, maxRegion, region); err == nil {
			l.mu.Lock()
			l.region, l.regionAt = region, sent.Add(time.Since(sent)/2)
			l.mu.Unlock()
		}
		timer.Reset(max(regionInterval-time.Since(sent), regionInterval/10))
	}
}

// get fetches a JSON document of up to limit bytes. Errors about the response contain the path without its query.
func (l *link) get(ctx context.Context, path string, limit int64, into any) error {
	ctx, cancel := context.WithTimeout(ctx, l.client.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(l.cfg.URL, "/")+path, nil)
	if err != nil {
		return err
	}
	if l.client.opts.Token != "" {
		req.Header.Set(HeaderToken, l.client.opts.Token)
	}
	path, _, _ = strings.Cut(path, "?")
	res, err := l.hc.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return err
	case res.StatusCode == http.StatusUnauthorized:
		return errors.New("it rejected this balancer's peer token: set the same peer_token for all balancers")
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("GET %s returned %d %s", path, res.StatusCode, http.StatusText(res.StatusCode))
	case int64(len(body)) > limit:
		return fmt.Errorf("GET %s returned more than %d bytes", path, limit)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("GET %s returned an invalid response: %w", path, err)
	}
	return nil
}

// explain returns a short description of an error.
func explain(err error, timeout time.Duration) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no response within %s", timeout)
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return wire.WithoutLocalAddress(err.Error())
}

func (l *link) status() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := Health{Peer: l.cfg, Reported: !l.receivedAt.IsZero(), Silence: now.Sub(l.added), Draining: l.draining, Reason: l.reason}
	if s.Reported {
		s.Silence = now.Sub(l.receivedAt)
		s.RTT = slices.Min(l.rtts)
	}
	if l.region != nil {
		copied := *l.region
		s.Region, s.RegionAge = &copied, now.Sub(l.regionAt)
	}
	return s
}
