package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newParallel(t fataler, p Profile, ranks int, d ReportDetail) *Parallel {
	x, err := NewParallel(p, ranks, d)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return x
}

// rankFor distributes ops over the ranks unevenly, so that some are idle.
func rankFor(id uint64, ranks int) int { return int(id*id+id/3) % ranks }

// liveParallel runs ops on a data-parallel engine, like live.
func liveParallel(t fataler, p *Parallel, ops []op, stepping bool, read func([]Event)) {
	advance := func(at time.Duration) {
		read(p.Advance(at))
		checkParallel(t, p)
	}
	for _, o := range ops {
		for stepping {
			at, ok := p.NextAt()
			if !ok || at > o.at {
				break
			}
			advance(at)
		}
		advance(o.at)
		if o.submit != nil {
			p.Submit(o.at, rankFor(o.submit.ID, p.Ranks()), *o.submit)
		} else {
			p.Cancel(o.at, o.cancel)
		}
		checkParallel(t, p)
	}
	for steps := 0; ; steps++ {
		at, ok := p.NextAt()
		if !ok {
			return
		}
		if steps > 20_000 {
			t.Fatalf("does not terminate:\n%v", p)
		}
		advance(at)
	}
}

// checkParallel checks the barrier: all ranks are in the same step, with the same end, or between two
// steps.
func checkParallel(t fataler, p *Parallel) {
	owned := 0
	for g, e := range p.ranks {
		checkEngine(t, e)
		owned += len(e.byID)
		took, waited := p.BarrierTime(g)
		if waited < 0 || waited > took {
			t.Fatalf("rank %d waited %v of %v", g, waited, took)
		}
		switch {
		case !p.stepping:
			if e.step.kind != stepNone || e.at != p.at {
				t.Fatalf("rank %d is at %v in a step of kind %d, the others at %v", g, e.at, e.step.kind, p.at)
			}
		case e.step.kind != p.ranks[0].step.kind || e.step.kind == stepNone || e.step.start != p.start || e.step.steps() != len(p.ends) || e.step.done != p.done:
			t.Fatalf("rank %d: step %+v, want %d of %d steps since %v", g, e.step, p.done, len(p.ends), p.start)
		case e.step.end(e.step.steps()) != p.ends[len(p.ends)-1]:
			t.Fatalf("rank %d ends its step by itself", g)
		}
	}
	if owned != len(p.rankOf) {
		t.Fatalf("%d requests are in the ranks, %d are known:\n%v", owned, len(p.rankOf), p)
	}
}

func TestOneRankEqualsEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops := drawProfile(t), drawOps(t)
		for _, d := range []ReportDetail{ReportTokens, ReportChanges} {
			for _, stepping := range []bool{true, false} {
				var want, got strings.Builder
				e, err := New(p, d)
				if err != nil {
					t.Fatal(err)
				}
				live(t, e, ops, stepping, func(evs []Event) { recordAll(evs, &want) })
				x := newParallel(t, p, 1, d)
				liveParallel(t, x, ops, stepping, func(evs []Event) { recordAll(evs, &got) })
				if got.String() != want.String() {
					t.Fatalf("one rank:\n%s\nan engine:\n%s", got.String(), want.String())
				}
				if x.Load(0) != e.Load() {
					t.Fatalf("one rank's load %+v, an engine's %+v", x.Load(0), e.Load())
				}
			}
		}
	})
}

func recordAll(events []Event, log *strings.Builder) {
	for _, ev := range events {
		fmt.Fprintf(log, "%+v\n", ev)
	}
}

func TestParallelInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops, ranks := drawProfile(t), drawOps(t), rapid.IntRange(2, 5).Draw(t, "ranks")
		var first string
		for i, d := range []ReportDetail{ReportTokens, ReportTokens, ReportChanges, ReportChanges} {
			x := newParallel(t, p, ranks, d)
			var log strings.Builder
			g := newLedger()
			liveParallel(t, x, ops, i%2 == 0, func(evs []Event) {
				recordChanges(evs, &log)
				if d == ReportTokens {
					g.read(t, evs)
				}
			})
			generated := int64(0)
			for r := range ranks {
				l := x.Load(r)
				generated += l.GeneratedTokens
				if l.Pending+l.Running != 0 || l.KVActive != 0 {
					t.Fatalf("not empty at the end:\n%v", x)
				}
			}
			if d == ReportTokens && generated != g.output {
				t.Fatalf("%d tokens generated, %d reported", generated, g.output)
			}
			if i == 0 {
				first = log.String()
			}
			if log.String() != first {
				t.Fatalf("detail %d:\n%s\nthe first:\n%s", i, log.String(), first)
			}
		}
	})
}

