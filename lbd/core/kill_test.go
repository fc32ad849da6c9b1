package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// poisoned makes replicas die of every request whose id begins with "poison", after its service
// time; others are served in a second.
func poisoned(after time.Duration) func(request, replica string) (time.Duration, *Outcome) {
	return func(request, _ string) (time.Duration, *Outcome) {
		if strings.HasPrefix(request, "poison") {
			return after, kill
		}
		return time.Second, nil
	}
}

func roundRobinConfig() Config {
	cfg := DefaultConfig(mustPolicy("round-robin"))
	cfg.Push = PushMode{Kind: PushBlind}
	return cfg
}

// A request that kills engines is stopped after its second kill, and all other requests at these
// replicas are served.
func TestKillerIsStoppedAfterSecondEngine(t *testing.T) {
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(fmt.Sprint("after ", after), func(t *testing.T) {
			forEachPolicy(t, func(t *testing.T, cfg Config) {
				w := newTrial(t, cfg, 8)
				w.serve = poisoned(after)
				for i := range 300 {
					if i == 100 {
						w.ask(Request{ID: "poison", Fingerprint: 1})
					}
					w.ask(Request{ID: fmt.Sprint("other", i), Fingerprint: uint64(100 + i)})
					w.pass(20 * time.Millisecond)
				}
				w.pass(20 * time.Second)
				if len(w.dead) != 2 || w.ends["poison"] != RejectKills {
					t.Errorf("%d replicas died of it (tried at %v), it ended as %q", len(w.dead), w.tries["poison"], w.ends["poison"])
				}
				if a := w.given["poison"]; !slices.Equal(a.DeadReplicas, w.tries["poison"]) || a.Kills != 2 {
					t.Errorf("the rejection names %v and %d kills, it was tried at %v", a.DeadReplicas, a.Kills, w.tries["poison"])
				}
				for id, end := range w.ends {
					if id != "poison" && end != "finished" {
						t.Errorf("%s ended as %q", id, end)
					}
				}
				if len(w.ends) != 301 {
					t.Errorf("%d requests ended, want 301", len(w.ends))
				}
			})
		})
	}
}

// If a client sends a request that kills engines again, with another id and as another tenant, it
// is rejected immediately, for a limited time.
func TestRepeatedKillerIsRejected(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 6)
	w.serve = poisoned(0)
	w.ask(Request{ID: "poison", Tenant: "a", Fingerprint: 7})
	w.pass(2 * time.Second)
	w.ask(Request{ID: "poison-again", Tenant: "b", Fingerprint: 7})
	if a := w.given["poison-again"]; a.Kind != ActionReject || a.Reason != RejectKills || !slices.Equal(a.DeadReplicas, w.tries["poison"]) {
		t.Fatalf("sent again it got %+v, want %s with the engines that died", a, RejectKills)
	}
	w.ask(Request{ID: "other", Tenant: "a", Fingerprint: 8})
	w.pass(2 * time.Second)
	if w.ends["other"] != "finished" || len(w.dead) != 2 {
		t.Errorf("another request of the tenant ended as %q, %d replicas died", w.ends["other"], len(w.dead))
	}
	w.now += w.b.cfg.KillTTL
	w.step(Event{Kind: EventTick})
	w.serve = func(string, string) (time.Duration, *Outcome) { return 0, nil }
	w.ask(Request{ID: "poison-later", Fingerprint: 7})
	w.pass(time.Second)
	if w.ends["poison-later"] != "finished" {
		t.Errorf("after %v it ended as %q", w.b.cfg.KillTTL, w.ends["poison-later"])
	}
}

// A client that sends the request again instead of waiting for the retry, or disconnects
// immediately after sending it, does not kill a third engine either.
func TestDisconnectDoesNotEvadeKillDetection(t *testing.T) {
	for name, leave := range map[string]func(w *trial, id string){
		"after the engine died": func(w *trial, id string) {
			w.die(w.there[id].replica)
			w.step(Event{Kind: EventCancelled, ID: id})
			delete(w.there, id)
		},
		"before the engine died": func(w *trial, id string) {
			at := w.there[id].replica
			delete(w.there, id)
			w.step(Event{Kind: EventCancelled, ID: id})
			w.now += 10 * time.Millisecond
			w.die(at)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTrial(t, roundRobinConfig(), 6)
			w.serve = func(string, string) (time.Duration, *Outcome) { return time.Hour, nil }
			for i := range 5 {
				id := fmt.Sprint("poison", i)
				w.ask(Request{ID: id, Fingerprint: 7})
				if len(w.tries[id]) > 0 {
					leave(w, id)
				}
				w.pass(2 * time.Second)
			}
			if len(w.dead) != 2 {
				t.Errorf("%d replicas died", len(w.dead))
			}
		})
	}
}

