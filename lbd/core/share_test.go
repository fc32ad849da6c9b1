package core

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// everything is more than the size of any page.
const everything = 1 << 30

// neighbour returns one of two balancers of a region, with n idle replicas of its own.
func neighbour(cfg Config, other string, replicas ...string) *Balancer {
	b := New(cfg)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: other, SameRegion: true}})
	for _, id := range replicas {
		attach(b, 0, id)
	}
	return b
}

func attach(b *Balancer, now time.Duration, id string) {
	b.Step(now, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m", Process: "at " + id}})
	b.Step(now, idle(id))
}

func detach(b *Balancer, now time.Duration, id string) {
	b.Step(now, Event{Kind: EventReplicaRemoved, Target: id})
}

// tell sends to the updates of from after since.
func tell(now time.Duration, from, to *Balancer, name string, since uint64, all bool) (next uint64) {
	entries, next, _ := from.CacheUpdates(now, since, all, everything)
	to.Step(now, Event{Kind: EventPeerCacheUpdates, Target: name, CacheUpdates: entries})
	return next
}

// turn serves a request and returns its target and the matched bytes there.
func turn(t *testing.T, b *Balancer, now time.Duration, id, session string, prompt, whole prefix.Key) (target string, match int) {
	t.Helper()
	r := Request{ID: id, Model: "m", Session: session, Prompt: prompt, PromptTokens: prompt.Bytes() / 4}
	for _, a := range b.Step(now, Event{Kind: EventArrived, Request: &r}) {
		if a.Kind == ActionDispatch && a.ID == id {
			target, match = a.Target, a.Decision.MatchBytes
		}
	}
	if target == "" {
		t.Fatalf("%s was not dispatched", id)
	}
	b.Step(now, Event{Kind: EventFirstToken, ID: id})
	b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{Key: whole}})
	return target, match
}

// held returns the number of bytes of key that the tree of b contains for a replica, own or
// foreign; -1 if the replica is unknown.
func held(b *Balancer, id string, key prefix.Key) int {
	slot := -1
	if t := findTarget(b.replicas, id); t != nil {
		slot = t.treeSlot
	} else if at, found := b.caches.sharing.searchForeign(id); found {
		slot = b.caches.sharing.foreign[at].treeSlot
	}
	if slot < 0 {
		return -1
	}
	out := make([]int, slot+1)
	b.caches.replicas.Match(key, out)
	return out[slot]
}

func TestFailoverKeepsKnownPrefixes(t *testing.T) {
	for _, name := range []string{"cost", "longest-prefix", "skylb"} {
		for _, shared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/shared=%v", name, shared), func(t *testing.T) {
				before, after := failOver(t, name, shared)
				if before < 0.8 {
					t.Fatalf("the hit rate was %.2f before", before)
				}
				if shared && after < before || !shared && after > 0.05 {
					t.Errorf("the hit rate was %.2f before and %.2f after", before, after)
				}
			})
		}
	}
}

// failOver serves conversations through balancer a of two, with two replicas each. Then it stops a,
// moves its replicas to b and continues there. It returns the hit rates of the last turns at a and
// of the next at b.
func failOver(t *testing.T, name string, shared bool) (before, after float64) {
	p, err := policy.New(name)
	if err != nil {
		t.Fatal(err)
	}
	const conversations, turns, block = 30, 4, 20
	a, b := neighbour(DefaultConfig(p), "b", "r0", "r1"), neighbour(DefaultConfig(p), "a", "r2", "r3")
	rng, previous := rand.New(rand.NewPCG(1, 2)), make([]prefix.Key, conversations)
	now, since := time.Duration(0), uint64(0)
	round := func(at *Balancer, n int) float64 {
		found, all := 0, 0
		for c := range previous {
			now += 10 * time.Millisecond
			for _, r := range []string{"r0", "r1", "r2", "r3"} {
				at.Step(now, idle(r))
			}
			prompt := append(slices.Clone(previous[c]), fresh(rng, block)...)
			previous[c] = append(slices.Clone(prompt), fresh(rng, block)...)
			_, match := turn(t, at, now, fmt.Sprintf("c%d-%d", c, n), fmt.Sprint("s", c), prompt, previous[c])
			found, all = found+match, all+prompt.Bytes()
		}
		return float64(found) / float64(all)
	}
	for n := range turns {
		before = round(a, n)
		if shared {
			since = tell(now, a, b, "a", since, false)
		}
	}
	// a is dead: its replicas are assigned to b, which loses its own meanwhile.
	detach(b, now, "r2")
	detach(b, now, "r3")
	attach(b, now, "r0")
	attach(b, now, "r1")
	return before, round(b, turns)
}

