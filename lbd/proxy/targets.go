package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// ErrOlderEpoch says that an assignment is older than the one that is held.
var ErrOlderEpoch = errors.New("the epoch is older than the one held")

// maxRemoved bounds how many removed replicas' epochs are remembered: more
// than a service replaces while a delayed assignment is under way.
const maxRemoved = 4096

// replica is a replica's address and what was counted of it.
// It never changes once made: an update makes another one that shares the counts.
type replica struct {
	cfg       service.ReplicaConfig
	base      *url.URL
	transport http.RoundTripper
	count     *replicaCount
}

// replicaCount is what was counted of a replica's answers.
type replicaCount struct {
	targetCount
	tokens []atomic.Int64 // streamed since the last tick, by rank
	quiet  int            // ticks since it gave a sign of life; the runtime's lock guards it
	rate   rateWindow
	hits   hitWindow
	served sync.Map // *endpoint, that answered 200
	// prompt and cached are the tokens of answers that told both.
	prompt, cached atomic.Int64
}

// peer is a peer's address.
type peer struct {
	cfg       service.PeerConfig
	base      *url.URL
	transport http.RoundTripper
	count     *targetCount
}

// baseURL reads the URL that requests to a target are sent under.
func baseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("url %q: want http://HOST:PORT or https://HOST:PORT", raw)
	}
	return u, nil
}

// AddReplica makes a replica known; it gets requests once a report finds it
// ready. An id that is known already is updated; with another URL it is another
// process, so whatever was known of the old one is forgotten. It fails with
// ErrOlderEpoch when this id was seen with a newer epoch, when the URL cannot be used,
// when no model is named, and when it is to be asked over mTLS and cannot be. An empty id becomes the URL's host.
func (r *Runtime) AddReplica(cfg service.ReplicaConfig) (added bool, err error) {
	base, err := baseURL(cfg.URL)
	if err != nil {
		return false, fmt.Errorf("adding replica %q: %w", cfg.ID, err)
	}
	cfg.ID = cmp.Or(cfg.ID, base.Host)
	cfg.Region = cmp.Or(cfg.Region, r.self.Region)
	if cfg.Model == "" {
		return false, fmt.Errorf("adding replica %q: no model is named", cfg.ID)
	}
	if err := checkRanks(cfg); err != nil {
		return false, fmt.Errorf("adding replica %q: %w", cfg.ID, err)
	}
	rep := &replica{cfg: cfg, base: base, transport: r.transport}
	switch {
	case !cfg.MTLS:
	case base.Scheme != "https":
		return false, fmt.Errorf("adding replica %q: mtls: needs a URL that begins with https://, got %q", cfg.ID, cfg.URL)
	case r.secure == nil:
		return false, fmt.Errorf("adding replica %q: mtls: this balancer has no certificate of its service", cfg.ID)
	default:
		rep.transport = r.secure
	}
	return r.stepWith(func() (bool, error) { return r.putReplica(rep) })
}

// stepWith runs what changes the targets under the lock, then publishes.
func (r *Runtime) stepWith(change func() (bool, error)) (bool, error) {
	var changed bool
	var err error
	r.subs.publish(r.locked(func() {
		changed, err = change()
		r.rebuildModels()
	}))
	return changed, err
}

func (r *Runtime) putReplica(rep *replica) (bool, error) {
	cfg := rep.cfg
	old := r.replicas[cfg.ID]
	held := r.removedEpochs[cfg.ID]
	if old != nil {
		held = old.cfg.Epoch
	}
	if cfg.Epoch < held {
		return false, fmt.Errorf("adding replica %q: epoch %d, held %d: %w", cfg.ID, cfg.Epoch, held, ErrOlderEpoch)
	}
	delete(r.removedEpochs, cfg.ID)
	rep.count = &replicaCount{tokens: make([]atomic.Int64, cfg.Ranks())}
	if old != nil {
		if old.cfg.URL == cfg.URL && old.cfg.Ranks() == cfg.Ranks() {
			rep.count = old.count
		} else {
			r.removeRanks(old)
		}
	}
	r.addRanks(rep)
	return old == nil, nil
}

