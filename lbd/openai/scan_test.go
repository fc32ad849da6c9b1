package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var bodySeeds = []string{
	streamBody, plainBody, `{}`, `{"model":"chat-small","stream":true,"stream_options":{"a":{}}}`, `{"model":"a\u0062\ud83d\ude00","x":[1,-2.5e+7,true,false,null,{"y":"\\\""}]}`,
	`{"model":"chat-small","prompt":["a","b",[1,2]],"tools":[{"type":"function"}],"x":1,"x":2}`, " {\n\t\"a\" : 0 }\r\n", `{"a":"` + strings.Repeat("x", 40) + `\u12`,
	`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":7,"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
}

// A body is accepted as JSON if the standard library accepts it and it is valid UTF-8. Every value
// that is found is a JSON value, and an edited body differs only in the edited values.
func FuzzBody(f *testing.F) {
	for _, s := range bodySeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := parseCall(body)
		var twofold *AmbiguousKeyError
		if errors.As(err, &twofold) && json.Valid(body) {
			return // checked by FuzzKeys
		}
		object := len(bytes.TrimLeft(body, " \t\r\n")) > 0 && bytes.TrimLeft(body, " \t\r\n")[0] == '{'
		if valid := json.Valid(body) && utf8.Valid(body) && object; valid != (err == nil) && bytes.Count(body, []byte("{"))+bytes.Count(body, []byte("[")) <= maxDepth {
			t.Fatalf("%q: valid %v, read with %v", body, valid, err)
		}
		if err != nil {
			_ = err.Error()
			return
		}
		for _, s := range []Span{c.model, c.messages, c.streamOptions, c.tools} {
			if s != (Span{}) && !json.Valid(s.of(body)) {
				t.Fatalf("%q: found the value %q", body, s.of(body))
			}
		}
		for _, e := range endpoints {
			Render(1, e, &c, ResolvedModel{Model: "m"}).Release()
		}
		if _, err := c.ModelName(); err != nil {
			return
		}
		edits := []Edit{c.RenameModel("real")}
		if e, needed := c.requestUsage(); needed {
			edits = append(edits, e)
		}
		var was, is map[string]json.RawMessage
		out := applyEdits(nil, body, edits)
		if json.Unmarshal(body, &was) != nil {
			return
		}
		if err := json.Unmarshal(out, &is); err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		var options struct {
			IncludeUsage any `json:"include_usage"`
		}
		if len(edits) == 2 && (json.Unmarshal(is["stream_options"], &options) != nil || options.IncludeUsage != true) {
			t.Fatalf("%q became %q without usage", body, out)
		}
	})
}

// For any split of a stream into pieces, the events are the same, and together they are the stream.
func FuzzSSE(f *testing.F) {
	for _, s := range []string{chunk("a") + doneEvent, "data: a\r\n\r\ndata: b\r\rdata: c\n\n", ": x\n\n\n\n", "data\ndata:\ndata: \n\n", "\r\n\r\r\n\n", usageEvent(1, 2, 3)} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		split := func(size int) (events []string) {
			var s Splitter
			var held []byte
			for at := 0; at < len(stream); at += size {
				held = append(held, stream[at:min(at+size, len(stream))]...)
				for {
					n, ok := s.Next(held)
					if !ok {
						break
					}
					events = append(events, string(held[:n]))
					held = held[n:]
				}
			}
			return append(events, string(held))
		}
		whole, pieces := split(len(stream)+1), split(int(size)+1)
		if !slices.Equal(whole, pieces) {
			t.Fatalf("%q in pieces of %d: %q, at once: %q", stream, int(size)+1, pieces, whole)
		}
		if strings.Join(whole, "") != string(stream) {
			t.Fatalf("%q became %q", stream, whole)
		}
		for _, e := range whole {
			a := Answer{Rendering: &Rendering{answer: answerTurn}, RemainingKeyBytes: 1000}
			a.Event(EventData([]byte(e)))
			a.Whole([]byte(e))
		}
	})
}

// Edits in place give the same body as edits of a copy.
func TestEditsInPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.ByteRange('a', 'z'), 0, 60).Draw(t, "body")
		var edits []Edit
		for at := 0; at <= len(body) && rapid.IntRange(0, 3).Draw(t, "more") > 0; {
			from := rapid.IntRange(at, len(body)).Draw(t, "from")
			to := rapid.IntRange(from, len(body)).Draw(t, "to")
			edits = append(edits, Edit{Span{from, to}, rapid.SliceOfN(rapid.ByteRange('A', 'Z'), 0, 30).Draw(t, "with")})
			at = to + 1
		}
		want := applyEdits(nil, body, edits)
		room := append(make([]byte, 0, len(body)+Growth(edits, len(body))+200), body...)
		if got := ApplyInPlace(room, edits); string(got) != string(want) {
			t.Fatalf("%q with %v is %q, want %q", body, edits, got, want)
		}
	})
}

func TestEventData(t *testing.T) {
	for event, want := range map[string]string{
		"data: x\n\n": "x", "data:x\n\n": "x", "data:  x\n\n": " x", "data\n\n": "", "data: a\ndata: b\n\n": "a\nb",
		"id: 1\r\ndata: x\r\nevent: y\r\n\r\n": "x", "data: a\rdata: b\r\r": "a\nb", ": data: x\n\n": "<none>", "database: x\n\n": "<none>", "data: x": "x",
	} {
		got := "<none>"
		if d := EventData([]byte(event)); d != nil {
			got = string(d)
		}
		if got != want {
			t.Errorf("eventData(%q) = %q, want %q", event, got, want)
		}
	}
}

func TestPlainBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.SampledFrom([]byte{'"', '\\', 0x1f, 0x20, 0x21, 'a', 0x7f, 0x80, 0xa2, 0xff, '!', '#', '[', ']'})).Draw(t, "b")
		want := 0
		for want < len(b) && b[want] != '"' && b[want] != '\\' && b[want] >= 0x20 {
			want++
		}
		if got := plainBytes(b); got != want {
			t.Fatalf("plainBytes(%q) = %d, want %d", b, got, want)
		}
	})
}

// keyOf returns the key of a body's prompt as rendered by the endpoint.
func keyOf(t *testing.T, path, body string) string {
	t.Helper()
	c, err := parseCall([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := Render(1, endpoints[path], &c, ResolvedModel{Model: "m"})
	r.writeString(strings.Repeat("\x00", 64)) // fills the last block, so that every byte is part of the key
	key := r.hash.Key()
	r.Release()
	b, _ := json.Marshal(key)
	return string(b)
}

func TestSamePromptSameKey(t *testing.T) {
	same := [][2]string{
		{`{"messages":[{"role":"user","content":"hi"}]}`, `{"temperature":1, "messages" : [ {"content":"\u0068i", "role":"user"} ] }`},
		{`{"messages":[{"role":"user","content":"hi"}]}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"text":"i","type":"text"}]}]}`},
		{
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}]}`,
			`{"messages":[{"role":"assistant","tool_calls":[{"id":"b","type":"function","function":{"arguments":"{}","name":"f"}}]}]}`,
		},
	}
	for _, c := range same {
		if keyOf(t, chatPath, c[0]) != keyOf(t, chatPath, c[1]) {
			t.Errorf("%s and %s have different keys", c[0], c[1])
		}
	}
	different := []string{
		`{"messages":[{"role":"user","content":"hi"}]}`, `{"messages":[{"role":"system","content":"hi"}]}`, `{"messages":[{"role":"user","content":"ho"}]}`,
		`{"messages":[{"role":"user","content":"hi"}],"cache_salt":"x"}`, `{"messages":[{"role":"user","content":"hi"}],"tools":[{}]}`,
		`{"messages":[{"role":"user","content":"hi"},{"role":"user","content":"hi"}]}`, `{"messages":[]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"b"}}]}]}`,
	}
	seen := map[string]string{}
	for _, body := range different {
		k := keyOf(t, chatPath, body)
		if other, taken := seen[k]; taken {
			t.Errorf("%s and %s have the same key", body, other)
		}
		seen[k] = body
	}
}