// A connection that breaks while its replica still responds to probes is not a kill, and causes
// only a short wait.
func TestBrokenConnectionIsNotAKill(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 4)
	w.serve = func(request, replica string) (time.Duration, *Outcome) {
		if replica != "r3" {
			return 10 * time.Millisecond, &Outcome{Retryable: true, EngineMayHaveDied: true, Cause: "reset"}
		}
		return 10 * time.Millisecond, nil
	}
	w.ask(Request{ID: "a", Fingerprint: 1})
	w.pass(5 * time.Second)
	if w.ends["a"] != "finished" || len(w.tries["a"]) != 4 {
		t.Fatalf("it ended as %q after tries at %v", w.ends["a"], w.tries["a"])
	}
	if most := 2 * (w.b.cfg.KillProbeTime + 200*time.Millisecond); w.ended["a"] > most {
		t.Errorf("it took %v, want %v at most", w.ended["a"], most)
	}
}

// After a first failure there is no wait: another replica is tried immediately.
func TestFirstFailureIsRetriedAtOnce(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 3)
	w.ask(Request{ID: "a", Fingerprint: 1})
	at := w.tries["a"][0]
	w.die(at)
	if len(w.tries["a"]) != 2 {
		t.Fatalf("tried at %v", w.tries["a"])
	}
}

// A replica that does not respond to probes counts as dead once it is lost.
func TestMissingReportsCountAsDeath(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 4)
	w.ask(Request{ID: "a", Fingerprint: 1})
	for range 2 {
		at := w.there["a"].replica
		w.ids = slices.DeleteFunc(w.ids, func(id string) bool { return id == at })
		w.die(at)
	}
	if len(w.tries["a"]) != 2 {
		t.Fatalf("tried at %v before any probe was missed", w.tries["a"])
	}
	w.pass(2 * time.Second)
	if w.ends["a"] != RejectKills {
		t.Errorf("it ended as %q after tries at %v", w.ends["a"], w.tries["a"])
	}
}

// Two replicas die of another cause at almost the same time while all clients send the same
// request: none of them is stopped, and the next request is served.
func TestOutageStopsNoInnocentRequest(t *testing.T) {
	forEachPolicy(t, func(t *testing.T, cfg Config) {
		for _, same := range []bool{false, true} {
			w := newTrial(t, cfg, 6)
			w.serve = func(request, _ string) (time.Duration, *Outcome) {
				return time.Duration(1+len(request)) * 300 * time.Millisecond, nil
			}
			for i := range 400 {
				print := uint64(1)
				if !same {
					print += uint64(i)
				}
				if i == 200 || i == 230 {
					w.die(fmt.Sprint("r", i%6))
				}
				w.ask(Request{ID: strings.Repeat("x", i%7) + fmt.Sprint(i), Fingerprint: print})
				w.pass(20 * time.Millisecond)
			}
			w.pass(20 * time.Second)
			for id, end := range w.ends {
				if end != "finished" {
					t.Errorf("same %v: %s ended as %q after tries at %v", same, id, end, w.tries[id])
				}
			}
			if len(w.ends) != 400 {
				t.Errorf("same %v: %d requests ended", same, len(w.ends))
			}
		}
	})
}

// If clients constantly send the same few requests, one of these is at every replica that dies of
// another cause, sometimes at two consecutive ones. They were served before, and are not stopped.
func TestCommonRequestsAreNotStopped(t *testing.T) {
	testkit.Slow(t)
	forEachPolicy(t, func(t *testing.T, cfg Config) {
		w := newTrial(t, cfg, 6)
		w.serve = func(request, _ string) (time.Duration, *Outcome) {
			return time.Duration(1+len(request)) * 300 * time.Millisecond, nil
		}
		for i := range 3000 {
			if i >= 500 && i%100 == 0 { // one dies every two seconds, and is back after two
				clear(w.dead)
				w.die(fmt.Sprint("r", i/100%6))
			}
			w.ask(Request{ID: strings.Repeat("x", i%7) + fmt.Sprint(i), Fingerprint: uint64(1 + i%30)})
			w.pass(20 * time.Millisecond)
		}
		clear(w.dead)
		w.pass(20 * time.Second)
		stopped := 0
		for _, end := range w.ends {
			if end == RejectKills {
				stopped++
			}
		}
		if stopped > 0 {
			t.Errorf("%d of %d requests were stopped", stopped, len(w.ends))
		}
	})
}

