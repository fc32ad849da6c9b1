package core

import (
	"slices"
	"time"
)

// A request can kill the replica that serves it, and then the next one. No signal shows which of a
// replica's requests killed it. So every request that was at a replica when it died becomes a
// suspect, identified by its fingerprint. A request that is suspected of Config.StopAfterDeaths deaths is stopped.
// These rules protect requests that were at the same replica by coincidence:
//
//   - A request is retried at once after its first failure. After the next failure it
//     waits until the probes of the replicas that failed show, within Config.KillProbeTime or
//     by missing reports, whether they died or only a connection broke. Until then, the
//     failures are open.
//   - Suspects that were sent shortly before the death are isolated from each other: no engine
//     receives two of them within Config.KillProbeTime. Requests that are no suspects may
//     run beside an isolated one. If an engine dies right after it received an isolated
//     suspect, that suspect is the cause, unless a request with the same fingerprint
//     keeps running on another engine.
//   - If several suspects of earlier deaths were at a replica when it died, and none of
//     them was isolated there, none is stopped. They are isolated at their next attempt,
//     and the one that is suspected of one more death is stopped.
//
// When a request is served, its fingerprint is no longer suspected. Later requests with the same
// fingerprint are stopped only after up to maxExtraDeaths more deaths: if clients constantly send the
// same few requests, one of these is at every replica that dies, whatever the cause.

// Bounds, with reasons.
const (
	recentSendWindow   = 2 * time.Second // engines die at the first step of a request or soon after
	isolationTime      = 5 * time.Second // additional maximum wait of a request for an isolated attempt
	survivorTime       = time.Minute     // a replica that failed and survived probably survives its next failures too
	maxOpenFailures    = 256             // open failures of a replica; an engine runs as many requests at once
	maxStoppedShared   = 64              // in a heartbeat: 3 KB
	maxExtraDeaths     = 3               // a request that kills often, but not always, is stopped after StopAfterDeaths + 3 deaths in a row
	servedFingerprints = 8192            // fingerprints of served requests, 128 KB
)

// StoppedFingerprint is the fingerprint of a request that was stopped because replicas died while
// they served it. Balancers share it with their peers.
type StoppedFingerprint struct {
	Fingerprint uint64 `json:"fingerprint"`
	// Age is the time since it was stopped.
	Age time.Duration `json:"age_ns"`
}

// killSuspect holds the failures of replicas that had a request with one fingerprint.
type killSuspect struct {
	fingerprint      uint64 // 0 = unknown: the suspect is a single request
	attributedDeaths int    // replicas that died because of it, as far as known, since such a request was last served
	witnessedDeaths  int    // all replicas that died while they had such a request, since one was last served
	openFailures     int    // failures whose cause is not known yet
	mustIsolate      bool   // its requests must be isolated from other suspects from now on
	stopped          bool
	fromPeer         bool          // a peer stopped it, not this balancer
	lastKillAt       time.Duration // when it last killed; if it never did, when it was added or a peer stopped it
	servedAt         time.Duration // 0 = never
	diedIDs          []string      // ids of the first Config.StopAfterDeaths replicas that died, or peers whose replicas died
}

// suspicion is the part of a request's state that kill.go uses.
type suspicion struct {
	suspect       *killSuspect  // nil: no replica failed while serving this fingerprint
	mustIsolate   bool          // it must not share an engine with another isolated request
	failures      int           // number of its failures at replicas that may have died of it
	probeDeadline time.Duration // end of its wait for probes; 0 = it does not wait
}

// killSuspects contains the suspects that the balancer remembers.
type killSuspects struct {
	byFingerprint map[uint64]*killSuspect // never ranged over
	list          []*killSuspect          // the same, in order of addition
	stoppedCount  int64                   // number of requests rejected because they kill engines
	served        []servedFingerprint     // of served requests, each at its fingerprint modulo the length
}

// servedFingerprint is the fingerprint of served requests and their number, up to maxExtraDeaths. Another
// fingerprint may replace it at any time.
type servedFingerprint struct {
	fingerprint uint64
	times       int
}

// openFailure is a failed request that its replica may have died of.
type openFailure struct {
	suspect     *killSuspect
	at          time.Duration
	killsBefore int // deaths attributed to the suspect before this failure, including failures that were open
	// wasIsolated means that it was the one isolated request of the engine. Requests that are no suspects may have been there too.
	wasIsolated bool
}

