package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"skyserve/lbd/policy"
)

// Some requests prevent a continuation, for any answer.
func TestRequestsThatAreNeverContinued(t *testing.T) {
	chat := func(more string) string {
		return `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]` + more + `}`
	}
	prompt := func(prompt string) string { return `{"model":"m","stream":true,"prompt":` + prompt + `}` }
	cases := []struct {
		path, body string
		want       bool
	}{
		{chatPath, chat(``), true},
		{chatPath, chat(`,"n":1,"best_of":1,"logprobs":false,"echo":false,"response_format":{"type":"text"},"top_logprobs":0`), true},
		{chatPath, chat(`,"n":null,"logprobs":null,"response_format":null,"guided_json":null,"structured_outputs":null`), true},
		{chatPath, chat(`,"tools":[{"type":"function"}],"tool_choice":"auto"`), true}, // while the answer is text
		{chatPath, chat(`,"modalities":["text"],"stop":["\n"],"seed":1,"temperature":0.5`), true},
		{chatPath, chat(`,"continue_final_message":true`), true},
		{chatPath, chat(`,"skip_special_tokens":true`), true},
		{chatPath, chat(`,"skip_special_tokens":false`), false},
		{chatPath, chat(`,"include_reasoning":true,"separate_reasoning":true`), true},
		{chatPath, chat(`,"include_reasoning":false`), false},
		{chatPath, chat(`,"separate_reasoning":false`), false},
		{chatPath, chat(`,"n":2`), false},
		{chatPath, chat(`,"best_of":3`), false},
		{chatPath, chat(`,"logprobs":true`), false},
		{textPath, prompt(`"a","logprobs":0`), false},
		{chatPath, chat(`,"prompt_logprobs":1`), false},
		{chatPath, chat(`,"echo":true`), false},
		{chatPath, chat(`,"use_beam_search":true`), false},
		{chatPath, chat(`,"return_token_ids":true`), false},
		{chatPath, chat(`,"response_format":{"type":"json_object"}`), false},
		{chatPath, chat(`,"response_format":{"json_schema":{},"type":"json_schema"}`), false},
		{chatPath, chat(`,"guided_json":{}`), false},
		{chatPath, chat(`,"guided_choice":["a"]`), false},
		{chatPath, chat(`,"structured_outputs":{"regex":"a"}`), false},
		{chatPath, chat(`,"grammar":"root ::= a"`), false},
		{chatPath, chat(`,"regex":"a+"`), false},
		{chatPath, chat(`,"ebnf":"x"`), false},
		{chatPath, chat(`,"structural_tag":"x"`), false},
		{chatPath, chat(`,"modalities":["text","audio"]`), false},
		{chatPath, chat(`,"modalities":["text","\u0061udio"]`), false},
		{chatPath, chat(`,"audio":{"voice":"x"}`), false},
		{chatPath, chat(`,"truncate_prompt_tokens":5`), false},
		{chatPath, chat(`,"add_generation_prompt":false`), false},
		{chatPath, `{"model":"m","stream":true,"messages":[{"role":"assistant","content":[{"type":"text","text":"a"}]}],"continue_final_message":true}`, false},
		{chatPath, `{"model":"m","stream":true,"messages":[],"continue_final_message":true}`, false},
		{chatPath, `{"model":"m","stream":true}`, false},
		{chatPath, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, false}, // not a stream
		{textPath, prompt(`"a"`), true},
		{textPath, prompt(` [ "a" ] `), true},
		{textPath, prompt(`["a","b"]`), false},
		{textPath, prompt(`[1,2,3]`), false},
		{textPath, prompt(`[[1],[2]]`), false},
		{textPath, prompt(`[]`), false},
		{textPath, prompt(`"a","suffix":"b"`), false},
		{textPath, prompt(`"a","prompt_embeds":"b"`), false},
		{"/v1/responses", `{"model":"m","stream":true,"input":"a"}`, false},
		{"/v1/embeddings", `{"model":"m","input":"a"}`, false},
	}
	for _, c := range cases {
		call, err := parseCall([]byte(c.body))
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		if got := call.continuable(endpoints[c.path]); got != c.want {
			t.Errorf("%s %s: can be continued: %v, want %v", c.path, c.body, got, c.want)
		}
	}
}

