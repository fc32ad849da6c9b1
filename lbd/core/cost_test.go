package core

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// serveOneByOne runs requests one after the other at the replicas to which they are sent, with a
// token per step of the replica.
func serveOneByOne(t *testing.T, b *Balancer, now time.Duration, n int, step map[string]time.Duration, cached int) time.Duration {
	t.Helper()
	const tokens = 50
	report := func() {
		for r := range len(b.replicas) {
			b.Step(now, idle(fmt.Sprintf("r%d", r)))
		}
	}
	report()
	for i := range n {
		id := fmt.Sprintf("warm-%v-%d", now, i)
		target := ask(t, b, now, Request{ID: id, PromptTokens: 100})
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
		now += (tokens - 1) * step[target]
		b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{
			OutputTokens: policy.Known(tokens), CachedTokens: policy.Known(cached),
		}})
		report()
		b.Step(now, Event{Kind: EventTick})
	}
	return now
}

// One replica is ten times as fast as the two others. The balancer estimates this from answers: the
// replica receives nearly all requests that the fleet can run at once.
func TestCostLearnsFastReplicas(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 3)
	steps := map[string]time.Duration{"r0": 60 * time.Millisecond, "r1": 6 * time.Millisecond, "r2": 66 * time.Millisecond}
	now := serveOneByOne(t, b, time.Second, 40, steps, 0)
	got := map[string]int{}
	for i := range 30 {
		id := fmt.Sprintf("q%d", i)
		got[ask(t, b, now, Request{ID: id, PromptTokens: 100})]++
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
	}
	if got["r1"] != 30 {
		t.Errorf("requests by replica: %v", got)
	}
	v := map[string]float64{}
	for _, r := range b.replicas {
		v[r.id] = r.pace.Value()
	}
	if v["r0"] != v["r2"] || v["r1"] > 0.2*v["r0"] {
		t.Errorf("paces %v: r0 and r2 are alike, r1 is ten times as fast", v)
	}
}

// Replicas of the same hardware have random differences in speed. The estimates must not outweigh
// their caches.
func TestRandomVariationDoesNotChangePace(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 3)
	steps := map[string]time.Duration{"r0": 60 * time.Millisecond, "r1": 54 * time.Millisecond, "r2": 66 * time.Millisecond}
	now := serveOneByOne(t, b, time.Second, 40, steps, 0)
	got := map[string]int{}
	for i := range 30 {
		id := fmt.Sprintf("q%d", i)
		got[ask(t, b, now, Request{ID: id, PromptTokens: 100})]++
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
	}
	for r, n := range got {
		if n != 10 {
			t.Errorf("%s got %d of 30", r, n)
		}
	}
}

// Two replicas of the same speed. One of them computes other prompts while it streams, so its tokens
// arrive more slowly, and prompts of the same step arrive together. Both have the same pace.
func TestPromptsComputedMeanwhileDoNotChangePace(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 2)
	const tokens, prompt = 20, 3000
	now := time.Second
	send := func(r, i int) string {
		id := fmt.Sprintf("%d-%d", r, i)
		b.Step(now, idle("r0"))
		b.Step(now, idle("r1"))
		b.Step(now, Event{Kind: EventReplicaDraining, Target: fmt.Sprintf("r%d", 1-r)})
		target := ask(t, b, now, Request{ID: id, PromptTokens: prompt})
		b.Step(now, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: fmt.Sprintf("r%d", 1-r), Model: "m"}})
		if target != fmt.Sprintf("r%d", r) {
			t.Fatalf("%s is at %s", id, target)
		}
		return id
	}
	first := func(ids ...string) {
		now += time.Duration(len(ids)) * policy.NominalPrefill(prompt)
		for _, id := range ids {
			b.Step(now, Event{Kind: EventFirstToken, ID: id})
		}
	}
	finish := func(id string) {
		b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(tokens)}})
	}
	step := policy.NominalStep(1, prompt+tokens/2)
	for i := range 40 {
		alone := send(0, i)
		first(alone)
		now += (tokens - 1) * step
		finish(alone)

		slowed, same, other := send(1, 3*i), send(1, 3*i+1), send(1, 3*i+2)
		first(slowed, same)
		now += (tokens - 1) / 2 * step
		first(other)
		now += tokens / 2 * step
		finish(slowed)
		finish(same)
		now += tokens / 2 * step
		finish(other)
		b.Step(now, Event{Kind: EventTick})
	}
	alone, shared := b.replicas[0].pace.Value(), b.replicas[1].pace.Value()
	if alone != shared || alone < 0.9 || alone > 1.1 {
		t.Errorf("paces %.2f and %.2f, want 1", alone, shared)
	}
}

