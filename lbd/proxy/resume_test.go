package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// asked is an engine that stores the bodies it receives and responds with a stream.
func asked(bodies chan<- string, stream string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		bodies <- string(body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}
}

const finished = `data: {"id":"c2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"

// For each kind of failure and its position, the client receives the expected stream.
func TestStreamInterruptionPoints(t *testing.T) {
	role := `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	engineDied := `data: {"error":{"message":"EngineDeadError","type":"InternalServerError","code":500}}` + "\n\n" + doneEvent
	cases := []struct {
		name  string
		first http.HandlerFunc
		prior string // the text sent to the second target; "-" = the request is sent without a prior text
		want  string // the client's text before the second target's part
	}{
		{"after an event", cut("text/event-stream", chunk("Hel")), "Hel", chunk("Hel")},
		{"within an event", cut("text/event-stream", chunk("Hel")+chunk("lo")[:40]), "Hel", chunk("Hel")},
		{"before the empty line", cut("text/event-stream", chunk("Hel")+strings.TrimSuffix(chunk("lo"), "\n")), "Hel", chunk("Hel")},
		{"between CR and LF", cut("text/event-stream", chunk("Hel")+strings.TrimSuffix(chunk("lo"), "\n\n")+"\r\n\r"), "Hel", chunk("Hel")},
		{"ended without [DONE]", speakRaw(chunk("Hel")), "Hel", chunk("Hel")},
		{"ended in half an event", speakRaw(chunk("Hel") + chunk("lo")[:40]), "Hel", chunk("Hel")},
		{"ended before the empty line", speakRaw(chunk("Hel") + strings.TrimSuffix(chunk("lo"), "\n\n")), "Hel", chunk("Hel")},
		{"with white space", cut("text/event-stream", chunk("Hel\n ")), "Hel", chunk("Hel\n ")},
		{"with escapes", cut("text/event-stream", chunk("a\"\\")+chunk("\u00e9<\n>")), "a\"\\\u00e9<\n>", chunk("a\"\\") + chunk("\u00e9<\n>")},
		{"after the role", cut("text/event-stream", role), "-", role},
		{"after a comment", cut("text/event-stream", ": ping\n\n"), "-", ": ping\n\n"},
		{"ended with an error", speakRaw(chunk("Hel") + engineDied), "Hel", chunk("Hel")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			bodies := make(chan string, 1)
			b.attachAs("us-0", engine(t, c.first), service.EngineVLLM)
			b.attachAs("us-1", engine(t, asked(bodies, role+chunk("!")+usageEvent(9, 0, 1)+finished+doneEvent)), service.EngineSGLang)
			want := c.want + chunk("!") + strings.Replace(finished, "c2", "c", 1) + doneEvent
			if !strings.Contains(c.want, `"id"`) {
				want = c.want + role + chunk("!") + finished + doneEvent // no target had sent an id
			}
			got := expect(t, b.post(chatPath, streamBody), http.StatusOK, "")
			if got != want {
				t.Errorf("the client got %q\nwant %q", got, want)
			}
			body := <-bodies
			var sent struct {
				Messages []struct{ Role, Content string }
				Continue bool  `json:"continue_final_message"`
				Prompt   *bool `json:"add_generation_prompt"`
			}
			if err := json.Unmarshal([]byte(body), &sent); err != nil {
				t.Fatal(err)
			}
			last := sent.Messages[len(sent.Messages)-1]
			if c.prior == "-" {
				if len(sent.Messages) != 1 || sent.Continue || sent.Prompt != nil {
					t.Errorf("requested anew: %s", body)
				}
			} else if last.Role != "assistant" || last.Content != c.prior || !sent.Continue || sent.Prompt == nil || *sent.Prompt {
				t.Errorf("requested to continue: %s", body)
			}
			counts := b.settled()
			lawful(t, counts)
			if counts.Finished != 1 || b.continuations()["whole"] != 1 {
				t.Errorf("counts %+v, continuations %v", counts, b.continuations())
			}
		})
	}
}