// A request that is sometimes served is stopped too, once it has killed more consecutive engines
// than is likely by chance.
func TestOccasionalKillerIsStopped(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 8)
	asked := 0
	w.serve = func(request, _ string) (time.Duration, *Outcome) {
		if strings.HasPrefix(request, "killer") && asked > 3 {
			return 0, kill
		}
		return time.Second, nil
	}
	for ; asked < 20 && w.ends[fmt.Sprint("killer", asked-1)] != RejectKills; asked++ {
		w.ask(Request{ID: fmt.Sprint("killer", asked), Fingerprint: 1})
		w.pass(5 * time.Second)
	}
	if len(w.dead) == 0 || len(w.dead) > 5 {
		t.Errorf("%d replicas died before it was stopped, want 5 at most", len(w.dead))
	}
}

// A request that was served clears its fingerprint: an earlier death of a replica with an identical
// request was a coincidence.
func TestServedRequestIsNoSuspect(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 8)
	for i := range 3 {
		id := fmt.Sprint("a", i)
		w.ask(Request{ID: id, Fingerprint: 1})
		w.die(w.there[id].replica)
		w.pass(3 * time.Second)
		if w.ends[id] != "finished" {
			t.Fatalf("%s ended as %q", id, w.ends[id])
		}
	}
}

// The number of remembered suspects is bounded.
func TestKillersAreBounded(t *testing.T) {
	cfg := roundRobinConfig()
	cfg.MaxKillSuspects = 10
	w := newTrial(t, cfg, 2)
	w.serve = func(string, string) (time.Duration, *Outcome) { return time.Hour, nil }
	for i := range 100 {
		w.ask(Request{ID: fmt.Sprint(i), Fingerprint: uint64(1 + i)})
	}
	w.die("r0")
	w.pass(2 * time.Second)
	if n := len(w.b.suspects.byFingerprint); n > 10 || len(w.b.suspects.list) != n {
		t.Errorf("%d and %d are remembered", n, len(w.b.suspects.list))
	}
}

// Deaths at a peer count: one here and one there are two.
func TestKillsCountAcrossPeers(t *testing.T) {
	origin := newTrial(t, roundRobinConfig(), 1)
	origin.step(Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	heartbeat := Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{{Model: "m", Replicas: 2, Available: 2}}}}
	origin.step(heartbeat)
	origin.ask(Request{ID: "poison", Fingerprint: 7})
	origin.die("r0")
	forward := origin.given["poison"]
	if forward.Kind != ActionForward || forward.Kills != 1 {
		t.Fatalf("after a death here it got %+v, want a forward with one kill", forward)
	}

	there := newTrial(t, roundRobinConfig(), 4)
	there.serve = poisoned(0)
	there.ask(Request{ID: "poison", Fingerprint: 7, From: "us", Hop: forward.Hop, Kills: forward.Kills})
	there.pass(2 * time.Second)
	back := there.given["poison"]
	if len(there.dead) != 1 || back.Kind != ActionReject || back.Reason != RejectKills || back.Kills != 1 {
		t.Fatalf("%d replicas died at the peer, which answers %+v", len(there.dead), back)
	}
	if shared := there.b.StoppedFingerprints(there.now); len(shared) != 0 {
		t.Errorf("the peer shares %v, after one death there", shared)
	}

	origin.pass(500 * time.Millisecond)
	origin.step(heartbeat)
	origin.step(Event{Kind: EventFailed, ID: "poison", Outcome: &Outcome{Retryable: true, Kills: back.Kills}})
	origin.pass(time.Second)
	if origin.ends["poison"] != RejectKills {
		t.Fatalf("it ended as %q", origin.ends["poison"])
	}
	killers := origin.b.StoppedFingerprints(origin.now)
	if len(killers) != 1 || killers[0].Fingerprint != 7 || killers[0].Age > time.Second {
		t.Fatalf("the origin shares %+v", killers)
	}
	there.step(Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "us"}})
	there.step(Event{Kind: EventPeerReport, Target: "us", PeerReport: &PeerReport{StoppedFingerprints: killers}})
	there.ask(Request{ID: "poison-2", Fingerprint: 7})
	if there.ends["poison-2"] != RejectKills {
		t.Errorf("a peer that received it accepts the request: %+v", there.given["poison-2"])
	}
	there.ask(Request{ID: "poison-3", Fingerprint: 7, From: "asia", Hop: HopRemote})
	if a := there.given["poison-3"]; a.Reason != RejectKills || a.Kills < 2 {
		t.Errorf("who forwards another one gets %+v, want at least two kills", a)
	}
	if shared := there.b.StoppedFingerprints(there.now); len(shared) != 0 {
		t.Errorf("the peer passes on what it received: %v", shared)
	}
}

