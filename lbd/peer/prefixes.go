package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"skyserve/lbd/core"
)

// PathPrefixes is the path of Prefixes, the cache updates of a balancer. Its query parameters:
// since, the last number that the client has; boot, the process that assigned this number; all=true for the updates that
// the balancer received from others of its region too. A client of the same region, which starts without any, sends
// all=true until it has received a last page (More is false).
const PathPrefixes = "/skyserve/v1/prefixes"

// Bounds of the cache updates between balancers, with reasons.
const (
	prefixesInterval = time.Second            // updates of at most this time are lost if a balancer dies
	moreInterval     = 100 * time.Millisecond // ten pages a second: almost 300 prompts of 32 KB
	maxPrefixes      = 256 << 10              // a page, as JSON
	pageBytes        = 128 << 10              // a page, as the core measures it; base64 and names make it larger
	sinkEntries      = 32                     // in one event: the balancer handles requests between events
	maxSharedHashes  = 8 << 10                // no balancer sends longer keys
	maxSharedName    = 512                    // of a replica, a process or a tenant
	maxSharedAge     = 30 * 24 * time.Hour    // older sessions are no longer cached
	hashBytes        = 8
)

// Prefixes is a page of a balancer's cache updates.
type Prefixes struct {
	// Boot identifies the responding process: another process starts its own numbering, so the page
	// starts at the first update unless the client sent this boot.
	Boot string `json:"boot"`
	// Keys is the fingerprint of the key with which prompts are hashed: hashes of different keys
	// cannot be compared.
	Keys string `json:"keys"`
	// Next is the value of since for the next request; More: more updates are available now.
	Next    uint64         `json:"next"`
	More    bool           `json:"more,omitempty"`
	Learned []SharedPrefix `json:"learned"` // oldest first
}

// SharedPrefix is the wire format of a core.CacheUpdate.
type SharedPrefix struct {
	Replica string `json:"replica"`
	// Process identifies the replica's process: another process has an empty cache.
	Process string `json:"process,omitempty"`
	// Tenant is the owner of the prompt; empty without tenants.
	Tenant string `json:"tenant,omitempty"`
	// Hashes contains the hashes of the prompt, 8 bytes each, little-endian.
	Hashes []byte `json:"hashes,omitempty"`
	// IncludesResponse: the hashes are of the prompt with its response.
	IncludesResponse bool `json:"answered,omitempty"`
	// CacheLost: the replica lost its whole cache; then Hashes is empty.
	CacheLost  bool          `json:"forgotten,omitempty"`
	Age        time.Duration `json:"age_ns"`
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
}

// prefixes returns the page for a request of another balancer.
func (s *HandlerSource) prefixes(r *http.Request, boot string) Prefixes {
	q := r.URL.Query()
	since, err := strconv.ParseUint(q.Get("since"), 10, 64)
	if err != nil || q.Get("boot") != boot {
		since = 0
	}
	entries, next, more := s.Learned(since, q.Get("all") == "true", pageBytes)
	p := Prefixes{Boot: boot, Keys: s.Keys, Next: next, More: more, Learned: make([]SharedPrefix, len(entries))}
	for i := range entries {
		e := &entries[i]
		p.Learned[i] = SharedPrefix{
			Replica: e.Replica, Process: e.Process, Tenant: e.Tenant, Hashes: packHashes(e.Key), IncludesResponse: e.IncludesResponse, CacheLost: e.CacheLost,
			Age: e.Age, SessionAge: min(e.SessionAge, maxSharedAge), // a peer rejects a page with an older session
		}
	}
	return p
}

func packHashes(key []uint64) []byte {
	packed := make([]byte, 0, hashBytes*len(key))
	for _, h := range key {
		packed = binary.LittleEndian.AppendUint64(packed, h)
	}
	return packed
}

// decode returns the updates of the page, with underway added to their ages. A page with any
// invalid entry is rejected as a whole.
func (p *Prefixes) decode(underway time.Duration) ([]core.CacheUpdate, error) {
	entries := make([]core.CacheUpdate, len(p.Learned))
	for i := range p.Learned {
		s := &p.Learned[i]
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("GET %s returned an invalid response: learned[%d]%w", PathPrefixes, i, err)
		}
		e := &entries[i]
		e.Replica, e.Process, e.Tenant, e.IncludesResponse, e.CacheLost = s.Replica, s.Process, s.Tenant, s.IncludesResponse, s.CacheLost
		e.Age, e.SessionAge = s.Age+underway, s.SessionAge+underway
		e.Key = make([]uint64, len(s.Hashes)/hashBytes)
		for j := range e.Key {
			e.Key[j] = binary.LittleEndian.Uint64(s.Hashes[hashBytes*j:])
		}
	}
	return entries, nil
}