// A stream that is not continued ends in an error event.
func TestNoContinuationEndsInErrorEvent(t *testing.T) {
	tool := `data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f","arguments":""}}]}}]}` + "\n\n"
	cases := []struct {
		name, path, body, sent string
		kind                   service.EngineKind
		headers                []string
		change                 func(*Options)
		outcome                string // "refused" if empty
	}{
		{name: "turned off by the client", headers: []string{headerContinue + ": off"}},
		{name: "turned off by the operator", change: func(o *Options) { o.NoContinue = true }},
		{name: "an engine that begins anew", kind: service.EngineOpenAI, outcome: "unproven"},
		{name: "an engine of no known kind", kind: "-", outcome: "unproven"},
		{name: "a tool call", sent: chunk("a") + tool},
		{name: "reasoning", sent: strings.Replace(chunk("a"), "content", "reasoning_content", 1)},
		{name: "a text that is too long", change: func(o *Options) { o.Limits.MaxContinuedText = 5 }, sent: chunk("123456")},
		{name: "a body that is too long", change: func(o *Options) { o.Limits.MaxContinuedBody = 20 }},
		{name: "several answers", body: strings.Replace(streamBody, `{`, `{"n":2,`, 1)},
		{name: "tokens", path: textPath, body: `{"model":"` + testModel + `","stream":true,"prompt":[1,2]}`, sent: `data: {"choices":[{"text":"a"}]}` + "\n\n"},
		{name: "the mark of a thought", sent: chunk("so</think>")},
		{name: "the mark of a thought, written otherwise", sent: strings.Replace(chunk("<think> so"), "<", `\u003c`, 1)},
		{name: "a control token", sent: chunk("write <|im_end|>")},
		{name: "half a stop string", body: strings.Replace(streamBody, `{`, `{"stop":["\nUser:","##!"],`, 1), sent: chunk("so ##")},
		{name: "a form", body: strings.Replace(streamBody, `{`, `{"response_format":{"type":"json_object"},`, 1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := roundRobin(t)
			if c.change != nil {
				c.change(&o)
			}
			b := start(t, o)
			kind := service.EngineVLLM
			if c.kind != "" {
				kind = service.EngineKind(strings.Trim(string(c.kind), "-"))
			}
			sent, path, body := c.sent, c.path, c.body
			if sent == "" {
				sent = chunk("a")
			}
			if path == "" {
				path = chatPath
			}
			if body == "" {
				body = streamBody
			}
			b.attachAs("us-0", engine(t, cut("text/event-stream", sent)), kind)
			b.attachAs("us-1", engine(t, func(http.ResponseWriter, *http.Request) {
				t.Error("the response was requested again")
				panic(http.ErrAbortHandler)
			}), kind)
			got := read(t, b.post(path, body, c.headers...))
			rest, ok := strings.CutPrefix(got, sent)
			if data, isData := strings.CutPrefix(rest, "data: "); !ok || !isData {
				t.Fatalf("the client got %q", got)
			} else if _, _, code := apiErrorOf(t, data); code != "replica_failed" {
				t.Errorf("code %s, want replica_failed", code)
			}
			counts := b.settled()
			lawful(t, counts)
			if counts.Rejected != 1 || b.continuations()[cmp.Or(c.outcome, "refused")] != 1 {
				t.Errorf("counts %+v, continuations %v: want one that is not continued", counts, b.continuations())
			}
		})
	}
}

