package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/testkit"
)

const chatPath, textPath = "/v1/chat/completions", "/v1/completions"

func TestStreamHasOneEventPerToken(t *testing.T) {
	bubble(t, Options{Speed: 10}, func(t *testing.T, b *bench) {
		// "<|user|>\nhi\n<|assistant|>\n" is 5+1+1+1+... tokens: count them.
		prompt := engine.CountTokens("<|user|>\nhi\n<|assistant|>\n")
		chunks, err := b.stream(chatPath, chat("hi", `,"max_tokens":3,"stream":true`))
		if err != nil || len(chunks) != 4 || chunks[3].data != "[DONE]" {
			t.Fatalf("%d events, %v: %+v", len(chunks), err, chunks)
		}
		p := engine.Profiles()[0]
		at := p.PrefillBase + time.Duration(prompt)*p.PrefillPerToken
		for i, c := range chunks[:3] {
			if got, want := c.at, at/10; got < want || got > want+time.Microsecond {
				t.Errorf("token %d came after %v, want %v", i, got, want)
			}
			at += p.DecodeBase + p.DecodePerRequest + time.Duration(prompt+1+i)*p.DecodePerKVToken
			if c.Object != "chat.completion.chunk" || c.Choices[0].Delta.Content == "" {
				t.Errorf("event %d: %s", i, c.data)
			}
			if (c.Choices[0].Delta.Role == "assistant") != (i == 0) {
				t.Errorf("event %d has the role %q", i, c.Choices[0].Delta.Role)
			}
			if last := c.Choices[0].FinishReason; (last != nil) != (i == 2) {
				t.Errorf("event %d: %s", i, c.data)
			}
		}
		if reason := *chunks[2].Choices[0].FinishReason; reason != "length" {
			t.Errorf("finish reason %q, want length", reason)
		}
	})
}

func TestStreamedEqualsWholeResponse(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for path, body := range map[string]string{
			chatPath: `{"messages":[{"role":"user","content":"hello"}],"max_tokens":20`,
			textPath: `{"prompt":"once upon a time","max_tokens":20`,
		} {
			whole := b.complete(path, body+"}")
			chunks, err := b.stream(path, body+`,"stream":true,"stream_options":{"include_usage":true}}`)
			if err != nil || len(chunks) != 22 {
				t.Fatalf("%s: %d events, %v; want 20, the usage and [DONE]", path, len(chunks), err)
			}
			text := ""
			for _, c := range chunks[:20] {
				text += c.Choices[0].Delta.Content + c.Choices[0].Text
			}
			if text != whole.text() || text == "" {
				t.Errorf("%s: streamed %q, whole %q", path, text, whole.text())
			}
			u := chunks[20].Usage
			if u == nil || len(chunks[20].Choices) != 0 || u.CompletionTokens != 20 || u.TotalTokens != u.PromptTokens+20 || u.PromptTokensDetails.CachedTokens != u.PromptTokens-1 {
				t.Errorf("%s: usage event %s", path, chunks[20].data)
			}
			if whole.Usage.PromptTokens != u.PromptTokens || whole.Usage.PromptTokensDetails.CachedTokens != 0 {
				t.Errorf("%s: usage %+v of the first, %+v of the second", path, whole.Usage, *u)
			}
		}
	})
}

func TestNextTurnHitsTheCachedResponse(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		first := b.complete(chatPath, chat("Where is the old bridge?", `,"max_tokens":40`))
		response, _ := json.Marshal(first.text())
		second := b.complete(chatPath, `{"max_tokens":5,"messages":[{"role":"user","content":"Where is the old bridge?"},
			{"role":"assistant","content":`+string(response)+`},{"role":"user","content":"And the new one?"}]}`)
		if got, want := second.Usage.PromptTokensDetails.CachedTokens, first.Usage.TotalTokens; got != want {
			t.Errorf("%d tokens of the second turn were cached, want the %d of the first", got, want)
		}
	})
}

func TestBrokenResponseContinuesUnchanged(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		want := b.complete(chatPath, chat("tell me a story", "")).text()
		words := strings.SplitAfter(want, " ")
		for _, cut := range []int{1, len(words) / 2, len(words) - 1} {
			continued := strings.TrimSuffix(strings.Join(words[:cut], ""), " ")
			partial, _ := json.Marshal(continued)
			rest := b.complete(chatPath, `{"continue_final_message":true,"add_generation_prompt":false,
				"messages":[{"role":"user","content":"tell me a story"},{"role":"assistant","content":`+string(partial)+`}]}`)
			if got := continued + rest.text(); got != want {
				t.Errorf("after %d words: %q\nwant %q", cut, got, want)
			}
		}
	})
}

