package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	simulated "skyserve/internal/sim/engine/server"
)

// A response with several tokens per event is continued like any other: with its token limit, its text
// and its usage, wherever its replica fails.
func TestFailureWithSeveralTokensPerEvent(t *testing.T) {
	requests := map[string]string{
		chatPath: `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":35,"messages":[{"role":"user","content":"Where is the old bridge?"}]}`,
		textPath: `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":35,"prompt":"The river in the valley"}`,
	}
	b := start(t, roundRobin(t))
	for path, body := range requests {
		b.attachAs("whole", simulate(t).url, service.EngineSim)
		want := parseStream(t, expect(t, b.post(path, body), http.StatusOK, ""))
		_, _ = b.RemoveReplica("whole", 0)
		dying, healthy := simulateWith(t, simulated.Options{StreamInterval: 12}), simulateWith(t, simulated.Options{StreamInterval: 5})
		for _, after := range []int{1, 2, 13, 20, 34} {
			dying.fault(t, fmt.Sprintf(`{"reset-after-tokens":%d}`, after))
			b.attachAs("dying", dying.url, service.EngineSim)
			b.attachAs("healthy", healthy.url, service.EngineSim)
			b.full("healthy")
			id := fmt.Sprintf("%d-%s", after, path[4:8])
			resp := b.post(path, body, "X-Request-ID: "+id)
			b.until(func() bool { return b.View().Counts.Queued == 1 })
			b.report("healthy")
			got := parseStream(t, expect(t, resp, http.StatusOK, ""))
			if got.text != want.text || got.finish != want.finish || got.ends != 1 || got.broken != "" {
				t.Errorf("%s, dead after %d tokens: %+v\nwant %+v", path, after, got, want)
			}
			checkUsage(t, fmt.Sprintf("%s, dead after %d", path, after), got.usage, want.usage, true)
			b.settled()
			d, _ := b.Decision(id)
			if d.OutputTokens == nil || *d.OutputTokens != 35 || *d.PromptTokens != int(want.usage["prompt_tokens"].(float64)) {
				t.Errorf("%s, dead after %d: record %+v", path, after, d)
			}
			_, _ = b.RemoveReplica("dying", 0)
			_, _ = b.RemoveReplica("healthy", 0)
		}
	}
	lawful(t, b.settled())
	if got := b.continuations(); got["whole"] != 10 || len(got) != 1 {
		t.Errorf("continuations %v, want 10 whole", got)
	}
}