// The known cache contents of a replica move with it, and are removed when its cache is lost.
func TestKnownCacheOfReplica(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	key := fresh(rand.New(rand.NewPCG(3, 4)), 10)
	peersChanged := func(age time.Duration) Event {
		return Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: "x", Process: "at x", Key: key, Age: age}}}
	}
	loss := func(age time.Duration) Event {
		return Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: "x", Process: "at x", CacheLost: true, Age: age}}}
	}
	dead := Event{Kind: EventReplicaReport, Target: "x", Report: &ProbeReport{Reason: "starting"}}
	added := Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "x", Model: "m", Process: "at x"}}
	moved := Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "x", Model: "m", Process: "elsewhere"}}
	removed := Event{Kind: EventReplicaRemoved, Target: "x"}
	ready, tick := idle("x"), Event{Kind: EventTick}
	for _, c := range []struct {
		name   string
		events []Event // a second apart
		want   int     // bytes of key that are known at x; -1 = x is unknown
	}{
		{"heard of", []Event{peersChanged(0)}, key.Bytes()},
		{"heard of by somebody else", []Event{{Kind: EventPeerCacheUpdates, Target: "far", CacheUpdates: peersChanged(0).CacheUpdates}}, -1},
		{"adopted", []Event{peersChanged(0), added}, key.Bytes()},
		{"adopted and ready", []Event{peersChanged(0), added, ready}, key.Bytes()},
		{"adopted, not ready", []Event{peersChanged(0), added, dead}, 0},
		{"adopted, silent", []Event{peersChanged(0), added, tick}, 0},
		{"adopted by another process", []Event{peersChanged(0), moved}, 0},
		{"adopted, then another process", []Event{peersChanged(0), added, moved}, 0},
		{"lost before it was adopted", []Event{peersChanged(0), loss(0), added}, 0},
		{"lost, then learned", []Event{peersChanged(0), loss(0), peersChanged(0), added}, key.Bytes()},
		{"learned before it was lost", []Event{loss(0), peersChanged(0), loss(0), peersChanged(1500 * time.Millisecond)}, 0},
		{"a loss that was told late", []Event{peersChanged(0), added, ready, loss(3 * time.Second)}, 0},
		{"a loss of the past's owner", []Event{peersChanged(0), added, ready, loss(0)}, key.Bytes()},
		{"went home, was used there, came back", []Event{peersChanged(0), added, ready, removed, peersChanged(0), added}, key.Bytes()},
		{"went home", []Event{peersChanged(0), added, ready, removed}, key.Bytes()},
		{"was taken out and put back", []Event{peersChanged(0), added, ready, removed, added}, 0},
		{"was taken out dead", []Event{peersChanged(0), added, ready, dead, removed}, -1},
		{"old news cannot bring it back", []Event{added, ready, dead, ready, peersChanged(2 * time.Second)}, 0},
		{"nor can new while it is dead", []Event{added, ready, dead, peersChanged(0)}, 0},
		{"fresh news can", []Event{added, ready, dead, ready, peersChanged(0)}, key.Bytes()},
		{"its own after a restart", []Event{added, ready, peersChanged(5 * time.Minute)}, key.Bytes()},
		{"news that is none any more", []Event{peersChanged(maxSharedAge)}, -1},
		{"the peer was removed", []Event{peersChanged(0), {Kind: EventPeerRemoved, Target: "b"}}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := neighbour(DefaultConfig(p), "b")
			b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "far"}})
			for i, ev := range c.events {
				b.Step(time.Duration(i+1)*time.Second, ev)
			}
			if got := held(b, "x", key); got != c.want {
				t.Errorf("%d bytes are known, want %d", got, c.want)
			}
			checkSharing(t, b)
		})
	}
}