// The content of an event that is too long to buffer is unknown, so its response is not continued.
func TestOversizedEventIsNotContinued(t *testing.T) {
	o := roundRobin(t)
	o.Limits.MaxEvent = 200
	b := start(t, o)
	seen := make(chan struct{})
	b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a")+`data: {"x":"`+strings.Repeat("x", 5000))
		_ = http.NewResponseController(w).Flush()
		<-seen
		panic(http.ErrAbortHandler)
	}), service.EngineVLLM)
	resp := b.post(chatPath, streamBody)
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunk("a"))+1000)); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if rest := read(t, resp); !strings.Contains(rest, "replica_failed") {
		t.Errorf("the stream ends in %q", rest[max(0, len(rest)-200):])
	}
	c := b.settled()
	lawful(t, c)
	if c.Rejected != 1 || b.continuations()["refused"] != 1 {
		t.Errorf("counts %+v, continuations %v", c, b.continuations())
	}
}

// No part of a failed non-streamed response has reached the client: it is requested from its start,
// with any content.
func TestNonStreamedResponseIsRetried(t *testing.T) {
	for name, more := range map[string]string{"plain": "", "a form": `"response_format":{"type":"json_object"},`, "off": `"n":2,`} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			bodies := make(chan string, 1)
			body := strings.Replace(plainBody, "{", "{"+more, 1)
			b.attachAs("us-0", engine(t, cut("application/json", plainReply[:80])), service.EngineVLLM)
			b.attachAs("us-1", engine(t, func(w http.ResponseWriter, req *http.Request) {
				got, _ := io.ReadAll(req.Body)
				bodies <- string(got)
				_, _ = io.WriteString(w, plainReply)
			}), service.EngineVLLM)
			if got := expect(t, b.post(chatPath, body, headerContinue+": off"), http.StatusOK, ""); got != plainReply {
				t.Errorf("got %q", got)
			}
			if got := <-bodies; got != body {
				t.Errorf("the second engine got %s, want %s", got, body)
			}
			if got := b.continuations(); len(got) != 0 {
				t.Errorf("continuations %v, want none", got)
			}
		})
	}
}

func TestEveryContinuationFails(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"500": status(500), "no stream": whole(plainReply), "cut at once": cut("text/event-stream", ""),
		"cut again": cut("text/event-stream", chunk("b")),
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			b.attachAs("us-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
			b.attachAs("us-1", engine(t, h), service.EngineVLLM)
			got := parseStream(t, read(t, b.post(chatPath, streamBody, "X-Request-ID: r1")))
			if !strings.HasPrefix(got.text, "a") || got.broken == "" || got.ends != 0 || !strings.Contains(got.broken, "every attempt failed") {
				t.Errorf("the client read %+v, want an error at the end", got)
			}
			c := b.settled()
			lawful(t, c)
			d, _ := b.Decision("r1")
			if c.Rejected != 1 || d.State != record.StateFailed || len(d.Attempts) != b.coreCfg.MaxAttempts+1 || b.continuations()["broken"] != 1 {
				t.Errorf("counts %+v, record %+v, continuations %v", c, d, b.continuations())
			}
		})
	}
}

// If a target rejects a continuation, the response ends immediately. Other targets of the same model
// are not tried.
func TestRejectedContinuationIsNotRetried(t *testing.T) {
	thinks := strings.Replace(chunk("hm"), "content", "reasoning_content", 1)
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want string
	}{
		"a template without the message": {status(400), "us-1 rejected the continuation (400)"},
		"an unknown field":               {status(422), "us-1 rejected the continuation (422)"},
		"reasoning":                      {cut("text/event-stream", thinks), "us-1 started reasoning instead of continuing the response"},
		"a newer server's reasoning":     {speakRaw(strings.Replace(thinks, "_content", "", 1) + doneEvent), "us-1 started reasoning instead of continuing the response"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			b.attachAs("us-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
			b.attachAs("us-1", engine(t, c.h), service.EngineVLLM)
			b.attachAs("us-2", engine(t, func(http.ResponseWriter, *http.Request) { t.Error("it got a request too") }), service.EngineVLLM)
			got := parseStream(t, read(t, b.post(chatPath, streamBody, "X-Request-ID: r1")))
			if got.text != "a" || got.ends != 0 || !strings.Contains(got.broken, c.want) {
				t.Errorf("the client read %+v, want an error at the end", got)
			}
			counts := b.settled()
			lawful(t, counts)
			if d, _ := b.Decision("r1"); counts.Rejected != 1 || len(d.Attempts) != 3 || d.Attempts[2].Kind != "reject" || b.continuations()["broken"] != 1 {
				t.Errorf("counts %+v, record %+v, continuations %v", counts, d, b.continuations())
			}
		})
	}
}

// A response is continued while attempts remain. Limits and usage include all parts.
func TestResponseInterruptedTwice(t *testing.T) {
	b := start(t, roundRobin(t))
	bodies := make(chan string, 3)
	b.attachAs("us-0", engine(t, continuousEngine(bodies, []string{"a", " b"}, 1, 100, "")), service.EngineVLLM)
	b.attachAs("us-1", engine(t, continuousEngine(bodies, []string{" c"}, 1, 102, "")), service.EngineVLLM)
	b.attachAs("us-2", engine(t, continuousEngine(bodies, []string{" d", " e"}, 1, 103, finished+doneEvent)), service.EngineVLLM)
	body := strings.Replace(streamBody, "{", `{"max_tokens":10,"stream_options":{"include_usage":true},`, 1)
	got := parseStream(t, strings.ReplaceAll(read(t, b.post(chatPath, body)), `"c2"`, `"c"`))
	if got.text != "a b c d e" || got.ends != 1 || got.finishes != 1 || got.usage["completion_tokens"] != 5.0 || got.usage["prompt_tokens"] != 100.0 || got.usage["total_tokens"] != 105.0 {
		t.Errorf("the client read %+v", got)
	}
	for _, want := range []string{`"max_tokens":10,`, `"max_tokens":8,`, `"max_tokens":7,`} {
		if body := <-bodies; !strings.Contains(body, want) {
			t.Errorf("%s lacks %s", body, want)
		}
	}
	b.settled()
	p := b.tallied()
	if p.Requests != 1 || p.PromptTokens != 100 || p.OutputTokens != 5 {
		t.Errorf("points %+v: want each token once", p)
	}
	if tokens := b.TrafficStats().ByReplica; len(tokens) != 3 {
		t.Errorf("%d replicas", len(tokens))
	}
}

// If an interrupted response has reached its token limit, the balancer only adds the end.
func TestResponseAtTokenLimitEndsHere(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attachAs("us-0", engine(t, cut("text/event-stream", chunk("a")+chunk("b"))), service.EngineVLLM)
	got := parseStream(t, read(t, b.post(chatPath, strings.Replace(streamBody, "{", `{"max_completion_tokens":2,`, 1))))
	if got.text != "ab" || got.finish != "length" || got.finishes != 1 || got.ends != 1 {
		t.Errorf("the client read %+v", got)
	}
	text := `data: {"id":"x","created":3,"model":"m","choices":[{"index":0,"text":"a"}]}` + "\n\n"
	b.attachAs("us-0", engine(t, cut("text/event-stream", text)), service.EngineOpenAI)
	stream := read(t, b.post(textPath, `{"model":"`+testModel+`","stream":true,"max_tokens":1,"prompt":"p"}`))
	want := text + `data: {"id":"x","created":3,"model":"m","object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}` + "\n\n" + doneEvent
	if stream != want {
		t.Errorf("the client read %q, want %q", stream, want)
	}
	if c := b.settled(); c.Finished != 2 {
		t.Errorf("counts %+v", c)
	}
}

// A client that disconnects while its response waits for another replica is cancelled.
func TestClientDisconnectsDuringFailover(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = b.RemoveReplica("us-0", 0)
		cut("text/event-stream", chunk("a"))(w, req)
	}), service.EngineVLLM)
	if _, err := b.AddReplica(replicaAt("us-1", "http://127.0.0.1:1")); err != nil { // known, never ready
		t.Fatal(err)
	}
	resp := b.post(chatPath, streamBody)
	b.until(func() bool { return b.View().Counts.Queued == 1 })
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunk("a")))); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	c := b.settled()
	lawful(t, c)
	if c.Cancelled != 1 || c.Queued+c.Outstanding != 0 || b.continuations()["cancelled"] != 1 {
		t.Errorf("counts %+v, continuations %v: want one cancelled", c, b.continuations())
	}
}