// continuousEngine is an engine that puts several tokens into an event and reports the usage so far in
// each event on request. Then it ends with end, or closes the connection.
func continuousEngine(bodies chan<- string, words []string, perWord, prompt int, end string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		bodies <- string(body)
		var lookup struct {
			Options struct {
				Usage      bool `json:"include_usage"`
				Continuous bool `json:"continuous_usage_stats"`
			} `json:"stream_options"`
		}
		_ = json.Unmarshal(body, &lookup)
		w.Header().Set("Content-Type", "text/event-stream")
		for i, value := range words {
			event := chunk(value)
			if n := (i + 1) * perWord; lookup.Options.Usage && lookup.Options.Continuous {
				event = strings.Replace(event, "}]}\n", fmt.Sprintf(`}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n", prompt, prompt+n, n), 1)
			}
			_, _ = io.WriteString(w, event)
		}
		_ = http.NewResponseController(w).Flush()
		if end == "" {
			panic(http.ErrAbortHandler)
		}
		if lookup.Options.Usage {
			_, _ = io.WriteString(w, usageEvent(prompt, 0, len(words)*perWord))
		}
		_, _ = io.WriteString(w, end)
	}
}

// Usage that the client did not request is hidden in every event. Requested usage is not hidden.
func TestContinuousUsageIsHidden(t *testing.T) {
	words := []string{"a", "", " b\u00e9", " c\n"}
	plain := chunk("a") + chunk("") + chunk(" b\u00e9") + chunk(" c\n")
	for options, c := range map[string]struct {
		shown, usage bool
	}{
		``: {false, false}, `"stream_options":null,`: {false, false}, `"stream_options":{"continuous_usage_stats":false},`: {false, false},
		`"stream_options":{"include_usage":true},`: {false, true}, `"stream_options":{"include_usage":false,"continuous_usage_stats":true},`: {false, false},
		`"stream_options":{"include_usage":true,"continuous_usage_stats":true},`:      {true, true},
		`"stream_options":{"continuous_usage_st\u0061ts":null,"include_usage":true},`: {false, true},
	} {
		for _, kind := range []service.EngineKind{service.EngineVLLM, service.EngineSGLang, service.EngineSim} {
			b := start(t, testOptions(t))
			bodies := make(chan string, 1)
			b.attachAs("us-0", engine(t, continuousEngine(bodies, words, 3, 9, finished+doneEvent)), kind)
			got := read(t, b.post(chatPath, strings.Replace(streamBody, "{", "{"+options, 1)))
			want := plain
			if c.usage {
				want += usageEvent(9, 0, 12)
			}
			if want += finished + doneEvent; !c.shown && got != want {
				t.Errorf("%s %s: the client got %q, want %q", kind, options, got, want)
			}
			if n := strings.Count(got, `"completion_tokens":`); c.shown && n != 5 {
				t.Errorf("%s: the client received its usage %d times: %q", options, n, got)
			}
			var sent struct {
				Options map[string]any `json:"stream_options"`
			}
			if body := <-bodies; json.Unmarshal([]byte(body), &sent) != nil || sent.Options["continuous_usage_stats"] != true || sent.Options["include_usage"] != true {
				t.Errorf("%s: the engine got %s", options, body)
			}
			b.settled()
			if p := b.tallied(); p.OutputTokens != 12 || p.PromptTokens != 9 {
				t.Errorf("%s: points %+v", options, p)
			}
		}
	}
}

// Engines of other kinds may reject an unknown option: it is not sent to them, nor to engines that
// have rejected it.
func TestContinuousUsagePerEngine(t *testing.T) {
	b := start(t, testOptions(t))
	bodies := make(chan string, 4)
	for _, kind := range []service.EngineKind{service.EngineOpenAI, ""} {
		b.attachAs("us-0", engine(t, continuousEngine(bodies, []string{"a"}, 1, 9, doneEvent)), kind)
		read(t, b.post(chatPath, streamBody))
		if body := <-bodies; strings.Contains(body, "continuous_usage_stats") {
			t.Errorf("an engine of kind %q got the option: %s", kind, body)
		}
	}
	answers := continuousEngine(bodies, []string{"a"}, 1, 9, doneEvent)
	b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if strings.Contains(string(body), "continuous_usage_stats") {
			bodies <- string(body)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"stream_options: unknown field continuous_usage_stats"}}`)
			return
		}
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		answers(w, req)
	}), service.EngineVLLM)
	for range 2 {
		if got := read(t, b.post(chatPath, streamBody)); got != chunk("a")+doneEvent {
			t.Errorf("the client got %q", got)
		}
	}
	if len(bodies) != 3 {
		t.Errorf("the engine got %d requests, want one with the option and one without", len(bodies))
	}
	if c := b.settled(); c.Finished != 4 || b.View().Replicas[0].Outstanding != 0 {
		t.Errorf("counts %+v", c)
	}
	const own = `{"error":{"message":"temperature: too hot"}}`
	b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, own)
	}), service.EngineVLLM)
	if got := expect(t, b.post(chatPath, streamBody), http.StatusBadRequest, ""); got != own {
		t.Errorf("the client got %q", got)
	}
}