func TestLengths(t *testing.T) {
	bubble(t, Options{Speed: 1000}, func(t *testing.T, b *bench) {
		for _, c := range []struct {
			more     string
			from, to int
			reason   string
		}{
			{`,"max_tokens":1`, 1, 1, "length"},
			{`,"max_tokens":64`, 64, 64, "length"},
			{`,"max_completion_tokens":33`, 33, 33, "length"},
			{`,"max_tokens":700,"ignore_eos":true`, 700, 700, "length"},
			{`,"max_tokens":800,"min_tokens":600`, 600, 799, "stop"},
			{`,"min_tokens":600`, 600, 600, "length"},
			{`,"max_tokens":2000`, 1, 512, "stop"},
			{``, 1, 512, "stop"},
		} {
			r := b.complete(chatPath, chat("how long is it?", c.more))
			if n := r.Usage.CompletionTokens; n < c.from || n > c.to || r.Choices[0].FinishReason != c.reason {
				t.Errorf("%s: %d tokens, %s; want %d to %d, %s", c.more, n, r.Choices[0].FinishReason, c.from, c.to, c.reason)
			}
			if n := engine.CountTokens(r.text()); n != r.Usage.CompletionTokens {
				t.Errorf("%s: the text has %d tokens, the usage %d", c.more, n, r.Usage.CompletionTokens)
			}
		}
	})
}

func TestSeedsModelsAndSaltsAreSeparate(t *testing.T) {
	opts := Options{Speed: 1000, Model: "base", Aliases: []string{"small"}, LoRA: []string{"law"}}
	bubble(t, opts, func(t *testing.T, b *bench) {
		ask := func(more string) reply { return b.complete(chatPath, chat("who are you?", `,"max_tokens":20`+more)) }
		base := ask("")
		for _, c := range []struct {
			more         string
			same, cached bool
		}{
			{`,"model":"small"`, true, true},
			{`,"temperature":0.7,"stop":["x"]`, true, true},
			{`,"seed":5`, false, true},
			{`,"model":"law"`, false, false},
			{`,"cache_salt":"tenant"`, true, false},
		} {
			r := ask(c.more)
			if (r.text() == base.text()) != c.same || (r.Usage.PromptTokensDetails.CachedTokens > 0) != c.cached {
				t.Errorf("%s: text %q, cached %d; want same text %v, cached %v", c.more, r.text(), r.Usage.PromptTokensDetails.CachedTokens, c.same, c.cached)
			}
			if again := ask(c.more); again.text() != r.text() || again.Usage.PromptTokensDetails.CachedTokens == 0 {
				t.Errorf("%s: the second time %q, cached %d", c.more, again.text(), again.Usage.PromptTokensDetails.CachedTokens)
			}
		}
		_, list := b.get("/v1/models")
		for _, part := range []string{`"id":"base"`, `"id":"small"`, `"id":"law"`, `"parent":"base"`, `"max_model_len":21000`} {
			if !strings.Contains(list, part) {
				t.Errorf("GET /v1/models: %s is not in %s", part, list)
			}
		}
	})
}

