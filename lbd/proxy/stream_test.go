package proxy

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"skyserve/internal/service"

	"skyserve/lbd/core"
)

func TestEventIsForwardedBeforeTheNext(t *testing.T) {
	words := []string{"", "Hello", " world", "\u00e9\n\"quoted\"", " \U0001F600"}
	seen := make(chan struct{})
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, value := range words {
			_, _ = io.WriteString(w, chunk(value))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-seen: // the client has received it
			case <-req.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, usageEvent(3, 1, 4)+doneEvent)
	}))
	resp := b.post(chatPath, streamBody)
	for i, value := range words {
		want := chunk(value)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("event %d: got %q (%v), want %q", i, got, err, want)
		}
		seen <- struct{}{}
	}
	if rest := read(t, resp); rest != doneEvent {
		t.Errorf("after the last word came %q, want %q", rest, doneEvent)
	}
	if c := b.settled(); c.Finished != 1 {
		t.Errorf("counts %+v, want one finished", c)
	}
}

func TestStreamIsByteIdentical(t *testing.T) {
	streams := map[string]string{
		"lf":             chunk("a") + chunk("b") + doneEvent,
		"crlf":           strings.ReplaceAll(chunk("a")+chunk("b")+doneEvent, "\n", "\r\n"),
		"cr":             strings.ReplaceAll(chunk("a")+chunk("b")+doneEvent, "\n", "\r"),
		"comments":       ": ping\n\n" + chunk("a") + ": ping\n\n" + doneEvent,
		"named":          "event: x\nid: 7\nretry: 10\n" + chunk("a") + doneEvent,
		"no last lf":     chunk("a") + "data: [DONE]",
		"one lf":         chunk("a") + "data: [DONE]\n",
		"several lines":  "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"x\"}}]}\n\n" + doneEvent,
		"not json":       "data: hello\n\ndata: {\"choices\":[{]}\n\n" + doneEvent,
		"blank lines":    "\n\n\n" + chunk("a") + "\n\n" + doneEvent,
		"own usage":      chunk("a") + `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}` + "\n\n" + doneEvent,
		"no done":        strings.Replace(chunk("a"), `"finish_reason":null`, `"finish_reason":"stop"`, 1),
		"engine's error": chunk("a") + "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n",
	}
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, 1 << 20} {
				b := start(t, testOptions(t))
				b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					w.Header().Set("Content-Type", "text/event-stream")
					for at := 0; at < len(stream); at += size {
						_, _ = io.WriteString(w, stream[at:min(at+size, len(stream))])
						_ = http.NewResponseController(w).Flush()
					}
				}), service.EngineOpenAI)
				resp := b.post(chatPath, streamBody)
				if got := read(t, resp); got != stream {
					t.Errorf("in pieces of %d: got %q, want %q", size, got, stream)
				}
				lawful(t, b.settled())
			}
		})
	}
}

func TestUsageIsRequestedAndHidden(t *testing.T) {
	with := func(options string) string {
		return `{"model":"` + testModel + `","stream":true,` + options + `"messages":[]}`
	}
	cases := []struct {
		name, body string
		hidden     bool
		sent       string
	}{
		{"absent", with(""), true, `{"model":"` + testModel + `","stream":true,"messages":[],"stream_options":{"include_usage":true}}`},
		{"null", with(`"stream_options":null,`), true, with(`"stream_options":{"include_usage":true},`)},
		{"empty", with(`"stream_options": { } ,`), true, with(`"stream_options": {"include_usage":true} ,`)},
		{"other", with(`"stream_options":{"a":1},`), true, with(`"stream_options":{"include_usage":true,"a":1},`)},
		{"refused", with(`"stream_options":{"include_usage" : false},`), true, with(`"stream_options":{"include_usage" : true},`)},
		{"requested", with(`"stream_options":{"include_usage": true},`), false, with(`"stream_options":{"include_usage": true},`)},
		{"odd", with(`"stream_options":7,`), false, with(`"stream_options":7,`)},
		{"no stream", plainBody, false, plainBody},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, testOptions(t))
			bodies := make(chan string, 1)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				bodies <- string(body)
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, chunk("a")+usageEvent(100, 64, 1)+doneEvent)
			}))
			want := chunk("a") + usageEvent(100, 64, 1) + doneEvent
			if c.hidden {
				want = chunk("a") + doneEvent
			}
			if got := read(t, b.post(chatPath, c.body)); got != want {
				t.Errorf("the client got %q, want %q", got, want)
			}
			if got := <-bodies; got != c.sent {
				t.Errorf("the engine got %s, want %s", got, c.sent)
			}
			b.settled()
			points := b.tallied()
			if points.PromptTokens != 100 || points.CachedTokens != 64 || points.OutputTokens != 1 || points.Requests != 1 {
				t.Errorf("points %+v, want the engine's usage", points)
			}
		})
	}
}

