package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	simulated "skyserve/internal/sim/engine/server"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// checkedEngine answers the requests of a check, and passes all others on.
type checkedEngine struct {
	ignores  bool   // it ignores continue_final_message, as vLLM does for gpt-oss
	rejects  int    // the status of a chat that ends in a closed assistant's message; 0 = it is answered
	status   int    // the status of both requests; 0 = 200
	key      string // the Authorization header that both require
	says     string // text of a continuation; " I," if empty
	reasons  bool   // it returns the text as reasoning
	noUsage  bool
	requests atomic.Int64
	tokens   atomic.Int64 // sum of max_tokens
	next     http.HandlerFunc
}

func (e *checkedEngine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	if !bytes.Contains(body, []byte("Recite the alphabet.")) {
		req.Body = io.NopCloser(bytes.NewReader(body))
		e.next(w, req)
		return
	}
	var asked struct {
		Continue  bool  `json:"continue_final_message"`
		Prompt    *bool `json:"add_generation_prompt"`
		MaxTokens int64 `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &asked); err != nil || asked.Prompt == nil || *asked.Prompt {
		panic(fmt.Sprintf("check %s: %v", body, err))
	}
	e.requests.Add(1)
	e.tokens.Add(asked.MaxTokens)
	switch {
	case e.status != 0:
		w.WriteHeader(e.status)
	case req.Header.Get("Authorization") != e.key:
		w.WriteHeader(http.StatusUnauthorized)
	case e.rejects != 0 && !asked.Continue:
		w.WriteHeader(e.rejects)
	default:
		e.answerCheck(w, asked.Continue && !e.ignores)
	}
}

// answerCheck answers with the usage of an open or a closed message.
func (e *checkedEngine) answerCheck(w http.ResponseWriter, open bool) {
	prompt, says := 25, e.says
	if open {
		prompt = 22
	}
	if says == "" {
		says = " I,"
	}
	text := chunk(says)
	if e.reasons {
		text = strings.Replace(text, "content", "reasoning_content", 1)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text+finished)
	if !e.noUsage {
		_, _ = io.WriteString(w, usageEvent(prompt, 0, 1))
	}
	_, _ = io.WriteString(w, doneEvent)
}

// proofCase is an engine and what a check finds out about it.
type proofCase struct {
	name   string
	kind   service.EngineKind
	engine *checkedEngine // nil = it honours the parameter
	cause  string         // why the engine is unproven; empty = it is proven
}

func (c *proofCase) state() ContinuationState {
	switch {
	case c.cause == "":
		return ContinuationProven
	case strings.Contains(c.cause, "checked"), strings.Contains(c.cause, "key"):
		return ContinuationUnknown
	}
	return ContinuationUnproven
}

// A stream is continued only by an engine that is proven to continue a message, whatever its metrics
// look like. The text of a new response never reaches the client.
func TestContinuationRequiresProof(t *testing.T) {
	t.Parallel()
	cases := []proofCase{
		{name: "it honours the parameter", kind: service.EngineVLLM},
		{name: "an unknown kind that honours it"},
		{name: "a template without closed messages", kind: service.EngineVLLM, engine: &checkedEngine{rejects: 400}},
		{name: "gpt-oss", kind: service.EngineVLLM, engine: &checkedEngine{ignores: true}, cause: "ignores continue_final_message: a chat has 25 prompt tokens with it and 25 without"},
		{name: "an unknown kind that ignores it", engine: &checkedEngine{ignores: true}, cause: "ignores continue_final_message"},
		{name: "it rejects the parameter", kind: service.EngineOpenAI, engine: &checkedEngine{status: 422}, cause: "rejects continue_final_message (422)"},
		{name: "no closed message", kind: service.EngineVLLM, engine: &checkedEngine{rejects: 404}, cause: "rejects a chat that ends in an assistant's message (404)"},
		{name: "no usage", kind: service.EngineVLLM, engine: &checkedEngine{noUsage: true}, cause: "does not report the number of prompt tokens"},
		{name: "reasoning", kind: service.EngineSGLang, engine: &checkedEngine{reasons: true}, cause: "as reasoning"},
		{name: "no text", kind: service.EngineVLLM, engine: &checkedEngine{says: "\n"}, cause: "returns no text"},
		{name: "a header", kind: service.EngineSGLang, engine: &checkedEngine{says: "<|channel|>final"}, cause: "begins a new message"},
		{name: "the same text again", kind: service.EngineSGLang, engine: &checkedEngine{says: "A, B, C"}, cause: "begins a new message"},
		{name: "it fails", kind: service.EngineVLLM, engine: &checkedEngine{status: 500}, cause: "could not be checked (500)"},
		{name: "it requires a key", kind: service.EngineVLLM, engine: &checkedEngine{key: "Bearer x"}, cause: "without its API key"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			e := c.engine
			if e == nil {
				e = &checkedEngine{}
			}
			e.next = speakRaw(chunk("b") + doneEvent)
			b.attachUnchecked("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = b.RemoveReplica("us-0", 0)
				cut("text/event-stream", chunk("a"))(w, req)
			}), c.kind)
			b.attachUnchecked("us-1", engine(t, e.ServeHTTP), c.kind)
			got := parseStream(t, read(t, b.post(chatPath, streamBody)))
			counts := b.settled()
			lawful(t, counts)
			if e.tokens.Load() > openai.CheckTokens {
				t.Errorf("%d tokens were requested", e.tokens.Load())
			}
			if n, known := b.gathered()["skyserve_replica_continues_streams{replica=us-1}"]; known != (c.state() != ContinuationUnknown) || (n == 1) != (c.cause == "") {
				t.Errorf("the gauge is %v (%v)", n, known)
			}
			if s := b.TrafficStats().ByReplica["us-1"].Continuation; s != c.state() {
				t.Errorf("us-1 is %s, want %s", s, c.state())
			}
			if c.cause == "" {
				if got.text != "ab" || got.ends != 1 || b.continuations()["whole"] != 1 {
					t.Errorf("the client read %+v, continuations %v", got, b.continuations())
				}
				return
			}
			if got.text != "a" || got.ends != 0 || !strings.Contains(got.broken, c.cause) || b.continuations()["unproven"] != 1 {
				t.Errorf("the client read %+v, continuations %v", got, b.continuations())
			}
		})
	}
}

// Completions have a text prompt, which every engine continues.
func TestCompletionsRequireNoProof(t *testing.T) {
	text := func(s string) string { return `data: {"choices":[{"text":"` + s + `"}]}` + "\n\n" }
	b := start(t, roundRobin(t))
	e := &checkedEngine{ignores: true, next: speakRaw(text("b") + doneEvent)}
	b.attachUnchecked("us-0", engine(t, cut("text/event-stream", text("a"))), service.EngineOpenAI)
	b.attachUnchecked("us-1", engine(t, e.ServeHTTP), service.EngineOpenAI)
	if got := read(t, b.post(textPath, `{"model":"`+testModel+`","stream":true,"prompt":"p"}`)); !strings.HasSuffix(got, doneEvent) || e.requests.Load() != 0 {
		t.Errorf("the client read %q after %d checks", got, e.requests.Load())
	}
}

// The check uses the key that clients send to the engine.
func TestCheckUsesEngineKey(t *testing.T) {
	b := start(t, roundRobin(t))
	e := &checkedEngine{key: "Bearer x", next: speakRaw(chunk("b") + doneEvent)}
	b.attachUnchecked("us-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
	b.attachUnchecked("us-1", engine(t, e.ServeHTTP), service.EngineVLLM)
	if got := parseStream(t, read(t, b.post(chatPath, streamBody, "Authorization: Bearer x"))); got.text != "ab" {
		t.Errorf("the client read %+v", got)
	}
}

// A replica that is not proven to continue streams is not ejected for that.
func TestUnprovenReplicaIsNotEjected(t *testing.T) {
	o := roundRobin(t)
	o.Core.EjectAfter, o.Core.EjectShare = 1, 1
	b := start(t, o)
	b.attachUnchecked("us-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
	b.attachUnchecked("us-1", engine(t, (&checkedEngine{ignores: true}).ServeHTTP), service.EngineVLLM)
	b.attachUnchecked("us-2", engine(t, (&checkedEngine{next: speakRaw(chunk("b") + doneEvent)}).ServeHTTP), service.EngineVLLM)
	if got := parseStream(t, read(t, b.post(chatPath, streamBody))); got.text != "ab" {
		t.Errorf("the client read %+v", got)
	}
	b.settled()
	for _, r := range b.View().Replicas {
		if r.Ready == (r.ID == "us-0") {
			t.Errorf("%s: ready %v", r.ID, r.Ready)
		}
	}
}

// A process is checked once for all streams that wait for it, and again after it was replaced.
func TestEachProcessIsCheckedOnce(t *testing.T) {
	b := start(t, roundRobin(t))
	e := &checkedEngine{next: speakRaw(chunk("b") + doneEvent)}
	b.attachUnchecked("us-1", engine(t, e.ServeHTTP), service.EngineVLLM)
	rep := b.replicas["us-1"]
	prove := func() {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := b.proveContinuation(t.Context(), rep, nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	prove()
	b.report("us-1")
	prove()
	if n := e.requests.Load(); n != 2 {
		t.Fatalf("%d requests, want 2", n)
	}
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-1", Report: &core.ProbeReport{Reason: "it does not respond"}})
	if rep.continuation() != ContinuationUnknown {
		t.Error("the result of an earlier process is kept")
	}
	b.report("us-1")
	prove()
	if n := e.requests.Load(); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
	cfg := rep.cfg
	cfg.Model = "another"
	if _, err := b.AddReplica(cfg); err != nil || b.replicas["us-1"].continuation() != ContinuationUnknown {
		t.Errorf("the result for another model is kept (%v)", err)
	}
}

// While no request needs it, a check without a result is repeated less and less often.
func TestChecksWithoutResultBackOff(t *testing.T) {
	p := &proof{ready: true}
	var waits []time.Duration
	for now, last := time.Duration(0), time.Duration(0); len(waits) < 8; now += time.Second {
		if p.isDue(now) {
			waits, last = append(waits, now-last), now
			p.failures, p.retryAt = p.failures+1, now+checkBackoff
		}
	}
	want := []time.Duration{0, 10, 20, 40, 80, 160, 320, 640}
	for i, w := range want {
		if waits[i] != w*time.Second {
			t.Fatalf("waits of %v, want %v seconds", waits, want)
		}
	}
}

// A replica that becomes ready is checked without a request, unless continuation is turned off.
func TestReadyReplicasAreChecked(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			o := roundRobin(t)
			o.CheckContinuation, o.NoContinue = true, off
			b := start(t, o)
			e := &checkedEngine{}
			b.attachUnchecked("us-0", engine(t, e.ServeHTTP), service.EngineVLLM)
			b.attachUnchecked("us-1", engine(t, e.ServeHTTP), "")
			b.attachUnchecked("us-2", engine(t, e.ServeHTTP), service.EngineSim)
			if !off {
				b.until(func() bool {
					return b.replicas["us-0"].continuation() == ContinuationProven && b.replicas["us-1"].continuation() == ContinuationProven
				})
			}
			at := b.ticked()
			b.until(func() bool { return b.ticked() > at+2*checkTicks })
			want := map[bool]int64{false: 4, true: 0}[off]
			if n := e.requests.Load(); n != want {
				t.Errorf("%d requests, want %d", n, want)
			}
		})
	}
}

func (b *balancer) ticked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ticks
}

// A continuation that repeats the beginning of the response is a new response: it is withheld, and the
// engine is not used for continuations again.
func TestRepeatedBeginningIsNotSpliced(t *testing.T) {
	const sofar = "The bridge over the river was built in"
	for name, words := range map[string][]string{
		"in one event":  {"The bridge over the river is old."},
		"word by word":  {"The", " bridge", " over", " the river", " is", " old."},
		"after a space": {"\n", "The bridge over ", "the river is old."},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			role := `data: {"id":"c2","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
			stream := role
			for _, value := range words {
				stream += chunk(value)
			}
			b.attachAs("us-0", engine(t, cut("text/event-stream", chunk(sofar))), service.EngineVLLM)
			b.attachAs("us-1", engine(t, speakRaw(stream+finished+doneEvent)), service.EngineVLLM)
			got := parseStream(t, read(t, b.post(chatPath, streamBody)))
			if got.text != sofar || got.ends != 0 || !strings.Contains(got.broken, "us-1 began a new response") {
				t.Errorf("the client read %+v", got)
			}
			lawful(t, b.settled())
			if s := b.replicas["us-1"].continuation(); s != ContinuationUnproven || b.continuations()["broken"] != 1 {
				t.Errorf("us-1 is %s, continuations %v", s, b.continuations())
			}
		})
	}
}

