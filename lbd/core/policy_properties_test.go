package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// everyPolicy runs a test at each policy's canonical push mode.
func everyPolicy(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := policy.New(name)
			if err != nil {
				t.Fatal(err)
			}
			cfg := DefaultConfig(p)
			if cfg.Push, err = ParsePush(policy.CanonicalPush(name)); err != nil {
				t.Fatal(err)
			}
			test(t, cfg)
		})
	}
}

// start returns a balancer with n idle replicas r0, r1, ...
func start(cfg Config, n int) *Balancer {
	b := New(cfg)
	for i := range n {
		id := fmt.Sprintf("r%d", i)
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		b.Step(0, idle(id))
	}
	return b
}

func idle(id string) Event {
	return Event{Kind: EventReplicaReport, Target: id, Report: &ProbeReport{Ready: true, Pending: policy.Known(0), KV: policy.Known(0.5)}}
}

// ask sends a request and returns its target.
func ask(t *testing.T, b *Balancer, now time.Duration, r Request) string {
	t.Helper()
	r.Model = "m"
	for _, a := range b.Step(now, Event{Kind: EventArrived, Request: &r}) {
		if a.Kind == ActionDispatch && a.ID == r.ID {
			return a.Target
		}
	}
	t.Fatalf("%s was not dispatched", r.ID)
	return ""
}

// fresh returns a prompt of n blocks that shares no prefix with any other.
func fresh(rng *rand.Rand, n int) prefix.Key {
	k := make(prefix.Key, n)
	for i := range k {
		k[i] = rng.Uint64()
	}
	return k
}

func TestNewConversationsSpreadOverReplicas(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		for _, ends := range []bool{false, true} {
			b, rng, got := start(cfg, 4), rand.New(rand.NewPCG(1, 2)), map[string]int{}
			for i := range 80 {
				id := fmt.Sprintf("q%d", i)
				got[ask(t, b, 0, Request{ID: id, Session: id, Prompt: fresh(rng, 16)})]++
				b.Step(0, Event{Kind: EventFirstToken, ID: id})
				if ends {
					b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
				}
			}
			for _, x := range b.replicas {
				if n := got[x.id]; n < 10 || n > 40 {
					t.Errorf("ended at once %v: %s got %d of 80 misses", ends, x.id, n)
				}
			}
		}
	})
}

func TestDeadPrefixMatchDoesNotUseUpRetries(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		const conversations = 40
		b, rng, got := start(cfg, 1), rand.New(rand.NewPCG(1, 2)), map[string]int{}
		prompts := make([]prefix.Key, conversations)
		for i := range prompts { // r0 is alone and receives all of them
			prompts[i] = fresh(rng, 16)
			id := fmt.Sprint("begin", i)
			ask(t, b, 0, Request{ID: id, Session: fmt.Sprint("s", i), Prompt: prompts[i]})
			b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
		}
		for _, id := range []string{"r1", "r2", "r3"} {
			b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
			b.Step(0, idle(id))
		}
		attempts := 0 // at the dead one
		for i := range prompts {
			id := fmt.Sprint("next", i)
			at := ask(t, b, 1, Request{ID: id, Session: fmt.Sprint("s", i), Prompt: prompts[i]})
			if at == "r0" {
				attempts++
				actions := b.Step(1, Event{Kind: EventFailed, ID: id, Outcome: &Outcome{Retryable: true, Unreachable: true}})
				if len(actions) != 1 || actions[0].Kind != ActionDispatch || actions[0].Target == "r0" {
					t.Fatalf("the retry of %s went to %+v", id, actions)
				}
				at = actions[0].Target
			}
			got[at]++
			b.Step(1, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
		}
		if attempts > 1 {
			t.Errorf("%d attempts at a replica that could not be reached the first time", attempts)
		}
		for _, id := range []string{"r1", "r2", "r3"} {
			if n := got[id]; n < 5 || n > 25 {
				t.Errorf("%s got %d of the dead replica's %d conversations", id, n, conversations)
			}
		}
		if held := b.caches.replicas.CachedBytes(findTarget(b.replicas, "r0").treeSlot); attempts > 0 && held != 0 {
			t.Errorf("the dead replica is still thought to hold %d bytes", held)
		}
	})
}

// A request that failed at a replica is sent there again rather than wait for a replica that does
// not respond, whether that one never responded or has died meanwhile.
func TestFailedRequestDoesNotWaitForDeadReplica(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.RetryBackoff = 0
		b := start(cfg, 1)
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "never", Model: "m"}})
		ask(t, b, 0, Request{ID: "q", Session: "s"})
		actions := b.Step(0, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true}})
		if len(actions) != 1 || actions[0].Target != "r0" {
			t.Fatalf("beside a replica that never answered: %+v", actions)
		}
		// Now the other one responds, without free capacity, and dies later.
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "never", Model: "m", MaxOutstanding: 1}})
		b.Step(0, idle("never"))
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: false}})
		ask(t, b, 0, Request{ID: "fills", Session: "s"})
		b.Step(0, idle("r0"))
		if actions = b.Step(0, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true}}); len(actions) != 0 {
			t.Fatalf("with the other one full: %+v", actions)
		}
		actions = b.Step(0, Event{Kind: EventFailed, ID: "fills", Outcome: &Outcome{Unreachable: true}})
		if len(actions) != 2 || actions[1].Kind != ActionDispatch || actions[1].ID != "q" || actions[1].Target != "r0" {
			t.Fatalf("after the other one died: %+v", actions)
		}
	})
}