func TestEveryEndpointRendersItsPrompt(t *testing.T) {
	for path, bodies := range map[string][2]string{
		"/v1/completions": {`{"prompt":"a"}`, `{"prompt":[1,23]}`}, "/v1/embeddings": {`{"input":"a"}`, `{"input":["a","b"]}`},
		"/v1/rerank": {`{"query":"a","documents":["b"]}`, `{"query":"a","documents":["c"]}`}, "/tokenize": {`{"prompt":"a"}`, `{"messages":[{"role":"user"}]}`},
		"/v1/responses": {`{"input":"a"}`, `{"input":"a","instructions":"b"}`},
	} {
		empty, one, other := keyOf(t, path, `{}`), keyOf(t, path, bodies[0]), keyOf(t, path, bodies[1])
		if empty == one || one == other || other == empty {
			t.Errorf("%s: prompts that differ have the same key", path)
		}
	}
}

// A streamed answer and the same answer in the next turn's message render to the same text.
func TestAnswerRendersAsTheNextTurn(t *testing.T) {
	pieces := []string{
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`, `{"choices":[{"delta":{"reasoning_content":"hm"}}]}`,
		`{"choices":[{"delta":{"content":"Hel"}},{"delta":{"content":"other"}}]}`, `{"choices":[{"delta":{"content":"lo"}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":""}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"name":"g","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`,
		`[DONE]`,
	}
	message := `{"role":"assistant","content":"Hello","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"function":{"name":"g","arguments":"{}"}}]}`
	ask := `{"role":"user","content":"do"}`
	c, err := parseCall([]byte(`{"messages":[` + ask + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	finish := func(end string, feed func(*Answer)) string {
		a := Answer{Rendering: Render(1, endpoints[chatPath], &c, ResolvedModel{Model: "m"}), RemainingKeyBytes: 1 << 20}
		feed(&a)
		a.Rendering.writeString(end + strings.Repeat("\x00", 64))
		b, _ := json.Marshal(a.Finish())
		return string(b)
	}
	want := keyOf(t, chatPath, `{"messages":[`+ask+`,`+message+`]}`)
	streamed := finish("\n", func(a *Answer) {
		for _, p := range pieces {
			a.Event([]byte(p))
		}
		if a.Tokens != 7 || !a.Done {
			t.Errorf("%d tokens, done %v: want 7 and done", a.Tokens, a.Done)
		}
	})
	if streamed != want {
		t.Error("a streamed answer is not the beginning of the next turn")
	}
	whole := finish("", func(a *Answer) {
		a.Whole([]byte(`{"choices":[{"message":` + message + `}],"usage":{"prompt_tokens":5}}`))
	})
	if whole != want {
		t.Error("a whole answer is not the beginning of the next turn")
	}
	long := Answer{Rendering: Render(1, endpoints[chatPath], &c, ResolvedModel{Model: "m"}), RemainingKeyBytes: 3}
	long.Event([]byte(pieces[2]))
	long.Event([]byte(pieces[3]))
	if long.Finish() != nil {
		t.Error("an answer that was not heard in full has a key")
	}
}
