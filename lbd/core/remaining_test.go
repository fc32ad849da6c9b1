package core

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/lbd/policy"
)

// checkWork compares the remaining work at every target with a plain sum over its requests.
func (w *world) checkWork(t fatal) {
	for _, ts := range [][]*target{w.b.replicas, w.b.peers} {
		for _, x := range ts {
			var plain work
			for _, r := range w.b.requests { // sums do not depend on the order
				if r.target != x {
					continue
				}
				plain.answerTokens += r.expectedAnswer
				plain.promptTokens += r.expectedPrompt
				if !r.prefilled {
					plain.pendingPromptTokens += r.expectedPrompt
					plain.prefillTokens += r.uncached
				}
			}
			plain.generatedTokens = x.work.generatedTokens
			if x.work != plain || x.work.generatedTokens < 0 {
				t.Fatalf("%s: %+v to do, summed %+v", x.id, x.work, plain)
			}
			left := x.work.remaining()
			if left < 0 || left > plain.pendingPromptTokens+plain.answerTokens || (x.outstanding == 0 && x.work != (work{})) {
				t.Fatalf("%s: %d tokens left of %+v with %d outstanding", x.id, left, x.work, x.outstanding)
			}
		}
	}
}

func TestRemainingTokensEndAtZero(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(drawConfig(rt))
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			w.step(rt, w.draw(rt))
			w.checkWork(rt)
		}
	})
}

// remainingAt returns the remaining tokens of a replica in the next request's decision.
func remainingAt(b *Balancer, id string) int { return findTarget(b.replicas, id).work.remaining() }

func TestRemainingTokensFollowRequestLife(t *testing.T) {
	b := New(DefaultConfig(policy.NewSageServe()))
	step := func(ev Event) { b.Step(time.Millisecond, ev) }
	want := func(when string, tokens int) {
		t.Helper()
		if got := remainingAt(b, "r"); got != tokens {
			t.Errorf("%s: %d tokens remain, want %d", when, got, tokens)
		}
	}
	step(Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	step(Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true}})
	want("idle", 0)
	step(Event{Kind: EventArrived, Request: &Request{ID: "a", Model: "m", PromptTokens: 100, MaxTokens: 50}})
	want("a bounded request was sent", 150)
	step(Event{Kind: EventArrived, Request: &Request{ID: "b", Model: "m", Prompt: letters("ab")}})
	want("one of 128 bytes without a bound was sent", 150+32+defaultAnswerTokens)
	step(Event{Kind: EventFirstToken, ID: "a"})
	step(Event{Kind: EventFirstToken, ID: "a"}) // reported twice, counted once
	want("the first one's prompt is done", 50+32+defaultAnswerTokens)
	step(Event{Kind: EventProgress, Target: "r", Tokens: 20})
	want("20 tokens came", 30+32+defaultAnswerTokens)
	step(Event{Kind: EventFinished, ID: "a", Outcome: &Outcome{OutputTokens: policy.Known(20)}})
	want("the first one ended early", 32+defaultAnswerTokens)
	step(Event{Kind: EventProgress, Target: "r", Tokens: 10 * defaultAnswerTokens})
	want("the second one's answer is longer than expected", 32)
	step(Event{Kind: EventCancelled, ID: "b"})
	want("all ended", 0)
	step(Event{Kind: EventProgress, Target: "r", Tokens: 5})
	step(Event{Kind: EventArrived, Request: &Request{ID: "c", Model: "m", PromptTokens: 1}})
	want("late progress of an ended request counts for nobody", 1+20)
	step(Event{Kind: EventProgress, Target: "r", Tokens: 5})
	step(Event{Kind: EventFinished, ID: "c", Outcome: &Outcome{OutputTokens: policy.Known(1)}})
	step(Event{Kind: EventArrived, Request: &Request{ID: "d", Model: "m", PromptTokens: 1}})
	want("tokens that no ended request claimed are not the next one's", 1+19)
}

func TestRetryCountsWholePrompt(t *testing.T) {
	b := New(DefaultConfig(policy.NewSageServe()))
	ready := func(id string) {
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		b.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &ProbeReport{Ready: true}})
	}
	ready("r1")
	for _, id := range []string{"q1", "q2"} {
		b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", PromptTokens: 100, MaxTokens: 10}})
	}
	ready("r2")
	b.Step(0, Event{Kind: EventFailed, ID: "q1", Outcome: &Outcome{Retryable: true}})
	for _, id := range []string{"r1", "r2"} {
		if got := remainingAt(b, id); got != 110 {
			t.Errorf("%s: %d tokens remain, want 110", id, got)
		}
	}
	b.Step(0, Event{Kind: EventFirstToken, ID: "q1"})
	if got := remainingAt(b, "r2"); got != 10 {
		t.Errorf("after the first token: %d tokens remain, want 10", got)
	}
}

func TestExpectedAnswerIsRunningMean(t *testing.T) {
	var a answerLengths
	if a.expected() != defaultAnswerTokens {
		t.Errorf("before any answer: %d", a.expected())
	}
	mean := 0.0
	for i, n := range []int{100, 300, 0, 700, 120} {
		a.addLength(n)
		if i == 0 {
			mean = float64(n)
		} else {
			mean = 0.95*mean + 0.05*float64(n)
		}
		if got := a.expected(); got != int(math.Round(mean)) {
			t.Errorf("after %d answers: %d, want %.1f", i+1, got, mean)
		}
	}
}

func TestHugeBoundsDoNotOverflow(t *testing.T) {
	b := New(DefaultConfig(policy.NewSageServe()))
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r", Model: "m"}})
	b.Step(0, Event{Kind: EventReplicaReport, Target: "r", Report: &ProbeReport{Ready: true}})
	for _, id := range []string{"a", "b", "c"} {
		b.Step(0, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", PromptTokens: math.MaxInt, MaxTokens: math.MaxInt}})
	}
	if got := remainingAt(b, "r"); got != 6*maxTokens {
		t.Errorf("%d tokens remain, want %d", got, 6*maxTokens)
	}
}

func TestLoadReportsMeanOfKnownKV(t *testing.T) {
	b := New(DefaultConfig(policy.NewSageServe()))
	for id, rep := range map[string]*ProbeReport{
		"r1": {Ready: true, KV: policy.Known(0.5)}, "r2": {Ready: true, KV: policy.Known(0.7)},
		"r3": {Ready: true}, "r4": {Ready: false, KV: policy.Known(1.0)}, "r5": {Ready: true, KV: policy.Known(0.9)},
	} {
		b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		b.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: rep})
	}
	b.Step(0, Event{Kind: EventReplicaDraining, Target: "r5"})
	b.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "s", Model: "n"}})
	loads := b.ModelLoads(0)
	if len(loads) != 2 || !loads[0].KV.Known || math.Abs(loads[0].KV.Value-0.6) > 1e-9 || loads[1].KV.Known {
		t.Errorf("got %+v, want 0.6 for m and nothing known for n", loads)
	}
}