// A replica that hangs within a response is replaced by another.
func TestHungReplicaIsAbandoned(t *testing.T) {
	o := roundRobin(t)
	o.Limits.IdleTimeout = 30 * time.Millisecond
	b := start(t, o)
	left := make(chan struct{}, 1)
	b.attachAs("us-0", engine(t, hang(chunk("a"), left)), service.EngineVLLM)
	b.attachAs("us-1", engine(t, speakRaw(chunk("b")+doneEvent)), service.EngineVLLM)
	if got := read(t, b.post(chatPath, streamBody)); got != chunk("a")+chunk("b")+doneEvent {
		t.Errorf("the client read %q", got)
	}
	<-left
	lawful(t, b.settled())
}

// A continuation is not sent to an engine that would start a new response, only to one that can
// continue.
func TestOnlyContinuingEnginesAreUsed(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attachAs("us-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
	b.attachAs("us-1", engine(t, func(http.ResponseWriter, *http.Request) { t.Error("it got a request") }), service.EngineOpenAI)
	b.attachAs("us-2", engine(t, speakRaw(chunk("b")+doneEvent)), service.EngineVLLM)
	if got := read(t, b.post(chatPath, streamBody, "X-Request-ID: r1")); got != chunk("a")+chunk("b")+doneEvent {
		t.Errorf("the client read %q", got)
	}
	b.settled()
	if d, _ := b.Decision("r1"); len(d.Attempts) != 3 || !strings.Contains(d.Attempts[1].Failure, "cannot continue") {
		t.Errorf("attempts %+v", d.Attempts)
	}
}

// The balancer that has the replicas continues the response; its peer receives one stream.
func TestPeerContinuesStream(t *testing.T) {
	us, eu := pair(t, "")
	eu.attachAs("eu-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
	eu.attachAs("eu-1", engine(t, speakRaw(chunk("b")+usageEvent(5, 0, 1)+finished+doneEvent)), service.EngineVLLM)
	us.receiveReport("lb-eu-0")
	got := parseStream(t, read(t, us.post(chatPath, streamBody)))
	if got.text != "ab" || got.ends != 1 {
		t.Errorf("the client read %+v", got)
	}
	here, there := us.settled(), eu.settled()
	if here.Finished != 1 || there.Finished != 1 || here.ForwardedOut != 1 || us.continuations()["whole"] != 0 || eu.continuations()["whole"] != 1 {
		t.Errorf("counts %+v and %+v, continuations %v and %v", here, there, us.continuations(), eu.continuations())
	}
	if p := us.tallied(); p.OutputTokens != 2 || p.PromptTokens != 4 {
		t.Errorf("points %+v", p)
	}
}

// If a peer cannot continue a response, the origin continues it: at one of its own replicas, or at
// another peer that has a suitable engine.
func TestOriginContinuesAfterPeer(t *testing.T) {
	for _, where := range []string{"own replica", "another peer"} {
		t.Run(where, func(t *testing.T) {
			us, eu := pair(t, "")
			eu.attachAs("eu-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = eu.RemoveReplica("eu-0", 0)
				cut("text/event-stream", chunk("a"))(w, req)
			}), service.EngineVLLM)
			bodies := make(chan string, 1)
			rest := engine(t, asked(bodies, chunk("b")+finished+doneEvent))
			us.receiveReport("lb-eu-0")
			resp := us.post(chatPath, streamBody, headerContinue+": on")
			if where == "own replica" {
				us.attachAs("us-0", rest, service.EngineVLLM)
			} else {
				o := roundRobin(t)
				o.Self.ID, o.Self.Region = "lb-asia-0", "local/asia"
				asia := start(t, o)
				asia.attachAs("asia-0", engine(t, func(http.ResponseWriter, *http.Request) { t.Error("it got a request") }), service.EngineOpenAI)
				asia.attachAs("asia-1", rest, service.EngineVLLM)
				us.AddPeer(service.PeerConfig{ID: "lb-asia-0", Region: "local/asia", URL: asia.url}, nil)
				us.receiveReport("lb-asia-0")
			}
			got := parseStream(t, strings.ReplaceAll(read(t, resp), `"c2"`, `"c"`))
			if got.text != "ab" || got.ends != 1 || got.broken != "" {
				t.Errorf("the client read %+v", got)
			}
			if body := <-bodies; !strings.Contains(body, `"continue_final_message":true`) {
				t.Errorf("requested to continue: %s", body)
			}
			here, there := us.settled(), eu.settled()
			lawful(t, here)
			lawful(t, there)
			if here.Finished != 1 || there.Finished != 0 || us.continuations()["whole"] != 1 {
				t.Errorf("counts %+v and %+v, continuations %v", here, there, us.continuations())
			}
		})
	}
}

