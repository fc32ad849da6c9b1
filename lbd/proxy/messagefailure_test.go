package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// messageErrorOf parses an error in Anthropic's format and checks its request id.
func messageErrorOf(t *testing.T, resp *http.Response, body string) (kind, message string) {
	t.Helper()
	var e struct {
		Type      string
		Error     struct{ Type, Message string }
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Type != "error" || e.Error.Message == "" {
		t.Fatalf("%q is not an error in Anthropic's format: %v", body, err)
	}
	if id := resp.Header.Get("request-id"); id == "" || id != e.RequestID || id != resp.Header.Get(headerRequestID) {
		t.Errorf("request ids %q, %q and %q", id, e.RequestID, resp.Header.Get(headerRequestID))
	}
	return e.Error.Type, e.Error.Message
}

// Every error of the balancer has Anthropic's format on the paths of its API.
func TestMessagesErrors(t *testing.T) {
	t.Parallel()
	limitedTo := func(attributes string) func(*testing.T) *balancer {
		return func(t *testing.T) *balancer {
			o := testOptions(t)
			o.Keys = limited(t, attributes)
			b := start(t, o)
			b.attach("us-0", engine(t, whole(messageReply)))
			return b
		}
	}
	free := func(t *testing.T) *balancer {
		o := roundRobin(t)
		o.Limits.MaxBody = 1 << 10
		b := start(t, o)
		b.attach("us-0", engine(t, whole(messageReply)))
		return b
	}
	failing := func(h http.HandlerFunc) func(*testing.T) *balancer {
		return func(t *testing.T) *balancer {
			b := start(t, roundRobin(t))
			b.attach("us-0", engine(t, h))
			return b
		}
	}
	none := func(t *testing.T) *balancer { return start(t, testOptions(t)) }
	for name, c := range map[string]struct {
		start              func(*testing.T) *balancer
		method, path, body string
		headers            []string
		status             int
		kind, message      string
	}{
		"malformed":         {free, "POST", messagesPath, `{"model":`, nil, 400, "invalid_request_error", "expected a value"},
		"duplicate key":     {free, "POST", messagesPath, `{"system":"a","system":"b",` + messageBody[1:], nil, 400, "invalid_request_error", `key "system": must occur only once`},
		"escaped key":       {free, "POST", messagesPath, `{"syste\u006d":"a",` + messageBody[1:], nil, 400, "invalid_request_error", "must be written without escapes"},
		"guarded parameter": {free, "POST", messagesPath, `{"chat_template":"a",` + messageBody[1:], nil, 400, "invalid_request_error", "balancer.allow_parameters"},
		"private URL": {
			free, "POST", messagesPath, strings.Replace(messageBody, `"hello"`, `[{"type":"image","source":{"type":"url","url":"http://169.254.169.254/"}}]`, 1), nil, 400, "invalid_request_error", "private_urls",
		},
		"tier":           {free, "POST", messagesPath, messageBody, []string{"X-Skyserve-Tier: quick"}, 400, "invalid_request_error", "X-Skyserve-Tier"},
		"no key":         {limitedTo(""), "POST", messagesPath, messageBody, nil, 401, "authentication_error", "x-api-key"},
		"wrong key":      {limitedTo(""), "POST", countPath, messageBody, []string{"x-api-key: other"}, 401, "authentication_error", "invalid API key"},
		"forbidden tier": {limitedTo("max_tier=NIW tier=NIW"), "POST", messagesPath, messageBody, []string{"x-api-key: sk", "X-Skyserve-Tier: IW-F"}, 403, "permission_error", "IW-F"},
		"unknown model":  {free, "POST", messagesPath, strings.Replace(messageBody, testModel, "gpt-9", 1), nil, 404, "not_found_error", "available models: chat-small"},
		"unknown path":   {free, "POST", messagesPath + "/batches", messageBody, nil, 404, "not_found_error", "unknown request URL"},
		"method":         {free, "GET", messagesPath, "", nil, 405, "invalid_request_error", "use POST"},
		"large body":     {free, "POST", messagesPath, strings.Replace(messageBody, "hello", strings.Repeat("x", 1<<10), 1), nil, 413, "request_too_large", "at most 1024 bytes"},
		"rate":           {limitedTo("requests_per_minute=1"), "POST", messagesPath, messageBody, []string{"x-api-key: sk"}, 429, "rate_limit_error", "1 request per minute"},
		"no replica":     {none, "POST", messagesPath, messageBody, nil, 503, "overloaded_error", "no ready replica"},
		"failed replica": {failing(status(500)), "POST", messagesPath, messageBody, nil, 502, "api_error", "returned 500"},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.start(t)
			if name == "rate" {
				expect(t, b.post(c.path, c.body, c.headers...), 200, "")
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, b.url+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp := b.do(req, c.headers...)
			kind, message := messageErrorOf(t, resp, expect(t, resp, c.status, ""))
			if kind != c.kind || !strings.Contains(message, c.message) {
				t.Errorf("%s: %s, want %s: %s", kind, message, c.kind, c.message)
			}
			if retry := resp.Header.Get("Retry-After"); (retry != "") != (c.status == 429 || c.status == 503) {
				t.Errorf("Retry-After is %q", retry)
			}
		})
	}
}

// A target that does not respond in time is an error of the type timeout_error.
func TestMessagesTimeout(t *testing.T) {
	t.Parallel()
	o := roundRobin(t)
	o.Limits.ResponseTimeout = 1
	b := start(t, o)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // otherwise the server does not notice that the balancer hangs up
		<-req.Context().Done()
	}))
	resp := b.post(messagesPath, messageBody)
	if kind, _ := messageErrorOf(t, resp, expect(t, resp, 504, "")); kind != "timeout_error" {
		t.Errorf("type %s", kind)
	}
}

