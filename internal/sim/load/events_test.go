package load

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestParseEvent(t *testing.T) {
	for _, c := range []struct {
		name, line string
		content    string
		token      bool
		usage      *usage
		done       bool
		failure    string
	}{
		{name: "empty"},
		{name: "comment", line: ": keep-alive"},
		{name: "event name", line: "event: message"},
		{name: "done", line: "data: [DONE]", done: true},
		{name: "done without space", line: "data:[DONE] ", done: true},
		{name: "content", line: `data: {"choices":[{"delta":{"content":" hi"}}]}`, content: " hi", token: true},
		{name: "spaces", line: `data: {"choices": [{"delta": {"content" : " hi"}}]}`, content: " hi", token: true},
		{name: "escaped", line: `data: {"choices":[{"delta":{"content":"a\"b\\"}}]}`, content: `a\"b\\`, token: true},
		{name: "role", line: `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}`},
		{name: "null", line: `data: {"choices":[{"delta":{"content":null},"finish_reason":"stop"}]}`},
		{name: "log probabilities come first", line: `data: {"choices":[{"logprobs":{"content":[{"token":"x"}]},"delta":{"content":"x"}}]}`, content: "x", token: true},
		{name: "thoughts", line: `data: {"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}`, token: true},
		{name: "key as text", line: `data: {"choices":[{"delta":{"content":"\"content\":\"no\""}}]}`, content: `\"content\":\"no\"`, token: true},
		{name: "key as a value", line: `data: {"type":"content","choices":[{"delta":{"content":"yes"}}]}`, content: "yes", token: true},
		{name: "error as text", line: `data: {"choices":[{"delta":{"content":"\"error\":{}"}}]}`, content: `\"error\":{}`, token: true},
		{
			name: "usage", line: `data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens": 3,"prompt_tokens_details":{"cached_tokens":8}}}`,
			usage: &usage{prompt: 12, output: 3, cached: 8, hasCached: true},
		},
		{
			name: "usage without details", line: `data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":null}}`,
			usage: &usage{prompt: 12, output: 3},
		},
		{
			name: "usage with content", line: `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`,
			content: "x", token: true, usage: &usage{prompt: 1, output: 1},
		},
		{name: "no usage", line: `data: {"choices":[],"usage":null}`},
		{name: "error", line: `data: {"error":{"message":"replica lost","code":502}}`, failure: "replica lost"},
		{name: "error as a string", line: `data: {"error":"gone"}`, failure: "gone"},
		{name: "error beside nothing", line: `data: {"object":"error","error":{"code":1}}`, failure: `{"object":"error","error":{"code":1}}`},
		{name: "no error", line: `data: {"choices":[],"error":null}`},
		{name: "cut string", line: `data: {"choices":[{"delta":{"content":"abc\`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := parseEvent([]byte(c.line))
			if string(e.content) != c.content || e.token != c.token || e.done != c.done || e.failure != c.failure || e.failed != (c.failure != "") {
				t.Errorf("parsed %+v (content %q)", e, e.content)
			}
			if (e.usage == nil) != (c.usage == nil) || e.usage != nil && *e.usage != *c.usage {
				t.Errorf("usage %+v, want %+v", e.usage, c.usage)
			}
		})
	}
}

// TestParseEventEqualsDecoding compares the search with a JSON decoder.
func TestParseEventEqualsDecoding(t *testing.T) {
	type delta struct {
		Role      string  `json:"role,omitempty"`
		Content   *string `json:"content"`
		Reasoning string  `json:"reasoning_content,omitempty"`
	}
	type choice struct {
		Logprobs any   `json:"logprobs"`
		Delta    delta `json:"delta"`
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", `"`, `\`, `"content":"`, `{"error":{}}`, "[DONE]", "data: x", "\n", `\"`, `"usage":{`}))
		content := text.Draw(t, "content")
		chunk := map[string]any{
			"id":      text.Draw(t, "id"),
			"choices": []choice{{Logprobs: map[string]any{"content": []int{}}, Delta: delta{"assistant", &content, text.Draw(t, "reasoning")}}},
		}
		reasoning := chunk["choices"].([]choice)[0].Delta.Reasoning
		if rapid.Bool().Draw(t, "usage") {
			chunk["usage"] = map[string]int{"prompt_tokens": rapid.IntRange(0, 1e6).Draw(t, "prompt")}
		}
		data, err := json.Marshal(chunk)
		if err != nil {
			t.Fatal(err)
		}
		e := parseEvent(append([]byte("data: "), data...))
		var valid string // the text after JSON decoding
		raw, _ := json.Marshal(content)
		if err := json.Unmarshal(raw, &valid); err != nil {
			t.Fatal(err)
		}
		if got := string(appendUnescaped(nil, e.content)); got != valid {
			t.Fatalf("content %q, want %q", got, valid)
		}
		if e.token != (content != "" || reasoning != "") || e.failed || e.done || (e.usage != nil) != (chunk["usage"] != nil) {
			t.Fatalf("%s\nparsed as %+v", data, e)
		}
		if e.usage != nil && e.usage.prompt != chunk["usage"].(map[string]int)["prompt_tokens"] {
			t.Fatalf("usage %+v", *e.usage)
		}
	})
}