// For random events of targets, requests and health checks, load counters do not drift: after the
// traffic all of them are zero.
func TestLoadCountersDoNotLeak(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(drawConfig(rt))
		for range rapid.IntRange(20, 120).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
			for _, x := range append(slices.Clone(w.b.replicas), w.b.peers...) {
				if x.outstanding < 0 || len(x.unconfirmed) > x.outstanding || x.work.remaining() < 0 {
					rt.Fatalf("%s: %d outstanding, %d unconfirmed, %d tokens", x.id, x.outstanding, len(x.unconfirmed), x.work.remaining())
				}
			}
		}
		for id := 1; id <= w.next; id++ {
			w.b.Step(w.now, Event{Kind: EventCancelled, ID: fmt.Sprintf("q%d", id)})
		}
		for _, x := range append(slices.Clone(w.b.replicas), w.b.peers...) {
			if x.outstanding != 0 || len(x.unconfirmed) != 0 || x.work != (work{}) {
				rt.Fatalf("%s: %d outstanding, %d unconfirmed, %+v to do after the end", x.id, x.outstanding, len(x.unconfirmed), x.work)
			}
		}
		if c := w.b.Snapshot(w.now).Counts; c.Queued != 0 || c.Outstanding != 0 || len(w.b.requests) != 0 {
			rt.Fatalf("traffic ended, still counted: %+v", c)
		}
	})
}

func TestMemoryStaysBoundedUnderChurn(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.TreeBytes = 16 << 10
		b, rng := start(cfg, 3), rand.New(rand.NewPCG(1, 2))
		for i := range 1500 {
			if i%50 == 0 { // one replica is replaced by another
				b.Step(0, Event{Kind: EventReplicaRemoved, Target: fmt.Sprintf("r%d", i/50)})
				id := fmt.Sprintf("r%d", i/50+3)
				b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
				b.Step(0, idle(id))
			}
			id := fmt.Sprintf("q%d", i)
			ask(t, b, 0, Request{ID: id, Session: id, Prompt: fresh(rng, 1+rng.IntN(40))})
			b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
			if v := b.Snapshot(0); v.TreeBytes > 2*cfg.TreeBytes {
				t.Fatalf("after %d prompts the trees take %d bytes", i, v.TreeBytes)
			}
		}
		if len(b.requests) != 0 || len(b.replicas) != 3 || b.caches.treeSlots[0].next > 4 || len(b.queues) != 1 {
			t.Errorf("left: %d requests, %d replicas, %d slots, %d queues", len(b.requests), len(b.replicas), b.caches.treeSlots[0].next, len(b.queues))
		}
	})
}

// Two conversations that begin alike diverge later: each is sent to the replica with its own later
// turns, not to the one that received its first message first.
func TestLaterTurnsRouteByWholeConversation(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		if !cfg.Policy.Traits().Prefix {
			return
		}
		b := start(cfg, 2)
		opening := "abcd"
		first := ask(t, b, 0, Request{ID: "x", Prompt: letters(opening)})
		second := "r0"
		if first == second {
			second = "r1"
		}
		finish := func(id, text string) {
			b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{Key: letters(text)}})
		}
		finish("x", opening+"EFGH")
		// The middle of the other conversation is sent to the other replica, the only ready one.
		b.Step(0, Event{Kind: EventReplicaReport, Target: first, Report: &ProbeReport{Ready: true, Pending: policy.Known(1)}})
		b.Step(0, Event{Kind: EventReplicaDraining, Target: first})
		if got := ask(t, b, 0, Request{ID: "y", Prompt: letters(opening + "IJKL")}); got != second {
			t.Fatalf("the other conversation went to %s", got)
		}
		finish("y", opening+"IJKLMNOP")
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: first, Model: "m"}})
		b.Step(0, idle(first))
		for text, want := range map[string]string{opening + "EFGHq": first, opening + "IJKLMNOPq": second} {
			for i := range 3 {
				id := fmt.Sprint(text, i)
				if got := ask(t, b, 0, Request{ID: id, Prompt: letters(text)}); got != want {
					t.Errorf("turn %s went to %s, want %s", id, got, want)
				}
				finish(id, text)
			}
		}
	})
}