func TestContinuationBodies(t *testing.T) {
	cases := []struct {
		name, path, body, soFar string
		tokens                  int
		want                    string
	}{
		{
			"chat", chatPath, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`, `a \"b\"`, 3,
			`{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"a \"b\""}],"stream":true,"continue_final_message":true,"add_generation_prompt":false}`,
		},
		{
			"chat whose body ends in its messages", chatPath, `{"max_tokens": 20 ,"min_tokens":2,"max_completion_tokens":9,"messages":[ {"role":"user"} ] } `, `x`, 3,
			`{"max_tokens": 17 ,"min_tokens":0,"max_completion_tokens":6,"messages":[ {"role":"user"} ,{"role":"assistant","content":"x"}] ,"continue_final_message":true,"add_generation_prompt":false} `,
		},
		{
			"chat with flags", chatPath, `{"add_generation_prompt":true,"continue_final_message":false,"messages":[]}`, `x`, 1,
			`{"add_generation_prompt":false,"continue_final_message":true,"messages":[{"role":"assistant","content":"x"}]}`,
		},
		{
			"chat that is continued already", chatPath,
			`{"messages":[{"role":"user","content":"hi"},{"content":"I am","role":"assistant"}],"continue_final_message":true,"add_generation_prompt":false,"max_tokens":7}`, ` so`, 1,
			`{"messages":[{"role":"user","content":"hi"},{"content":"I am so","role":"assistant"}],"continue_final_message":true,"add_generation_prompt":false,"max_tokens":6}`,
		},
		{"no text yet", chatPath, `{"messages":[],"max_tokens":5}`, ``, 0, `{"messages":[],"max_tokens":5}`},
		{"prompt", textPath, `{"prompt":"a","max_tokens":5}`, `\n b`, 5, `{"prompt":"a\n b","max_tokens":1}`},
		{"bounds in other notations", textPath, `{"prompt":"a","max_tokens":2e1,"min_tokens":4.0}`, `b`, 5, `{"prompt":"ab","max_tokens":15,"min_tokens":0}`},
		{"list of a prompt", textPath, `{"max_tokens":null,"prompt":[ "a" ]}`, `b`, 5, `{"max_tokens":null,"prompt":[ "ab" ]}`},
	}
	for _, c := range cases {
		got, ok := ContinuationBody(endpoints[c.path], []byte(c.body), []byte(c.soFar), c.tokens, 0, &Edit{})
		if !ok || string(got) != c.want {
			t.Errorf("%s: %s (%v)\nwant %s", c.name, got, ok, c.want)
		}
	}
	for _, body := range []string{`{`, `{"prompt":[1]}`, `{"messages":{}}`} {
		for _, path := range []string{chatPath, textPath} {
			if got, ok := ContinuationBody(endpoints[path], []byte(body), []byte("x"), 1, 0, &Edit{}); ok {
				t.Errorf("%s %s was continued as %s", path, body, got)
			}
		}
	}
}

// FuzzContinuation compares continuation bodies with an independent decoder: each must equal the
// first body with the text appended to its prompt.
func FuzzContinuation(f *testing.F) {
	f.Add(`{"prompt":"a","max_tokens":9,"stream":true}`, "b\n\"", 2)
	f.Add(`{"messages":[{"role":"user","content":"hi"}],"stream":true}`, "\u00e9", 1)
	f.Add(`{"messages":[{"content":"I","role":"assistant"}],"continue_final_message":true,"stream":true,"prompt":["a"]}`, " am", 3)
	f.Add(`{"prompt":"a","prompt":["b"],"min_tokens":4,"max_completion_tokens":7,"stream":true,"messages":[]}`, "\\", 4)
	f.Fuzz(func(t *testing.T, body, soFar string, tokens int) {
		c, err := parseCall([]byte(body))
		if err != nil || strings.ToValidUTF8(body, "") != body || strings.ToValidUTF8(soFar, "") != soFar || soFar == "" || tokens < 1 || tokens > 1<<20 {
			return
		}
		quoted, _ := json.Marshal(soFar)
		for _, path := range []string{chatPath, textPath} {
			if !c.continuable(endpoints[path]) {
				continue
			}
			rest, ok := ContinuationBody(endpoints[path], []byte(body), quoted[1:len(quoted)-1], tokens, 0, &Edit{})
			var before, after map[string]any
			if json.Unmarshal([]byte(body), &before) != nil {
				return // the decoder is stricter about escapes
			}
			if err := json.Unmarshal(rest, &after); !ok || err != nil {
				t.Fatalf("%s %q: %s (%v): %v", path, body, rest, ok, err)
			}
			if path == textPath {
				wantText(t, before["prompt"], after["prompt"], soFar)
			} else {
				wantChat(t, before, after, soFar)
			}
		}
	})
}

