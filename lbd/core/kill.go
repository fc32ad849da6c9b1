package core

import (
	"slices"
	"time"
)

// A replica can die of what it is sent, and whatever it is tried on next dies too.
// Which of the requests that a replica had when it died killed it, nobody tells. So
// each of them becomes a suspect, by its fingerprint, and whoever is among the
// suspects of Config.KillAfter deaths is stopped. Three rules keep those that were
// only beside it from being stopped with it:
//
//   - The first failure of a request is never waited for, the next one is: whether a
//     replica died or only a connection broke, its probes tell within Config.KillWait,
//     or by its silence.
//   - Suspects that were sent shortly before the death go to a replica each (isolated):
//     if it dies at once, then of them.
//   - Where several suspects were at a replica when it died, and isolation points to
//     none of them, none is stopped; they are isolated at their next try, and whoever
//     is at a death then too is stopped.
//
// A request that is served clears its fingerprint.

// Bounds of suspicion, each with its reason.
const (
	recentSend    = 2 * time.Second // engines die of a request at its first step or soon after
	isolationTime = 5 * time.Second // what a client may lose by the death of a replica
	survivorTime  = time.Minute     // a replica that failed and lived is not thought to die of its next failures
	mostBroken    = 256             // failures of one replica whose cause is open; as many as an engine runs at once
	mostTold      = 64              // stopped requests in a heartbeat: 3 KB
)

// Killer is a request that was stopped since replicas died while they served it, as
// one balancer tells another.
type Killer struct {
	Fingerprint uint64 `json:"fingerprint"`
	// Age is how long ago it was stopped.
	Age time.Duration `json:"age_ns"`
}

// suspect is what is known of the requests with one fingerprint since a replica
// failed that had one of them.
type suspect struct {
	fingerprint uint64 // 0 = it stands for a single request
	kills       int    // replicas that died of one, as is thought, since one was served
	deaths      int    // replicas that died while they had one, since then
	open        int    // replicas that failed while they had one and may yet be dead
	isolated    bool
	stopped     bool
	told        bool          // stopped by the word of a peer
	at          time.Duration // of the last kill
	servedAt    time.Duration // 0 = never
	engines     []string      // that died, the first Config.KillAfter of them
}

// accused is what a request carries of suspicion.
type accused struct {
	suspect  *suspect // nil: no replica failed while it had the request, or one like it
	isolated bool     // it must go where no other such request went just before
}

// suspects are the suspects that are remembered.
type suspects struct {
	byPrint map[uint64]*suspect // never ranged over
	list    []*suspect          // the same, in the order in which they were accused
	stopped int64               // requests that were stopped or refused
}

// broken is a failure of a replica of which it may have died.
type broken struct {
	suspect *suspect
	at      time.Duration
	before  int  // deaths that the suspect was at already
	alone   bool // it was the last isolated one there
}

// kills is how many deaths a request is suspected of, those that peers told included.
func (r *request) kills() int {
	if r.suspect == nil {
		return r.Kills
	}
	return r.Kills + r.suspect.kills
}

// killsHere is how many deaths, open ones included, the request is suspected of
// beside those that came with it.
func (r *request) killsHere() int {
	if r.suspect == nil {
		return 0
	}
	return r.suspect.kills + r.suspect.open
}

// suspected says whether r may not be treated like any other.
func (r *request) suspected() bool { return r.suspect != nil || r.Kills > 0 }

// recall finds the suspect that a request which arrives is one of.
func (b *Balancer) recall(r *request) {
	r.isolated = r.Kills > 0
	if len(b.suspects.byPrint) == 0 || r.Fingerprint == 0 {
		return
	}
	if s := b.suspects.byPrint[r.Fingerprint]; s != nil {
		r.suspect, r.isolated = s, r.isolated || s.kills > 0
	}
}

// stops says whether r is not to be sent to any engine again.
func (b *Balancer) stops(r *request) bool {
	return b.cfg.KillAfter > 0 && (r.kills() >= b.cfg.KillAfter || r.suspect != nil && r.suspect.stopped)
}

// undecided says whether r has to wait for the word of probes: it would be stopped if
// the replicas that failed while they had it are dead.
func (b *Balancer) undecided(r *request) bool {
	return r.suspect != nil && r.suspect.open > 0 && r.kills()+r.suspect.open >= b.cfg.KillAfter
}

// occupied says whether t has an isolated request, so that r, which is one too, must
// go elsewhere.
func (b *Balancer) occupied(now time.Duration, r *request, t *target) bool {
	if !r.mustBeAlone() || now-max(r.failedAt, r.came) >= isolationTime {
		return false
	}
	return t.guest != nil && now-t.guest.sentAt < b.cfg.KillWait
}