// With a policy that also chooses among peers (Traits.Peers), a full region forwards its requests although its replicas
// would accept them. With any other policy it keeps them.
func TestOnlyPeerPoliciesForwardWithCapacity(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := New(cfg)
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true, Pending: policy.Known(0), KV: policy.Known(0.9)}})
		// Long text is running here: policies that count tokens, not memory, prefer the idle region too.
		b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "running", Model: "m", PromptTokens: 1000}})
		b.Step(0, Event{Kind: EventFirstToken, ID: "running"})
		b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
		b.Step(0, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: []ModelLoad{
			{Model: "m", Replicas: 1, Available: 1, KV: policy.Known(0.1)},
		}}})
		want := ActionDispatch
		if tr := cfg.Policy.Traits(); tr.Peers && !tr.Holds { // a policy that holds requests considers its own replicas first
			want = ActionForward
		}
		actions := b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "q", Model: "m", Session: "s"}})
		if len(actions) != 1 || actions[0].Kind != want {
			t.Errorf("got %+v, want %s", actions, want)
		}
		// Requests from another region stay here.
		actions = b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "f", Model: "m", Hop: HopRemote, From: "eu"}})
		if len(actions) != 1 || actions[0].Kind != ActionDispatch {
			t.Errorf("a forwarded request: %+v", actions)
		}
	})
}

// The maximum wait of a request applies in total: a peer receives the remainder of
// it, and a request that returns after it is not queued again.
func TestForwardedRequestKeepsRemainingWait(t *testing.T) {
	p, err := policy.New("skylb")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.MaxWait = 10 * time.Second
	b := start(cfg, 1)
	peer := func(now time.Duration, available int) []Action {
		return b.Step(now, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{
			Models: []ModelLoad{{Model: "m", Replicas: 1, Available: available}},
		}})
	}
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	full := func(now time.Duration) {
		b.Step(now, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(3)}})
		peer(now, 0)
	}
	full(0)
	b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: "a", Model: "m"}})
	full(6 * time.Second)
	actions := peer(6*time.Second, 1)
	if len(actions) != 1 || actions[0].Kind != ActionForward || actions[0].MaxWait != 4*time.Second {
		t.Fatalf("after 6 of 10 s: %+v", actions)
	}
	full(10 * time.Second)
	actions = b.Step(10*time.Second, Event{Kind: EventFailed, ID: "a", Outcome: &Outcome{Retryable: true, Cause: "503"}})
	if len(actions) != 1 || actions[0].Kind != ActionReject || actions[0].Reason != RejectWaitExceeded {
		t.Errorf("when its time is over: %+v", actions)
	}
}

// A replica without measurements is assumed to be as fast as the fastest known one, here or at a
// peer. Otherwise, a region with hardware faster than the nominal one would never be tried after
// another region.
func TestUnmeasuredRegionIsTried(t *testing.T) {
	p, err := policy.New("cost")
	if err != nil {
		t.Fatal(err)
	}
	b := start(DefaultConfig(p), 2)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "us"}})
	b.Step(0, Event{Kind: EventPeerReport, Target: "us", PeerReport: &PeerReport{
		RTT: 100 * time.Millisecond, Models: []ModelLoad{{Model: "m", Replicas: 2, Available: 2, Pace: 0.1}},
	}})
	if loads := b.ModelLoads(0); len(loads) != 1 || loads[0].Pace != 0 {
		t.Errorf("tells its peers the pace of replicas that it has not tried: %+v", loads)
	}
	b.Step(1, Event{Kind: EventTick})
	key := make(prefix.Key, 64) // 4 KB that no replica has cached
	for i := range key {
		key[i] = uint64(i) + 1
	}
	if at := ask(t, b, 2, Request{ID: "a", Prompt: key, MaxTokens: 200}); at != "r0" && at != "r1" {
		t.Errorf("sent to %s", at)
	}
}

// A first token is counted once, at the balancer of its client, for its tier and target.
func TestFirstTokensAreCountedPerModel(t *testing.T) {
	leastLoad, err := policy.New("least-load")
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(leastLoad)
	cfg.ModelDeadlines = map[string]TierDeadlines{"strict": {Fast: 100 * time.Millisecond}}
	b := New(cfg)
	for _, model := range []string{"m", "strict"} {
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r-" + model, Model: model}})
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r-" + model, Report: &ProbeReport{Ready: true}})
	}
	for _, q := range []struct {
		request Request
		after   time.Duration
	}{
		{Request{ID: "soon", Model: "m", Tier: service.TierFast}, 900 * time.Millisecond},
		{Request{ID: "late", Model: "m", Tier: service.TierFast}, 1100 * time.Millisecond},
		{Request{ID: "other", Model: "strict", Tier: service.TierFast}, 200 * time.Millisecond},
		{Request{ID: "normal", Model: "m", Tier: service.TierNormal}, time.Hour},
		{Request{ID: "batch", Model: "m", Tier: service.TierDeferred}, time.Hour},
		{Request{ID: "forwarded", Model: "m", Tier: service.TierFast, From: "eu", Hop: HopRemote}, time.Hour},
	} {
		b.Step(0, Event{Kind: EventArrived, Request: &q.request})
		b.Step(q.after, Event{Kind: EventFirstToken, ID: q.request.ID})
		b.Step(2*q.after, Event{Kind: EventFirstToken, ID: q.request.ID})
		b.Step(2*q.after, Event{Kind: EventFinished, ID: q.request.ID, Outcome: &Outcome{}})
	}
	want := []ModelView{{Model: "m", FirstTokens: 2, Late: 1}, {Model: "strict", FirstTokens: 1, Late: 1}}
	if got := b.Snapshot(0).Models; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