// The simulated engine is checked like any other if its kind is not configured.
func TestSimulatedEnginePassesCheck(t *testing.T) {
	for _, flavor := range []simulated.Flavor{simulated.FlavorVLLM, simulated.FlavorSGLang} {
		b := start(t, roundRobin(t))
		b.attachUnchecked("us-0", simulateWith(t, simulated.Options{Flavor: flavor}).url, service.EngineVLLM)
		if err := b.proveContinuation(t.Context(), b.replicas["us-0"], nil); err != nil {
			t.Errorf("%s: %v", flavor, err)
		}
	}
}

// inMemory is a transport without connections.
type inMemory struct{ http.Handler }

func (h inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result(), nil
}

// After a check without a result, the replica is not checked again for a while.
func TestFailedCheckIsNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := New(testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		e := &checkedEngine{status: 503}
		rep := &replica{cfg: replicaAt("us-0", "http://us-0"), base: &url.URL{Scheme: "http", Host: "us-0"}, transport: inMemory{e}, count: &replicaCount{}}
		for range 3 {
			if rt.proveContinuation(t.Context(), rep, nil) == nil {
				t.Error("it is proven")
			}
		}
		time.Sleep(checkBackoff)
		_ = rt.proveContinuation(t.Context(), rep, nil)
		if n := e.requests.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}