func TestOldCacheUpdatesExpire(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	b, key := neighbour(DefaultConfig(p), "b"), letters("abc")
	b.Step(0, Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: "x", Key: key}}})
	b.Step(maxSharedAge-1, Event{Kind: EventTick})
	if got := held(b, "x", key); got != key.Bytes() {
		t.Errorf("%d bytes are known before its time", got)
	}
	b.Step(maxSharedAge, Event{Kind: EventTick})
	if got := held(b, "x", key); got != -1 || b.Snapshot(maxSharedAge).TreeNodes != 0 || len(b.caches.treeSlots[0].free) != 1 || len(b.caches.sharing.received.all()) != 0 {
		t.Errorf("%d bytes are known, %d nodes, %d slots free", got, b.Snapshot(maxSharedAge).TreeNodes, len(b.caches.treeSlots[0].free))
	}
}

// A restarted balancer receives everything that its neighbour has. A running one does not receive
// its own updates again.
func TestRestartedBalancerLearnsFromNeighbour(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	rng := rand.New(rand.NewPCG(5, 6))
	atA, atB := fresh(rng, 20), fresh(rng, 20)
	a, b := neighbour(cfg, "b", "r0"), neighbour(cfg, "a", "r1")
	turn(t, a, 1, "qa", "s", atA[:10], atA)
	turn(t, b, 1, "qb", "s", atB[:10], atB)
	tell(2, a, b, "a", 0, true)
	if got, _, _ := b.CacheUpdates(3, 0, false, everything); len(got) != 1 || got[0].Replica != "r1" {
		t.Errorf("a running neighbour receives %+v", got)
	}
	a = neighbour(cfg, "b", "r0")
	tell(4, b, a, "b", 0, true)
	if own, other := held(a, "r0", atA), held(a, "r1", atB); own != atA.Bytes() || other != atB.Bytes() {
		t.Errorf("%d bytes are known of its own replica, %d of the other, want %d of both", own, other, atA.Bytes())
	}
	if found := a.caches.replicas.Match(append(slices.Clone(atA), 1), nil); !found.AfterResponse || found.SessionStart != 1 {
		t.Errorf("its session: %+v, want one that began at 1 ns", found)
	}
}

// Without another balancer in the region, no updates are stored.
func TestSingleBalancerKeepsNoUpdates(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	b := start(DefaultConfig(p), 1)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "far"}})
	turn(t, b, 1, "q", "s", letters("ab"), letters("abc"))
	if got, next, more := b.CacheUpdates(2, 0, true, everything); len(got) != 0 || next != 0 || more {
		t.Errorf("it keeps %+v, next %d, more %v", got, next, more)
	}
}

// With pages of any size, each update arrives once and in order.
func TestCacheUpdatesArePaged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(drawConfig(rt))
		w.b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu", SameRegion: true}})
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
			checkSharing(rt, w.b)
		}
		all := rapid.Bool().Draw(rt, "all")
		want, last, more := w.b.CacheUpdates(w.now, 0, all, everything)
		if more {
			rt.Fatal("more than everything")
		}
		var got []CacheUpdate
		since := uint64(0)
		for more = true; more; {
			var page []CacheUpdate
			before := since
			page, since, more = w.b.CacheUpdates(w.now, since, all, rapid.IntRange(0, 2000).Draw(rt, "page"))
			if more && (len(page) == 0 || since <= before) {
				rt.Fatalf("no progress after %d", before)
			}
			got = append(got, page...)
		}
		if since != last || !reflect.DeepEqual(got, want) {
			rt.Fatalf("in pages up to %d\n%+v\nat once up to %d\n%+v", since, got, last, want)
		}
	})
}

// The order in which peers were added has no effect on the known cache contents.
func TestPeerOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawConfig(rt)
		other := cfg
		other.Policy, _ = policy.New(cfg.Policy.Name())
		a, b := newWorld(cfg), newWorld(other)
		for i := range peerNames {
			a.now, b.now = 0, 0 // all at one moment, because requests wait for the first report of a new peer
			a.step(rt, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: peerNames[i], SameRegion: true}})
			b.step(rt, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: peerNames[len(peerNames)-1-i], SameRegion: true}})
		}
		for range 40 {
			ev := a.draw(rt)
			if got, want := outline(b.step(rt, ev)), outline(a.step(rt, ev)); !reflect.DeepEqual(got, want) {
				rt.Fatalf("%+v: %v and %v", ev, got, want)
			}
		}
		one, _, _ := a.b.CacheUpdates(a.now, 0, true, everything)
		two, _, _ := b.b.CacheUpdates(b.now, 0, true, everything)
		if !reflect.DeepEqual(one, two) {
			rt.Fatalf("told\n%+v\nand\n%+v", one, two)
		}
	})
}

