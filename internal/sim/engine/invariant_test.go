package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// op is an operation on an engine.
type op struct {
	at     time.Duration
	submit *Request
	cancel uint64
}

// drawProfile draws profiles that are often short of memory, to cause eviction and preemption.
func drawProfile(t *rapid.T) Profile {
	return small(func(p *Profile) {
		p.KVTokens = rapid.IntRange(20, 150).Draw(t, "kv tokens")
		p.ChunkTokens = rapid.IntRange(1, 40).Draw(t, "chunk tokens")
		p.MaxRunning = rapid.IntRange(1, 6).Draw(t, "max running")
		p.MixedSteps = rapid.Bool().Draw(t, "mixed steps")
		p.ReservePerMille = rapid.SampledFrom([]int{0, 200, 1000}).Draw(t, "reserve")
	})
}

// drawOps draws a sequence of operations. All times differ, and none is exactly the end of a step.
func drawOps(t *rapid.T) []op {
	var ops []op
	at := time.Duration(3)
	for id := range uint64(rapid.IntRange(1, 25).Draw(t, "ops")) {
		at += time.Duration(rapid.IntRange(0, 200).Draw(t, "gap ms"))*time.Millisecond + 10
		if id > 0 && rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
			ops = append(ops, op{at: at, cancel: uint64(rapid.IntRange(0, int(id)-1).Draw(t, "cancel"))})
			continue
		}
		prompt := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 1), func(i int) Token { return Token(i) }), 0, 30).Draw(t, "prompt")
		ops = append(ops, op{at: at, submit: &Request{
			ID: id, Prompt: prompt, Speech: NewSpeech(1, prompt),
			MaxNew:    rapid.IntRange(0, 40).Draw(t, "max new"),
			OutputLen: rapid.IntRange(1, 40).Draw(t, "output"),
			Priority:  rapid.IntRange(0, 1).Draw(t, "priority"),
		}})
	}
	return ops
}

// checkEngine recomputes all counts of an engine.
func checkEngine(t fataler, e *Engine) {
	checkCache(t, e.cache)
	private, decoding, context, promised := 0, 0, 0, 0
	refs := map[*node]int32{}
	for _, r := range e.running {
		private += r.privateTokens
		promised += r.maxNew - e.emitted(r)
		if r.decoding {
			decoding++
			private += e.steps - r.joined
			context += r.promptLen + e.emitted(r)
		}
		for n := r.node; n != &e.cache.root; n = n.parent {
			refs[n]++
		}
	}
	for _, n := range e.cache.kids {
		if n.ref != refs[n] {
			t.Fatalf("%v: a node is locked %d times, used by %d", e, n.ref, refs[n])
		}
	}
	got := [4]int{e.private, e.decoding, e.context, e.maxRemaining}
	if want := [4]int{private, decoding, context, promised}; got != want {
		t.Fatalf("%v: private, decoding, context, promised = %v, recounted %v", e, got, want)
	}
	l := e.Load()
	if l.KVUsed > l.KVCapacity || l.KVActive > l.KVUsed || l.KVActive < 0 {
		t.Fatalf("%v: memory does not add up", e)
	}
	if in := l.Submitted - l.Finished - l.Cancelled - l.Rejected; int64(l.Pending+l.Running) != in || len(e.byID) != int(in) {
		t.Fatalf("%v: submitted %d, finished %d, cancelled %d, rejected %d", e, l.Submitted, l.Finished, l.Cancelled, l.Rejected)
	}
	if l.Running > e.profile.MaxRunning {
		t.Fatalf("%v: more running than %d", e, e.profile.MaxRunning)
	}
}

// ledger checks the consistency of an engine's events.
type ledger struct {
	now    time.Duration
	tokens map[uint64]int
	last   map[uint64]Reason // of the last reported token
	ended  map[uint64]bool
	output int64
}

func newLedger() *ledger {
	return &ledger{tokens: map[uint64]int{}, last: map[uint64]Reason{}, ended: map[uint64]bool{}}
}

