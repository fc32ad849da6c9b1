package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// small is a profile with round values.
func small(change ...func(*Profile)) Profile {
	p := Profile{
		Name:        "small",
		PrefillBase: 10 * time.Millisecond, PrefillPerToken: time.Millisecond,
		DecodeBase: 20 * time.Millisecond, DecodePerRequest: 2 * time.Millisecond, DecodePerKVToken: 100 * time.Microsecond,
		ChunkTokens: 16, KVTokens: 100, MaxRunning: 8, ReservePerMille: 200,
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func newEngine(t testing.TB, p Profile, d ReportDetail) *Engine {
	t.Helper()
	e, err := New(p, d)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// numbered returns n consecutive tokens from first.
func numbered(first, n int) []Token {
	tokens := make([]Token, n)
	for i := range tokens {
		tokens[i] = Token(first + i)
	}
	return tokens
}

// drain runs the engine until it is idle and returns a log of its events.
func drain(e *Engine, log *strings.Builder) {
	for at, ok := e.NextAt(); ok; at, ok = e.NextAt() {
		record(e.Advance(at), log)
	}
}

// record formats one line per event.
func record(events []Event, log *strings.Builder) {
	for _, ev := range events {
		fmt.Fprintf(log, "%v %d %v", ev.At, ev.ID, ev.Kind)
		switch ev.Kind {
		case TokenEmitted:
			fmt.Fprintf(log, " %d", ev.Index)
			if ev.First() {
				fmt.Fprintf(log, " cached %d", ev.CachedTokens)
			}
		case Finished:
			fmt.Fprintf(log, " %v %d/%d/%d", ev.Reason, ev.PromptTokens, ev.CachedTokens, ev.OutputTokens)
		case Rejected:
			fmt.Fprintf(log, " %v", ev.Reason)
		case Preempted:
			fmt.Fprintf(log, " after %d", ev.OutputTokens)
		}
		fmt.Fprintln(log)
	}
}

// want compares a log with the expected lines.
func want(t *testing.T, log *strings.Builder, lines string) {
	t.Helper()
	got, exp := strings.TrimSpace(log.String()), strings.ReplaceAll(strings.TrimSpace(lines), "\t", "")
	if got != exp {
		t.Errorf("got:\n%s\nwant:\n%s", got, exp)
	}
}

func TestOneRequestOnL4(t *testing.T) {
	p := Profiles()[0]
	e := newEngine(t, p, ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 1000), OutputLen: 3})
	var log strings.Builder
	drain(e, &log)
	// 45 ms + 1000/2000 s; then 54 ms + 0.25 ms + 0.44 us x 1001, x 1002.
	want(t, &log, `
		545ms 1 token 0 cached 0
		599.69044ms 1 token 1
		654.38132ms 1 token 2
		654.38132ms 1 finished length 1000/0/3`)
}

func TestDetailDoesNotAffectTimes(t *testing.T) {
	e := newEngine(t, Profiles()[0], ReportChanges)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 1000), OutputLen: 3})
	var log strings.Builder
	drain(e, &log)
	want(t, &log, `
		545ms 1 token 0 cached 0
		654.38132ms 1 finished length 1000/0/3`)
}

func TestSecondIdenticalPromptIsCached(t *testing.T) {
	e := newEngine(t, Profiles()[0], ReportChanges)
	var log strings.Builder
	prompt := numbered(0, 1000)
	e.Submit(0, Request{ID: 1, Prompt: prompt, OutputLen: 1})
	drain(e, &log)
	e.Submit(time.Second, Request{ID: 2, Prompt: prompt, OutputLen: 1})
	drain(e, &log)
	// The last prompt token is computed again: 45 ms + 1/2000 s.
	want(t, &log, `
		545ms 1 token 0 cached 0
		545ms 1 finished length 1000/0/1
		1.0455s 2 token 0 cached 999
		1.0455s 2 finished length 1000/999/1`)
	if l := e.Load(); l.QueriedTokens != 2000 || l.HitTokens != 999 || l.KVActive != 0 {
		t.Errorf("load after both: %+v", l)
	}
}

func TestResponseIsCachedForTheNextTurn(t *testing.T) {
	e := newEngine(t, small(), ReportChanges)
	var log strings.Builder
	response := numbered(500, 6)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 10), Output: response})
	drain(e, &log)
	next := append(append(numbered(0, 10), response...), 7, 7, 7)
	if got := e.CachedPrefix(next); got != 16 {
		t.Errorf("cached %d tokens of the next turn, want 16", got)
	}
}

