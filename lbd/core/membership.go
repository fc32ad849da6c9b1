package core

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"skyserve/lbd/core/breaker"
	"skyserve/lbd/core/concurrency"
	"skyserve/lbd/policy"
)

// findTarget returns the target with an id in a sorted list, or nil.
func findTarget(ts []*target, id string) *target {
	i := sort.Search(len(ts), func(i int) bool { return ts[i].id >= id })
	if i < len(ts) && ts[i].id == id {
		return ts[i]
	}
	return nil
}

func insertTarget(ts []*target, t *target) []*target {
	i := sort.Search(len(ts), func(i int) bool { return ts[i].id >= t.id })
	ts = append(ts, nil)
	copy(ts[i+1:], ts[i:])
	ts[i] = t
	return ts
}

func removeTarget(ts []*target, t *target) []*target {
	for i := range ts {
		if ts[i] == t {
			return append(ts[:i], ts[i+1:]...)
		}
	}
	return ts
}

// forgetCache forgets the expected cache contents, the failed load and the learned limit of t.
func (b *Balancer) forgetCache(now time.Duration, t *target) {
	if t.treeSlot >= 0 {
		t.failedLoad = failedLoad{}
		t.starts.forget()
	}
	t.limit = concurrency.Limit{} // another engine may have replaced it
	b.caches.forgetCache(now, &t.cacheTarget)
}

// updateNeighbours records in the caches whether other balancers use what this one shares: those of this region, and
// those of other regions if the policy compares their caches with its own.
func (b *Balancer) updateNeighbours() {
	b.caches.neighbours = slices.ContainsFunc(b.peers, func(t *target) bool { return t.sameRegion })
	b.caches.distant = b.cfg.ForwardsToCaches() && slices.ContainsFunc(b.peers, func(t *target) bool { return !t.sameRegion })
}

// addReplica adds a replica. If it exists already, it is updated, and drains only if info says so.
func (b *Balancer) addReplica(now time.Duration, info *ReplicaInfo) {
	if t := findTarget(b.replicas, info.ID); t != nil {
		former := t.model
		if former != info.Model {
			b.queue(info.Model).activeAt = now
			b.releaseHoldsFor(t)
		}
		if t.model != info.Model || t.process != info.Process {
			b.forgetCache(now, t)
			t.breaker, t.served = breaker.Breaker{}, servedNames{}
		}
		t.process = info.Process
		b.setEngine(t, info.engine())
		t.model, t.maxOutstanding, t.draining = info.Model, info.MaxOutstanding, info.Draining
		b.noteDetached(now, former)
		b.placeAllWaiting(now)
		return
	}
	t := &target{cacheTarget: cacheTarget{id: info.ID, process: info.Process}, model: info.Model, maxOutstanding: info.MaxOutstanding, draining: info.Draining}
	b.setEngine(t, info.engine())
	b.caches.attachReplica(now, &t.cacheTarget)
	b.replicas = insertTarget(b.replicas, t)
	b.queue(info.Model).activeAt = now
}

// removeReplica removes a replica. If this region has no other balancer, its prefixes are removed at
// once. Its outstanding requests end by their own events.
func (b *Balancer) removeReplica(now time.Duration, id string) {
	t := findTarget(b.replicas, id)
	if t == nil {
		return
	}
	b.dismissFailures(t, len(t.openFailures))
	b.caches.detachReplica(now, &t.cacheTarget, t.cacheLost(now, &b.cfg))
	b.replicas = removeTarget(b.replicas, t)
	b.noteDetached(now, t.model)
	b.rejectUnknown(now)
	b.bounceStranded(now)
}

func (b *Balancer) addPeer(now time.Duration, info *PeerInfo) {
	if t := findTarget(b.peers, info.ID); t != nil {
		t.sameRegion = info.SameRegion
		b.updateNeighbours()
		return
	}
	t := &target{cacheTarget: cacheTarget{id: info.ID, peer: true, added: now}, sameRegion: info.SameRegion, rankState: rankState{engine: info.ID}}
	b.caches.addPeer(&t.cacheTarget)
	b.peers = insertTarget(b.peers, t)
	b.updateNeighbours()
}

func (b *Balancer) removePeer(now time.Duration, id string) {
	t := findTarget(b.peers, id)
	if t == nil {
		return
	}
	b.peers = removeTarget(b.peers, t)
	b.updateNeighbours()
	b.caches.removePeer(&t.cacheTarget)
	b.noteAllDetached(now, t.models)
	b.rejectUnknown(now)
	b.placeAllWaiting(now)
}