// spy records the facts about peers, and the maximum wait, that a policy receives.
type spy struct {
	policy.Policy
	peers   []policy.Candidate
	maxWait time.Duration
}

func (s *spy) Choose(f *policy.Facts) policy.Choice {
	s.peers, s.maxWait = s.peers[:0], f.MaxWait
	for _, c := range f.Candidates {
		if c.Peer {
			s.peers = append(s.peers, c)
		}
	}
	return s.Policy.Choose(f)
}

// A balancer reports the prompts that its least loaded replica still has to compute. Its peers add what
// they sent since. Requests that the peer's replicas can start do not have to wait.
func TestPromptsAtPeersCount(t *testing.T) {
	there := start(DefaultConfig(policy.NewCost()), 2)
	for i, tokens := range []int{3000, 2000, 1000} {
		ask(t, there, 0, Request{ID: fmt.Sprint(i), PromptTokens: tokens})
	}
	loads := there.ModelLoads(0)
	if len(loads) != 1 || loads[0].MinPrefillTokens != 3000 {
		t.Fatalf("reports %+v, want 3,000 of 6,000 tokens at each of two replicas", loads)
	}
	loads[0].Residence = 6 * time.Second
	seen := &spy{Policy: policy.NewCost()}
	here := start(DefaultConfig(seen), 0)
	here.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	here.Step(0, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Models: loads}})
	for i, want := range []struct {
		prefilling int
		wait       time.Duration
	}{{3000, 0}, {4000, 0}, {5000, 0}, {6000, 2 * time.Second}} {
		here.Step(0, Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(i), Model: "m", PromptTokens: 2000}})
		if c := seen.peers[0]; c.PrefillTokens != want.prefilling || c.ExpectedWait != want.wait {
			t.Errorf("after %d requests: %d tokens and a wait of %v, want %d and %v", i, c.PrefillTokens, c.ExpectedWait, want.prefilling, want.wait)
		}
	}
}

// A policy sees how long a request may wait: what its sender has left, and for a deferred one as long as for
// an interactive one, so that it is not held for a replica until its deadline.
func TestPolicySeesTheMaximumWait(t *testing.T) {
	seen := &spy{Policy: policy.NewCost()}
	cfg := DefaultConfig(seen)
	cfg.MaxWait = 40 * time.Second
	b := start(cfg, 1)
	for i, c := range []struct {
		request Request
		want    time.Duration
	}{
		{Request{}, 40 * time.Second},
		{Request{MaxWait: 10 * time.Second}, 10 * time.Second},
		{Request{MaxWait: time.Hour}, 40 * time.Second},
		{Request{Tier: service.TierDeferred, From: "eu", Hop: HopRemote}, 40 * time.Second},
	} {
		c.request.ID = fmt.Sprint(i)
		ask(t, b, 0, c.request)
		if seen.maxWait != c.want {
			t.Errorf("%+v: %v, want %v", c.request, seen.maxWait, c.want)
		}
	}
}

// The share of computed tokens that were evicted before follows from what engines report about the
// prompts that they should have cached.
func TestEvictedPromptsAreMeasured(t *testing.T) {
	for _, c := range []struct {
		name   string
		cached []int // tokens of 100, of the same prompt again and again
		want   float64
	}{
		{"nothing served", nil, 0},
		{"a new prompt", []int{0}, 0},
		{"found again", []int{0, 100, 100}, 0},
		{"more than expected", []int{100}, 0},
		{"always evicted", []int{0, 0, 0, 0}, 0.0297},
	} {
		b := start(DefaultConfig(policy.NewCost()), 1)
		for i, cached := range c.cached {
			id := fmt.Sprint(i)
			b.Step(0, idle("r0"))
			ask(t, b, 0, Request{ID: id, Prompt: letters("abcd"), PromptTokens: 100})
			b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{CachedTokens: policy.Known(cached)}})
		}
		if got := b.queue("m").evictions.evictedShare(); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("%s: %.4f, want %.4f", c.name, got, c.want)
		}
	}
}