// kills counts the deaths that r is suspected of, including those that peers reported.
func (r *request) kills() int {
	if r.suspect == nil {
		return r.Kills
	}
	return r.Kills + r.suspect.attributedDeaths
}

// localKills counts the deaths at this balancer that r is suspected of, including its own open
// failures. It reaches Config.StopAfterDeaths only for a request that is to be stopped, because a peer
// would stop it at that count. Open failures of other requests with its fingerprint do not count:
// their clients may just have disconnected.
func (b *Balancer) localKills(r *request) int {
	s := r.suspect
	if s == nil {
		return 0
	}
	if s.attributedDeaths >= b.deathsToStop(s.fingerprint) {
		return s.attributedDeaths
	}
	return min(s.attributedDeaths+min(s.openFailures, r.failures), b.cfg.StopAfterDeaths-1)
}

// killsToSend returns the count that is sent to a peer with r. It does not make the peer stop r:
// this balancer does that once enough deaths are certain.
func (b *Balancer) killsToSend(r *request) int {
	n := r.Kills + b.localKills(r)
	if b.cfg.StopAfterDeaths > 0 {
		n = min(n, b.cfg.StopAfterDeaths-1)
	}
	return n
}

// deathsToStop returns the number of deaths at which a request with a fingerprint is stopped.
func (b *Balancer) deathsToStop(fingerprint uint64) int {
	if x := b.suspects.served; len(x) > 0 && fingerprint != 0 {
		if p := x[fingerprint%servedFingerprints]; p.fingerprint == fingerprint {
			return b.cfg.StopAfterDeaths + p.times
		}
	}
	return b.cfg.StopAfterDeaths
}

// recordServed records that a request with a fingerprint was served.
func (ks *killSuspects) recordServed(fingerprint uint64) {
	if fingerprint == 0 {
		return
	}
	if ks.served == nil {
		ks.served = make([]servedFingerprint, servedFingerprints)
	}
	p := &ks.served[fingerprint%servedFingerprints]
	if p.fingerprint != fingerprint {
		*p = servedFingerprint{fingerprint: fingerprint}
	}
	p.times = min(p.times+1, maxExtraDeaths)
}

// suspected reports whether a replica may have died of r, or of a request with its fingerprint. Then r is placed
// by itself: see restricted and fillPool.
func (r *request) suspected() bool { return r.suspect != nil || r.Kills > 0 }

// findSuspect sets the suspect of an arriving request.
func (b *Balancer) findSuspect(r *request) {
	r.mustIsolate = r.Kills > 0
	if len(b.suspects.byFingerprint) == 0 || r.Fingerprint == 0 {
		return
	}
	if s := b.suspects.byFingerprint[r.Fingerprint]; s != nil {
		r.suspect, r.mustIsolate = s, r.mustIsolate || s.attributedDeaths > 0
	}
}

// killsExceeded reports whether r has killed too many engines and may not be sent to another one.
func (b *Balancer) killsExceeded(r *request) bool {
	return b.cfg.StopAfterDeaths > 0 && (r.kills() >= b.deathsToStop(r.Fingerprint) || r.suspect != nil && r.suspect.stopped)
}

// awaitsProbes reports whether r must wait for probes: it would be stopped if the replicas at
// which it failed are dead. The wait covers the failures that happened before it began. r does not
// wait for later failures of other requests with its fingerprint.
func (b *Balancer) awaitsProbes(now time.Duration, r *request) bool {
	if r.suspect == nil || r.suspect.openFailures == 0 || r.kills()+r.suspect.openFailures < b.deathsToStop(r.Fingerprint) {
		return false
	}
	if r.probeDeadline == 0 {
		r.probeDeadline = now + b.cfg.KillProbeTime + time.Duration(b.cfg.LostIntervals)*b.cfg.ProbeInterval
	}
	return now < r.probeDeadline
}

// isolationConflict reports whether r is isolated and another isolated request was just sent to t.
func (b *Balancer) isolationConflict(now time.Duration, r *request, t *target) bool {
	if !r.needsIsolation() || now-max(r.failedAt, r.receivedAt) >= isolationTime {
		return false
	}
	other := t.isolation.request
	return other != nil && now-other.sentAt < b.cfg.KillProbeTime
}

// isolation contains the isolated request that was last sent to an engine; nil if it has ended. The ranks
// of an engine share it, because they die together.
type isolation struct{ request *request }