// wantText checks an extended prompt.
func wantText(t *testing.T, before, after any, soFar string) {
	t.Helper()
	if list, ok := before.([]any); ok {
		before, after = list[0], after.([]any)[0]
	}
	if after != before.(string)+soFar {
		t.Fatalf("the prompt %q with %q behind it is %q", before, soFar, after)
	}
}

// wantChat checks an extended chat.
func wantChat(t *testing.T, before, after map[string]any, soFar string) {
	t.Helper()
	old, now := before["messages"].([]any), after["messages"].([]any)
	last := now[len(now)-1].(map[string]any)
	want := soFar
	if before["continue_final_message"] == true {
		want = old[len(old)-1].(map[string]any)["content"].(string) + soFar
	} else if !reflect.DeepEqual(old, now[:len(now)-1]) || last["role"] != "assistant" {
		t.Fatalf("%v was continued as %v", old, now)
	}
	if last["content"] != want || after["continue_final_message"] != true {
		t.Fatalf("%v was continued as %v, want %q at the end", before, after, want)
	}
}

func TestWhiteSpaceIsSplitFromText(t *testing.T) {
	for raw, space := range map[string]string{
		``: ``, `a`: ``, `a `: ` `, `a\n\n`: `\n\n`, `a:\r\n\t `: `\r\n\t `, ` `: ` `, `\n`: `\n`, `n`: ``,
		`a\\n`: ``, `a\\\n`: `\n`, `\\\\n`: ``, `a\u0020`: ``, `int`: ``, `a\t\\r`: ``,
	} {
		soFar, got := SplitSpace([]byte(raw))
		if string(got) != space || string(soFar)+space != raw {
			t.Errorf("%q was parted into %q and %q, want %q at the end", raw, soFar, got, space)
		}
	}
}

func TestTranscriptIsBounded(t *testing.T) {
	s := Transcript{RemainingBytes: 6}
	s.appendText([]byte(`"abc"`))
	s.appendText([]byte(`"\n"`))
	if s.lost || string(s.Text()) != `abc\n` {
		t.Fatalf("kept %q, lost %v", s.Text(), s.lost)
	}
	s.appendText([]byte(`"de"`))
	if !s.lost || s.Text() != nil {
		t.Errorf("beyond its bound it keeps %q, lost %v", s.Text(), s.lost)
	}
	var none *Transcript
	none.appendText([]byte(`"a"`))
	none.recordHead([]byte(`"id"`), []byte(`"a"`))
	none.recordRole()
	none.markEnded()
	none.markClosed()
	none.Discard()
}