// An error of the engine about the request is forwarded unchanged.
func TestMessagesEngineErrorIsForwarded(t *testing.T) {
	for code, body := range map[int]string{
		400: `{"type":"error","error":{"type":"BadRequestError","message":"too long"}}`,
		404: `{"type":"error","error":{"type":"NotFoundError","message":"no such file"}}`,
		429: `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`,
	} {
		for replicas := 1; replicas <= 2; replicas++ {
			b, _ := startRefusing(t, replicas, code, body)
			resp := b.post(messagesPath, messageBody)
			if got := expect(t, resp, code, ""); got != body || resp.Header.Get("Retry-After") != "7" || resp.Header.Get("request-id") == "" {
				t.Errorf("%d from %d: %s with %v", code, replicas, got, resp.Header)
			}
		}
	}
}

// A stream that breaks after its first byte ends in an error event of the API, and is not continued.
func TestInterruptedMessageEndsInErrorEvent(t *testing.T) {
	begun := messageStart + blockStart + textDelta("a")
	for name, h := range map[string]http.HandlerFunc{
		"cut":                  cut("text/event-stream", begun),
		"cut in event":         cut("text/event-stream", begun+"event: content_block_del"),
		"ends without stop":    speakRaw(begun),
		"ends after its delta": speakRaw(begun + messageDelta),
		"ends in half event":   speakRaw(begun + "event: message_stop\ndata: {\"type\":\"mess"),
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, roundRobin(t))
			b.attach("us-0", engine(t, h))
			b.attach("us-1", engine(t, speakRaw(messageStart+messageEnd)))
			resp := b.post(messagesPath, messageStream)
			rest, ok := strings.CutPrefix(read(t, resp), begun)
			if rest = strings.TrimPrefix(rest, messageDelta); !ok || strings.Contains(rest, "message_stop") {
				t.Fatalf("got %q", rest)
			}
			data, ok := strings.CutPrefix(rest, "event: error\ndata: ")
			if kind, message := messageErrorOf(t, resp, data); !ok || kind != "api_error" || !strings.HasPrefix(message, "the response was interrupted") {
				t.Errorf("got %q", rest)
			}
			c := b.settled()
			if lawful(t, c); c.Rejected != 1 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}

// An engine's error event reaches the client after the first byte. Before it, another replica serves.
func TestMessageErrorEvents(t *testing.T) {
	failure := "event: error\ndata: " + `{"type":"error","error":{"type":"internal_error","message":"engine died"}}` + "\n\n"
	served := messageStart + textDelta("b") + messageEnd
	for stream, want := range map[string]string{
		failure:                                  served,
		messageStart + textDelta("a") + failure:  messageStart + textDelta("a") + failure,
		"event: message_start\ndata: {\"type\":": served,
	} {
		b := start(t, roundRobin(t))
		b.attach("us-0", engine(t, speakRaw(stream)))
		b.attach("us-1", engine(t, speakRaw(served)))
		if got := expect(t, b.post(messagesPath, messageStream), 200, ""); got != want {
			t.Errorf("%q became %q, want %q", stream, got, want)
		}
		lawful(t, b.settled())
	}
}

// several does, it serves the request.
func TestEngineWithoutMessages(t *testing.T) {
	for replicas := 1; replicas <= 6; replicas++ {
		var requested atomic.Int64
		b := start(t, roundRobin(t))
		for i := range replicas {
			b.attach(fmt.Sprint("us-", i), engine(t, func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == chatPath {
					whole(plainReply)(w, req)
					return
				}
				refuse(404, unknownPath404, &requested)(w, req)
			}))
		}
		for range 2 * replicas { // all of them are trusted
			expect(t, b.post(chatPath, plainBody), 200, "")
		}
		for range 20 {
			before := requested.Load()
			resp := b.post(messagesPath, messageBody)
			kind, message := messageErrorOf(t, resp, expect(t, resp, 404, ""))
			if kind != "not_found_error" || !strings.Contains(message, "does not serve /v1/messages") || !strings.Contains(message, chatPath) {
				t.Errorf("%s: %s", kind, message)
			}
			if n := requested.Load() - before; n != int64(min(replicas, 2)) {
				t.Errorf("%d of %d replicas were asked, want a second opinion and no more", n, replicas)
			}
		}
		v := b.View()
		for _, r := range v.Replicas {
			if !r.Ready || v.Ejections > 0 {
				t.Errorf("replica %+v, %d ejections", r, v.Ejections)
			}
		}
	}
	b := start(t, roundRobin(t))
	b.attach("us-0", engine(t, refuse(404, unknownPath404, nil)))
	b.attach("us-1", engine(t, whole(messageReply)))
	for range 4 {
		expect(t, b.post(messagesPath, messageBody), 200, "")
	}
}

// A client that disconnects stops its request at the engine, and is charged for what was generated.
func TestMessageIsCancelled(t *testing.T) {
	stopped := make(chan struct{})
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, messageStart+blockStart+textDelta("a"))
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
		close(stopped)
	}))
	resp := b.post(messagesPath, messageStream)
	begun := make([]byte, len(messageStart+blockStart+textDelta("a")))
	if _, err := io.ReadFull(resp.Body, begun); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	<-stopped
	c := b.settled()
	if lawful(t, c); c.Cancelled != 1 {
		t.Errorf("counts %+v", c)
	}
	if p := b.tallied(); p.PromptTokens != 100 || p.OutputTokens != 1 {
		t.Errorf("the history has %+v", p)
	}
}
