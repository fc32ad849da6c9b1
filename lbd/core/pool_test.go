package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/lbd/policy"
)

// rankedConfig returns the configuration of a balancer that decides for pools.
func rankedConfig() Config {
	cfg := DefaultConfig(policy.NewBFIO(policy.DefaultBFIO()))
	cfg.Push = PushMode{Kind: PushBlind}
	return cfg
}

// addRanks attaches engines with a number of ranks each; each rank runs limit requests.
func addRanks(step func(Event), engines, ranks, limit int) {
	for e := range engines {
		for r := range ranks {
			id := fmt.Sprintf("e%d/%d", e, r)
			step(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m", Engine: fmt.Sprintf("e%d", e), MaxOutstanding: limit}})
			step(idle(id))
		}
	}
}

// sentBy lists the dispatches of a step, as id>target.
func sentBy(actions []Action) []string {
	var sent []string
	for _, a := range actions {
		if a.Kind == ActionDispatch {
			sent = append(sent, a.ID+">"+a.Target)
		}
	}
	return sent
}

func prompt(id string, tokens int) Event {
	return Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", PromptTokens: tokens}}
}

// Slots that become free at the end of one step are filled together, so that both ranks are
// balanced: the long prompt is sent to the rank with fewer tokens.
func TestBatchFillsFreedSlotsTogether(t *testing.T) {
	b := New(rankedConfig())
	addRanks(func(ev Event) { b.Step(0, ev) }, 1, 2, 2)
	for i, tokens := range []int{500, 500, 100, 300} { // each to the rank with fewer
		if sent := sentBy(b.Step(time.Duration(i)*50*time.Millisecond, prompt(fmt.Sprintf("a%d", i), tokens))); len(sent) != 1 {
			t.Fatalf("request %d: sent %v", i, sent)
		}
	}
	now := 200 * time.Millisecond
	for i, tokens := range []int{400, 20, 30} {
		if sent := sentBy(b.Step(now, prompt(fmt.Sprintf("b%d", i), tokens))); len(sent) > 0 {
			t.Fatalf("without room: sent %v", sent)
		}
	}
	at := map[string]string{}
	for _, r := range b.requests {
		if r.target != nil {
			at[r.ID] = r.target.id
		}
	}
	light := at["a2"] // with 500 tokens; the other rank keeps 500 and loses 300
	if at["a3"] == light || at["a0"] == at["a1"] {
		t.Fatalf("uneven at the start: %v", at)
	}
	now += 100 * time.Millisecond
	first := sentBy(b.Step(now, Event{Kind: EventFinished, ID: "a2", Outcome: &Outcome{}}))
	if len(first) != 1 {
		t.Fatalf("a pool that was not decided on for long: sent %v", first)
	}
	second := sentBy(b.Step(now+time.Millisecond, Event{Kind: EventFinished, ID: "a3", Outcome: &Outcome{}}))
	if len(second) != 0 {
		t.Errorf("a millisecond after the last decision: sent %v", second)
	}
	if sent := sentBy(b.Step(now+b.cfg.PoolInterval, Event{Kind: EventTick})); len(sent) != 1 {
		t.Errorf("after the interval: sent %v", sent)
	}
}

// The pool's view of running requests: a rank's tokens are split among the requests that have a
// first token.
func TestProgressIsSplitAmongStreams(t *testing.T) {
	b := New(rankedConfig())
	addRanks(func(ev Event) { b.Step(0, ev) }, 1, 1, 8)
	step := func(ev Event) { b.Step(0, ev) }
	for _, id := range []string{"x", "y", "z"} {
		ev := prompt(id, 100)
		ev.Request.MaxTokens = 50
		step(ev)
	}
	step(Event{Kind: EventFirstToken, ID: "x"})
	step(Event{Kind: EventProgress, Target: "e0/0", Tokens: 10})
	step(Event{Kind: EventFirstToken, ID: "y"})
	step(Event{Kind: EventProgress, Target: "e0/0", Tokens: 8})
	rank := findTarget(b.replicas, "e0/0")
	got := map[string]int{}
	for _, id := range []string{"x", "y", "z"} {
		got[id] = rank.generatedFor(b.requests[id])
	}
	if got["x"] != 15 || got["y"] != 5 || got["z"] != 0 {
		t.Errorf("streamed %v, want 15, 5 and 0", got)
	}
	running := rank.appendOutstanding(nil)
	slices.SortFunc(running, func(a, b policy.OutstandingRequest) int { return a.Tokens - b.Tokens })
	want := []policy.OutstandingRequest{{Tokens: 100, Remaining: 50}, {Tokens: 105, Remaining: 45}, {Tokens: 115, Remaining: 35}}
	if !slices.Equal(running, want) {
		t.Errorf("running %v, want %v", running, want)
	}
	step(Event{Kind: EventCancelled, ID: "x"})
	step(Event{Kind: EventProgress, Target: "e0/0", Tokens: 6})
	if n := rank.generatedFor(b.requests["y"]); n != 11 {
		t.Errorf("alone it had %d, want 11", n)
	}
}

// An unreachable engine is excluded with all its ranks.
func TestDeadEngineCostsOneAttemptForAllRanks(t *testing.T) {
	for _, name := range []string{"bf-io", "least-load"} {
		cfg := rankedConfig()
		cfg.Policy, _ = policy.New(name)
		b := New(cfg)
		addRanks(func(ev Event) { b.Step(0, ev) }, 2, 4, 40)
		dead := ask(t, b, 0, Request{ID: "q", PromptTokens: 10})[:2]
		sent := sentBy(b.Step(1, Event{Kind: EventFailed, ID: "q", Outcome: &Outcome{Retryable: true, Unreachable: true}}))
		if len(sent) != 1 || sent[0][2:4] == dead {
			t.Fatalf("%s: %s is dead, the retry went to %v", name, dead, sent)
		}
		for i := range 20 {
			if at := ask(t, b, 2, Request{ID: fmt.Sprint("p", i), PromptTokens: 10}); at[:2] == dead {
				t.Errorf("%s: %s is dead and got p%d", name, dead, i)
			}
		}
		b.Step(3, idle(dead+"/1"))
		got := map[string]bool{}
		for i := range 20 {
			got[ask(t, b, 3, Request{ID: fmt.Sprint("r", i), PromptTokens: 10})] = true
		}
		if !got[dead+"/1"] || got[dead+"/0"] {
			t.Errorf("%s: one rank is back, used were %v", name, got)
		}
	}
}

// A prompt that fits badly is passed over only for a limited time, regardless of the number of
// better ones that arrive.
func TestLongPromptIsNotStarvedByBatches(t *testing.T) {
	b := New(rankedConfig())
	addRanks(func(ev Event) { b.Step(0, ev) }, 1, 2, 1)
	ids := []string{"s0", "s1"}
	for _, id := range ids {
		ask(t, b, 0, Request{ID: id, PromptTokens: 50})
	}
	b.Step(0, prompt("long", 5000))
	next, now := 2, time.Duration(0)
	for now < 10*time.Second {
		now += 50 * time.Millisecond
		for range 2 {
			b.Step(now, prompt(fmt.Sprintf("s%d", next), 50))
			next++
		}
		for _, id := range running(b) {
			if id == "long" {
				if now > 4*time.Second {
					t.Errorf("the long prompt waited %v", now)
				}
				return
			}
			b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
		}
		for _, n := range b.Snapshot(now).Replicas {
			b.Step(now, idle(n.ID))
		}
	}
	t.Error("the long prompt never went")
}

// running lists the requests that are outstanding.
func running(b *Balancer) []string {
	var ids []string
	for id, r := range b.requests {
		if r.target != nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// For random events at engines of several ranks: no rank receives more requests than it runs, no
// request is lost, and once a decision is due no slot stays free while a request waits.
func TestPoolsRespectLimitsAndLoseNoRequest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := rankedConfig()
		cfg.QueueLimit, cfg.MaxWait, cfg.PoolLimit = 30, 5*time.Second, rapid.SampledFrom([]int{3, 30}).Draw(rt, "pool limit")
		cfg.PoolInterval = time.Duration(rapid.IntRange(0, 200).Draw(rt, "interval ms")) * time.Millisecond
		const limit = 2
		w := newWorld(cfg)
		addRanks(func(ev Event) { w.step(rt, ev) }, 2, 2, limit)
		names := []string{"e0/0", "e0/1", "e1/0", "e1/1"}
		for range rapid.IntRange(1, 80).Draw(rt, "events") {
			id := rapid.SampledFrom(append(running(w.b), "nobody")).Draw(rt, "id")
			rank := rapid.SampledFrom(names).Draw(rt, "rank")
			switch rapid.IntRange(0, 9).Draw(rt, "kind") {
			case 0, 1, 2, 3:
				w.next++
				ev := prompt(fmt.Sprintf("q%d", w.next), rapid.IntRange(0, 500).Draw(rt, "prompt"))
				ev.Request.MaxTokens = rapid.SampledFrom([]int{0, 3, 100}).Draw(rt, "bound")
				w.step(rt, ev)
			case 4:
				w.step(rt, Event{Kind: EventFirstToken, ID: id})
			case 5:
				w.step(rt, Event{Kind: EventProgress, Target: rank, Tokens: rapid.IntRange(0, 40).Draw(rt, "tokens")})
			case 6:
				w.step(rt, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{}})
			case 7:
				w.step(rt, Event{Kind: EventFailed, ID: id, Outcome: &Outcome{Retryable: true, Unreachable: rapid.Bool().Draw(rt, "unreachable")}})
			case 8:
				w.step(rt, Event{Kind: EventCancelled, ID: id})
			case 9:
				w.step(rt, idle(rank))
			}
			w.checkCounts(rt)
			checkRanks(rt, w.b, limit)
		}
		for _, name := range names {
			w.step(rt, idle(name))
		}
		w.now += cfg.PoolInterval
		w.step(rt, Event{Kind: EventTick})
		if room, _ := w.b.anyAvailable(w.now, w.b.queue("m")); !room || cfg.PoolLimit < cfg.QueueLimit {
			return // the first requests may all have targets to avoid
		}
		for _, r := range w.b.waitingRequests(w.b.queue("m")) {
			if len(r.avoid) == 0 {
				rt.Fatalf("%s waits while there is room: %+v", r.ID, w.b.Snapshot(w.now).Replicas)
			}
		}
	})
}

func checkRanks(t fatal, b *Balancer, limit int) {
	for _, x := range b.replicas {
		talking := 0
		for i, r := range x.requests {
			if r.rankIndex != i || r.target != x {
				t.Fatalf("%s: %s stands at %d, not %d", x.id, r.ID, r.rankIndex, i)
			}
			if r.streaming {
				talking++
			}
		}
		if x.outstanding > limit || len(x.requests) != x.outstanding || talking != x.streaming {
			t.Fatalf("%s: %d outstanding of %d, %d there, %d of %d talk", x.id, x.outstanding, limit, len(x.requests), talking, x.streaming)
		}
	}
}