// A peer without remaining replicas bounces a request with its count.
func TestBouncedRequestKeepsItsKills(t *testing.T) {
	there := newTrial(t, roundRobinConfig(), 1)
	there.ask(Request{ID: "a", Fingerprint: 7, From: "us", Hop: HopRemote})
	there.die("r0")
	there.pass(200 * time.Millisecond)
	if a := there.given["a"]; a.Kind != ActionBounce || a.Kills != 1 {
		t.Fatalf("it got %+v, want a bounce with one kill", a)
	}
	origin := newTrial(t, roundRobinConfig(), 1)
	origin.step(Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	origin.step(Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{{Model: "m", Replicas: 2, Available: 2}}}})
	origin.ask(Request{ID: "a", Fingerprint: 7})
	origin.die("r0")
	origin.pass(200 * time.Millisecond)
	origin.step(Event{Kind: EventBounced, ID: "a", Outcome: &Outcome{Kills: there.given["a"].Kills}})
	if origin.ends["a"] != RejectKills {
		t.Errorf("after a death here and one at the peer it got %+v", origin.given["a"])
	}
}

// cancel disconnects a request's client.
func (w *trial) cancel(id string) {
	delete(w.there, id)
	w.step(Event{Kind: EventCancelled, ID: id})
}

// A tenant that sends another tenant's request and always disconnects does not keep that request
// from the replicas, which are alive.
func TestDisconnectDoesNotDelayRepeat(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 16)
	w.serve = func(request, _ string) (time.Duration, *Outcome) {
		if request == "other" {
			return 0, nil
		}
		return time.Hour, nil
	}
	for i := range 800 {
		w.ask(Request{ID: fmt.Sprint(i), Tenant: "a", Fingerprint: 7})
	}
	for i := range 800 {
		if i == 100 {
			w.ask(Request{ID: "other", Tenant: "b", Fingerprint: 7})
		}
		w.cancel(fmt.Sprint(i))
		w.pass(10 * time.Millisecond)
	}
	if most := time.Second + 1700*time.Millisecond; w.ends["other"] != "finished" || w.ended["other"] > most {
		t.Errorf("it ended as %q at %v, want it served until %v", w.ends["other"], w.ended["other"], most)
	}
}

// A client that disconnects causes no death to report to a peer, neither with a request
// that is bounced nor with one that is forwarded.
func TestDisconnectIsNoKillForPeers(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 3)
	w.serve = func(string, string) (time.Duration, *Outcome) { return time.Hour, nil }
	for i := range 3 {
		w.ask(Request{ID: fmt.Sprint(i), Tenant: "a", Fingerprint: 7})
	}
	w.cancel("0")
	w.step(Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	w.step(Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{{Model: "m", Replicas: 2, Available: 2}}}})
	for _, id := range w.ids {
		w.step(Event{Kind: EventReplicaDraining, Target: id})
	}
	w.ask(Request{ID: "mine", Tenant: "b", Fingerprint: 7})
	if a := w.given["mine"]; a.Kind != ActionForward || a.Kills != 0 {
		t.Errorf("forward to the peer: got %+v, want one without kills", a)
	}
	w.ask(Request{ID: "theirs", Tenant: "b", Fingerprint: 7, From: "us", Hop: HopRemote})
	if a := w.given["theirs"]; a.Kind != ActionBounce || a.Kills != 0 {
		t.Errorf("bounce to the origin: got %+v, want one without kills", a)
	}
}