// isolate records that r was sent to t, if r is isolated.
func (t *target) isolate(r *request) {
	if !t.peer && r.needsIsolation() {
		t.isolation.request = r
	}
}

// endIsolation records that r has ended at t.
func (t *target) endIsolation(r *request) {
	if t.isolation != nil && t.isolation.request == r {
		t.isolation.request = nil
	}
}

// setEngine makes t a rank of an engine.
func (b *Balancer) setEngine(t *target, engine string) {
	if t.isolation != nil && t.engine == engine {
		return
	}
	t.engine, t.isolation = engine, &isolation{}
	for _, o := range b.replicas {
		if o != t && o.engine == engine {
			t.isolation = o.isolation
			return
		}
	}
}

// needsIsolation reports whether r must not share an engine with another isolated request.
func (r *request) needsIsolation() bool {
	return r.mustIsolate || r.suspect != nil && r.suspect.mustIsolate
}

// markSuspect records that r failed at its target, or that r's client disconnected: the target may be
// dying of r. It must be called before r is detached from the target. A draining replica does not
// count: it will be terminated anyway.
func (b *Balancer) markSuspect(now time.Duration, r *request) {
	t := r.target
	if t.peer || t.treeSlot < 0 || t.draining || b.cfg.StopAfterDeaths <= 0 {
		return
	}
	r.failures++
	r.probeDeadline = 0
	recent := now-r.sentAt < recentSendWindow
	r.mustIsolate = r.mustIsolate || recent && !t.survived(now)
	wasIsolated := recent && t.isolation.request == r
	s := b.suspectOf(now, r)
	r.suspect = s
	for i := range t.openFailures {
		if e := &t.openFailures[i]; e.suspect == s {
			e.wasIsolated = e.wasIsolated || wasIsolated
			return
		}
	}
	if len(t.openFailures) >= maxOpenFailures {
		b.dismissFailures(t, 1)
	}
	t.openFailures = append(t.openFailures, openFailure{suspect: s, at: now, killsBefore: s.attributedDeaths + r.Kills + s.openFailures, wasIsolated: wasIsolated})
	s.openFailures++
}

// survived reports whether t failed in the last minute and was alive afterwards.
func (t *target) survived(now time.Duration) bool {
	return t.survivedAt > 0 && now-t.survivedAt < survivorTime
}

// suspectOf returns the suspect of r and creates one if there is none.
func (b *Balancer) suspectOf(now time.Duration, r *request) *killSuspect {
	if r.suspect != nil {
		return r.suspect
	}
	ks := &b.suspects
	s := ks.byFingerprint[r.Fingerprint]
	if s == nil {
		s = &killSuspect{fingerprint: r.Fingerprint, lastKillAt: now}
		b.rememberSuspect(s)
	}
	return s
}

// rememberSuspect stores s if it has a fingerprint. When the memory is full, it drops the oldest
// suspect that was not stopped, or else the oldest.
func (b *Balancer) rememberSuspect(s *killSuspect) {
	ks := &b.suspects
	if s.fingerprint == 0 || ks.byFingerprint[s.fingerprint] == s {
		return
	}
	if len(ks.list) >= max(1, b.cfg.MaxKillSuspects) {
		ks.forget(ks.list[max(0, slices.IndexFunc(ks.list, func(o *killSuspect) bool { return !o.stopped }))])
	}
	if ks.byFingerprint == nil {
		ks.byFingerprint = map[uint64]*killSuspect{}
	}
	ks.byFingerprint[s.fingerprint] = s
	ks.list = append(ks.list, s)
}

func (ks *killSuspects) forget(s *killSuspect) {
	if ks.byFingerprint[s.fingerprint] != s {
		return
	}
	delete(ks.byFingerprint, s.fingerprint)
	i := slices.Index(ks.list, s)
	ks.list = slices.Delete(ks.list, i, i+1)
}

// forgetOldSuspects drops suspects older than Config.KillTTL. Suspects that were served before are
// dropped after a tenth of it: they may have been stopped by chance, and clients keep sending them.
func (b *Balancer) forgetOldSuspects(now time.Duration) {
	ks := &b.suspects
	ks.list = slices.DeleteFunc(ks.list, func(s *killSuspect) bool {
		ttl := b.cfg.KillTTL
		if b.deathsToStop(s.fingerprint) > b.cfg.StopAfterDeaths {
			ttl /= 10
		}
		old := s.openFailures == 0 && now-s.lastKillAt >= ttl
		if old {
			delete(ks.byFingerprint, s.fingerprint)
		}
		return old
	})
}