// If no usage reports the number of tokens per event, a response that requires its token count is
// continued only if its replica was observed to send each token in its own event.
func TestEventsCountAsTokensOnlyIfLearned(t *testing.T) {
	const bounded = `"max_tokens":40,`
	words := func(n int) []string { return strings.Split(strings.Repeat("w", n), "") }
	one := func(n, tokens int, finish string) http.HandlerFunc { // a response of n events and a number of tokens
		return func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for _, value := range words(n) {
				_, _ = io.WriteString(w, chunk(value))
			}
			_, _ = io.WriteString(w, strings.Replace(finished, "stop", finish, 1)+usageEvent(9, 0, tokens)+doneEvent)
		}
	}
	for name, c := range map[string]struct {
		before []http.HandlerFunc
		more   string
		goesOn bool
	}{
		"nothing learned":                 {nil, bounded, false},
		"nothing learned, no token limit": {nil, ``, true},
		"a minimum of tokens":             {nil, `"min_tokens":4,`, false},
		"a null token limit":              {nil, `"max_tokens":null,`, true},
		"the client requests the usage":   {nil, `"stream_options":{"include_usage":true},`, false},
		"one by one":                      {[]http.HandlerFunc{one(70, 70, "length")}, bounded, true},
		"one by one, and a token to stop": {[]http.HandlerFunc{one(70, 71, "stop")}, bounded, true},
		"a usage not requested":           {nil, bounded, false},
		"one by one, with usage":          {[]http.HandlerFunc{one(70, 70, "length")}, `"stream_options":{"include_usage":true},`, true},
		"too few tokens learned":          {[]http.HandlerFunc{one(3, 3, "length")}, bounded, false},
		"few tokens, several times":       {[]http.HandlerFunc{one(30, 30, "length"), one(30, 30, "length"), one(30, 30, "length")}, bounded, true},
		"two at the end":                  {[]http.HandlerFunc{one(70, 70, "length"), one(70, 71, "length")}, bounded, false},
		"several tokens once":             {[]http.HandlerFunc{one(70, 70, "length"), one(5, 20, "stop"), one(70, 70, "length")}, bounded, false},
		"fewer tokens than events":        {[]http.HandlerFunc{one(70, 60, "length")}, bounded, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			var serve http.HandlerFunc
			url := engine(t, func(w http.ResponseWriter, req *http.Request) { serve(w, req) })
			b.attachAs("us-0", url, service.EngineOpenAI)
			for _, serve = range c.before {
				read(t, b.post(textPath, textOf(``)))
				b.settled()
			}
			stream := textChunk("a") + textChunk("b")
			if strings.HasPrefix(name, "a usage") { // a single event with usage is valid
				stream = strings.ReplaceAll(stream, "}]}", `}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)
			}
			serve = cut("text/event-stream", stream)
			bodies := make(chan string, 1)
			b.attachAs("us-1", engine(t, asked(bodies, textChunk("c")+finished+doneEvent)), service.EngineOpenAI)
			b.full("us-1")
			resp := b.post(textPath, textOf(c.more))
			if c.goesOn {
				b.until(func() bool { return b.View().Counts.Queued == 1 })
				b.report("us-1")
			}
			got := read(t, resp)
			if goesOn := strings.Contains(got, `"text":"c"`); goesOn != c.goesOn || goesOn == strings.Contains(got, "replica_failed") {
				t.Errorf("the client got %q, want the answer to go on: %v", got, c.goesOn)
			}
			if c.goesOn {
				if body := <-bodies; strings.Contains(c.more, `:40`) && !strings.Contains(body, `"max_tokens":38`) {
					t.Errorf("the continuation is %s", body)
				}
			}
			lawful(t, b.settled())
		})
	}
}

// textOf returns the body of a streamed completion.
func textOf(more string) string {
	return `{"model":"` + testModel + `",` + more + `"stream":true,"prompt":"p"}`
}

func textChunk(value string) string {
	c, _ := json.Marshal(value)
	return fmt.Sprintf(`data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":%s,"finish_reason":null}]}`+"\n\n", c)
}

// A completion without a token limit has the API's default, 16 tokens, on engines that apply it.
// Its continuation has the same limit.
func TestImpliedTokenLimitOfCompletions(t *testing.T) {
	for _, c := range []struct {
		kind       service.EngineKind
		more, want string
	}{
		{service.EngineVLLM, ``, `"max_tokens":10`},
		{service.EngineSGLang, ``, `"max_tokens":10`},
		{service.EngineSim, ``, ``},
		{service.EngineVLLM, `"max_tokens":null,`, `"max_tokens":null`},
		{service.EngineVLLM, `"max_tokens":100,`, `"max_tokens":94`},
	} {
		b := start(t, roundRobin(t))
		bodies := make(chan string, 2)
		b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, strings.Replace(textChunk("a"), "}]}", `}],"usage":{"prompt_tokens":3,"completion_tokens":6}}`, 1))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), c.kind)
		b.attachAs("us-1", engine(t, asked(bodies, textChunk("c")+finished+doneEvent)), c.kind)
		if got := read(t, b.post(textPath, textOf(c.more))); !strings.HasSuffix(got, doneEvent) {
			t.Fatalf("%s %s: the client got %q", c.kind, c.more, got)
		}
		if body := <-bodies; !strings.Contains(body, c.want) || c.want == "" && strings.Contains(body, "max_tokens") || !json.Valid([]byte(body)) {
			t.Errorf("%s %s: the rest was asked for as %s, want %s", c.kind, c.more, body, c.want)
		}
	}
}

// The balancer that forwarded a request has the same counts as the one that serves it, and hides
// usage that its client did not request.
func TestContinuousUsageThroughAPeer(t *testing.T) {
	us, eu := pair(t, "")
	bodies := make(chan string, 2)
	first := continuousEngine(bodies, []string{"a", " b"}, 3, 9, "")
	eu.attachAs("eu-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = eu.RemoveReplica("eu-0", 0)
		first(w, req)
	}), service.EngineVLLM)
	us.receiveReport("lb-eu-0")
	resp := us.post(chatPath, strings.Replace(streamBody, "{", `{"max_tokens":10,`, 1))
	us.attachAs("us-0", engine(t, continuousEngine(bodies, []string{" c"}, 4, 15, finished+doneEvent)), service.EngineVLLM)
	got := read(t, resp)
	if want := chunk("a") + chunk(" b") + chunk(" c") + strings.Replace(finished, "c2", "c", 1) + doneEvent; got != want {
		t.Errorf("the client got %q, want %q", got, want)
	}
	<-bodies
	if body := <-bodies; !strings.Contains(body, `"max_tokens":4,`) {
		t.Errorf("the rest was asked for as %s, want 4 tokens at most", body)
	}
	us.settled()
	if p := us.tallied(); p.OutputTokens != 10 || p.PromptTokens != 9 {
		t.Errorf("points %+v, want 9 and 10", p)
	}
	lawful(t, eu.settled())
}