func TestErrors(t *testing.T) {
	long := strings.Repeat("word ", 21_000)
	bubble(t, Options{MaxBodyBytes: 1 << 20, Model: "m"}, func(t *testing.T, b *bench) {
		for _, c := range []struct {
			path, body string
			status     int
			want       string
		}{
			{chatPath, `{"messages":`, 400, "invalid JSON"},
			{chatPath, ``, 400, "at byte 0"},
			{chatPath, `{"messages":"hi"}`, 400, "messages: must be an array, got string"},
			{chatPath, `["hi"]`, 400, "body: must be an object, got array"},
			{chatPath, chat("x", `,"stream":1`), 400, "stream: must be true or false, got number"},
			{chatPath, chat("x", `,"model":1`), 400, "model: must be a string, got number"},
			{chatPath, `{"messages":[]}`, 400, "at least one message"},
			{chatPath, `{"messages":[{"content":"x"}]}`, 400, "messages[0].role is required"},
			{chatPath, `{"messages":[{"role":"user","content":5}]}`, 400, "messages[0].content: must be a string or an array of parts, got 5"},
			{chatPath, `{"messages":[{"role":"user","content":[{"text":"x"}]}]}`, 400, `messages[0].content[0]: must be a part with a type, got {"text":"x"}`},
			{chatPath, chat("x", `,"max_tokens":0`), 400, "max_tokens: must be at least 1, got 0"},
			{chatPath, chat("x", `,"max_tokens":"many"`), 400, "max_tokens: must be an integer, got string"},
			{chatPath, chat("x", `,"max_tokens":5,"min_tokens":6`), 400, "min_tokens: must be at most max_tokens (5), got 6"},
			{chatPath, chat("x", `,"min_tokens":-1`), 400, "min_tokens: must be at least 0, got -1"},
			{chatPath, chat("x", `,"n":2`), 400, "n: the simulated engine returns one choice: must be 1, got 2"},
			{chatPath, chat("x", `,"n":0`), 400, "n: must be at least 1, got 0"},
			{chatPath, chat("x", `,"max_tokens":21000`), 400, "maximum context length is 21000"},
			{chatPath, chat("x", `,"continue_final_message":true,"add_generation_prompt":true`), 400, "mutually exclusive"},
			{chatPath, chat(long, ``), 400, "maximum context length is 21000"},
			{chatPath, chat("x", `,"model":"other"`), 404, "`other` does not exist"},
			{chatPath, `"` + strings.Repeat("x", 1<<20) + `"`, 413, "limit of 1048576 bytes"},
			{textPath, `{}`, 400, "prompt is required"},
			{textPath, `{"prompt":7}`, 400, "got 7"},
			{textPath, `{"prompt":""}`, 400, "at least one token"},
			{textPath, `{"prompt":[]}`, 400, "at least one token"},
			{textPath, `{"prompt":["a","b"]}`, 400, "must contain one prompt, got 2"},
			{textPath, `{"prompt":[{}]}`, 400, "got [{}]"},
			{"/v1/embeddings", `{"input":5}`, 400, "input: must be a string or an array of strings, got 5"},
			{"/v1/embeddings", `{"input":[]}`, 400, "must contain 1 to 2048 strings, got 0"},
			{"/v1/embeddings", `{"input":"x","dimensions":0}`, 400, "dimensions: must be from 1 to 4096, got 0"},
			{"/v1/embeddings", `{"input":"x","encoding_format":"hex"}`, 400, `got "hex"`},
			{"/v1/embeddings", `{"input":"x","model":"other"}`, 404, "does not exist"},
			{"/tokenize", `{"prompt":"x","model":"other"}`, 404, "does not exist"},
			{"/tokenize", `{}`, 400, "prompt is required"},
			{"/v1/models", `{}`, 405, "method must be GET, got POST"},
			{"/v1/nothing", `{}`, 404, "no such path: /v1/nothing"},
			{"/fault", `{"explode":1}`, 400, `unknown fault "explode"`},
			{"/fault", `[]`, 400, "must be an object"},
		} {
			status, text := b.post(c.path, c.body)
			if e := errorOf(t, text); status != c.status || !strings.Contains(e.Message, c.want) {
				t.Errorf("POST %s %.60s: %d %q, want %d and %q", c.path, c.body, status, e.Message, c.status, c.want)
			}
		}
		if l := b.server.driver.loads()[0]; l.Submitted != 0 {
			t.Errorf("%d requests reached the engine, want none", l.Submitted)
		}
	})
}

func TestLargeBody(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "two large requests, one after the other")
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		status, text := b.post(chatPath, chat(strings.Repeat("0123456789 ", 2_000_000), ""))
		if e := errorOf(t, text); status != 400 || e.Code == nil || *e.Code != "context_length_exceeded" {
			t.Errorf("22 MB of text: %d %s", status, text)
		}
		image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 20_000_000) + `"}}`
		r := b.complete(chatPath, `{"max_tokens":3,"messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},`+image+`]}]}`)
		if r.Usage.PromptTokens > 100 {
			t.Errorf("a large image has %d tokens", r.Usage.PromptTokens)
		}
	})
}

func TestPartsRenderAsText(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		count := func(body string) string { _, text := b.post("/tokenize", body); return text }
		one := count(`{"messages":[{"role":"user","content":"a b"}]}`)
		two := count(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":" b"}]}]}`)
		if one != two || !strings.Contains(one, `"count"`) {
			t.Errorf("as a string %s, as parts %s", one, two)
		}
		images := map[string]bool{}
		for _, url := range []string{"http://x/1", "http://x/2", "http://x/1"} {
			images[count(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)] = true
		}
		if len(images) != 2 {
			t.Errorf("two images, one of them twice, yielded %d prompts", len(images))
		}
		if a, b := count(chat("x", `,"tools":[{"name":"f"}]`)), count(chat("x", "")); a == b {
			t.Error("tools are not part of the prompt")
		}
		if a, b := count(chat("x", `,"add_generation_prompt":false`)), count(chat("x", "")); a == b {
			t.Error("add_generation_prompt false changes nothing")
		}
		if a, b := count(`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}`), count(`{"messages":[{"role":"assistant"}]}`); a == b {
			t.Error("tool calls are not part of the prompt")
		}
	})
}