// A decode step takes as long as the rank with the most context needs; the others wait for it, and an
// idle rank waits all the time.
func TestStepsTakeAsLongAsTheSlowestRank(t *testing.T) {
	p := small(func(p *Profile) { p.KVTokens, p.ChunkTokens = 1000, 1000 })
	x := newParallel(t, p, 3, ReportTokens)
	x.Submit(0, 0, Request{ID: 1, Prompt: numbered(0, 10), OutputLen: 4})
	x.Submit(0, 1, Request{ID: 2, Prompt: numbered(0, 100), OutputLen: 4})
	at := p.prefillTime(100)
	var want []time.Duration
	for k := range 4 {
		want = append(want, at, at)
		at += p.decodeTime(1, 1, 101+k)
	}
	var got []time.Duration
	for end, ok := x.NextAt(); ok; end, ok = x.NextAt() {
		for _, ev := range x.Advance(end) {
			if ev.Kind == TokenEmitted {
				got = append(got, ev.At)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("tokens at %v, want %v", got, want)
	}
	slow := p.prefillTime(100) + p.decodeTime(3, 1, 101)
	light := p.prefillTime(10) + p.decodeTime(3, 1, 11)
	for g, waited := range []time.Duration{slow - light, 0, slow} {
		if took, got := x.BarrierTime(g); took != slow || got != waited {
			t.Errorf("rank %d waited %v of %v, want %v of %v", g, got, took, waited, slow)
		}
	}
}

// A request that arrives during a run of decode steps on other ranks starts at the end of the current
// step, not of the run.
func TestIdleRankJoinsAtNextStep(t *testing.T) {
	p := small(func(p *Profile) { p.KVTokens = 1000 })
	for _, d := range []ReportDetail{ReportTokens, ReportChanges} {
		x := newParallel(t, p, 2, d)
		x.Submit(0, 0, Request{ID: 1, Prompt: numbered(0, 10), OutputLen: 100})
		begun := p.prefillTime(10)
		x.Advance(begun)
		second := begun + p.decodeTime(2, 1, 11)
		x.Submit(second-1, 1, Request{ID: 2, Prompt: numbered(0, 16), OutputLen: 1})
		if l := x.Load(1); l.Pending != 1 {
			t.Errorf("in the middle of a step: %+v", l)
		}
		first := time.Duration(0)
		for first == 0 {
			at, _ := x.NextAt()
			for _, ev := range x.Advance(at) {
				if ev.ID == 2 && ev.First() {
					first = ev.At
				}
			}
		}
		if want := second + p.prefillTime(16); first != want {
			t.Errorf("first token at %v, want %v", first, want)
		}
	}
}

func TestNewParallelErrors(t *testing.T) {
	for _, ranks := range []int{0, -1} {
		if _, err := NewParallel(small(), ranks, ReportTokens); err == nil {
			t.Errorf("%d ranks were accepted", ranks)
		}
	}
	if _, err := NewParallel(Profile{}, 2, ReportTokens); err == nil {
		t.Error("an empty profile was accepted")
	}
	x := newParallel(t, small(), 2, ReportTokens)
	x.Submit(0, 0, Request{ID: 7, Prompt: numbered(0, 5), OutputLen: 9})
	x.Submit(0, 1, Request{ID: 7, Prompt: numbered(0, 5), OutputLen: 9})
	evs := x.Advance(0)
	if len(evs) != 1 || evs[0].Reason != ReasonDuplicate {
		t.Errorf("the same id on another rank: %+v", evs)
	}
	if x.Cancel(0, 8) || !x.Cancel(0, 7) || x.Cancel(0, 7) {
		t.Error("Cancel reports an absent request as present, or the reverse")
	}
}