// RemoveReplica forgets a replica; what is outstanding there goes on. Epoch 0
// removes whatever is held; else it fails with ErrOlderEpoch when the replica
// was assigned by a newer one. It reports whether the id was known.
func (r *Runtime) RemoveReplica(id string, epoch uint64) (removed bool, err error) {
	return r.stepWith(func() (bool, error) {
		old := r.replicas[id]
		if old == nil {
			return false, nil
		}
		if epoch != 0 && epoch < old.cfg.Epoch {
			return false, fmt.Errorf("removing replica %q: epoch %d, held %d: %w", id, epoch, old.cfg.Epoch, ErrOlderEpoch)
		}
		r.bury(id, max(epoch, old.cfg.Epoch))
		r.removeRanks(old)
		return true, nil
	})
}

// bury remembers the epoch of a removed replica, so that an assignment that was
// delayed on its way cannot bring it back. The oldest is forgotten first.
func (r *Runtime) bury(id string, epoch uint64) {
	if epoch == 0 {
		return
	}
	if len(r.removedEpochs) >= maxRemoved {
		oldest := ""
		for g, e := range r.removedEpochs {
			if oldest == "" || e < r.removedEpochs[oldest] || (e == r.removedEpochs[oldest] && g < oldest) {
				oldest = g
			}
		}
		delete(r.removedEpochs, oldest)
	}
	r.removedEpochs[id] = epoch
}

// DrainReplica lets a replica finish what it has and sends it nothing new. It
// reports whether the id is known.
func (r *Runtime) DrainReplica(id string) bool {
	known, _ := r.stepWith(func() (bool, error) {
		rep := r.replicas[id]
		if rep == nil {
			return false, nil
		}
		for _, k := range rep.ranks() {
			r.step(core.Event{Kind: core.EventReplicaDraining, Target: k.id()})
		}
		return true, nil
	})
	return known
}

// Replicas lists the replicas as they were added, sorted by id.
func (r *Runtime) Replicas() []service.ReplicaConfig {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]service.ReplicaConfig, 0, len(r.replicas))
	for _, rep := range r.sortedReplicas() {
		list = append(list, rep.cfg)
	}
	return list
}

func (r *Runtime) sortedReplicas() []*replica {
	list := make([]*replica, 0, len(r.replicas))
	for _, rep := range r.replicas {
		list = append(list, rep)
	}
	slices.SortFunc(list, func(a, b *replica) int { return cmp.Compare(a.cfg.ID, b.cfg.ID) })
	return list
}

// AddPeer makes a peer known, or updates it; it gets requests once it reported.
// A nil transport is the one that replicas are reached by. A peer whose URL
// cannot be used is logged and left out.
func (r *Runtime) AddPeer(cfg service.PeerConfig, transport http.RoundTripper) {
	base, err := baseURL(cfg.URL)
	if err != nil {
		r.log.Error("adding peer", "peer", cfg.ID, "error", err)
		return
	}
	if transport == nil {
		transport = r.transport
	}
	_, _ = r.stepWith(func() (bool, error) {
		count := &targetCount{}
		if old := r.peers[cfg.ID]; old != nil && old.cfg.URL == cfg.URL {
			count = old.count
		}
		r.peers[cfg.ID] = &peer{cfg: cfg, base: base, transport: transport, count: count}
		r.step(core.Event{Kind: core.EventPeerAdded, Peer: &core.PeerInfo{ID: cfg.ID, SameRegion: cfg.Region == r.self.Region}})
		return true, nil
	})
}

// RemovePeer forgets a peer; what was forwarded to it goes on.
func (r *Runtime) RemovePeer(id string) {
	_, _ = r.stepWith(func() (bool, error) {
		delete(r.peers, id)
		delete(r.offered, id)
		r.step(core.Event{Kind: core.EventPeerRemoved, Target: id})
		return true, nil
	})
}
