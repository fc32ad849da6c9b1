package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	messagesPath   = "/v1/messages"
	countPath      = "/v1/messages/count_tokens"
	messageBody    = `{"model":"` + testModel + `","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`
	messageStream  = `{"model":"` + testModel + `","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
	messageReply   = `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":36,"cache_read_input_tokens":64,"cache_creation_input_tokens":0,"output_tokens":2}}`
	messageStart   = "event: message_start\ndata: " + `{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":100,"output_tokens":1}}}` + "\n\n"
	blockStart     = "event: content_block_start\ndata: " + `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n"
	pingEvent      = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	messageEnd     = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" + messageDelta + messageStop
	messageDelta   = "event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":36,"cache_read_input_tokens":64,"cache_creation_input_tokens":0,"output_tokens":2}}` + "\n\n"
	messageStop    = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	unknownPath404 = `{"detail":"Not Found"}`
)

// textDelta returns an event with a piece of the text.
func textDelta(text string) string {
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":%s}}\n\n", quoted)
}

// The client receives every byte of a message or a stream, and the engine every byte of the body and
// the API's headers.
func TestMessagesPassUnchanged(t *testing.T) {
	stream := messageStart + blockStart + pingEvent + textDelta("h") + ": comment\n\n" + textDelta("i") + messageEnd
	for name, c := range map[string]struct{ path, body, kind, answer string }{
		"message": {messagesPath, messageBody, "application/json", messageReply},
		"stream":  {messagesPath, messageStream, "text/event-stream", stream},
		"CRLF":    {messagesPath, messageStream, "text/event-stream", strings.ReplaceAll(stream, "\n", "\r\n")},
		"no end":  {messagesPath, messageStream, "text/event-stream", strings.TrimSuffix(stream, "\n")},
		"count":   {countPath, strings.Replace(messageBody, `"max_tokens":9,`, "", 1), "application/json", `{"input_tokens":100}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, testOptions(t))
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				if string(body) != c.body || req.URL.Path != c.path || req.URL.RawQuery != "beta=true" || req.Header.Get("anthropic-version") != "2023-06-01" || req.Header.Get("anthropic-beta") != "a,b" {
					t.Errorf("the engine got %s?%s with %v: %s", req.URL.Path, req.URL.RawQuery, req.Header, body)
				}
				w.Header().Set("Content-Type", c.kind)
				for piece := range slices.Chunk([]byte(c.answer), 50) {
					_, _ = w.Write(piece)
					_ = http.NewResponseController(w).Flush()
				}
			}))
			resp := b.post(c.path+"?beta=true", c.body, "anthropic-version: 2023-06-01", "anthropic-beta: a,b")
			if got := expect(t, resp, 200, ""); got != c.answer {
				t.Errorf("got %q, want %q", got, c.answer)
			}
			if id := resp.Header.Get("request-id"); id == "" || id != resp.Header.Get(headerRequestID) {
				t.Errorf("request-id %q, %s %q", id, headerRequestID, resp.Header.Get(headerRequestID))
			}
			lawful(t, b.settled())
		})
	}
}

// An alias is replaced by the model's name, and nothing else.
func TestMessagesResolveAliases(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		if body, _ := io.ReadAll(req.Body); string(body) != messageBody {
			t.Errorf("the engine got %s", body)
		}
		whole(messageReply)(w, req)
	}))
	expect(t, b.post(messagesPath, strings.Replace(messageBody, testModel, "chat-small", 1)), 200, "")
}

// Usage counts for history and quotas: the whole prompt, its cached part, and the answer, as far as
// the client received it.
func TestMessagesUsageIsCounted(t *testing.T) {
	stream := messageStart + blockStart + textDelta("h") + textDelta("i")
	for name, c := range map[string]struct {
		path, body             string
		engine                 http.HandlerFunc
		prompt, cached, output int64
	}{
		"message":     {messagesPath, messageBody, whole(messageReply), 100, 64, 2},
		"stream":      {messagesPath, messageStream, speakRaw(stream + messageEnd), 100, 64, 2},
		"interrupted": {messagesPath, messageStream, cut("text/event-stream", stream+textDelta("!")), 100, 0, 3},
		"count":       {countPath, messageBody, whole(`{"input_tokens":100}`), 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Keys = limited(t, "")
			b := start(t, o)
			b.attach("us-0", engine(t, c.engine))
			read(t, b.post(c.path, c.body, "x-api-key: sk"))
			b.settled()
			b.isIdle("acme")
			if u := b.usedBy("acme"); u.Requests != 1 || u.PromptTokens != c.prompt || u.CachedTokens != c.cached || u.OutputTokens != c.output {
				t.Errorf("the key used %+v", u)
			}
			if name != "interrupted" && b.tallied().PromptTokens != c.prompt {
				t.Errorf("the history has %+v", b.tallied())
			}
		})
	}
}

// The prompt and the answer of a turn are matched by the next turn, in both forms of a response.
func TestNextMessageMatchesAnswer(t *testing.T) {
	answer := strings.Repeat("word ", 100)
	for name, c := range map[string]struct {
		body   string
		engine http.HandlerFunc
	}{
		"stream":  {messageStream, speakRaw(messageStart + blockStart + textDelta(answer) + messageEnd)},
		"message": {messageBody, whole(strings.Replace(messageReply, `"text":"hi"`, `"text":"`+answer+`"`, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, testOptions(t))
			b.attach("us-0", engine(t, c.engine))
			read(t, b.post(messagesPath, c.body))
			b.settled()
			next := strings.Replace(c.body, `"hello"}`, `"hello"},{"role":"assistant","content":[{"type":"text","text":"`+answer+`","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"more"}`, 1)
			resp := b.post(messagesPath, next)
			read(t, resp)
			if match, err := strconv.ParseFloat(resp.Header.Get(headerPrefixMatch), 64); err != nil || match < 0.8 {
				t.Errorf("the next prompt matches to %q, want most of it", resp.Header.Get(headerPrefixMatch))
			}
		})
	}
}