func TestOnlyAliasIsRewritten(t *testing.T) {
	b := start(t, testOptions(t))
	bodies := make(chan string, 1)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		bodies <- string(body)
		_, _ = io.WriteString(w, plainReply)
	}))
	for _, alias := range []string{`"chat-small"`, `"chat\u002dsmall"`} {
		body := ` { "messages" : [ {"role":"user","content":"chat-small \ud83d\ude00"} ] ,` + "\n" + ` "model"	: ` + alias + `, "x": 1.0e+3 } `
		if got := expect(t, b.post(chatPath, body), http.StatusOK, ""); got != plainReply {
			t.Errorf("the client got %q, want %q", got, plainReply)
		}
		want := strings.Replace(body, alias, `"`+testModel+`"`, 1)
		if got := <-bodies; got != want {
			t.Errorf("the engine got %q, want %q", got, want)
		}
	}
}

func TestResponseEntersPrefixKey(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 40)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, speak(long, long)))
	first := `{"model":"chat-small","stream":true,"messages":[{"role":"user","content":"` + long + `"}]}`
	resp := b.post(chatPath, first)
	read(t, resp)
	if got := resp.Header.Get(headerPrefixMatch); got != "0.000" {
		t.Errorf("the first turn matched %s, want 0.000", got)
	}
	b.settled()
	next := `{"model":"chat-small","stream":true,"messages":[{"content":[{"type":"text","text":"` + long + `"}],"role":"user"},` +
		`{"role":"assistant","content":"` + long + long + `"},{"role":"user","content":"go on"}]}`
	resp = b.post(chatPath, next)
	read(t, resp)
	b.settled()
	d, ok := b.Decision(resp.Header.Get(headerRequestID))
	if !ok || d.Decision == nil {
		t.Fatalf("no decision is remembered: %+v", d)
	}
	if miss := d.Decision.PromptBytes - d.Decision.MatchBytes; miss > 64 {
		t.Errorf("the second turn matched %d of %d bytes, want all but the last block", d.Decision.MatchBytes, d.Decision.PromptBytes)
	}
}

func TestResponseHeaders(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		for _, name := range []string{"Connection", "X-Named", "X-Skyserve-Tenant", "Accept-Encoding", "Te"} {
			if v := req.Header.Get(name); v != "" && v != "keep-alive" {
				t.Errorf("the engine got %s: %s", name, v)
			}
		}
		if got := req.Header.Get("Authorization"); got != "Bearer engine" {
			t.Errorf("the engine got Authorization %q, want the client's", got)
		}
		if got := req.Header.Get("X-Other"); got != "kept" {
			t.Errorf("the engine got X-Other %q, want kept", got)
		}
		w.Header().Set("X-Engine", "kept")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("X-Skyserve-Replica", "spoofed")
		_, _ = io.WriteString(w, plainReply)
	}))
	resp := b.post(chatPath, plainBody, "X-Request-ID: mine-1", "Connection: X-Named", "X-Named: 1", "X-Skyserve-Tenant: other",
		"Accept-Encoding: gzip", "TE: trailers", "Authorization: Bearer engine", "X-Other: kept")
	read(t, resp)
	want := map[string]string{
		headerRequestID: "mine-1", headerRegion: "local/us", headerReplica: "us-0", headerPrefixMatch: "0.000",
		headerDecision: "skylb:prefix_miss", "X-Engine": "kept", "Keep-Alive": "", "Content-Length": strconv.Itoa(len(plainReply)),
	}
	for name, value := range want {
		if got := resp.Header.Get(name); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	if resp.Header.Get(headerQueueMs) == "" {
		t.Errorf("%s is missing", headerQueueMs)
	}
}

func TestRequestIDs(t *testing.T) {
	for given, kept := range map[string]bool{
		"abc-1": true, strings.Repeat("x", 128): true, "": false, strings.Repeat("x", 129): false, "a b": false, "caf\u00e9": false, "a\tb": false,
		"a\u009b2J": false, "a\u202eb": false, "a\x1b[2J": false, "a\x7f": false, "a\xff": false,
	} {
		if got := requestID(given); (got == given) != kept {
			t.Errorf("requestID(%q) = %q, kept: want %v", given, got, kept)
		}
	}
	rt, err := New(testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 128)
	rt.inFlight["a"], rt.inFlight[long] = &inFlight{}, &inFlight{}
	for _, want := range []string{"a", long} {
		if got := rt.uniqueID(want); got == want || len(got) > 128 || !strings.HasPrefix(got, want[:1]) {
			t.Errorf("uniqueID(%q) = %q, want another one like it", want, got)
		}
	}
}

func TestEngineErrorIsForwardedUnchanged(t *testing.T) {
	b := start(t, testOptions(t))
	reply := `{"object":"error","message":"too long","code":400}`
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, reply)
	}))
	if got := expect(t, b.post(chatPath, plainBody), http.StatusBadRequest, ""); got != reply {
		t.Errorf("got %q, want %q", got, reply)
	}
	if c := b.settled(); c.Finished != 1 || c.Rejected != 0 {
		t.Errorf("counts %+v, want one finished", c)
	}
}

func TestProgressIsAccumulated(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, speak("a", " b", " c")))
	read(t, b.post(chatPath, streamBody))
	b.settled()
	b.until(func() bool { return b.View().Replicas[0].Tokens == 3 })
	b.Step(core.Event{Kind: core.EventTick})
	if got := b.View().Replicas[0].Tokens; got != 3 {
		t.Errorf("%d tokens were counted, want 3", got)
	}
}
