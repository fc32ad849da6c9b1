package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// ErrOlderEpoch means that an assignment is older than the current one.
var ErrOlderEpoch = errors.New("the assignment is older than the current one")

// maxRemoved is the maximum number of removed replicas whose epochs are remembered: more than a
// service replaces while a delayed assignment is in transit.
const maxRemoved = 4096

// replica is a replica's address and its counts. It is immutable: an update creates a new one that
// shares the counts.
type replica struct {
	cfg       service.ReplicaConfig
	base      *url.URL
	transport http.RoundTripper
	count     *replicaCount
	// authorization is the header with the engine's key; nil if it has none.
	authorization []string
	// external is set for a model of a provider; nil for an engine of the service.
	external *external
}

// authorize replaces the client's credentials by the engine's key, if it has one. Only requests to this
// replica may contain it.
func (r *replica) authorize(h http.Header) {
	if r.authorization != nil {
		h["Authorization"] = r.authorization
		delete(h, headerAPIKey)
	}
}

// replicaCount contains the counts of a replica's responses.
type replicaCount struct {
	targetCount
	attachment  uint64         // telemetry.ReplicaSnapshot.Attachment
	tokens      []atomic.Int64 // tokens streamed since the last tick, by rank
	silentTicks int            // ticks since it responded to a probe or sent a token; guarded by the runtime's lock
	rate        rateWindow
	hits        hitWindow
	proof       proof // that its engine can continue a chat
	// prompt and cached are the tokens of responses that report both.
	prompt, cached atomic.Int64
	// notCached and notExpected are the tokens of countMismatch.
	notCached, notExpected atomic.Int64
}

// peer is a peer's address.
type peer struct {
	cfg       service.PeerConfig
	base      *url.URL
	transport http.RoundTripper
	count     *targetCount
}

// baseURL parses the base URL of a target.
func baseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("url %q: must be http://HOST:PORT or https://HOST:PORT", raw)
	}
	return u, nil
}

// AddReplica adds a replica. It receives requests once a report finds it ready. A known id is
// updated. With another URL or number of ranks it is another process, so everything learned about
// the old one is discarded. AddReplica returns ErrOlderEpoch if this id already had a newer epoch. It returns other
// errors if cfg is invalid, or requires mTLS that this balancer does not have. An empty id is
// replaced by the URL's host.
func (r *Runtime) AddReplica(cfg service.ReplicaConfig) (added bool, err error) {
	return r.addReplica(cfg, false)
}

// AddDrainingReplica is AddReplica for a replica that receives no requests: see DrainReplica. Not even a waiting
// request is sent to it.
func (r *Runtime) AddDrainingReplica(cfg service.ReplicaConfig) (added bool, err error) {
	return r.addReplica(cfg, true)
}

func (r *Runtime) addReplica(cfg service.ReplicaConfig, draining bool) (added bool, err error) {
	base, err := baseURL(cfg.URL)
	if err != nil {
		return false, fmt.Errorf("adding replica %q: %w", cfg.ID, err)
	}
	cfg.ID = cmp.Or(cfg.ID, base.Host)
	cfg.Region = cmp.Or(cfg.Region, r.self.Region)
	if cfg.Model == "" {
		return false, fmt.Errorf("adding replica %q: model is required", cfg.ID)
	}
	if err := checkRanks(cfg); err != nil {
		return false, fmt.Errorf("adding replica %q: %w", cfg.ID, err)
	}
	rep := &replica{cfg: cfg, base: base, transport: r.transport}
	if cfg.Key != "" {
		rep.authorization = []string{cfg.Authorization()}
	}
	switch {
	case !cfg.MTLS:
	case base.Scheme != "https":
		return false, fmt.Errorf("adding replica %q: mtls: requires a URL that starts with https://, got %q", cfg.ID, cfg.URL)
	case r.mtlsTransport == nil:
		return false, fmt.Errorf("adding replica %q: mtls: this balancer has no identity certificate of its service: run 'skyserve up', which gives it one, or attach the replica without mtls", cfg.ID)
	default:
		rep.transport = r.mtlsTransport
	}
	return r.changeTargets(func() (bool, error) { return r.storeReplica(rep, draining) })
}

// changeTargets runs a change of the targets under the lock, then publishes the decisions.
func (r *Runtime) changeTargets(change func() (bool, error)) (bool, error) {
	var changed bool
	var err error
	r.subs.publish(r.withLock(func() {
		changed, err = change()
		r.rebuildModels()
	}))
	return changed, err
}