// Replicas and prompts that never return use at most the bounded memory.
func TestSharingIsBounded(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.TreeBytes, cfg.ShareBytes = 1<<20, 64<<10
	b, rng := neighbour(cfg, "b"), rand.New(rand.NewPCG(7, 8))
	for i := range 4 * maxForeign {
		now := time.Duration(i) * time.Millisecond
		mine, theirs := fmt.Sprint("mine", i), fmt.Sprint("theirs", i)
		attach(b, now, mine)
		key := fresh(rng, 1+rng.IntN(40))
		turn(t, b, now, fmt.Sprint("q", i), "s", key, append(key, fresh(rng, 5)...))
		detach(b, now, mine)
		b.Step(now, Event{Kind: EventPeerCacheUpdates, Target: "b", CacheUpdates: []CacheUpdate{{Replica: theirs, Key: fresh(rng, 30)}}})
		b.Step(now, Event{Kind: EventTick})
		checkSharing(t, b)
		if v := b.Snapshot(now); v.TreeBytes > cfg.TreeBytes || b.caches.treeSlots[0].next > maxForeign+2 {
			t.Fatalf("after %d replicas the trees take %d bytes and %d slots", i, v.TreeBytes, b.caches.treeSlots[0].next)
		}
	}
	if len(b.caches.sharing.foreign) != maxForeign || cap(b.caches.sharing.own.entries) > 2000 || cap(b.caches.sharing.received.entries) > 2000 {
		t.Errorf("%d foreign replicas, room for %d and %d entries", len(b.caches.sharing.foreign), cap(b.caches.sharing.own.entries), cap(b.caches.sharing.received.entries))
	}
	b.Step(time.Hour, Event{Kind: EventTick})
	if v := b.Snapshot(time.Hour); len(b.caches.sharing.foreign) != 0 || v.TreeNodes != 0 {
		t.Errorf("an hour later: %d foreign replicas, %d nodes", len(b.caches.sharing.foreign), v.TreeNodes)
	}
}

// The shared part of a long prompt is limited to the maximum shared length.
func TestLongPromptsAreSharedPartly(t *testing.T) {
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	long := fresh(rand.New(rand.NewPCG(9, 1)), maxSharedHashes+10)
	a, b := neighbour(DefaultConfig(p), "b", "r0"), neighbour(DefaultConfig(p), "a")
	turn(t, a, 1, "q", "s", long[:5], long)
	tell(2, a, b, "a", 0, false)
	if got, want := held(b, "r0", long), maxSharedHashes*prefix.BlockBytes; got != want {
		t.Errorf("%d bytes are known, want %d", got, want)
	}
	b.Step(3, Event{Kind: EventPeerCacheUpdates, Target: "a", CacheUpdates: []CacheUpdate{{Replica: "r9", Key: long, IncludesResponse: true}}})
	if got, want := held(b, "r9", long), maxSharedHashes*prefix.BlockBytes; got != want {
		t.Errorf("%d bytes are known of what came too long, want %d", got, want)
	}
}

// checkSharing checks the invariants of the state kept for other balancers.
func checkSharing(t fatal, b *Balancer) {
	slots := map[int]string{}
	note := func(id string, slot int) {
		if other, taken := slots[slot]; taken || slot < 0 || slices.Contains(b.caches.treeSlots[0].free, slot) {
			t.Fatalf("%s has slot %d, which is free or that of %q", id, slot, other)
		}
		slots[slot] = id
	}
	for _, r := range b.replicas {
		note(r.id, r.treeSlot)
	}
	for i, f := range b.caches.sharing.foreign {
		note(f.id, f.treeSlot)
		if (i > 0 && b.caches.sharing.foreign[i-1].id >= f.id) || findTarget(b.replicas, f.id) != nil {
			t.Fatalf("foreign replica %s is out of order or no foreign one", f.id)
		}
	}
	if len(b.caches.sharing.foreign) > maxForeign {
		t.Fatalf("%d foreign replicas", len(b.caches.sharing.foreign))
	}
	for _, l := range []*cacheUpdateLog{&b.caches.sharing.own, &b.caches.sharing.received} {
		bytes, seq := 0, uint64(0)
		for _, e := range l.all() {
			bytes += e.updateBytes()
			if e.seq <= seq || e.seq > b.caches.sharing.seq || e.CacheLost == (len(e.Key) > 0) {
				t.Fatalf("entry %d after %d of %d: %+v", e.seq, seq, b.caches.sharing.seq, e)
			}
			seq = e.seq
		}
		if bytes != l.bytes || bytes > l.limit {
			t.Fatalf("a log of %d bytes counts %d and may have %d", bytes, l.bytes, l.limit)
		}
	}
}