// resolveFailures closes the open failures of all replicas where possible.
func (b *Balancer) resolveFailures(now time.Duration) {
	for _, t := range b.replicas {
		b.resolveFailuresOf(now, t)
	}
}

// resolveFailuresOf closes the open failures of t if t died, or has been alive for long enough since
// the failure.
func (b *Balancer) resolveFailuresOf(now time.Duration, t *target) {
	switch {
	case len(t.openFailures) == 0:
	case !t.ready || t.silence(now) >= time.Duration(b.cfg.LostIntervals)*b.cfg.ProbeInterval:
		b.countDeath(now, t)
	case !t.stale(now, &b.cfg):
		n := 0
		for n < len(t.openFailures) && now-t.openFailures[n].at >= b.cfg.KillProbeTime {
			n++
		}
		if n > 0 {
			t.survivedAt = now
		}
		b.dismissFailures(t, n)
	}
}

// dismissFailures drops the first n open failures of t: it did not die of them.
func (b *Balancer) dismissFailures(t *target, n int) {
	for _, e := range t.openFailures[:n] {
		b.closeFailure(e.suspect)
	}
	t.openFailures = slices.Delete(t.openFailures, 0, n)
}

// closeFailure records that one open failure of s is closed.
func (b *Balancer) closeFailure(s *killSuspect) {
	s.openFailures--
	if s.openFailures == 0 && s.attributedDeaths == 0 && !s.stopped {
		b.suspects.forget(s)
	}
}

// countDeath counts the death of t, and of the other ranks of its engine, against their suspects:
// it counts as one death for each suspect.
func (b *Balancer) countDeath(now time.Duration, t *target) {
	repeated, anyIsolated := 0, false // suspects of earlier deaths; whether one of them was isolated here
	failures := b.takeFailures(t.engine)
	for _, e := range failures {
		if e.killsBefore > 0 {
			repeated++
			anyIsolated = anyIsolated || e.wasIsolated
		}
	}
	for _, e := range failures {
		s := e.suspect
		s.witnessedDeaths++
		switch {
		case s.servedAt > e.at:
		case s.witnessedDeaths > b.deathsToStop(s.fingerprint):
			s.attributedDeaths = max(s.attributedDeaths, b.deathsToStop(s.fingerprint)-1)
			b.addKill(now, s, t.id)
		case e.killsBefore == 0, e.wasIsolated && !b.runsOnOtherEngines(now, s, t), repeated == 1 && !b.runsOnOtherEngines(now, s, t):
			b.addKill(now, s, t.id)
		case e.wasIsolated || !anyIsolated:
			s.mustIsolate = true
		}
		b.closeFailure(s)
	}
	b.rejectQueuedKillers()
}

// takeFailures removes and returns the open failures of the ranks of an engine, one per suspect.
func (b *Balancer) takeFailures(engine string) (all []openFailure) {
	indexes := map[*killSuspect]int{}
	for _, t := range b.replicas {
		if t.engine != engine {
			continue
		}
		for _, e := range t.openFailures {
			i, known := indexes[e.suspect]
			if !known {
				indexes[e.suspect] = len(all)
				all = append(all, e)
				continue
			}
			all[i].wasIsolated = all[i].wasIsolated || e.wasIsolated
			all[i].at, all[i].killsBefore = max(all[i].at, e.at), max(all[i].killsBefore, e.killsBefore)
			b.closeFailure(e.suspect)
		}
		t.openFailures, t.survivedAt = slices.Delete(t.openFailures, 0, len(t.openFailures)), 0
	}
	return all
}

// runsOnOtherEngines reports whether a request with the suspect's fingerprint has run on an engine other
// than that of t for longer than the time in which it would have killed the engine.
func (b *Balancer) runsOnOtherEngines(now time.Duration, s *killSuspect, t *target) bool {
	if s.fingerprint == 0 {
		return false
	}
	for _, r := range b.requests {
		if r.Fingerprint == s.fingerprint && r.target != nil && r.target.engine != t.engine && r.target.live(now, &b.cfg) && now-r.sentAt >= recentSendWindow {
			return true
		}
	}
	return false
}