func TestBatchOfTwoSharesSteps(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 4), OutputLen: 3})
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 6), OutputLen: 2})
	var log strings.Builder
	drain(e, &log)
	// Prefill 10 + 4 + 6 = 20 ms. Decode of both: 20 + 2x2 + 0.1 x (5+7) =
	// 25.2 ms. Decode of the first alone: 20 + 2 + 0.1 x 6 = 22.6 ms.
	want(t, &log, `
		20ms 1 token 0 cached 0
		20ms 2 token 0 cached 0
		45.2ms 1 token 1
		45.2ms 2 token 1
		45.2ms 2 finished length 6/0/2
		67.8ms 1 token 2
		67.8ms 1 finished length 4/0/3`)
}

func TestNextAtDoesNotBlockSubmissions(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 4), OutputLen: 1})
	if at, _ := e.NextAt(); at != 14*time.Millisecond {
		t.Errorf("NextAt with one: %v, want 14ms", at)
	}
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 6), OutputLen: 1})
	if at, _ := e.NextAt(); at != 20*time.Millisecond {
		t.Errorf("NextAt with two at the same instant: %v, want 20ms", at)
	}
}

func TestPrefillIsChunkedAndComesFirst(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	var log strings.Builder
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 2), OutputLen: 3})
	e.Submit(time.Millisecond, Request{ID: 2, Prompt: numbered(100, 20), OutputLen: 1})
	e.Submit(time.Millisecond, Request{ID: 3, Prompt: numbered(200, 5), OutputLen: 1})
	drain(e, &log)
	// 12 ms for the first alone. Then chunks of 16 and 4 + 5; only then decode.
	want(t, &log, `
		12ms 1 token 0 cached 0
		57ms 2 token 0 cached 0
		57ms 2 finished length 20/0/1
		57ms 3 token 0 cached 0
		57ms 3 finished length 5/0/1
		79.3ms 1 token 1
		101.7ms 1 token 2
		101.7ms 1 finished length 2/0/3`)
}

func TestMixedStepDecodesBesidePrefill(t *testing.T) {
	e := newEngine(t, small(func(p *Profile) { p.MixedSteps = true }), ReportTokens)
	var log strings.Builder
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 2), OutputLen: 3})
	e.Submit(time.Millisecond, Request{ID: 2, Prompt: numbered(100, 20), OutputLen: 1})
	e.Submit(time.Millisecond, Request{ID: 3, Prompt: numbered(200, 5), OutputLen: 1})
	drain(e, &log)
	// 12 ms for the first alone. Then 15 prompt tokens beside its next token: 10 ms + 15 ms + 2 ms + 0.3 ms for its
	// context. Then 5 + 5 beside its last: 10 ms + 10 ms + 2 ms + 0.4 ms.
	want(t, &log, `
		12ms 1 token 0 cached 0
		39.3ms 1 token 1
		61.7ms 1 token 2
		61.7ms 1 finished length 2/0/3
		61.7ms 2 token 0 cached 0
		61.7ms 2 finished length 20/0/1
		61.7ms 3 token 0 cached 0
		61.7ms 3 finished length 5/0/1`)
}

func TestArrivalWaitsForCurrentStep(t *testing.T) {
	for _, d := range []ReportDetail{ReportTokens, ReportChanges} {
		e := newEngine(t, small(), d)
		var log strings.Builder
		e.Submit(0, Request{ID: 1, Prompt: numbered(0, 2), OutputLen: 40})
		record(e.Advance(30*time.Millisecond), &log)
		log.Reset()
		e.Submit(40*time.Millisecond, Request{ID: 2, Prompt: numbered(100, 3), OutputLen: 1})
		record(e.Advance(60*time.Millisecond), &log)
		// 12 ms prefill, 22.3 + 22.4 ms: the step under way at 40 ms ends at 56.7.
		got := log.String()
		e.Advance(69 * time.Millisecond)
		if l := e.Load(); l.Running != 2 || l.Finished != 0 {
			t.Errorf("detail %d: before 69.7 ms: %+v after %s", d, l, got)
		}
		events := e.Advance(69_700 * time.Microsecond)
		if len(events) != 2 || events[0].ID != 2 || events[0].At != 69_700*time.Microsecond {
			t.Errorf("detail %d: at 69.7 ms: %+v, want the second request's first token and end", d, events)
		}
	}
}