func (r *Runtime) storeReplica(rep *replica, draining bool) (bool, error) {
	cfg := rep.cfg
	old := r.replicas[cfg.ID]
	held := r.removedEpochs[cfg.ID]
	if old != nil {
		held = old.cfg.Epoch
	}
	if cfg.Epoch < held {
		return false, fmt.Errorf("adding replica %q: epoch %d, current %d: %w", cfg.ID, cfg.Epoch, held, ErrOlderEpoch)
	}
	delete(r.removedEpochs, cfg.ID)
	rep.count = r.newReplicaCount(cfg.Ranks())
	if old != nil {
		if old.cfg.URL == cfg.URL && old.cfg.Ranks() == cfg.Ranks() {
			rep.count = old.count
			if old.cfg.Model != cfg.Model {
				rep.count.proof.changeModel()
				delete(r.served, cfg.ID)
			}
		} else {
			r.removeRanks(old)
		}
	}
	r.addRanks(rep, draining)
	return old == nil, nil
}

// newReplicaCount returns a count that begins at 0; the lock must be held. Attachments are numbered from the time of the
// start, so that the next process of this balancer has other numbers. A time in microseconds is exact also in JSON
// readers that use float64.
func (r *Runtime) newReplicaCount(ranks int) *replicaCount {
	r.attachments++
	return &replicaCount{attachment: uint64(r.startedAt.UnixMicro()) + r.attachments, tokens: make([]atomic.Int64, ranks)}
}

// RemoveReplica removes a replica; its outstanding requests continue. Epoch 0 always removes it.
// Otherwise it returns ErrOlderEpoch if the replica was assigned with a newer epoch. It reports
// whether the id was known.
func (r *Runtime) RemoveReplica(id string, epoch uint64) (removed bool, err error) {
	return r.changeTargets(func() (bool, error) {
		old := r.replicas[id]
		if old == nil {
			return false, nil
		}
		if epoch != 0 && epoch < old.cfg.Epoch {
			return false, fmt.Errorf("removing replica %q: epoch %d, current %d: %w", id, epoch, old.cfg.Epoch, ErrOlderEpoch)
		}
		r.rememberEpoch(id, max(epoch, old.cfg.Epoch))
		r.removeRanks(old)
		return true, nil
	})
}

// rememberEpoch remembers the epoch of a removed replica, so that a delayed assignment cannot add it again. The
// oldest epoch is removed first.
func (r *Runtime) rememberEpoch(id string, epoch uint64) {
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

// DrainReplica stops new requests to a replica; its requests in flight finish. It reports whether the
// id is known.
func (r *Runtime) DrainReplica(id string) bool {
	known, _ := r.changeTargets(func() (bool, error) {
		rep := r.replicas[id]
		if rep == nil {
			return false, nil
		}
		for _, k := range rep.ranks() {
			r.stepCore(core.Event{Kind: core.EventReplicaDraining, Target: k.id()})
		}
		return true, nil
	})
	return known
}

// Replicas returns the replicas as they were added, sorted by id.
func (r *Runtime) Replicas() []service.ReplicaConfig {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]service.ReplicaConfig, 0, len(r.replicas))
	for _, rep := range r.sortedReplicas() {
		if rep.external == nil {
			list = append(list, rep.cfg)
		}
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

// AddPeer adds or updates a peer. It receives requests once it has reported. If transport is nil,
// the transport for replicas is used. A peer with an invalid URL is logged and ignored.
func (r *Runtime) AddPeer(cfg service.PeerConfig, transport http.RoundTripper) {
	base, err := baseURL(cfg.URL)
	if err != nil {
		r.log.Error("adding a peer failed", "peer", cfg.ID, "err", err)
		return
	}
	if transport == nil {
		transport = r.transport
	}
	_, _ = r.changeTargets(func() (bool, error) {
		count := &targetCount{}
		if old := r.peers[cfg.ID]; old != nil && old.cfg.URL == cfg.URL {
			count = old.count
		}
		r.peers[cfg.ID] = &peer{cfg: cfg, base: base, transport: transport, count: count}
		r.stepCore(core.Event{Kind: core.EventPeerAdded, Peer: &core.PeerInfo{ID: cfg.ID, SameRegion: cfg.Region == r.self.Region}})
		return true, nil
	})
}

// RemovePeer removes a peer; requests forwarded to it continue.
func (r *Runtime) RemovePeer(id string) {
	_, _ = r.changeTargets(func() (bool, error) {
		delete(r.peers, id)
		delete(r.peerModels, id)
		delete(r.peerNames, id)
		r.stepCore(core.Event{Kind: core.EventPeerRemoved, Target: id})
		return true, nil
	})
}