// addKill counts a death against s: that of a replica, or of a replica of a peer. target is the id of
// the replica or peer.
func (b *Balancer) addKill(now time.Duration, s *killSuspect, target string) {
	s.attributedDeaths++
	s.lastKillAt = now
	if len(s.diedIDs) < b.cfg.StopAfterDeaths {
		s.diedIDs = append(s.diedIDs, target)
	}
	s.stopped = s.stopped || s.attributedDeaths >= b.deathsToStop(s.fingerprint)
	b.rememberSuspect(s)
}

// rejectQueuedKillers rejects the queued requests that may not be sent again.
func (b *Balancer) rejectQueuedKillers() {
	for _, q := range b.queues {
		for _, r := range b.waitingRequests(q) {
			if r.suspect == nil {
				b.findSuspect(r)
			}
			if b.killsExceeded(r) {
				b.dequeue(r)
				b.rejectKiller(r)
			}
		}
	}
}

// rejectKiller rejects a request that kills engines. It must not be in a queue.
func (b *Balancer) rejectKiller(r *request) {
	b.suspects.stoppedCount++
	b.rejectRequest(r, RejectKills)
	if s := r.suspect; s != nil {
		a := &b.actions[len(b.actions)-1]
		a.DeadReplicas = s.diedIDs
		if s.stopped { // also when a peer stopped it, so that the balancer that forwarded r stops it too
			a.Kills = max(a.Kills, b.cfg.StopAfterDeaths)
		}
	}
}

// clearSuspect ends the suspicion of the fingerprint of a request that was served.
func (b *Balancer) clearSuspect(now time.Duration, r *request) {
	b.suspects.recordServed(r.Fingerprint)
	s := r.suspect
	if s == nil && len(b.suspects.byFingerprint) > 0 {
		s = b.suspects.byFingerprint[r.Fingerprint]
	}
	if s == nil {
		return
	}
	s.attributedDeaths, s.witnessedDeaths, s.mustIsolate, s.stopped, s.fromPeer, s.diedIDs, s.servedAt = 0, 0, false, false, false, nil, now
	if s.openFailures == 0 {
		b.suspects.forget(s)
	}
}

// addPeerKills adds the replicas of a peer that died while they served r.
func (b *Balancer) addPeerKills(now time.Duration, r *request, peer string, out *Outcome) {
	if out == nil || out.Kills <= 0 || b.cfg.StopAfterDeaths <= 0 {
		return
	}
	r.suspect = b.suspectOf(now, r)
	for range min(out.Kills, b.cfg.StopAfterDeaths) {
		b.addKill(now, r.suspect, peer)
	}
}

// StoppedFingerprints returns the fingerprints that this balancer has stopped within Config.KillTTL,
// in the order in which they became suspects, at most the last 64. Its peers stop them too.
func (b *Balancer) StoppedFingerprints(now time.Duration) []StoppedFingerprint {
	var all []StoppedFingerprint
	for _, s := range b.suspects.list {
		if s.stopped && !s.fromPeer && now-s.lastKillAt < b.cfg.KillTTL {
			all = append(all, StoppedFingerprint{Fingerprint: s.fingerprint, Age: now - s.lastKillAt})
		}
	}
	return all[max(0, len(all)-maxStoppedShared):]
}

// receiveStoppedFingerprints stops the requests that a peer has stopped. Their fingerprints are not sent on to
// other peers: every balancer shares only those that it stopped itself.
func (b *Balancer) receiveStoppedFingerprints(now time.Duration, killers []StoppedFingerprint) {
	changed := false
	for _, k := range killers[:min(len(killers), maxStoppedShared)] {
		age := max(0, k.Age)
		if k.Fingerprint == 0 || age >= b.cfg.KillTTL || b.cfg.StopAfterDeaths <= 0 {
			continue
		}
		if b.deathsToStop(k.Fingerprint) > b.cfg.StopAfterDeaths {
			continue // a request served here takes precedence over the peer's report
		}
		s := b.suspects.byFingerprint[k.Fingerprint]
		if s == nil {
			s = &killSuspect{fingerprint: k.Fingerprint}
			b.rememberSuspect(s)
		}
		if !s.stopped {
			s.stopped, s.fromPeer, s.lastKillAt, changed = true, true, now-age, true
		}
	}
	if changed {
		b.rejectQueuedKillers()
	}
}