func (b *Balancer) handleReplicaReport(now time.Duration, id string, rep *ProbeReport) {
	t := findTarget(b.replicas, id)
	if t == nil {
		return
	}
	becameReady := rep.Ready && !t.ready
	hadCache := t.ready || !t.reported // before the first report, other balancers' updates show what it has cached
	t.reported, t.ready, t.reason = true, rep.Ready, rep.Reason
	sound := rep.sanitized()
	if sound.MetricsAge >= time.Duration(b.cfg.LostIntervals)*b.cfg.ProbeInterval {
		// As old as the last report of a lost replica. An idle engine does not update its figures, so
		// without this rule those of its busy time would keep requests away.
		sound.Pending, sound.Running, sound.KV = policy.Maybe[int]{}, policy.Maybe[int]{}, policy.Maybe[float64]{}
	}
	t.pending, t.running, t.kv, t.slots = sound.Pending, sound.Running, sound.KV, sound.Slots
	switch {
	case t.pending.Or(0) == 0:
		t.pendingSince = 0
	case t.pendingSince == 0:
		t.pendingSince = now
	}
	t.starts.addPending(t.outstanding, t.pending.Or(0))
	t.reportedAt, t.reportLatency, t.measuredAt = now-sound.Age, sound.Age, now-sound.Age-sound.MetricsAge
	t.confirmByReport(now, sound.Age, sound.MetricsAge)
	t.othersRequests = max(0, t.running.Or(0)+t.pending.Or(0)-(t.outstanding-len(t.unconfirmed)))
	if rep.Ready {
		t.unreachable = false
	} else if hadCache {
		b.forgetCache(now, t)
		b.bounceStranded(now)
	}
	if !rep.Ready {
		b.resolveFailuresOf(now, t)
	}
	q := b.queue(t.model)
	if becameReady {
		q.activeAt = now
	}
	b.releaseParked(now, q)
	b.placeWaiting(now, q)
}

func (b *Balancer) handlePeerReport(now time.Duration, id string, rep *PeerReport) {
	t := findTarget(b.peers, id)
	if t == nil {
		return
	}
	t.reported, t.ready, t.unreachable, t.served = true, true, false, servedNames{}
	t.models, t.formerModels = t.formerModels[:0], t.models
	for _, l := range rep.Models {
		t.models = append(t.models, l.sanitized())
	}
	b.noteAllDetached(now, t.formerModels)
	b.receiveStoppedFingerprints(now, rep.StoppedFingerprints)
	age := max(0, rep.Age)
	t.reportedAt, t.reportLatency, t.rtt = now-age, age, max(0, rep.RTT)
	t.confirmByReport(now, age, 0)
	for _, q := range b.queues {
		q.evaluatedSinceReport = false
	}
	b.rejectUnknown(now)
	b.placeAllWaiting(now)
}

// forgetLost drops the prefixes of replicas and peers that stopped reporting: a process that later reports
// under the same id has an empty cache.
func (b *Balancer) forgetLost(now time.Duration) {
	lost := time.Duration(b.cfg.LostIntervals) * b.cfg.ProbeInterval
	for _, ts := range [][]*target{b.replicas, b.peers} {
		for _, t := range ts {
			if t.ready && t.silence(now) >= lost {
				t.ready, t.reason = false, "no recent report"
				b.forgetCache(now, t)
			} else if !t.peer && !t.reported && t.cacheLost(now, &b.cfg) {
				b.forgetCache(now, t)
			}
		}
	}
}

// servedLocally reports whether a replica of this balancer can serve r, now or after a wait.
func (b *Balancer) servedLocally(now time.Duration, r *request) bool {
	for _, t := range b.replicas {
		if t.model == r.Model && !t.draining && !t.lacksAdapter(r) && t.live(now, &b.cfg) {
			return true
		}
	}
	return false
}

// modelServedLocally is servedLocally for a request that any replica of the model can serve.
func (b *Balancer) modelServedLocally(now time.Duration, model string) bool {
	for _, t := range b.replicas {
		if t.model == model && !t.draining && t.live(now, &b.cfg) {
			return true
		}
	}
	return false
}