// A request that fails at several replicas which stay alive is not stopped by the balancer that
// forwarded it: only decided deaths count.
func TestFailureAtLivePeerReplicaIsNoKill(t *testing.T) {
	cfg := roundRobinConfig()
	cfg.MaxAttempts = 2
	w := newTrial(t, cfg, 3)
	w.serve = func(string, string) (time.Duration, *Outcome) {
		return 0, &Outcome{Retryable: true, EngineMayHaveDied: true, Cause: "answered 500"}
	}
	w.ask(Request{ID: "a", Fingerprint: 7, From: "us", Hop: HopRemote})
	w.pass(50 * time.Millisecond)
	if a := w.given["a"]; a.Reason != RejectRetriesExhausted || a.Kills >= cfg.StopAfterDeaths {
		t.Errorf("it got %+v, want fewer than %d kills", a, cfg.StopAfterDeaths)
	}
}

// A draining replica will be terminated: a long request that is still there, at one such replica
// after the other, did not kill them.
func TestReplacedReplicaIsNoKill(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 4)
	w.serve = func(string, string) (time.Duration, *Outcome) { return 10 * time.Second, nil }
	w.ask(Request{ID: "long", Fingerprint: 7})
	for range 3 {
		w.pass(4 * time.Second)
		at := w.there["long"].replica
		w.step(Event{Kind: EventReplicaDraining, Target: at})
		w.pass(time.Second)
		w.die(at)
	}
	w.pass(12 * time.Second)
	if w.ends["long"] != "finished" {
		t.Errorf("it ended as %q after tries at %v", w.ends["long"], w.tries["long"])
	}
}

// The ranks of an engine die together: one suspect of an earlier death at each of them does not
// determine which of these killed the engine.
func TestRanksOfEngineDieTogether(t *testing.T) {
	w := newTrial(t, roundRobinConfig(), 0)
	for _, engine := range []string{"a", "b", "c"} {
		for i := range 4 {
			id := fmt.Sprintf("%s/%d", engine, i)
			w.ids = append(w.ids, id)
			w.step(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m", Engine: engine}})
			w.step(idle(id))
		}
	}
	w.serve = func(string, string) (time.Duration, *Outcome) { return 10 * time.Second, nil }
	for i := range 12 {
		w.ask(Request{ID: fmt.Sprint("x", i), Fingerprint: uint64(1 + i)})
	}
	w.pass(3 * time.Second) // nothing was sent shortly before
	dieWhole := func(engine string) {
		for i := range 4 {
			w.dead[fmt.Sprintf("%s/%d", engine, i)] = true
		}
		for i := range 4 {
			w.die(fmt.Sprintf("%s/%d", engine, i))
		}
	}
	dieWhole("a")
	w.pass(3 * time.Second)
	dieWhole("b")
	w.pass(30 * time.Second)
	for i := range 12 {
		if id := fmt.Sprint("x", i); w.ends[id] != "finished" {
			t.Errorf("%s ended as %q after tries at %v", id, w.ends[id], w.tries[id])
		}
	}
}

// A region fails within half a second: its replicas die one after the other, faster than probes
// detect, and requests are retried at those that die next. When it recovers, they are served,
// except at most one request per replica that was isolated at its death.
func TestRegionOutageStopsFewRequests(t *testing.T) {
	forEachPolicy(t, func(t *testing.T, cfg Config) {
		w := newTrial(t, cfg, 6)
		w.serve = func(string, string) (time.Duration, *Outcome) { return 20 * time.Second, nil }
		for i := range 60 {
			w.ask(Request{ID: fmt.Sprint(i), Fingerprint: uint64(1 + i)})
			w.pass(20 * time.Millisecond)
		}
		w.pass(3 * time.Second) // nothing was sent shortly before
		for _, id := range w.ids {
			w.pass(50 * time.Millisecond)
			w.die(id)
		}
		w.pass(2 * time.Second)
		clear(w.dead)
		w.serve = func(string, string) (time.Duration, *Outcome) { return 0, nil }
		w.pass(50 * time.Second)
		stopped := 0
		for i := range 60 {
			if w.ends[fmt.Sprint(i)] == RejectKills {
				stopped++
			}
		}
		if stopped >= len(w.ids) {
			t.Errorf("%d of 60 requests were stopped by the deaths of %d replicas", stopped, len(w.ids))
		}
	})
}