func (s *SharedPrefix) check() error {
	switch {
	case s.Replica == "" || len(s.Replica) > maxSharedName:
		return fmt.Errorf(".replica: must have 1 to %d bytes, got %d", maxSharedName, len(s.Replica))
	case len(s.Process) > maxSharedName:
		return fmt.Errorf(".process: must have at most %d bytes, got %d", maxSharedName, len(s.Process))
	case len(s.Tenant) > maxSharedName:
		return fmt.Errorf(".tenant: must have at most %d bytes, got %d", maxSharedName, len(s.Tenant))
	case len(s.Hashes)%hashBytes != 0 || len(s.Hashes) > hashBytes*maxSharedHashes:
		return fmt.Errorf(".hashes: must be at most %d hashes of %d bytes, got %d bytes", maxSharedHashes, hashBytes, len(s.Hashes))
	case s.CacheLost == (len(s.Hashes) > 0):
		return errors.New(": must have either hashes or forgotten")
	case s.Age < 0 || s.SessionAge < 0 || s.Age > maxSharedAge || s.SessionAge > maxSharedAge:
		return fmt.Errorf(".age_ns, .session_age_ns: must be 0 to %s, got %s and %s", maxSharedAge, s.Age, s.SessionAge)
	}
	return nil
}

// follower is the position of a link in its peer's updates.
type follower struct {
	boot   string
	since  uint64
	synced bool   // all updates that existed at the start have arrived
	reason string // error of the last response
}

// followPrefixes requests the peer's cache updates every second until ctx ends.
func (l *link) followPrefixes(ctx context.Context, jitter *rand.Rand) {
	defer l.hc.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var f follower
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := prefixesInterval
		if l.fetchPrefixes(ctx, &f) {
			wait = moreInterval
		}
		timer.Reset(wait + time.Duration((2*jitter.Float64()-1)*jitterShare*float64(wait)))
	}
}

// fetchPrefixes requests one page and delivers the new updates; not from another region that is not followed. It reports
// whether more are available.
func (l *link) fetchPrefixes(ctx context.Context, f *follower) (more bool) {
	if l.cfg.Region != l.client.opts.Region && !l.client.otherRegions.Load() {
		return false
	}
	query := url.Values{"since": {strconv.FormatUint(f.since, 10)}, "boot": {f.boot}}
	if !f.synced && l.cfg.Region == l.client.opts.Region {
		query.Set("all", "true")
	}
	var p Prefixes
	sent := time.Now()
	err := l.get(ctx, PathPrefixes+"?"+query.Encode(), maxPrefixes, &p)
	if ctx.Err() != nil {
		return false
	}
	var entries []core.CacheUpdate
	if err == nil && p.Keys != l.client.opts.Keys {
		err = errors.New("it hashes prompts with another key: set the same peer_token for all balancers")
	}
	if err == nil {
		entries, err = p.decode(time.Since(sent) / 2)
	}
	l.logPrefixesError(f, err)
	if err != nil {
		return false
	}
	for ; len(entries) > 0; entries = entries[min(len(entries), sinkEntries):] {
		l.client.opts.Sink(core.Event{Kind: core.EventPeerCacheUpdates, Target: l.cfg.ID, CacheUpdates: entries[:min(len(entries), sinkEntries)]})
	}
	more = p.More && (p.Boot != f.boot || p.Next > f.since)
	f.boot, f.since, f.synced = p.Boot, p.Next, f.synced || !p.More
	return more
}

// logPrefixesError logs an error in a peer's responses once, until it changes. If the peer does not
// respond at all, the heartbeats log that.
func (l *link) logPrefixesError(f *follower, err error) {
	l.mu.Lock()
	answers := !l.receivedAt.IsZero() && l.reason == ""
	l.mu.Unlock()
	if !answers {
		return
	}
	reason := ""
	if ue := (*url.Error)(nil); err != nil && !errors.As(err, &ue) {
		reason = err.Error()
	}
	if reason != "" && reason != f.reason {
		l.client.opts.Logger.Warn("sharing prefixes with a peer failed", "peer", l.cfg.ID, "reason", reason)
	}
	f.reason = reason
}