// Parts of a stream that cannot be in a prompt prevent a continuation.
func TestAnswersThatCannotBeContinued(t *testing.T) {
	for data, lost := range map[string]bool{
		`{"choices":[{"delta":{"content":"a"}}]}`:                                               false,
		`{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[]}}]}`:             false,
		`{"choices":[{"delta":{"reasoning_content":null,"refusal":null,"content":"a"}}]}`:       false,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`:          true,
		`{"choices":[{"delta":{"function_call":{"name":"f"}}}]}`:                                true,
		`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`:                                    true,
		`{"choices":[{"delta":{"reasoning":"hm"}}]}`:                                            true,
		`{"choices":[{"delta":{"refusal":"no"}}]}`:                                              true,
		`{"choices":[{"delta":{"audio":{"data":"x"}}}]}`:                                        true,
		`{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}`: true,
		`{"choices":[{"text":"a"},{"text":"b"}]}`:                                               true,
	} {
		s := Transcript{RemainingBytes: 100}
		a := Answer{Transcript: &s}
		a.Event([]byte(data))
		if s.lost != lost {
			t.Errorf("%s: lost %v, want %v", data, s.lost, lost)
		}
	}
}

func TestEngineFaults(t *testing.T) {
	for data, fault := range map[string]bool{
		`{"error":{"message":"dead","code":500}}`: true, `{"error":{"code":503}}`: true, `{"error":{"message":"too long","code":400}}`: false,
		`{"error":{"code":"500"}}`: false, `{"error":null}`: false, `{"error":"x"}`: false, `{}`: false,
	} {
		var a Answer
		if a.Event([]byte(data)); a.Faulty != fault {
			t.Errorf("%s is a fault of the engine: %v, want %v", data, a.Faulty, fault)
		}
	}
}

func testSplice() *Splice {
	return &Splice{chunkHead: chunkHead{id: []byte(`"c1"`), created: []byte(`17`), model: []byte(`"m"`)}, roleKnown: true, TokensBefore: 5, TokensInPrompt: 5}
}

func TestSplice(t *testing.T) {
	cases := []struct{ name, event, want string }{
		{
			"a piece", `data: {"id":"c2","created":99,"model":"other","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`,
			`data: {"id":"c1","created":17,"model":"m","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`,
		},
		{"the role once", `data: {"id":"c2","choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}`, `data: {"id":"c1","choices":[{"index":0,"delta":{"content":"x"}}]}`},
		{"only the role", `data: {"id":"c2","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`, ``},
		{"a text", `data: {"choices":[{"text":"x"}],"id":"c2"}`, `data: {"choices":[{"text":"x"}],"id":"c1"}`},
		{"no text", `data: {"id":"c2","choices":[{"text":"","finish_reason":null}]}`, ``},
		{"the end", `data: {"id":"c2","choices":[{"delta":{},"finish_reason":"stop"}]}`, `data: {"id":"c1","choices":[{"delta":{},"finish_reason":"stop"}]}`},
		{"a tool call", `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`},
		{
			"the usage", `data: {"choices":[],"usage":{"prompt_tokens":15,"completion_tokens":3,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":14,"audio_tokens":0}}}`,
			`data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":8,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":10,"audio_tokens":0}}}`,
		},
		{
			"usage without details", `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"prompt_tokens_details":null}}`,
			`data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":8,"prompt_tokens_details":null}}`,
		},
		{"done", `data: [DONE]`, `data: [DONE]`},
		{"an error", `data: {"error":{"code":400}}`, `data: {"error":{"code":400}}`},
		{"not JSON", `data: {"choices":[{]}`, `data: {"choices":[{]}`},
		{"odd choices", `data: {"choices":[7,{"delta":3}],"x":1}`, ``},
		{"lines", "data: {\"id\":\"c2\",\ndata: \"choices\":[{\"delta\":{\ndata: \"content\":\"x\"}}]}", `data: {"id":"c1","choices":[{"delta":{"content":"x"}}]}`},
		{"a comment", `: ping`, `: ping`},
	}
	for _, c := range cases {
		want := c.want
		if want != "" {
			want += "\n\n"
		}
		if got := string(testSplice().Event([]byte("before"), []byte(c.event+"\n\n"))); got != "before"+want {
			t.Errorf("%s: %q\nwant %q", c.name, got, "before"+want)
		}
	}
}

func TestSpliceKeepsUsageOfFirstTarget(t *testing.T) {
	s := testSplice()
	s.chunkHead, s.Prompt = chunkHead{}, policy.Known(42)
	s.roleKnown = false
	event := `data: {"id":"c2","choices":[{"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":50,"completion_tokens":1,"total_tokens":51}}` + "\n\n"
	want := `data: {"id":"c2","choices":[{"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":42,"completion_tokens":6,"total_tokens":48}}` + "\n\n"
	if got := string(s.Event(nil, []byte(event))); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	if !s.roleKnown {
		t.Error("the role would be told twice")
	}
}

