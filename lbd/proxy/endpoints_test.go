package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// received is a request as an engine received it.
type received struct {
	path, body string
	header     http.Header
}

// listener is an engine that reports the requests that it receives to a channel.
func listener(answer http.HandlerFunc) (http.HandlerFunc, chan received) {
	requests := make(chan received, 16)
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		requests <- received{req.URL.Path, string(body), req.Header}
		answer(w, req)
	}, requests
}

// jsonEndpoints are the fields of a request to each endpoint that is not tested elsewhere.
var jsonEndpoints = map[string]string{
	"/v1/responses/input_tokens":  `"input":"How long is this?"`,
	"/v1/responses/compact":       `"input":[{"role":"user","content":"Summarize."}]`,
	"/v1/score":                   `"text_1":"a","text_2":["b","c"]`,
	"/score":                      `"queries":"a","documents":["b"]`,
	"/rerank":                     `"query":"a","documents":["b"]`,
	"/v1/rerank":                  `"query":"a","documents":["b"]`,
	"/v2/rerank":                  `"query":"a","documents":["b"]`,
	"/pooling":                    `"input":"a"`,
	"/classify":                   `"input":["a","b"]`,
	"/v1/classify":                `"input":["a","b"]`,
	"/detokenize":                 `"tokens":[1,2,3]`,
	"/v1/chat/completions/render": `"messages":[{"role":"user","content":"hi"}]`,
	"/v1/completions/render":      `"prompt":"hi"`,
	"/v1/audio/speech":            `"input":"hi","voice":"alloy"`,
	"/v1/images/generations":      `"prompt":"a cat"`,
}

// Each endpoint that engines serve is forwarded at its own path, with the model's real name.
func TestEndpointsAreForwarded(t *testing.T) {
	h, requests := listener(whole(`{"object":"list"}`))
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, h))
	for path, fields := range jsonEndpoints {
		answer := expect(t, b.post(path, `{"model":"chat-small",`+fields+`}`), 200, "")
		got := <-requests
		if want := `{"model":"` + testModel + `",` + fields + `}`; got.path != path || got.body != want || answer != `{"object":"list"}` {
			t.Errorf("%s reaches the engine as %s %s, and the client receives %s", path, got.path, got.body, answer)
		}
		expect(t, b.post(path, `{"model":"gpt-9",`+fields+`}`), 404, "model_not_found")
	}
	lawful(t, b.settled())
}

// Tokens of an engine that reports none are estimated only where the model reads and writes text.
func TestUnreportedTokensOfEndpoints(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(`{"object":"list"}`)))
	estimated := map[string]bool{
		"/v1/responses/compact": true, "/v1/score": true, "/score": true, "/rerank": true, "/v1/rerank": true, "/v2/rerank": true,
		"/pooling": true, "/classify": true, "/v1/classify": true,
	}
	used := func() (sum telemetry.Usage) {
		for _, u := range b.KeyUsage() {
			sum.Requests, sum.PromptTokens = sum.Requests+u.Requests, sum.PromptTokens+u.PromptTokens
		}
		return sum
	}
	for path, fields := range jsonEndpoints {
		before := used()
		expect(t, b.post(path, `{"model":"chat-small",`+fields+`}`, "Authorization: Bearer sk-one"), 200, "")
		b.settled()
		after := used()
		if after.Requests != before.Requests+1 || (after.PromptTokens > before.PromptTokens) != estimated[path] {
			t.Errorf("%s uses %d requests and %d tokens", path, after.Requests-before.Requests, after.PromptTokens-before.PromptTokens)
		}
	}
}

// input_tokens reports its count outside of a usage: it is not one of the request.
func TestInputTokensAreNotUsage(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(`{"object":"response.input_tokens","input_tokens":12345}`)))
	expect(t, b.post("/v1/responses/input_tokens", `{"model":"chat-small","input":"x"}`), 200, "")
	b.settled()
	if r := b.Requests(1)[0]; r.PromptTokens != nil || r.OutputTokens != nil {
		t.Errorf("the request counts %v prompt and %v output tokens, want unknown", r.PromptTokens, r.OutputTokens)
	}
}

// Requests that name a stored response go to its holder, to count its tokens and to compact it too.
func TestStoredResponsesAreFound(t *testing.T) {
	b := start(t, testOptions(t))
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		b.attach(id, engine(t, whole(`{"id":"resp_1","object":"response","output":[]}`)))
	}
	first := b.post("/v1/responses", `{"model":"chat-small","input":"x"}`)
	expect(t, first, 200, "")
	holder := first.Header.Get(headerReplica)
	for _, path := range []string{"/v1/responses/input_tokens", "/v1/responses/compact"} {
		for range 3 {
			next := b.post(path, `{"model":"chat-small","previous_response_id":"resp_1","input":"y"}`)
			expect(t, next, 200, "")
			if got := next.Header.Get(headerReplica); got != holder {
				t.Errorf("%s goes to %s, want the holder %s", path, got, holder)
			}
		}
		expect(t, b.post(path, `{"model":"chat-small","previous_response_id":"resp_9","input":"y"}`), 400, "previous_response_not_found")
	}
}

// Endpoints do not let clients direct engines to private URLs.
func TestEndpointsGuardMedia(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(`{}`)))
	const private = `"http://169.254.169.254/latest"`
	for path, fields := range map[string]string{
		"/v1/score":              `"data_1":{"content":[{"type":"image_url","image_url":{"url":` + private + `}}]},"data_2":"b"`,
		"/score":                 `"items":[{"image":` + private + `}]`,
		"/v2/rerank":             `"query":"a","documents":[{"image_url":` + private + `}]`,
		"/pooling":               `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":` + private + `}}]}]`,
		"/v1/audio/speech":       `"input":"hi","ref_audio":` + private,
		"/v1/images/generations": `"prompt":"hi","image_url":` + private,
	} {
		got := expect(t, b.post(path, `{"model":"chat-small",`+fields+`}`), 400, "parameter_not_allowed")
		if message, _, _ := apiErrorOf(t, got); !strings.Contains(message, "private_urls: the host of a URL in the request, such as image_url, is not public") {
			t.Errorf("%s: %s", path, message)
		}
	}
}

// Audio is forwarded as it arrives, with every byte, and its tokens are unknown.
func TestAudioIsForwardedAsItArrives(t *testing.T) {
	next := make(chan struct{})
	o := testOptions(t)
	o.Keys = apiKeys("sk-one") // so that cached tokens of text are masked
	b := start(t, o)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "audio/mpeg")
		_, _ = io.WriteString(w, `ID3 "cached_tokens":7,`)
		_ = http.NewResponseController(w).Flush()
		<-next
		_, _ = io.WriteString(w, "end")
	}))
	resp := b.post("/v1/audio/speech", `{"model":"chat-small","input":"hi","voice":"alloy"}`, "Authorization: Bearer sk-one")
	head := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, head); err != nil {
		t.Fatal(err)
	}
	close(next)
	if got := string(head) + read(t, resp); got != `ID3 "cached_tokens":7,end` || resp.Header.Get("Content-Type") != "audio/mpeg" {
		t.Errorf("the client receives %q", got)
	}
	b.settled()
	if r := b.Requests(1)[0]; r.OutputTokens != nil || r.PromptTokens != nil || fmt.Sprint(b.KeyUsage()[0].OutputTokens) != "0" {
		t.Errorf("the tokens of audio are counted: %+v", r)
	}
}