// A balancer of another region learns what this one sends to its replicas while they compute it, so that a request
// with the same prefix is forwarded instead of computed twice.
func TestDistantBalancerLearnsPromptsThatAreBeingComputed(t *testing.T) {
	start := func(name, other string) *Balancer {
		p, err := policy.New(name)
		if err != nil {
			t.Fatal(err)
		}
		b := New(DefaultConfig(p))
		b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: other}})
		attach(b, 0, "r-"+other)
		b.Step(0, Event{Kind: EventPeerReport, Target: other, PeerReport: &PeerReport{RTT: time.Millisecond, Models: []ModelLoad{{Model: "m", Replicas: 1, Available: 1}}}})
		return b
	}
	arrive := func(b *Balancer, id string) []Action {
		return b.Step(1, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Prompt: letters("abcdefgh"), PromptTokens: 20_000}})
	}
	us, eu := start("cost", "eu"), start("cost", "us")
	if got := arrive(us, "q1"); len(got) != 1 || got[0].Kind != ActionDispatch {
		t.Fatalf("got %+v, want it sent to the replica", got)
	}
	next := tell(2, us, eu, "us", 0, false)
	if got := arrive(eu, "q2"); len(got) != 1 || got[0].Kind != ActionForward {
		t.Errorf("got %+v, want it forwarded to the region that computes the prompt", got)
	}
	// What its replicas have already is not reported again.
	arrive(us, "q3")
	if got, _, _ := us.CacheUpdates(3, next, false, everything); len(got) != 0 {
		t.Errorf("reported again: %+v", got)
	}
	// Nor is what a failed replica had.
	us.Step(4, Event{Kind: EventReplicaReport, Target: "r-eu", Report: &ProbeReport{Reason: "loading"}})
	if got, _, _ := us.CacheUpdates(4, 0, false, everything); slices.ContainsFunc(got, func(e CacheUpdate) bool { return !e.CacheLost }) {
		t.Errorf("after the replica's cache was lost: %+v", got)
	}
	// A policy that does not compare the caches of regions reports nothing, until it is replaced.
	skylb := start("skylb", "eu")
	arrive(skylb, "q1")
	if got, _, _ := skylb.CacheUpdates(2, 0, false, everything); len(got) != 0 {
		t.Errorf("skylb reports %+v", got)
	}
	skylb.Reconfigure(3, DefaultConfig(policy.NewCost()))
	// The peer's report is stale by then, so the request stays here.
	skylb.Step(500*time.Millisecond, Event{Kind: EventArrived, Request: &Request{ID: "q2", Model: "m", Prompt: letters("xy"), PromptTokens: 100}})
	if got, _, _ := skylb.CacheUpdates(500*time.Millisecond, 0, false, everything); len(got) != 1 {
		t.Errorf("with cost it reports %+v, want one prompt", got)
	}
}

// Other regions receive what a region has cached only if their policy uses it, and not if nothing may be forwarded.
func TestCachesOfOtherRegionsAreUsed(t *testing.T) {
	for name, want := range map[string]bool{"cost": true, "skylb": false, "cache-aware": false, "round-robin": false} {
		p, err := policy.New(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := DefaultConfig(p)
		cfg.Forward = true
		if got := cfg.ForwardsToCaches(); got != want {
			t.Errorf("%s: got %v", name, got)
		}
		if cfg.Forward = false; cfg.ForwardsToCaches() {
			t.Errorf("%s shares with other regions, to which nothing is forwarded", name)
		}
	}
}