// The key of a client reaches no engine. Authorization has precedence. Without keys both headers are
// the engine's.
func TestKeyHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		keys    bool
		headers []string
		status  int
		engine  string // the headers that it receives
	}{
		"x-api-key":              {true, []string{"x-api-key: sk"}, 200, "|"},
		"bearer":                 {true, []string{asAcme}, 200, "|"},
		"both":                   {true, []string{asAcme, "x-api-key: other"}, 200, "|"},
		"invalid first":          {true, []string{"Authorization: Bearer other", "x-api-key: sk"}, 401, ""},
		"another scheme":         {true, []string{"Authorization: Basic sk", "x-api-key: sk"}, 401, ""},
		"none":                   {true, nil, 401, ""},
		"empty":                  {true, []string{"x-api-key: "}, 401, ""},
		"a service without keys": {false, []string{"Authorization: Bearer theirs", "x-api-key: theirs"}, 200, "Bearer theirs|theirs"},
	} {
		for path, call := range map[string][2]string{messagesPath: {messageBody, messageReply}, chatPath: {plainBody, plainReply}} {
			t.Run(name+path, func(t *testing.T) {
				o := testOptions(t)
				if c.keys {
					o.Keys = limited(t, "")
				}
				b := start(t, o)
				b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
					if got := req.Header.Get("Authorization") + "|" + req.Header.Get("X-Api-Key"); got != c.engine {
						t.Errorf("the engine got %q", got)
					}
					whole(call[1])(w, req)
				}))
				expect(t, b.post(path, call[0], c.headers...), c.status, "")
			})
		}
	}
}

// A request names its session in the body, in X-Session-ID, in a header of its coding agent, or by its
// user, in this order.
func TestSessionPrecedence(t *testing.T) {
	names := []string{"X-Session-ID", "x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"}
	b, end := recorded(t, testOptions(t))
	b.attach("us-0", engine(t, whole(messageReply)))
	var want []string
	post := func(path, body, session string, headers ...string) {
		expect(t, b.post(path, body, headers...), 200, "")
		want = append(want, sessionName("", nil, session, nil, ""))
	}
	var headers []string
	for _, name := range names {
		headers = append(headers, name+": "+name)
	}
	keyed := func(body, member string) string { return `{` + member + `,` + body[1:] }
	post(chatPath, keyed(plainBody, `"prompt_cache_key":"key"`), "key", headers...)
	for i, name := range names {
		post(chatPath, plainBody, name, headers[i:]...)
		post(messagesPath, keyed(messageBody, `"metadata":{"user_id":"u"}`), name, headers[i:]...)
	}
	post(messagesPath, keyed(messageBody, `"metadata":{"user_id":"u"},"user":"v"`), "u")
	post(chatPath, keyed(plainBody, `"metadata":{"user_id":"u"},"user":"v"`), "v", "session-id: ")
	for i, r := range arrivals(end()) {
		if r.Session != want[i] {
			t.Errorf("request %d has the session %s, want %s", i, r.Session, want[i])
		}
	}
}