// modelKnown reports whether a replica here is configured to serve the model, a peer reports live
// replicas of it, or it scales to zero.
func (b *Balancer) modelKnown(model string) bool {
	return b.modelAttached(model) || b.cfg.ScaleToZero[model]
}

// modelAttached is modelKnown without the models that are known only because they scale from zero.
func (b *Balancer) modelAttached(model string) bool {
	for _, t := range b.replicas {
		if t.model == model {
			return true
		}
	}
	for _, t := range b.peers {
		if l := t.modelLoad(model); b.cfg.Forward && l != nil && l.Replicas > 0 {
			return true
		}
	}
	return false
}

// awaitsReport reports whether a peer may serve a model or an adapter although its last report does not say so:
//   - a peer that was added recently has reported no live replica yet, as when this balancer has just started, or both
//     have;
//   - the last replica of the model was removed recently, or its balancer reported it lost. It may have moved to
//     another balancer, whose next report has it.
//
// Requests that nobody else serves then wait for the peers' reports instead of being rejected.
func (b *Balancer) awaitsReport(now time.Duration, model string) bool {
	if !b.cfg.Forward || len(b.peers) == 0 {
		return false
	}
	limit := time.Duration(b.cfg.LostIntervals) * b.cfg.ProbeInterval
	if i := b.queueIndex(model); i < len(b.queues) && b.queues[i].model == model && b.queues[i].detached && now-b.queues[i].detachedAt < limit {
		return true
	}
	return slices.ContainsFunc(b.peers, func(t *target) bool { return now-t.added < limit && !t.reportsReplicas() })
}

// reportsReplicas reports whether the last report of a peer contains a live replica.
func (t *target) reportsReplicas() bool {
	return slices.ContainsFunc(t.models, func(l ModelLoad) bool { return l.Replicas > 0 })
}

// noteDetached records the time at which the last replica of a model, here or at a peer, was removed or lost.
func (b *Balancer) noteDetached(now time.Duration, model string) {
	if !b.modelAttached(model) {
		q := b.queue(model)
		q.detached, q.detachedAt = true, now
	}
}

// noteAllDetached is noteDetached for the models of which a peer reported replicas.
func (b *Balancer) noteAllDetached(now time.Duration, former []ModelLoad) {
	for _, l := range former {
		if l.Replicas > 0 {
			b.noteDetached(now, l.Model)
		}
	}
}

// rejectUnknown ends the waiting requests whose model or adapter is no longer served, or whose pinned target
// was removed.
func (b *Balancer) rejectUnknown(now time.Duration) {
	b.waitsForReport = false
	for _, q := range b.queues {
		if q.Len() == 0 && q.Parked() == 0 {
			continue
		}
		awaits, modelKnown := b.awaitsReport(now, q.model), b.modelKnown(q.model)
		for _, r := range b.waitingRequests(q) {
			adapterKnown := b.adapterKnown(now, r)
			known := modelKnown && adapterKnown
			switch {
			case (known || awaits) && b.pinKnown(r):
				b.waitsForReport = b.waitsForReport || !known
				continue
			case known || awaits:
				b.dequeue(r)
				b.rejectRequest(r, RejectPinnedGone)
			case r.From != "":
				b.dequeue(r)
				b.bounceRequest(r)
			case modelKnown:
				b.dequeue(r)
				b.rejectRequest(r, RejectNoAdapter)
			default:
				b.dequeue(r)
				b.rejectRequest(r, RejectNoReplica)
			}
		}
	}
}

// bounceStranded returns forwarded requests that no replica here can serve any more. Their origin
// may have other targets.
func (b *Balancer) bounceStranded(now time.Duration) {
	for _, q := range b.queues {
		if q.Len() == 0 {
			continue
		}
		served := b.modelServedLocally(now, q.model)
		if served && q.forwardedAdapters == 0 {
			continue
		}
		for _, r := range b.waitingRequests(q) {
			if r.From != "" && (!served || !b.servedLocally(now, r)) {
				b.dequeue(r)
				b.bounceRequest(r)
			}
		}
	}
}