// isolate notes that r was sent to t.
func (t *target) isolate(r *request) {
	if !t.peer && r.mustBeAlone() {
		t.guest = r
	}
}

// mustBeAlone says whether r is isolated where it is sent.
func (r *request) mustBeAlone() bool {
	return r.isolated || r.suspect != nil && r.suspect.isolated
}

// accuse notes that t failed while it had r, or that r's client left: t may be dying
// of r. r must not have left t yet.
func (b *Balancer) accuse(now time.Duration, r *request) {
	t := r.target
	if t.peer || t.slot < 0 || b.cfg.KillAfter <= 0 {
		return
	}
	recent := now-r.sentAt < recentSend
	r.isolated = r.isolated || recent && !t.survives(now)
	alone := recent && t.guest == r
	s := b.suspectOf(now, r)
	r.suspect = s
	for i := range t.broken {
		if e := &t.broken[i]; e.suspect == s {
			e.alone = e.alone || alone
			return
		}
	}
	if len(t.broken) >= mostBroken {
		b.clear(t, 1)
	}
	s.open++
	t.broken = append(t.broken, broken{suspect: s, at: now, before: s.kills + r.Kills, alone: alone})
}

// survives says whether t lately failed and was found to be alive.
func (t *target) survives(now time.Duration) bool {
	return t.survivedAt > 0 && now-t.survivedAt < survivorTime
}

// suspectOf is the suspect that r is one of, made when needed.
func (b *Balancer) suspectOf(now time.Duration, r *request) *suspect {
	if r.suspect != nil {
		return r.suspect
	}
	x := &b.suspects
	s := x.byPrint[r.Fingerprint]
	if s == nil {
		s = &suspect{fingerprint: r.Fingerprint, at: now}
		b.remember(s)
	}
	return s
}

// remember keeps a suspect with a fingerprint, in place of the one that was accused
// first if there are too many: of one that was not stopped, where there is one.
func (b *Balancer) remember(s *suspect) {
	x := &b.suspects
	if s.fingerprint == 0 || x.byPrint[s.fingerprint] == s {
		return
	}
	if len(x.list) >= max(1, b.cfg.KillLimit) {
		x.forget(x.list[max(0, slices.IndexFunc(x.list, func(o *suspect) bool { return !o.stopped }))])
	}
	if x.byPrint == nil {
		x.byPrint = map[uint64]*suspect{}
	}
	x.byPrint[s.fingerprint] = s
	x.list = append(x.list, s)
}

func (x *suspects) forget(s *suspect) {
	if x.byPrint[s.fingerprint] != s {
		return
	}
	delete(x.byPrint, s.fingerprint)
	i := slices.Index(x.list, s)
	x.list = slices.Delete(x.list, i, i+1)
}

// forgetKillers drops what is older than Config.KillMemory.
func (b *Balancer) forgetKillers(now time.Duration) {
	x := &b.suspects
	x.list = slices.DeleteFunc(x.list, func(s *suspect) bool {
		old := s.open == 0 && now-s.at >= b.cfg.KillMemory
		if old {
			delete(x.byPrint, s.fingerprint)
		}
		return old
	})
}

// judgeAll decides about all failures whose cause is open.
func (b *Balancer) judgeAll(now time.Duration) {
	for _, t := range b.replicas {
		b.judge(now, t)
	}
}

// judge decides about the failures of t: t is dead, or alive long enough after them.
func (b *Balancer) judge(now time.Duration, t *target) {
	switch {
	case len(t.broken) == 0:
	case !t.ready || t.age(now) >= time.Duration(b.cfg.LostIntervals)*b.cfg.ProbeInterval:
		b.convict(now, t)
	case !t.stale(now, &b.cfg):
		n := 0
		for n < len(t.broken) && now-t.broken[n].at >= b.cfg.KillWait {
			n++
		}
		if n > 0 {
			t.survivedAt = now
		}
		b.clear(t, n)
	}
}

// clear takes the first n failures of t for something else than its death.
func (b *Balancer) clear(t *target, n int) {
	for _, e := range t.broken[:n] {
		b.settleOpen(e.suspect)
	}
	t.broken = slices.Delete(t.broken, 0, n)
}

// settleOpen notes that one open failure of s is decided.
func (b *Balancer) settleOpen(s *suspect) {
	s.open--
	if s.open == 0 && s.kills == 0 && !s.stopped {
		b.suspects.forget(s)
	}
}