func TestContinueOffReachesPeer(t *testing.T) {
	us, eu := pair(t, "")
	eu.attachAs("eu-0", engine(t, cut("text/event-stream", chunk("a"))), service.EngineVLLM)
	eu.attachAs("eu-1", engine(t, func(http.ResponseWriter, *http.Request) { t.Error("it got a request") }), service.EngineVLLM)
	us.receiveReport("lb-eu-0")
	got := parseStream(t, read(t, us.post(chatPath, streamBody, headerContinue+": off")))
	if got.text != "a" || got.broken == "" || us.continuations()["refused"] != 1 || len(eu.continuations()) != 0 {
		t.Errorf("the client read %+v; continuations %v and %v", got, us.continuations(), eu.continuations())
	}
	lawful(t, us.settled())
	lawful(t, eu.settled())
}

// If a stream is interrupted at any byte, the client receives the same response.
func TestStreamInterruptedAtEveryByte(t *testing.T) {
	stream := chunk("a") + ": ping\n\n" + chunk("b")
	var at int
	b := start(t, roundRobin(t))
	bodies := make(chan string, 1)
	b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) { cut("text/event-stream", stream[:at])(w, req) }), service.EngineVLLM)
	b.attachAs("us-1", engine(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		delivered := 0
		for _, value := range []string{`"content":"a"`, `"content":"ab"`} {
			if bytes.Contains(body, []byte(value)) {
				delivered = len(value) - len(`"content":""`)
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, value := range "abc"[delivered:] {
			_, _ = io.WriteString(w, chunk(string(value)))
		}
		_, _ = io.WriteString(w, finished+doneEvent)
		bodies <- ""
	}), service.EngineVLLM)
	for at = range len(stream) + 1 {
		got := strings.ReplaceAll(read(t, b.post(chatPath, streamBody)), ": ping\n\n", "")
		<-bodies
		if all := parseStream(t, strings.ReplaceAll(got, `"c2"`, `"c"`)); all.text != "abc" || all.ends != 1 {
			t.Fatalf("broken at byte %d: %q", at, got)
		}
		b.settled()
		b.reset("us-0", "us-1")
	}
	lawful(t, b.settled())
}

// reset makes the round-robin policy start at the first replica again.
func (b *balancer) reset(ids ...string) {
	b.t.Helper()
	list := b.Replicas()
	slices.SortFunc(list, func(x, y service.ReplicaConfig) int { return strings.Compare(x.ID, y.ID) })
	for _, r := range list {
		_, _ = b.RemoveReplica(r.ID, 0)
	}
	for _, r := range list {
		if slices.Contains(ids, r.ID) {
			b.attachAs(r.ID, r.URL, r.Kind)
		}
	}
	b.Step(core.Event{Kind: core.EventTick})
}

func TestContinuationHeader(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	for value, status := range map[string]int{"off": 200, "OFF": 200, "on": 200, "": 200, "maybe": 400} {
		resp := b.post(chatPath, plainBody, headerContinue+": "+value)
		if resp.StatusCode != status {
			t.Errorf("%s %q returns %d, want %d", headerContinue, value, resp.StatusCode, status)
		}
		if body := read(t, resp); status == 400 {
			if message, _, code := apiErrorOf(t, body); code != "invalid_continue" || !strings.Contains(message, `"maybe"`) {
				t.Errorf("the error is %s: %s", code, message)
			}
		}
	}
}