func (g *ledger) read(t fataler, events []Event) {
	for _, ev := range events {
		if ev.At < g.now || g.ended[ev.ID] {
			t.Fatalf("event %+v comes after %v or after the end of its request", ev, g.now)
		}
		g.now = ev.At
		switch ev.Kind {
		case TokenEmitted:
			if ev.Index != g.tokens[ev.ID] || ev.OutputTokens != ev.Index+1 || ev.CachedTokens >= ev.PromptTokens {
				t.Fatalf("event %+v, want index %d", ev, g.tokens[ev.ID])
			}
			g.tokens[ev.ID]++
			g.output++
			g.last[ev.ID] = ev.Reason
		case Finished:
			g.ended[ev.ID] = true
			if ev.OutputTokens != g.tokens[ev.ID] || ev.Reason != g.last[ev.ID] {
				t.Fatalf("event %+v after %d tokens", ev, g.tokens[ev.ID])
			}
		case Rejected:
			g.ended[ev.ID] = true
		}
	}
}

// live runs ops on an engine. A watcher with steps advances to every NextAt in between; one without,
// only to the times of the ops.
func live(t fataler, e *Engine, ops []op, stepping bool, read func([]Event)) {
	for _, o := range ops {
		for stepping {
			at, ok := e.NextAt()
			if !ok || at > o.at {
				break
			}
			read(e.Advance(at))
			checkEngine(t, e)
		}
		read(e.Advance(o.at))
		if o.submit != nil {
			e.Submit(o.at, *o.submit)
		} else {
			e.Cancel(o.at, o.cancel)
		}
		checkEngine(t, e)
	}
	for steps := 0; ; steps++ {
		at, ok := e.NextAt()
		if !ok {
			return
		}
		if steps > 10_000 {
			t.Fatalf("%v: does not terminate", e)
		}
		read(e.Advance(at))
		checkEngine(t, e)
	}
}

func TestEngineInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops := drawProfile(t), drawOps(t)
		e, err := New(p, ReportTokens)
		if err != nil {
			t.Fatal(err)
		}
		g := newLedger()
		live(t, e, ops, true, func(evs []Event) { g.read(t, evs) })
		l := e.Load()
		if l.Pending+l.Running != 0 || l.KVActive != 0 {
			t.Fatalf("%v: not empty at the end", e)
		}
		if l.GeneratedTokens != g.output {
			t.Fatalf("%d tokens generated, %d reported", l.GeneratedTokens, g.output)
		}
	})
}

func TestAdvanceIntervalsDoNotAffectEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops := drawProfile(t), drawOps(t)
		var first string
		for i, d := range []ReportDetail{ReportTokens, ReportTokens, ReportChanges, ReportChanges} {
			e, err := New(p, d)
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			live(t, e, ops, i%2 == 0, func(evs []Event) { recordChanges(evs, &log) })
			if i == 0 {
				first = log.String()
			}
			if log.String() != first {
				t.Fatalf("detail %d:\n%s\nthe first:\n%s", i, log.String(), first)
			}
		}
	})
}

// recordChanges logs an engine's events with ReportChanges.
func recordChanges(events []Event, log *strings.Builder) {
	for _, ev := range events {
		if ev.Kind != TokenEmitted || ev.First() {
			fmt.Fprintf(log, "%+v\n", ev)
		}
	}
}

func TestSameOpsSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops := drawProfile(t), drawOps(t)
		var logs [2]strings.Builder
		for i := range logs {
			e, err := New(p, ReportTokens)
			if err != nil {
				t.Fatal(err)
			}
			live(t, e, ops, true, func(evs []Event) {
				for _, ev := range evs {
					fmt.Fprintf(&logs[i], "%+v\n", ev)
				}
			})
		}
		if logs[0].String() != logs[1].String() {
			t.Fatalf("first:\n%s\nsecond:\n%s", logs[0].String(), logs[1].String())
		}
	})
}