// How much of a prefix engines keep, if another one was the last to receive it, follows from what they report.
func TestSupersededMatchesAreMeasured(t *testing.T) {
	measure := func(cached, requests int) policy.Maybe[float64] {
		b := start(DefaultConfig(matchBlind{&policy.LeastLoad{}}), 2)
		for i := range requests {
			b.Step(0, idle("r0"))
			b.Step(0, idle("r1"))
			id := fmt.Sprint(i)
			ask(t, b, 0, Request{ID: id, Prompt: letters("abcd"), PromptTokens: 100})
			found := 100
			if i >= 2 { // both replicas have received it, in turn
				found = cached
			}
			b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{CachedTokens: policy.Known(found)}})
		}
		return b.queue("m").evictions.superseded
	}
	if got := measure(0, 2); got.Known {
		t.Errorf("%v is known before a request with such a match has ended", got)
	}
	for _, c := range []struct {
		cached   int // of 100 tokens
		low, top float64
	}{{0, 0, 0.02}, {50, 0.48, 0.52}, {100, 0.98, 1}} {
		if got := measure(c.cached, 100); !got.Known || got.Value < c.low || got.Value > c.top {
			t.Errorf("%d of 100 tokens found: share %+v", c.cached, got)
		}
	}
	// A single response says little.
	once, assumed := measure(100, 3), policy.DefaultCostConstants().SupersededMatchWeight
	if !once.Known || once.Value <= assumed || once.Value > assumed+0.1 {
		t.Errorf("after one response: %+v, assumed %v", once, assumed)
	}
}

// matchBlind is a policy that sends requests in turn but receives their matches.
type matchBlind struct{ policy.Policy }

func (matchBlind) Traits() policy.Traits { return policy.Traits{Prefix: true} }

// Two branches of a tree of thoughts arrive together and both compute the text that they share. Nothing was
// evicted.
func TestPromptsComputedTogetherAreNotEvicted(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	for _, id := range []string{"a", "b"} {
		ask(t, b, 0, Request{ID: id, Prompt: letters("abcd"), PromptTokens: 100})
	}
	for _, id := range []string{"a", "b"} {
		b.Step(0, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{CachedTokens: policy.Known(0)}})
	}
	if got := b.queue("m").evictions.evictedShare(); got != 0 {
		t.Errorf("%.4f of the computed tokens count as evicted", got)
	}
}

// Complaint: the only replicas are on the other side of the world, and requests are rejected after
// max_wait: a report is older on arrival than reports may be. What counts is that reports keep arriving.
func TestDistantPeerIsUsed(t *testing.T) {
	cfg := DefaultConfig(policy.NewCost())
	cfg.ProbeInterval = 50 * time.Millisecond
	b := start(cfg, 0)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	report := Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Age: 600 * time.Millisecond, RTT: 1200 * time.Millisecond, Models: []ModelLoad{{Model: "m", Replicas: 1, Available: 1}}}}
	b.Step(time.Second, report)
	forwarded := func(now time.Duration, id string) bool {
		for _, a := range b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", PromptTokens: 100}}) {
			if a.Kind == ActionForward && a.ID == id {
				return true
			}
		}
		return false
	}
	if !forwarded(1040*time.Millisecond, "a") {
		t.Error("not forwarded to the peer that reported 40 ms ago")
	}
	if forwarded(1150*time.Millisecond, "b") {
		t.Error("forwarded to a peer that missed three reports")
	}
}

// An answer in one piece, and a clock jump, are not measurements of a replica's speed.
func TestUnstreamedAnswerDoesNotChangePace(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	now := time.Second
	for i := range 20 {
		id := fmt.Sprint(i)
		b.Step(now, idle("r0"))
		ask(t, b, now, Request{ID: id, PromptTokens: 100})
		now += 10 * time.Second
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
		b.Step(now+time.Millisecond, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(100)}})
		b.Step(now, idle("r0"))
	}
	b.Step(now, Event{Kind: EventTick})
	if got := b.replicas[0].pace.Value(); got != 1 || b.Snapshot(now).Replicas[0].Pace != 0 {
		t.Errorf("pace %v, displayed %v", got, b.Snapshot(now).Replicas[0].Pace)
	}
}