// ModelLoads returns the load that this balancer reports to its peers, sorted by model.
func (b *Balancer) ModelLoads(now time.Duration) []ModelLoad {
	var loads []ModelLoad
	at := map[string]int{}
	get := func(model string) *ModelLoad {
		i, ok := at[model]
		if !ok {
			i = len(loads)
			at[model] = i
			loads = append(loads, ModelLoad{Model: model})
		}
		return &loads[i]
	}
	for _, t := range b.replicas {
		l := get(t.model)
		l.Outstanding += t.outstanding + t.failedLoad.count
		l.Failed += t.failedLoad.count
		l.ContextTokens += t.context()
		if t.live(now, &b.cfg) && !t.draining {
			if l.Replicas == 0 || t.work.prefillTokens < l.MinPrefillTokens {
				l.MinPrefillTokens = t.work.prefillTokens
			}
			l.Replicas++
		}
		if t.replicaAvailable(now, &b.cfg) {
			l.Available++
		}
	}
	for _, q := range b.queues {
		if q.Len() > 0 {
			get(q.model).Queued = q.Len()
		}
	}
	for i := range loads {
		loads[i].Pace = b.meanPace(now, loads[i].Model)
		loads[i].KV = b.meanKV(now, loads[i].Model)
		loads[i].Adapters = b.reportedAdapters(now, loads[i].Model)
		loads[i].ExpectedWait, loads[i].Residence = b.expectedWait(now, loads[i].Model)
	}
	sort.Slice(loads, func(i, j int) bool { return loads[i].Model < loads[j].Model })
	return loads
}

// expectedWait returns how long a request without known prefix would wait for the first replica
// with capacity, and the mean residence time at the model's replicas.
func (b *Balancer) expectedWait(now time.Duration, model string) (wait, residence time.Duration) {
	n, first := time.Duration(0), true
	for _, t := range b.replicas {
		if t.model != model || t.draining || !t.live(now, &b.cfg) {
			continue
		}
		w := time.Duration(0)
		if t.heldRequests > 0 || !t.replicaAvailable(now, &b.cfg) {
			w = policy.HoldTime(t.heldRequests+t.stillPending().Or(0), t.outstanding, t.residence, t.pace.Value())
		}
		if first || w < wait {
			wait, first = w, false
		}
		if t.residence > 0 {
			residence += t.residence
			n++
		}
	}
	return wait, residence / max(n, 1)
}

// meanKV returns the mean KV utilisation of the model's live replicas that report it.
func (b *Balancer) meanKV(now time.Duration, model string) policy.Maybe[float64] {
	sum, n := 0.0, 0
	for _, t := range b.replicas {
		if t.model == model && t.kv.Known && !t.draining && t.live(now, &b.cfg) {
			sum += t.kv.Value
			n++
		}
	}
	if n == 0 {
		return policy.Maybe[float64]{}
	}
	return policy.Known(sum / float64(n))
}

// ReplicaView is the state of a replica, for display.
type ReplicaView struct {
	ID          string
	Model       string
	Ready       bool // it reported ready recently, no connection failed since, and it is not ejected
	Draining    bool
	Available   bool
	Reported    bool
	Reason      string
	Outstanding int
	Pending     policy.Maybe[int]
	Running     policy.Maybe[int]
	KV          policy.Maybe[float64]
	Age         time.Duration
	Tokens      int64 // generated since it was added
	// HeldRequests is the number of waiting requests held for it. Pace is its time between two tokens
	// divided by that of the nominal replica (policy.NominalStep), in the streams of the last seconds; 0 =
	// unknown.
	HeldRequests int
	Pace         float64
	// OutstandingLimit is the limit of its outstanding requests while its pending count is unknown or
	// stale: the number of slots that its engine reports, or the learned one. It is unknown while the
	// limit does not apply.
	OutstandingLimit policy.Maybe[int]
}

// PeerView is the state of a peer, for display.
type PeerView struct {
	ID          string
	Live        bool
	Outstanding int
	// Forwarded counts the requests sent to it since it was added.
	Forwarded int64
	RTT       time.Duration
	Age       time.Duration
	Reported  bool
	Models    []ModelLoad
}

// ModelView contains a balancer's counts of a model.
type ModelView struct {
	Model string
	// Queued counts the waiting interactive requests, Deferred the waiting NIW requests, including
	// parked ones.
	Queued, Deferred int
	// FirstTokens counts the streamed IW-F requests of this balancer's clients that had a first token.
	// Late counts those whose first token arrived after the tier's deadline.
	FirstTokens, Late int64
	// Idle is the time since the model was last in use here: since it had a request, or since a
	// replica of it was added or became ready; 0 while it has a request.
	Idle time.Duration
	// Cold means that the model scales to zero and has no live replica here or at a peer: see IsCold.
	Cold bool
}