// convict counts t's death for the suspects that it had.
func (b *Balancer) convict(now time.Duration, t *target) {
	repeated, alone := 0, false // suspects of earlier deaths; one of them was alone
	for _, e := range t.broken {
		if e.before > 0 {
			repeated++
			alone = alone || e.alone
		}
	}
	for _, e := range t.broken {
		s := e.suspect
		s.deaths++
		switch {
		case s.servedAt > e.at:
		case s.deaths > b.cfg.KillAfter:
			s.kills = max(s.kills, b.cfg.KillAfter-1) // whoever else was there each time
			b.blameDeath(now, s, t.id)
		case e.before == 0, e.alone && !b.thrives(now, s, t), repeated == 1 && !b.thrives(now, s, t):
			b.blameDeath(now, s, t.id)
		case e.alone || !alone:
			s.isolated = true
		}
		b.settleOpen(s)
	}
	t.broken, t.survivedAt = slices.Delete(t.broken, 0, len(t.broken)), 0
	b.stopKillers()
}

// thrives says whether requests like the suspect's have been at other replicas than t
// for longer than engines take to die of one.
func (b *Balancer) thrives(now time.Duration, s *suspect, t *target) bool {
	if s.fingerprint == 0 {
		return false
	}
	for _, r := range b.requests {
		if r.Fingerprint == s.fingerprint && r.target != nil && r.target != t && r.target.live(now, &b.cfg) && now-r.sentAt >= recentSend {
			return true
		}
	}
	return false
}

// blameDeath counts a death for s.
func (b *Balancer) blameDeath(now time.Duration, s *suspect, engine string) {
	s.kills++
	s.at = now
	if len(s.engines) < b.cfg.KillAfter {
		s.engines = append(s.engines, engine)
	}
	s.stopped = s.stopped || s.kills >= b.cfg.KillAfter
	b.remember(s)
}

// stopKillers ends the waiting requests that are not to be sent again.
func (b *Balancer) stopKillers() {
	for _, q := range b.queues {
		for _, r := range b.waiting(q) {
			if r.suspect == nil {
				b.recall(r)
			}
			if b.stops(r) {
				b.dequeue(r)
				b.stop(r)
			}
		}
	}
}

// stop ends a request that engines die of; it must not be in a queue.
func (b *Balancer) stop(r *request) {
	b.suspects.stopped++
	b.reject(r, RejectKills)
	if s := r.suspect; s != nil {
		a := &b.actions[len(b.actions)-1]
		a.Engines = s.engines
		if s.stopped { // also by a peer's word: whoever forwarded it is to know for sure
			a.Kills = max(a.Kills, b.cfg.KillAfter)
		}
	}
}

// acquit clears the fingerprint of a request that was served.
func (b *Balancer) acquit(now time.Duration, r *request) {
	s := r.suspect
	if s == nil && len(b.suspects.byPrint) > 0 {
		s = b.suspects.byPrint[r.Fingerprint]
	}
	if s == nil {
		return
	}
	s.kills, s.deaths, s.isolated, s.stopped, s.told, s.engines, s.servedAt = 0, 0, false, false, false, nil, now
	if s.open == 0 {
		b.suspects.forget(s)
	}
}

// heardKills takes a peer's word for how many of its replicas died of r.
func (b *Balancer) heardKills(now time.Duration, r *request, peer string, out *Outcome) {
	if out == nil || out.Kills <= 0 || b.cfg.KillAfter <= 0 {
		return
	}
	r.suspect = b.suspectOf(now, r)
	for range min(out.Kills, b.cfg.KillAfter) {
		b.blameDeath(now, r.suspect, peer)
	}
}

// Killers are the requests that this balancer has stopped of late, the first stopped
// first, for its peers: they refuse them too.
func (b *Balancer) Killers(now time.Duration) []Killer {
	var all []Killer
	for _, s := range b.suspects.list {
		if s.stopped && !s.told && now-s.at < b.cfg.KillMemory {
			all = append(all, Killer{Fingerprint: s.fingerprint, Age: now - s.at})
		}
	}
	return all[max(0, len(all)-mostTold):]
}

// hearKillers takes in the requests that a peer has stopped. They are not passed on:
// every peer tells its own.
func (b *Balancer) hearKillers(now time.Duration, killers []Killer) {
	news := false
	for _, k := range killers[:min(len(killers), mostTold)] {
		age := max(0, k.Age)
		if k.Fingerprint == 0 || age >= b.cfg.KillMemory || b.cfg.KillAfter <= 0 {
			continue
		}
		s := b.suspects.byPrint[k.Fingerprint]
		if s == nil {
			s = &suspect{fingerprint: k.Fingerprint}
			b.remember(s)
		}
		if !s.stopped {
			s.stopped, s.told, s.at, news = true, true, now-age, true
		}
	}
	if news {
		b.stopKillers()
	}
}
