package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Formats of chunks from engines; %s is the JSON-encoded text.
var chunkForms = []string{
	`{"id":"c-1","created":7,"model":"m","choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null}]}`,
	`{"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":%s},"finish_reason":null}],"usage":null}`,
	`{"choices":[{"delta":{"content":%s},"finish_reason":"stop"}]}`,
	`{"choices":[{"delta":{"content":%s}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
	`{"choices":[{"delta":{"content":%s}}],"usage":{"prompt_tokens":3,"total_tokens":%d,"completion_tokens":%d}}`,
	`{"choices":[{"delta":{"content":%s}}],"usage" : {"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}} , "x":1}`,
	`{"usage":{"completion_tokens":%d},"choices":[{"delta":{"content":%s}}]}`,
	`{"choices":[{"delta":{"content":%s}}],"usage":{"completion_tokens":%d},"usage":null}`,
	`{"choices":[{"delta":{"content":%s}}],"usage":{"completion_tokens":%d]}`,
	`{"choices":[],"usage":{"completion_tokens":%d},"text":%s}`,
	`{"choices":[{"delta":{"content":%s}},{"delta":{"content":"x"}}]}`,
	`{"choices":[{"delta":{"content":%s,"reasoning_content":"hm"}}]}`,
	`{"choices":[{"delta":{"content":%s,"content":"again"}}]}`,
	`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":%s}}]}}]}`,
	`{"choices":[{"delta":{"content":%s}}],"error":{"code":500}}`,
	`{"choices":[{"index":0,"text":%s,"finish_reason":null}]}`,
	`{"choices":[{"index":0,"text":%s,"finish_reason":"length"}],"note":"\"}"}`,
	`{"type":"response.output_text.delta","delta":%s}`,
}

// Reading chunks with a template has the same result as parsing each chunk completely.
func TestChunkTemplateIsFullReading(t *testing.T) {
	pieces := []string{`""`, `"a"`, `"\""`, `"\\"`, `"}]}"`, `"content"`, `"é\u00e9"`, `"\n"`, `null`, `"a","content":"b"`, `"a"},"logprobs":null`, `"broken`}
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom([]string{chatPath, "/v1/completions"}).Draw(t, "path")
		c, err := parseCall([]byte(`{"model":"m","messages":[{"role":"user","content":"do"}],"prompt":"do"}`))
		if err != nil {
			t.Fatal(err)
		}
		full, like := &Answer{}, &Answer{}
		for _, a := range []*Answer{full, like} {
			a.AskedForCounts = true
			a.Rendering, a.RemainingKeyBytes = Render(1, endpoints[path], &c, ResolvedModel{Model: "m"}), 60
			a.Transcript = &Transcript{RemainingBytes: rapid.IntRange(10, 40).Draw(t, "room")}
			full.Transcript.RemainingBytes = a.Transcript.RemainingBytes
		}
		forms := rapid.SliceOfN(rapid.SampledFrom(chunkForms), 1, 3).Draw(t, "forms")
		for range rapid.IntRange(1, 12).Draw(t, "chunks") {
			chunk := strings.Replace(rapid.SampledFrom(forms).Draw(t, "form"), "%s", rapid.SampledFrom(pieces).Draw(t, "text"), 1)
			chunk = strings.ReplaceAll(chunk, "%d", rapid.SampledFrom([]string{"0", "7", "12345", "-1", "1.5", "1e2", "007", "99999999999", "x", `1,"a":{}`, `1},"b":{"c":1`}).Draw(t, "count"))
			got, want := like.Event([]byte(chunk)), full.readEvent([]byte(chunk))
			if got != want {
				t.Fatalf("%s: found %+v, want %+v", chunk, got, want)
			}
		}
		if got, want := answerState(like), answerState(full); got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
	})
}

// answerState returns the complete state of an answer.
func answerState(a *Answer) string {
	key, _ := json.Marshal(a.Finish())
	s := a.Transcript
	return fmt.Sprintf("%d tokens, exact %v, %d events, usage %v, done %v, failed %v, faulty %v, room %d, turned %v, partial %v, said %q, head %s, %v %v %v %v, key %s",
		a.Tokens, a.Exact, a.Events, a.Usage, a.Done, a.Failed, a.Faulty, a.RemainingKeyBytes, a.turnStarted, a.keyIncomplete, s.Text(), fmt.Sprintf("%s", []any{s.head.id, s.head.created, s.head.model}),
		s.roleKnown, s.ended, s.closed, s.lost, key)
}

// A chunk matches a template only if the difference is exactly one complete text.
func TestChunkTemplateOfOtherChunks(t *testing.T) {
	var l chunkTemplate
	if text, _ := l.match([]byte(`{"text":"a"}`)); text != nil {
		t.Error("a chunk is like those before the first")
	}
	first := []byte(`{"text":"first"}`)
	l.learnChunk(first, first[8:15], nil, Span{}, true)
	for chunk, want := range map[string]string{
		`{"text":"b"}`: `"b"`, `{"text":"\""}`: `"\""`, `{"text":""}`: "", `{"text":"b","text":"c"}`: "", `{"text":"b"} `: "", `{"text":"b`: "", `{"text":1}`: "",
		"{\"text\":\"\x01\"}": "", `{"text":"\"}`: "", `{"texts":"b"}`: "", "": "",
	} {
		if got, _ := l.match([]byte(chunk)); string(got) != want {
			t.Errorf("%s: text %s, want %s", chunk, got, want)
		}
	}
}