// BalancerView is a copy of the balancer's state.
type BalancerView struct {
	Counts   Counts
	Models   []ModelView   // with a replica or a request here, or that scale to zero, sorted
	Replicas []ReplicaView // sorted by id
	Peers    []PeerView    // sorted by id
	// OldestWait is the longest time that a queued request has waited.
	OldestWait time.Duration
	// OldestActiveWait is OldestWait without parked requests, which wait for spare memory, and without the time
	// for which a model that scales to zero had no replica.
	OldestActiveWait time.Duration
	TreeBytes        int
	TreeNodes        int
	// Ejections counts outlier ejections. RetriesOverBudget counts requests that ended for lack of
	// retry budget. Stopped counts requests stopped because replicas died while serving them,
	// including repeats.
	Ejections         int64
	RetriesOverBudget int64
	Stopped           int64
}

// Snapshot returns a copy of the state for display. It does not change the state.
func (b *Balancer) Snapshot(now time.Duration) BalancerView {
	v := BalancerView{Counts: b.counts, TreeBytes: b.caches.replicas.Bytes() + b.caches.peers.Bytes(), TreeNodes: b.caches.replicas.Nodes() + b.caches.peers.Nodes(), Ejections: b.ejections, RetriesOverBudget: b.retriesOverBudget, Stopped: b.suspects.stoppedCount}
	v.Counts.Queued = b.queued
	v.Models = b.modelViews(now)
	for _, q := range b.queues {
		v.OldestWait = max(v.OldestWait, q.OldestWait(now))
		v.OldestActiveWait = max(v.OldestActiveWait, min(q.OldestActiveWait(now), now-q.coldAt)) // see waited
	}
	for _, t := range b.replicas {
		limit := policy.Maybe[int]{}
		if t.usesOutstandingLimit(now, &b.cfg) {
			limit = policy.Known(t.outstandingLimit(&b.cfg))
		}
		v.Replicas = append(v.Replicas, ReplicaView{
			ID: t.id, Model: t.model, Ready: t.live(now, &b.cfg), Draining: t.draining, Reported: t.reported,
			Available: t.replicaAvailable(now, &b.cfg), Reason: t.unreadyReason(now, &b.cfg), Outstanding: t.outstanding,
			Pending: t.pending, Running: t.running, KV: t.kv, Age: t.age(now), Tokens: t.tokens, HeldRequests: t.heldRequests, Pace: t.recentPace.Recent(now),
			OutstandingLimit: limit,
		})
	}
	for _, t := range b.peers {
		v.Peers = append(v.Peers, PeerView{
			ID: t.id, Live: t.live(now, &b.cfg), Outstanding: t.outstanding, Forwarded: t.forwarded, RTT: t.rtt, Age: t.age(now),
			Reported: t.reported, Models: append([]ModelLoad(nil), t.models...),
		})
	}
	return v
}

// modelViews returns the models that have a replica or a request here, or scale to zero.
func (b *Balancer) modelViews(now time.Duration) []ModelView {
	served := map[string]bool{}
	for _, t := range b.replicas {
		served[t.model] = true
	}
	var all []ModelView
	for _, q := range b.queues {
		n, deferred := q.Len()+q.Parked(), q.Deferred()+q.Parked()
		if n > 0 || served[q.model] || b.cfg.ScaleToZero[q.model] {
			all = append(all, ModelView{Model: q.model, Queued: n - deferred, Deferred: deferred, FirstTokens: q.firstTokens, Late: q.lateFirstTokens, Idle: q.idle(now), Cold: b.IsCold(now, q.model)})
		}
		delete(served, q.model)
	}
	for model := range served {
		all = append(all, ModelView{Model: model})
	}
	slices.SortFunc(all, func(x, y ModelView) int { return cmp.Compare(x.Model, y.Model) })
	return all
}

// unreadyReason describes why a replica is not ready; empty if it is.
func (t *target) unreadyReason(now time.Duration, c *Config) string {
	switch {
	case !t.reported:
		return "no response yet"
	case t.unreachable:
		return "connection failed"
	case !t.ready:
		return t.reason
	case t.breaker.Ejected(now):
		return t.breaker.Reason(now)
	case !t.live(now, c):
		return "no recent report"
	}
	return ""
}