func TestSpliceDropsRepeatedWhiteSpace(t *testing.T) {
	for _, c := range []struct {
		space  string
		pieces []string
		want   string
	}{
		{`\n\n`, []string{`\n\n`, `So`}, `So`},
		{`\n\n`, []string{`\n`, `\nSo`}, `So`},
		{`\n\n`, []string{`\n\nSo`, `\n\n`}, `So\n\n`},
		{`\n\n`, []string{`So`, `\n\n`}, `So\n\n`},
		{` `, []string{` So`, ` it`}, `So it`},
		{` \n`, []string{` \tSo`}, `\tSo`},
		{``, []string{`\n`}, `\n`},
	} {
		s := testSplice()
		s.space = []byte(c.space)
		var out []byte
		for _, p := range c.pieces {
			out = s.Event(out, []byte(`data: {"choices":[{"delta":{"content":"`+p+`"}}]}`+"\n\n"))
		}
		got := ""
		for event := range strings.SplitSeq(string(out), "\n\n") {
			if piece, ok := strings.CutPrefix(event, `data: {"choices":[{"delta":{"content":"`); ok {
				got += strings.TrimSuffix(piece, `"}}]}`)
			}
		}
		if got != c.want {
			t.Errorf("after %q, %q became %q, want %q", c.space, c.pieces, got, c.want)
		}
	}
}

// FuzzSplice checks that any event of an engine results in at most one event, which is valid JSON
// if the engine's event was.
func FuzzSplice(f *testing.F) {
	f.Add(`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":" a"}}],"usage":{"prompt_tokens":3}}`)
	f.Add("{\"choices\":[{\"text\":\n\"\\n\"}]}")
	f.Add(`{"choices":[1,{"delta":[]},{"delta":{"content":7}}],"usage":{"prompt_tokens":-3,"completion_tokens":1e9}}`)
	f.Add("[DONE]")
	f.Fuzz(func(t *testing.T, data string) {
		if strings.ContainsAny(data, "\r") {
			return
		}
		s := testSplice()
		s.space = []byte(`\n `)
		event := appendEvent(nil, []byte(data))
		soFar := EventData(event)
		out := s.Event(nil, event)
		if len(out) == 0 {
			return
		}
		var events Splitter
		end, ok := events.Next(out)
		if !ok || end != len(out) {
			t.Fatalf("%q became %q: not one event", data, out)
		}
		if json.Valid(soFar) && !json.Valid(EventData(out)) {
			t.Fatalf("%q became %q: no JSON", soFar, out)
		}
		var a, b Answer
		a.Event(soFar)
		b.Event(EventData(out))
		if a.Done != b.Done || a.Failed != b.Failed || b.Tokens > a.Tokens {
			t.Fatalf("%q became %q: done %v and %v, failed %v and %v, %d and %d tokens", soFar, out, a.Done, b.Done, a.Failed, b.Failed, a.Tokens, b.Tokens)
		}
	})
}

// BenchmarkSplice measures the cost of one event of a continued answer.
func BenchmarkSplice(b *testing.B) {
	event := []byte(chunk(" word"))
	s, out := testSplice(), bytes.Buffer{}
	dst := out.AvailableBuffer()
	b.ReportAllocs()
	for b.Loop() {
		dst = s.Event(dst[:0], event)
	}
	if len(dst) == 0 {
		b.Fatal(fmt.Sprint("nothing was written of ", string(event)))
	}
}

func TestTextsThatBreakContinuation(t *testing.T) {
	for _, c := range []struct {
		stop, soFar string
		want        bool
	}{
		{``, `a < b | c`, false},
		{``, `<think>so`, true},
		{``, `so\u003c/think\u003e yes`, true},
		{``, `<|eot_id|>`, true},
		{``, `</s>`, true},
		{``, `[INST] x`, true},
		{`"END"`, `the EN`, true},
		{`"END"`, `the E`, true},
		{`"END"`, `the EN of`, false},
		{`"END"`, `the end`, false},
		{`["\nQ:","###"]`, `so #`, true},
		{`["\nQ:","###"]`, `so\n`, true},
		{`["\nQ:","###"]`, `so Q:`, false},
		{`["é!"]`, `caf\u00e9`, true},
		{`["."]`, `so`, false},
		{`[]`, `so`, false},
		{`null`, `so`, false},
		{`""`, `so`, false},
		{`{"a":1}`, `so`, true},
		{`[1]`, `so`, true},
	} {
		body := `{"messages":[]}`
		if c.stop != "" {
			body = `{"stop":` + c.stop + `,"messages":[]}`
		}
		call, err := parseCall([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := breaksContinuation(&call, []byte(c.soFar)); got != c.want {
			t.Errorf("stop %s, soFar %s: unsound %v, want %v", c.stop, c.soFar, got, c.want)
		}
	}
}