func TestTokenize(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for body, count := range map[string]int{
			`{"prompt":"the quiet river."}`: 4,
			`{"prompt":[1,2,3]}`:            3,
			`{"prompt":["one text"]}`:       2,
			chat("hi", ""):                  engine.CountTokens("<|user|>\nhi\n<|assistant|>\n"),
		} {
			_, text := b.post("/tokenize", body)
			var got tokenization
			if err := json.Unmarshal([]byte(text), &got); err != nil || got.Count != count || len(got.Tokens) != count || got.MaxModelLen != 21_000 {
				t.Errorf("%s: %s (%v), want %d tokens", body, text, err, count)
			}
		}
		if _, text := b.post("/tokenize", `{"prompt":"`+strings.Repeat(".", 30_000)+`"}`); !strings.Contains(text, `"count":30000`) || !strings.Contains(text, `"tokens":null`) {
			t.Errorf("a prompt above the context: %.200s", text)
		}
	})
}

func TestEmbeddings(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		_, one := b.post("/v1/embeddings", `{"input":"river","dimensions":8}`)
		_, both := b.post("/v1/embeddings", `{"input":["river","market"],"dimensions":8}`)
		var a, c struct {
			Data []struct {
				Embedding []float64
			}
			Usage struct {
				PromptTokens int `json:"prompt_tokens"`
			}
		}
		if json.Unmarshal([]byte(one), &a) != nil || json.Unmarshal([]byte(both), &c) != nil || len(a.Data) != 1 || len(c.Data) != 2 {
			t.Fatalf("one: %s\nboth: %s", one, both)
		}
		norm, dot := 0.0, 0.0
		for i, x := range a.Data[0].Embedding {
			norm += x * x
			dot += x * c.Data[1].Embedding[i]
			if x != c.Data[0].Embedding[i] {
				t.Fatal("the same text has two vectors")
			}
		}
		if norm < 0.999 || norm > 1.001 || dot > 0.999 || c.Usage.PromptTokens != 2 {
			t.Errorf("norm %g, dot with another %g, %d tokens", norm, dot, c.Usage.PromptTokens)
		}
		if _, text := b.post("/v1/embeddings", `{"input":"river","encoding_format":"base64"}`); !strings.Contains(text, `"embedding":"`) {
			t.Errorf("base64: %.100s", text)
		}
	})
}

func TestDisconnectFreesTheEngine(t *testing.T) {
	for _, stream := range []bool{true, false} {
		bubble(t, Options{}, func(t *testing.T, b *bench) {
			ctx, hangUp := context.WithCancel(context.Background())
			body := chat("x", fmt.Sprintf(`,"max_tokens":64,"stream":%v`, stream))
			r, _ := http.NewRequestWithContext(ctx, "POST", "http://engine"+chatPath, strings.NewReader(body))
			go func() {
				if resp, err := b.client.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			time.Sleep(time.Second)
			if l := b.server.driver.loads()[0]; l.Running != 1 || l.KVActive == 0 {
				t.Fatalf("stream %v, after a second: %+v", stream, l)
			}
			hangUp()
			synctest.Wait()
			if l := b.server.driver.loads()[0]; l.Running != 0 || l.KVActive != 0 || l.Cancelled != 1 || l.GeneratedTokens > 64/2 {
				t.Errorf("stream %v, after the client disconnected: %+v", stream, l)
			}
		})
	}
}

func TestSlowClientBlocksNoOthers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		stuck := b.send(chatPath, chat("x", `,"max_tokens":2000,"ignore_eos":true,"stream":true`))
		defer stuck.Body.Close()
		if r := b.complete(chatPath, chat("y", `,"max_tokens":10`)); r.Usage.CompletionTokens != 10 {
			t.Errorf("%+v", r.Usage)
		}
		time.Sleep(5 * time.Minute)
		if l := b.server.driver.loads()[0]; l.Finished != 2 {
			t.Errorf("%d requests finished in the engine, want both", l.Finished)
		}
	})
}