func TestArrivalAtStepEndJoinsNextStep(t *testing.T) {
	for _, d := range []ReportDetail{ReportTokens, ReportChanges} {
		for _, asked := range []bool{false, true} {
			e := newEngine(t, small(), d)
			e.Submit(0, Request{ID: 1, Prompt: numbered(0, 2), OutputLen: 40})
			now := 34_300 * time.Microsecond // 12 ms prefill, 22.3 ms decode
			e.Advance(now)
			if asked {
				e.NextAt()
			}
			e.Submit(now, Request{ID: 2, Prompt: numbered(100, 3), OutputLen: 1})
			at, _ := e.NextAt()
			if events := e.Advance(at); at != now+13*time.Millisecond || len(events) == 0 || events[0].ID != 2 {
				t.Errorf("detail %d, with NextAt %v: %+v at %v, want the second's first token 13 ms later", d, asked, events, at)
			}
			if n, ok := e.Generated(1); n != 2 || !ok {
				t.Errorf("the first has %d tokens (%v), want 2", n, ok)
			}
		}
	}
}

func TestPreemptionTakesTheNewest(t *testing.T) {
	e := newEngine(t, small(func(p *Profile) { p.KVTokens, p.ReservePerMille = 20, 0 }), ReportTokens)
	var log strings.Builder
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 5), OutputLen: 10})
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 5), OutputLen: 7})
	drain(e, &log)
	// 20 KV tokens: after four decode steps both contexts hold 10. The second returns to
	// the queue; the first then needs 5 more tokens, so the 5 of the second's prompt stay
	// cached and only its 5 responses are computed again.
	want(t, &log, `
		20ms 1 token 0 cached 0
		20ms 2 token 0 cached 0
		45.2ms 1 token 1
		45.2ms 2 token 1
		70.6ms 1 token 2
		70.6ms 2 token 2
		96.2ms 1 token 3
		96.2ms 2 token 3
		122ms 1 token 4
		122ms 2 token 4
		122ms 2 preempted after 5
		145ms 1 token 5
		168.1ms 1 token 6
		191.3ms 1 token 7
		214.6ms 1 token 8
		238ms 1 token 9
		238ms 1 finished length 5/0/10
		253ms 2 token 5
		276.1ms 2 token 6
		276.1ms 2 finished length 5/0/7`)
	if l := e.Load(); l.Preempted != 1 || l.RecomputedTokens != 5 || l.GeneratedTokens != 17 {
		t.Errorf("load: %+v", l)
	}
}

func TestPreemptedResponseIsUnchanged(t *testing.T) {
	responses := map[int]string{}
	for _, kv := range []int{20, 1000} {
		e := newEngine(t, small(func(p *Profile) { p.KVTokens, p.ReservePerMille = kv, 0 }), ReportTokens)
		for id := range 2 {
			prompt := numbered(100*id, 5)
			e.Submit(0, Request{ID: uint64(id), Prompt: prompt, OutputLen: 12, Speech: NewSpeech(3, prompt)})
		}
		var text [2]string
		for at, ok := e.NextAt(); ok; at, ok = e.NextAt() {
			for _, ev := range e.Advance(at) {
				text[ev.ID] += ev.Text
			}
		}
		responses[kv] = text[0] + "|" + text[1]
	}
	if responses[20] != responses[1000] {
		t.Errorf("with retraction %q, without %q", responses[20], responses[1000])
	}
}

func TestCancelDuringPrefill(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 40), OutputLen: 5})
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 4), OutputLen: 1})
	e.Advance(30 * time.Millisecond)
	if l := e.Load(); l.KVActive != 41 || l.Running != 1 || l.Pending != 1 {
		t.Fatalf("in the second chunk: %+v", l)
	}
	if !e.Cancel(30*time.Millisecond, 1) || e.Cancel(30*time.Millisecond, 1) {
		t.Error("cancelling twice: want true, then false")
	}
	if l := e.Load(); l.KVUsed != 0 || l.Running != 0 {
		t.Errorf("after cancelling: %+v", l)
	}
	var log strings.Builder
	drain(e, &log)
	// The chunk under way ends at 52 ms; then 10 + 4 ms.
	want(t, &log, "66ms 2 token 0 cached 0\n66ms 2 finished length 4/0/1")
}

func TestCancelDuringDecode(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 4), OutputLen: 30})
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 6), OutputLen: 3})
	e.Advance(30 * time.Millisecond)
	e.Cancel(30*time.Millisecond, 1)
	if l := e.Load(); l.KVActive != 7 || l.KVUsed != 11 || l.Running != 1 {
		t.Errorf("after cancelling: %+v, want 7 active tokens and 4 cached ones of the cancelled prompt", l)
	}
	var log strings.Builder
	drain(e, &log)
	// The step under way keeps its 25.2 ms; the next is 20 + 2 + 0.1 x 8.
	want(t, &log, `
		45.2ms 2 token 1
		68ms 2 token 2
		68ms 2 finished length 6/0/3`)
}