// order returns the sequence in which waiting requests are sent once there is capacity.
func order(b *Balancer, now time.Duration) (ids []string) {
	for range 20 {
		now += 100 * time.Millisecond
		for _, a := range slices.Clone(b.Step(now, idle("r0"))) {
			if a.Kind == ActionDispatch {
				ids = append(ids, a.ID)
				b.Step(now, Event{Kind: EventFinished, ID: a.ID, Outcome: &Outcome{}})
			}
		}
	}
	return ids
}

// A started conversation is finished before new ones begin, without any session id: its start is
// known from its prefix. If engines have nothing cached, or do not report what they have, the order is first come, first
// served.
func TestCachedConversationsGoFirst(t *testing.T) {
	for _, c := range []struct {
		cached policy.Maybe[int]
		want   string
	}{{policy.Known(100), "turn new"}, {policy.Known(0), "new turn"}, {policy.Maybe[int]{}, "new turn"}} {
		b := start(DefaultConfig(policy.NewCost()), 1)
		b.Step(time.Second, idle("r0"))
		b.Step(time.Second, idle("r0"))
		ask(t, b, time.Second, Request{ID: "opening", Prompt: letters("ab"), PromptTokens: 100})
		b.Step(2*time.Second, Event{Kind: EventFinished, ID: "opening", Outcome: &Outcome{Key: letters("abANSWER"), CachedTokens: c.cached}})
		busy := idle("r0")
		busy.Report.Pending = policy.Known(3)
		b.Step(3*time.Second, busy)
		b.Step(3*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "new", Model: "m", Prompt: letters("xyz"), PromptTokens: 100}})
		b.Step(4*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", Prompt: letters("abANSWERcd"), PromptTokens: 100}})
		if got := fmt.Sprint(order(b, 5*time.Second)); got != "["+c.want+"]" {
			t.Errorf("%+v of 100 tokens cached: %s, want %s", c.cached, got, c.want)
		}
	}
}

// A forwarded request keeps its session's age at the receiving balancer.
func TestForwardIncludesSessionAge(t *testing.T) {
	b := start(DefaultConfig(policy.NewCost()), 1)
	b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
	heartbeat := Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{RTT: time.Millisecond, Models: []ModelLoad{{Model: "m", Replicas: 8, Available: 8}}}}
	b.Step(time.Second, idle("r0"))
	ask(t, b, time.Second, Request{ID: "opening", Prompt: letters("ab"), PromptTokens: 100})
	b.Step(3*time.Second, Event{Kind: EventFinished, ID: "opening", Outcome: &Outcome{Key: letters("abANSWER")}})
	full := idle("r0")
	full.Report.Pending = policy.Known(500)
	b.Step(10*time.Second, full)
	b.Step(10*time.Second, heartbeat)
	actions := b.Step(10*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", Prompt: letters("abANSWERcd"), PromptTokens: 100}})
	if len(actions) != 1 || actions[0].Kind != ActionForward || actions[0].SessionAge != 9*time.Second {
		t.Fatalf("got %+v", actions)
	}
	// There it precedes requests that arrived earlier but whose session began later.
	there := start(DefaultConfig(policy.NewCost()), 1)
	there.Step(15*time.Second, idle("r0"))
	ask(t, there, 15*time.Second, Request{ID: "cached", PromptTokens: 100})
	there.Step(16*time.Second, Event{Kind: EventFinished, ID: "cached", Outcome: &Outcome{CachedTokens: policy.Known(100)}})
	there.Step(20*time.Second, full)
	there.Step(20*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "local", Model: "m", PromptTokens: 100}})
	there.Step(20100*time.Millisecond, Event{Kind: EventArrived, Request: &Request{ID: "turn", Model: "m", PromptTokens: 100, From: "us", Hop: HopRemote, SessionAge: 9 * time.Second}})
	if got := fmt.Sprint(order(there, 20100*time.Millisecond)); got != "[turn local]" {
		t.Errorf("sent in the order %s", got)
	}
}