func TestShutdownFinishesShortResponses(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		short := b.send(chatPath, chat("x", `,"max_tokens":20,"stream":true`))
		long := b.send(chatPath, chat("x", `,"max_tokens":60,"stream":true`))
		b.stop()
		if text := read(t, short); !strings.HasSuffix(text, "data: [DONE]\n\n") {
			t.Errorf("the short response did not finish: ...%q", text[max(0, len(text)-80):])
		}
		text, err := io.ReadAll(long.Body)
		long.Body.Close()
		if err == nil || strings.Contains(string(text), "[DONE]") {
			t.Errorf("the interrupted response ended without an error (%v)", err)
		}
		if err := <-b.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if _, err := b.client.Get("http://engine/health"); err == nil {
			t.Error("the server still responds")
		}
	})
}

func TestShutdownRejectsNewRequests(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		if status, _ := b.get("/health"); status != http.StatusOK {
			t.Errorf("GET /health: %d", status)
		}
		b.server.draining.Store(true)
		for _, path := range []string{"/health", "/healthz"} {
			if status, _ := b.get(path); status != http.StatusServiceUnavailable {
				t.Errorf("GET %s while draining: %d", path, status)
			}
		}
		status, text := b.post(chatPath, chat("x", ""))
		if e := errorOf(t, text); status != http.StatusServiceUnavailable || e.Code == nil || *e.Code != "draining" {
			t.Errorf("a request while draining: %d %s", status, text)
		}
	})
}

func TestHealthPathsNeedNoAPIKey(t *testing.T) {
	bubble(t, Options{APIKey: "sk-1"}, func(t *testing.T, b *bench) {
		for path, want := range map[string]int{"/health": 200, "/healthz": 200, "/ping": 200, "/metrics": 200, "/v1/models": 401} {
			if status, _ := b.get(path); status != want {
				t.Errorf("GET %s without a key: %d, want %d", path, status, want)
			}
		}
	})
}

func TestRunReportsListenerErrors(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	listener := testkit.NewPipes()
	listener.Close()
	if err := s.Run(context.Background(), listener); err == nil || errors.Is(err, ErrDied) {
		t.Errorf("Run on a closed listener: %v", err)
	}
}

func TestOptionErrors(t *testing.T) {
	for want, o := range map[string]Options{
		"speed must be greater than 0": {Speed: -1},
		"body limit":                   {MaxBodyBytes: -1},
		"grace":                        {Grace: -time.Second},
		`unknown flavor "tgi"`:         {Flavor: "tgi"},
		"duplicate model name":         {Model: "a", Aliases: []string{"a"}},
		"is empty":                     {LoRA: []string{""}},
		"KVTokens":                     {Profile: engine.Profile{Name: "x", DecodeBase: 1, ChunkTokens: 1, KVTokens: 1, MaxRunning: 1}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want %q", o, err, want)
		}
	}
}

// Adapters are loaded and unloaded at run time as at vLLM.
func TestAdaptersAtRunTime(t *testing.T) {
	bubble(t, Options{Speed: 1000, Model: "base", Aliases: []string{"small"}}, func(t *testing.T, b *bench) {
		for _, c := range []struct {
			path, body string
			status     int
			listed     bool // afterwards
		}{
			{"/v1/unload_lora_adapter", `{"lora_name":"sql"}`, 404, false},
			{"/v1/load_lora_adapter", `{}`, 400, false},
			{"/v1/load_lora_adapter", `{"lora_name":"small","lora_path":"/x"}`, 400, false},
			{"/v1/load_lora_adapter", `{"lora_name":"sql","lora_path":"/x"}`, 200, true},
			{"/v1/load_lora_adapter", `{"lora_name":"sql","lora_path":"/x"}`, 400, true},
			{"/v1/unload_lora_adapter", `{"lora_name":"base"}`, 404, true},
			{"/v1/unload_lora_adapter", `{"lora_name":"sql"}`, 200, false},
		} {
			if status, body := b.post(c.path, c.body); status != c.status {
				t.Errorf("%s %s: status %d, want %d: %s", c.path, c.body, status, c.status, body)
			}
			if _, list := b.get("/v1/models"); strings.Contains(list, `"id":"sql"`) != c.listed {
				t.Errorf("after %s %s: %s", c.path, c.body, list)
			}
			want := map[bool]int{true: 200, false: 404}[c.listed]
			if status, body := b.post(chatPath, chat("hi", `,"max_tokens":1,"model":"sql"`)); status != want {
				t.Errorf("after %s %s: a request got %d, want %d: %s", c.path, c.body, status, want, body)
			}
		}
	})
}