func TestCancelWhileWaitingUnblocksTheNext(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 30), OutputLen: 50})
	e.Submit(0, Request{ID: 2, Prompt: numbered(100, 80), OutputLen: 5})
	e.Submit(0, Request{ID: 3, Prompt: numbered(200, 5), OutputLen: 5})
	e.Advance(100 * time.Millisecond)
	if l := e.Load(); l.Running != 1 || l.Pending != 2 {
		t.Fatalf("before: %+v", l)
	}
	e.Cancel(100*time.Millisecond, 2)
	e.Advance(130 * time.Millisecond)
	if l := e.Load(); l.Running != 2 || l.Pending != 0 {
		t.Errorf("after: %+v, want the third running", l)
	}
}

func TestAdmissionReservesMemory(t *testing.T) {
	for _, c := range []struct{ maxNew, running int }{
		// The first occupies 40 tokens and may generate 50; after its prefill, 59 are free
		// and 49 remain to be generated: 40 + 0.2 x (maxNew + 49) <= 59.
		{46, 2}, {47, 1},
	} {
		e := newEngine(t, small(func(p *Profile) { p.ChunkTokens = 40 }), ReportTokens)
		e.Submit(0, Request{ID: 1, Prompt: numbered(0, 40), MaxNew: 50, OutputLen: 50})
		e.Submit(0, Request{ID: 2, Prompt: numbered(100, 40), MaxNew: c.maxNew, OutputLen: 2})
		e.Advance(51 * time.Millisecond)
		if l := e.Load(); l.Running != c.running {
			t.Errorf("max new %d: %d running, want %d", c.maxNew, l.Running, c.running)
		}
	}
}

func TestMaxRunning(t *testing.T) {
	e := newEngine(t, small(func(p *Profile) { p.MaxRunning = 2 }), ReportTokens)
	for id := range 3 {
		e.Submit(0, Request{ID: uint64(id), Prompt: numbered(id*100, 2), OutputLen: 4})
	}
	e.Advance(20 * time.Millisecond)
	if l := e.Load(); l.Running != 2 || l.Pending != 1 {
		t.Errorf("%+v, want 2 running and 1 pending", l)
	}
}

func TestPriorityZeroIsAdmittedFirst(t *testing.T) {
	e := newEngine(t, small(func(p *Profile) { p.MaxRunning = 1 }), ReportTokens)
	for id, priority := range []int{1, 1, 0} {
		e.Submit(0, Request{ID: uint64(id), Prompt: numbered(id*100, 2), OutputLen: 1, Priority: priority})
	}
	var order []uint64
	for at, ok := e.NextAt(); ok; at, ok = e.NextAt() {
		for _, ev := range e.Advance(at) {
			if ev.First() {
				order = append(order, ev.ID)
			}
		}
	}
	if !slices.Equal(order, []uint64{2, 0, 1}) {
		t.Errorf("served in the order %v, want [2 0 1]", order)
	}
}

func TestRejections(t *testing.T) {
	e := newEngine(t, small(), ReportTokens)
	var log strings.Builder
	e.Submit(5*time.Millisecond, Request{ID: 1, Prompt: numbered(0, 100), OutputLen: 1})
	e.Submit(5*time.Millisecond, Request{ID: 2, OutputLen: 1})
	e.Submit(5*time.Millisecond, Request{ID: 3, Prompt: numbered(0, 99), OutputLen: 1})
	e.Submit(5*time.Millisecond, Request{ID: 3, Prompt: numbered(0, 3), OutputLen: 1})
	if at, ok := e.NextAt(); !ok || at != 5*time.Millisecond {
		t.Errorf("NextAt = %v, %v: want the rejections' time", at, ok)
	}
	drain(e, &log)
	want(t, &log, `
		5ms 1 rejected too long
		5ms 2 rejected empty prompt
		5ms 3 rejected duplicate id
		174ms 3 token 0 cached 0
		174ms 3 finished length 99/0/1`)
}

func TestResponseIsTruncatedToMemory(t *testing.T) {
	e := newEngine(t, small(), ReportChanges)
	var log strings.Builder
	e.Submit(0, Request{ID: 1, Prompt: numbered(0, 90), MaxNew: 50, OutputLen: 40})
	e.Submit(0, Request{ID: 2, Prompt: numbered(0, 90), MaxNew: 50, OutputLen: 4})
	drain(e, &log)
	if got := log.String(); !strings.Contains(got, "1 finished length 90/0/10") || !strings.Contains(got, "2 finished stop 90/") {
		t.Errorf("got:\n%s", got)
	}
}