// A request that a peer has served no longer counts there, if the peer's last report includes it. Otherwise a client that
// sends its next request at once would find the peer as busy as before.
func TestServedForwardFreesPeer(t *testing.T) {
	for _, c := range []struct {
		name    string
		sent    time.Duration // the report of 1 s took 100 ms
		outcome Event
		want    int
		kv      float64
	}{
		{"served", 800 * time.Millisecond, Event{Kind: EventFinished}, 1, 0.3},
		{"sent after the report", 950 * time.Millisecond, Event{Kind: EventFinished}, 2, 0.6},
		{"bounced", 800 * time.Millisecond, Event{Kind: EventBounced}, 2, 0.6},
	} {
		seen := &spy{Policy: policy.NewCost()}
		b := start(DefaultConfig(seen), 0)
		b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
		report := func(now time.Duration, outstanding int) {
			b.Step(now, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Age: 100 * time.Millisecond, RTT: 200 * time.Millisecond, Models: []ModelLoad{
				{Model: "m", Replicas: 2, Available: 2, Outstanding: outstanding, ContextTokens: 500 * outstanding, KV: policy.Known(0.3 * float64(outstanding))},
			}}})
		}
		report(700*time.Millisecond, 1)
		b.Step(c.sent, Event{Kind: EventArrived, Request: &Request{ID: "first", Model: "m", PromptTokens: 100}})
		report(1100*time.Millisecond, 2)
		c.outcome.ID = "first"
		b.Step(1200*time.Millisecond, c.outcome)
		b.Step(1200*time.Millisecond, Event{Kind: EventArrived, Request: &Request{ID: "next", Model: "m", PromptTokens: 100}})
		if got := seen.peers[0]; got.PeerOutstanding != c.want || got.ContextTokens != 500*c.want || math.Abs(got.KV.Value-c.kv) > 1e-9 {
			t.Errorf("%s: the peer has %d requests with %d tokens of context and KV utilisation %g, want %d and %g", c.name, got.PeerOutstanding, got.ContextTokens, got.KV.Value, c.want, c.kv)
		}
	}
}

// The next request of a conversation precedes requests that arrived some seconds earlier, those of a tree also ones that
// arrived much earlier: at a hit rate of one half, 120 s times its sixth power and its square.
func TestSessionsLeadByHitsAndBranches(t *testing.T) {
	for _, c := range []struct {
		name    string
		sibling string // another continuation of the first answer, sent before
		lead    time.Duration
	}{
		{"conversation", "", 1875 * time.Millisecond},
		{"tree", "abANSWERef", 30 * time.Second},
	} {
		for _, later := range []time.Duration{c.lead - time.Millisecond, c.lead + time.Millisecond} {
			b := start(DefaultConfig(policy.NewCost()), 1)
			b.Step(time.Second, idle("r0"))
			half := &Outcome{Key: letters("abANSWER"), CachedTokens: policy.Known(50)}
			ask(t, b, time.Second, Request{ID: "opening", Prompt: letters("ab"), PromptTokens: 100})
			b.Step(2*time.Second, Event{Kind: EventFinished, ID: "opening", Outcome: half})
			if c.sibling != "" {
				b.Step(3*time.Second, idle("r0"))
				ask(t, b, 3*time.Second, Request{ID: "sibling", Prompt: letters(c.sibling), PromptTokens: 100})
				b.Step(4*time.Second, Event{Kind: EventFinished, ID: "sibling", Outcome: &Outcome{CachedTokens: policy.Known(50)}})
			}
			full := idle("r0")
			full.Report.Pending = policy.Known(500)
			b.Step(60*time.Second, full)
			now := 60*time.Second + later
			b.Step(60*time.Second, Event{Kind: EventArrived, Request: &Request{ID: "new", Model: "m", Prompt: letters("xy"), PromptTokens: 100}})
			b.Step(now, Event{Kind: EventArrived, Request: &Request{ID: "next", Model: "m", Prompt: letters("abANSWERcd"), PromptTokens: 100}})
			want := "[next new]"
			if later > c.lead {
				want = "[new next]"
			}
			if got := fmt.Sprint(order(b, now)); got != want {
				t.Errorf("%s, %s after a new session: sent in the order %s, want %s", c.name, later, got, want)
			}
		}
	}
}