func TestLinesFromAnyReadSizes(t *testing.T) {
	long := strings.Repeat("x", 3*firstBuffer)
	text := "one\r\ntwo\n\n" + long + "\nlast\ncut"
	want := []string{"one", "two", "", long, "last"}
	for name, in := range map[string]io.Reader{
		"at once":     strings.NewReader(text),
		"bytewise":    iotest.OneByteReader(strings.NewReader(text)),
		"halved":      iotest.HalfReader(strings.NewReader(text)),
		"end at once": iotest.DataErrReader(strings.NewReader(text)),
	} {
		l := lines{in: in}
		for i, w := range want {
			got, err := l.nextLine()
			if err != nil || string(got) != w {
				t.Fatalf("%s: line %d is %.20q, %v", name, i, got, err)
			}
		}
		if got, err := l.nextLine(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the last line: %q, %v", name, got, err)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestOverlongLineIsAnError(t *testing.T) {
	l := lines{in: endless{}}
	if _, err := l.nextLine(); !errors.Is(err, errEventTooLong) {
		t.Errorf("error %v", err)
	}
	if len(l.buf) > maxEvent {
		t.Errorf("a buffer of %d bytes", len(l.buf))
	}
}

func TestErrorMessage(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"too many","type":"x"}}`: "too many",
		`{"error":"plain"}`:                           "plain",
		`{"object":"error","message":"old style"}`:    "old style",
		" <html>bad gateway</html>\n":                 "<html>bad gateway</html>",
		"":                                            "",
		strings.Repeat("y", 300):                      strings.Repeat("y", 200) + "...",
		"y" + strings.Repeat("é", 150):                "y" + strings.Repeat("é", 99) + "...",
	} {
		if got := errorMessage([]byte(body)); got != want {
			t.Errorf("errorMessage(%.40q) = %.60q, want %.60q", body, got, want)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(contentEvent(" hi") + usageEvent(3, 1, 2) + doneEvent))
	f.Add([]byte(`data: {"error":{"message":"x"}}` + "\n"))
	f.Add([]byte(`data: "content":"\` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := lines{in: iotest.HalfReader(strings.NewReader(string(data)))}
		for {
			line, err := l.nextLine()
			if err != nil {
				return
			}
			e := parseEvent(line)
			if e.token && e.failed || e.done && e.token {
				t.Fatalf("%q has several meanings: %+v", line, e)
			}
			appendUnescaped(nil, e.content)
		}
	})
}

func BenchmarkParseEvent(b *testing.B) {
	line := []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1731000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null}`)
	b.ReportAllocs()
	for b.Loop() {
		if e := parseEvent(line); !e.token {
			b.Fatal("no token")
		}
	}
}