// Cached tokens cannot be read or computed from the usage of a message, whose sum is the prompt.
func TestMessagesHideCachedTokens(t *testing.T) {
	hidden := strings.NewReplacer(`"input_tokens":36`, `"input_tokens":100`, `"cache_read_input_tokens":64`, `"cache_read_input_tokens":0 `)
	unknown := strings.NewReplacer(`"input_tokens":36`, `"input_tokens":0 `, `"cache_read_input_tokens":64`, `"cache_read_input_tokens":0 `)
	stream := messageStart + blockStart + textDelta("a cache") + messageEnd
	long := strings.Replace(messageReply, `"hi"`, `"`+strings.Repeat("x", 1<<18)+`"`, 1)
	for name, c := range map[string]struct {
		body, kind, answer string
		hide               *strings.Replacer
	}{
		"message":                 {messageBody, "application/json", messageReply, hidden},
		"stream":                  {messageStream, "text/event-stream", stream, hidden},
		"a message not in memory": {messageBody, "application/json", long, unknown},
	} {
		for _, exposed := range []bool{false, true} {
			o := testOptions(t)
			o.Keys, o.ExposeCache, o.Limits.MaxBufferedResponse = limited(t, ""), exposed, 1<<16
			b := start(t, o)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", c.kind)
				_, _ = io.WriteString(w, c.answer)
			}))
			want := c.answer
			if !exposed {
				want = c.hide.Replace(want)
			}
			if got := expect(t, b.post(messagesPath, c.body, "x-api-key: sk"), 200, ""); got != want {
				t.Errorf("%s, exposed %v: %s, want %s", name, exposed, ends(got), ends(want))
			}
		}
	}
}

// If no engine serves the path, the error says what to do, and no replica counts as failed. If one of
// A request that a peer serves is the same for its client: bytes, usage and errors.
func TestMessagesThroughPeer(t *testing.T) {
	us, eu := pair(t, "token")
	us.SetKeys(limited(t, ""))
	eu.SetKeys(limited(t, ""))
	stream := messageStart + blockStart + textDelta("hi") + messageEnd
	eu.attach("eu-0", engine(t, speakRaw(stream)))
	us.receiveReport("lb-eu-0")
	us.SetExposeCache(true)
	if got := expect(t, us.post(messagesPath, messageStream, "x-api-key: sk"), 200, ""); got != stream {
		t.Errorf("got %q", got)
	}
	us.isIdle("acme")
	if u := us.usedBy("acme"); u.PromptTokens != 100 || u.CachedTokens != 64 || u.OutputTokens != 2 {
		t.Errorf("usage %+v", u)
	}
	eu.attach("eu-1", engine(t, cut("text/event-stream", messageStart)))
	if removed, err := eu.RemoveReplica("eu-0", 0); !removed || err != nil {
		t.Fatalf("removed %v, %v", removed, err)
	}
	resp := us.post(messagesPath, messageStream, "x-api-key: sk")
	rest, ok := strings.CutPrefix(read(t, resp), messageStart+"event: error\ndata: ")
	if !ok {
		t.Fatalf("got %q", rest)
	}
	if kind, _ := messageErrorOf(t, resp, rest); kind != "api_error" {
		t.Errorf("type %s", kind)
	}
	resp = us.post(messagesPath, strings.Replace(messageStream, `"hello"`, `[{"type":"image_embeds"}]`, 1), "x-api-key: sk")
	if kind, _ := messageErrorOf(t, resp, expect(t, resp, 400, "")); kind != "invalid_request_error" {
		t.Errorf("type %s", kind)
	}
}
