package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/lbd/prefix"
)

// turns returns a message call with these messages after a long system prompt.
func turns(messages ...string) string {
	return `{"model":"m","max_tokens":9,"system":"` + long("a") + `","messages":[` + strings.Join(messages, ",") + `]}`
}

// user returns a message of a user with that content.
func user(content string) string { return `{"role":"user","content":` + content + `}` }

// assistant returns a message of the model with these blocks.
func assistant(blocks string) string { return `{"role":"assistant","content":[` + blocks + `]}` }

// event returns an event of a stream.
func event(kind, members string) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + members + "}\n\n"
}

// delta returns an event with a piece of a block.
func delta(index int, kind, key, piece string) string {
	quoted, _ := json.Marshal(piece) // encoding strings cannot fail
	return event("content_block_delta", fmt.Sprintf(`,"index":%d,"delta":{"type":"%s","%s":%s}`, index, kind, key, quoted))
}

// blockEvents returns the events of a block whose text arrives in pieces of size characters.
func blockEvents(index int, head, kind, key, content string, size int) string {
	s := event("content_block_start", fmt.Sprintf(`,"index":%d,"content_block":%s`, index, head))
	for piece := range slices.Chunk([]rune(content), size) {
		s += delta(index, kind, key, string(piece))
	}
	return s + event("content_block_stop", fmt.Sprintf(`,"index":%d`, index))
}

// answered returns the key of a call with its answer: a stream, or a message in one piece.
func answered(t *testing.T, body, answer string) (prefix.Key, *Answer) {
	t.Helper()
	c, err := parseCall([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	e := endpoints[pathMessages]
	a := &Answer{Messages: true, RemainingKeyBytes: 1 << 20, Rendering: Render(1, e, &c, ResolvedModel{Model: "m"})}
	if strings.HasPrefix(answer, "{") {
		a.Whole([]byte(answer))
		return a.Finish(), a
	}
	var s Splitter
	for rest := []byte(answer); len(rest) > 0; {
		n, ok := s.Next(rest)
		if !ok {
			t.Fatalf("the stream ends in %q", rest)
		}
		a.Event(EventData(rest[:n]))
		rest = rest[n:]
	}
	return a.Finish(), a
}

// A prompt with its answer is the beginning of the next turn's prompt, for every kind of block, in a
// stream and in one piece, however the client formats what the model wrote.
func TestNextTurnBeginsWithAnswer(t *testing.T) {
	prose, input := long("c"), `{"path": "/tmp/é", "text": "`+strings.Repeat(`a < b\n\"q\" `, 60)+`", "n": [1, 2]}`
	sent := `{"path":"/tmp/\u00e9","text":"` + strings.Repeat(`a \u003c b\n\"q\" `, 60) + `","n":[1,2]}`
	call := `{"type":"tool_use","id":"t","name":"edit","input":` + sent + `}`
	quotedProse := `"` + prose + `"`
	for name, c := range map[string]struct{ answer, next string }{
		"text": {
			blockEvents(0, `{"type":"text","text":""}`, "text_delta", "text", prose, 7),
			assistant(`{"type":"text","text":` + quotedProse + `}`),
		},
		"text as a string": {
			blockEvents(0, `{"type":"text","text":""}`, "text_delta", "text", prose, 7),
			`{"role":"assistant","content":` + quotedProse + `}`,
		},
		"text with a cache mark": {
			blockEvents(0, `{"type":"text","text":""}`, "text_delta", "text", prose, 7),
			assistant(`{"type":"text","cache_control":{"type":"ephemeral"},"text":` + quotedProse + `}`),
		},
		"call": {
			blockEvents(0, `{"type":"tool_use","id":"t","name":"edit","input":{}}`, "input_json_delta", "partial_json", input, 5),
			assistant(call),
		},
		"call in its first event": {
			event("content_block_start", `,"index":0,"content_block":{"type":"tool_use","id":"t","name":"edit","input":`+input+`}`) + event("content_block_stop", `,"index":0`),
			assistant(call),
		},
		"reasoning, text, calls": {
			blockEvents(0, `{"type":"thinking","thinking":""}`, "thinking_delta", "thinking", prose, 9) +
				blockEvents(1, `{"type":"text","text":""}`, "text_delta", "text", prose, 9) +
				blockEvents(2, `{"type":"tool_use","id":"s","name":"list","input":{}}`, "input_json_delta", "partial_json", "", 5) +
				blockEvents(3, `{"type":"tool_use","id":"t","name":"edit","input":{}}`, "input_json_delta", "partial_json", input, 4),
			assistant(`{"type":"thinking","thinking":` + quotedProse + `,"signature":"x"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":` + quotedProse + `},` +
				`{"type":"tool_use","id":"s","name":"list","input":{}},` + call),
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := turns(user(`"hello"`))
			next := keyFor(t, pathMessages, turns(user(`"hello"`), c.next, user(`[{"type":"tool_result","tool_use_id":"t","content":"ok"}]`)), ResolvedModel{Model: "m"})
			prompt := keyFor(t, pathMessages, first, ResolvedModel{Model: "m"})
			var message struct{ Content json.RawMessage }
			if err := json.Unmarshal([]byte(c.next), &message); err != nil {
				t.Fatal(err)
			}
			for form, answer := range map[string]string{"stream": c.answer, "whole": `{"type":"message","role":"assistant","content":` + string(message.Content) + `}`} {
				if form == "whole" && message.Content[0] == '"' {
					continue // answers have blocks
				}
				got, _ := answered(t, first, answer)
				if len(got) < len(prompt)+9 || common(got, next) != len(got) {
					t.Errorf("%s: %d of %d blocks with the answer are in the next turn; the prompt has %d", form, common(got, next), len(got), len(prompt))
				}
			}
		})
	}
}

// Fields of the prompt change the key from their position on, and no other field does.
func TestMessagesFieldsInKey(t *testing.T) {
	hello := user(`"` + long("b") + `"`)
	base := turns(hello)
	image := func(data string) string {
		return user(`[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + data + `"}},{"type":"text","text":"` + long("b") + `"}]`)
	}
	result := func(content string) string {
		return user(`[{"type":"tool_result","tool_use_id":"t","content":` + content + `},{"type":"text","text":"` + long("b") + `"}]`)
	}
	blocks := strings.Replace(base, `"system":"`, `"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"`, 1)
	blocks = strings.Replace(blocks, `","messages"`, `","cache_control":{"type":"ephemeral"}}],"messages"`, 1)
	tools := func(mark string) string {
		return with(base, `"tools":[{"name":"f","input_schema":{"type":"object"}`+mark+`}]`)
	}
	for name, c := range map[string]struct {
		one, other string
		same       bool
		from       int
	}{
		"system":                   {base, strings.Replace(base, `"system":"a`, `"system":"z`, 1), false, 0},
		"tools":                    {base, tools(""), false, 0},
		"thinking":                 {base, with(base, `"thinking":{"type":"enabled","budget_tokens":9}`), false, 0},
		"effort":                   {base, with(base, `"output_config":{"effort":"high"}`), false, 0},
		"salt":                     {base, with(base, `"cache_salt":"s"`), false, 0},
		"image":                    {turns(image("AA")), turns(image("BB")), false, 18},
		"tool result":              {turns(result(`"1"`)), turns(result(`"2"`)), false, 18},
		"image of a result":        {turns(result(`[{"type":"image","source":{"data":"A"}}]`)), turns(result(`[{"type":"image","source":{"data":"B"}}]`)), false, 18},
		"role":                     {base, strings.Replace(base, `"user"`, `"assistant"`, 1), false, 18},
		"system in blocks":         {base, blocks, true, 0},
		"billing header":           {blocks, strings.Replace(blocks, "cch=1", "cch=2", 1), true, 0},
		"cache mark of a tool":     {tools(""), tools(`,"cache_control":{"type":"ephemeral"}`), true, 0},
		"cache mark of an image":   {turns(image("AA")), turns(strings.Replace(image("AA"), `"type":"image"`, `"type":"image","cache_control":{"type":"ephemeral"}`, 1)), true, 0},
		"result in blocks":         {turns(result(`"1"`)), turns(result(`[{"type":"text","text":"1","cache_control":null}]`)), true, 0},
		"id of a result":           {turns(result(`"1"`)), strings.ReplaceAll(turns(result(`"1"`)), `"tool_use_id":"t"`, `"tool_use_id":"u"`), true, 0},
		"bound, stop and sampling": {base, with(base, `"stop_sequences":["x"],"temperature":1,"metadata":{"user_id":"u"},"stream":true,"tool_choice":{"type":"any"}`), true, 0},
		"thinking budget":          {with(base, `"thinking":{"type":"enabled","budget_tokens":8}`), with(base, `"thinking":{"type":"enabled","budget_tokens":9}`), true, 0},
		"counting":                 {base, base, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := pathMessages
			if name == "counting" {
				path = pathCountTokens
			}
			one, other := keyFor(t, pathMessages, c.one, ResolvedModel{Model: "m"}), keyFor(t, path, c.other, ResolvedModel{Model: "m"})
			n := common(one, other)
			switch {
			case c.same && !slices.Equal(one, other):
				t.Errorf("only %d of %d and %d blocks are alike", n, len(one), len(other))
			case !c.same && (n < c.from || n > min(len(one), len(other))-9):
				t.Errorf("%d of %d blocks are alike, want at least %d and none of the last text's", n, len(one), c.from)
			}
		})
	}
}

// A conversation of texts has the same key in both APIs.
func TestMessagesKeyEqualsChat(t *testing.T) {
	text := long("b")
	message := `{"model":"m","system":"` + text + `","messages":[` + user(`"`+text+`"`) + `,` + assistant(`{"type":"text","text":"`+text+`"}`) + `,` + user(`"more"`) + `]}`
	chat := `{"model":"m","messages":[{"role":"system","content":"` + text + `"},` + user(`"`+text+`"`) + `,{"role":"assistant","content":"` + text + `"},` + user(`"more"`) + `]}`
	if one, other := keyFor(t, pathMessages, message, ResolvedModel{Model: "m"}), keyFor(t, chatPath, chat, ResolvedModel{Model: "m"}); !slices.Equal(one, other) {
		t.Errorf("%d of %d blocks are alike", common(one, other), len(one))
	}
}

// The same JSON has the same key however it is formatted and cut, and no other document has it.
func TestInputKeyIgnoresFormat(t *testing.T) {
	render := func(document []byte, size int) prefix.Key {
		var r Rendering
		r.hash.Reset(1, false)
		for piece := range slices.Chunk(document, size) {
			r.writeJSON(piece)
		}
		r.writeString(strings.Repeat(" ", prefix.BlockBytes)) // completes the last block
		return r.Key()
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\U0001F600\"", `\u0041`, "</script>&\u2028", "a\\\\\"b"})), 1, 5).Draw(t, "words")
		value := map[string]any{"words": words, "n": rapid.Int().Draw(t, "n"), "none": nil}
		plain, _ := json.Marshal(value)
		wide, _ := json.MarshalIndent(value, "", "\t")
		var unescaped bytes.Buffer
		encoder := json.NewEncoder(&unescaped)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(value)
		var ascii []byte
		for _, c := range string(bytes.TrimSpace(unescaped.Bytes())) {
			if c < 0x80 {
				ascii = append(ascii, byte(c))
			} else if c > 0xffff {
				ascii = fmt.Appendf(ascii, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
			} else {
				ascii = fmt.Appendf(ascii, `\u%04X`, c)
			}
		}
		want := render(plain, len(plain))
		for _, form := range [][]byte{plain, wide, bytes.TrimSpace(unescaped.Bytes()), ascii} {
			if size := rapid.IntRange(1, 20).Draw(t, "size"); !slices.Equal(render(form, size), want) {
				t.Fatalf("%s in pieces of %d has another key than %s", form, size, plain)
			}
		}
		value["words"] = append(words, "")
		if other, _ := json.Marshal(value); slices.Equal(render(other, 9), want) {
			t.Fatalf("%s has the key of %s", other, plain)
		}
	})
}

// Half a surrogate pair does not hide the end of its string.
func TestInputWithHalfPairs(t *testing.T) {
	for _, document := range []string{`["\ud83d\"," ]`, `["\ud83d" ]`, `["\ud83d\ud83d" ]`, `["\ud83dx" ]`, `["\ude00" ]`} {
		for size := 1; size < 9; size++ {
			var r Rendering
			for piece := range slices.Chunk([]byte(document), size) {
				r.writeJSON(piece)
			}
			if r.json != (jsonFilter{escape: r.json.escape}) {
				t.Errorf("%s in pieces of %d ends in %+v", document, size, r.json)
			}
		}
	}
}

// URLs that an engine would fetch are guarded in every place where blocks have them.
func TestGuardedURLsOfBlocks(t *testing.T) {
	private := `{"type":"url","url":"http://10.0.0.7/a.png"}`
	for name, c := range map[string]struct {
		body string
		want Parameters
	}{
		"image":           {turns(user(`[{"type":"image","source":` + private + `}]`)), privateURLs},
		"no type":         {turns(user(`[{"type":"image","source":{"url":"http://10.0.0.7/"}}]`)), privateURLs},
		"file":            {turns(user(`[{"type":"document","source":{"type":"url","url":"file:///etc/passwd"}}]`)), fileURLs},
		"image of result": {turns(user(`[{"type":"tool_result","content":[{"type":"image","source":` + private + `}]}]`)), privateURLs},
		"in a document":   {turns(user(`[{"type":"document","source":{"type":"content","content":[{"type":"image","source":` + private + `}]}}]`)), privateURLs},
		"in the system":   {`{"model":"m","system":[{"type":"image","source":` + private + `}]}`, privateURLs},
		"chat's part":     {turns(user(`[{"type":"image_url","image_url":{"url":"http://127.0.0.1/"}}]`)), privateURLs},
		"embeds":          {turns(user(`[{"type":"image_embeds","image_embeds":"x"}]`)), guardedSet["image_embeds"]},
		"public":          {turns(user(`[{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}]`)), 0},
		"base64":          {turns(user(`[{"type":"image","source":{"type":"base64","data":"/9j/4AAQ"}}]`)), 0},
		"a call's input":  {turns(assistant(`{"type":"tool_use","name":"get","input":{"url":"http://10.0.0.7/"}}`)), 0},
		"a template":      {with(turns(user(`"a"`)), `"chat_template":"x"`), chatTemplate},
		"transfer":        {with(turns(user(`"a"`)), `"kv_transfer_params":{}`), guardedSet["kv_transfer_params"]},
	} {
		call, err := parseCall([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r := Render(1, endpoints[pathMessages], &call, ResolvedModel{Model: "m"})
		if got := r.guarded | call.guarded; got != c.want {
			t.Errorf("%s: guarded parameters %b, want %b", name, got, c.want)
		}
		r.Release()
	}
}

// The usage of a message is that of its prompt, cached or not, and of its whole answer.
func TestMessagesUsage(t *testing.T) {
	start := func(usage string) string { return event("message_start", `,"message":{"usage":{`+usage+`}}`) }
	end := func(usage string) string {
		return event("message_delta", `,"delta":{"stop_reason":"max_tokens"},"usage":{`+usage+`}`)
	}
	whole := func(usage string) string { return `{"type":"message","content":[],"usage":{` + usage + `}}` }
	none := Figure{}
	known := func(n int) Figure { return Figure{Known: true, Value: n} }
	for answer, want := range map[string]Usage{
		whole(`"input_tokens":7,"output_tokens":3`):                                                              {known(7), none, known(3)},
		whole(`"input_tokens":7,"cache_read_input_tokens":64,"output_tokens":3`):                                 {known(71), known(64), known(3)},
		whole(`"input_tokens":7,"cache_read_input_tokens":64,"cache_creation_input_tokens":9,"output_tokens":3`): {known(80), known(64), known(3)},
		whole(`"input_tokens":7,"cache_read_input_tokens":null,"output_tokens":null`):                            {known(7), none, none},
		start(`"input_tokens":71,"output_tokens":1`):                                                             {known(71), none, none},
		start(`"input_tokens":0,"output_tokens":0`):                                                              {none, none, none},
		start(`"input_tokens":71,"output_tokens":0`) + end(`"output_tokens":3`):                                  {known(71), none, known(3)},
		// vLLM knows only at the end how much was cached.
		start(`"input_tokens":71,"output_tokens":0`) + end(`"input_tokens":7,"cache_read_input_tokens":64,"cache_creation_input_tokens":0,"output_tokens":3`): {known(71), known(64), known(3)},
		start(`"input_tokens":7,"cache_read_input_tokens":64,"output_tokens":1`) + end(`"output_tokens":3`):                                                   {known(71), known(64), known(3)},
	} {
		if _, a := answered(t, turns(user(`"a"`)), answer); a.Usage != want {
			t.Errorf("%s: %+v, want %+v", answer, a.Usage, want)
		}
	}
}

// A stream of a message ends in message_stop, or in an error.
func TestMessageStreamEnds(t *testing.T) {
	e := endpoints[pathMessages]
	for data, want := range map[string][3]bool{ // done, failed, faulty
		`{"type":"ping"}`: {},
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`:                 {},
		`{"type":"content_block_stop","index":0}`:                                     {},
		`{"type":"message_stop"}`:                                                     {true, false, false},
		`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`:          {false, true, true},
		`{"type":"error","error":{"type":"api_error","message":"x"}}`:                 {false, true, true},
		`{"type":"error","error":{"type":"internal_error","message":"x"}}`:            {false, true, true},
		`{"type":"error","error":{"type":"invalid_request_error","message":"x"}}`:     {false, true, false},
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"error"}}`: {},
	} {
		a := Answer{Messages: true}
		a.Event([]byte(data))
		if got := [3]bool{a.Done, a.Failed, a.Faulty}; got != want {
			t.Errorf("%s: %v, want %v", data, got, want)
		}
		if e.EndsStream([]byte("event: x\ndata: "+data)) != (want[0] || want[1]) {
			t.Errorf("%s: EndsStream is %v", data, !want[0])
		}
	}
}

// Events of a text that differ only in it are recognised, and count like parsed ones.
func TestTextDeltasMatchTemplate(t *testing.T) {
	stream := blockEvents(0, `{"type":"text","text":""}`, "text_delta", "text", long("c"), 7)
	key, a := answered(t, turns(user(`"a"`)), stream)
	if !bytes.HasPrefix(a.template.around, []byte(`{"type":"content_block_delta","index":0`)) || a.Tokens != a.Events || a.Tokens != (len(long("c"))+6)/7 || key == nil {
		t.Errorf("%d tokens in %d events, template %q", a.Tokens, a.Events, a.template.around)
	}
}

// An answer with a block whose form in a prompt is unknown does not extend the key.
func TestUnknownBlockEndsKey(t *testing.T) {
	stream := event("content_block_start", `,"index":0,"content_block":{"type":"web_search_tool_result","content":[]}`)
	if key, _ := answered(t, turns(user(`"a"`)), stream); key != nil {
		t.Errorf("the key has %d blocks", len(key))
	}
}

// Hidden cache figures cannot be computed from the other figures, and the sum is unchanged.
func TestMessagesUsageIsMasked(t *testing.T) {
	for in, want := range map[string]string{
		`{"usage":{"input_tokens":7,"cache_creation_input_tokens":1,"cache_read_input_tokens":64,"output_tokens":3}}`:   `{"usage":{"input_tokens":72,"cache_creation_input_tokens":0,"cache_read_input_tokens":0 ,"output_tokens":3}}`,
		"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":64}}}\n\n": "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":71,\"cache_read_input_tokens\":0 }}}\n\n",
		`{"usage":{"input_tokens":7,"cache_creation":{"ephemeral_5m_input_tokens":4},"cache_read_input_tokens":null}}`:  `{"usage":{"input_tokens":7,"cache_creation":{"ephemeral_5m_input_tokens":0},"cache_read_input_tokens":null}}`,
		`{"usage":{"cache_read_input_tokens":64}}`: `{"usage":{"cache_read_input_tokens":0 }}`,
		`{"content":[{"input":{"cached_tokens":5,"input_tokens":4}}],"usage":{"input_tokens":1,"cache_read_input_tokens":2}}`: `{"content":[{"input":{"cached_tokens":5,"input_tokens":4}}],"usage":{"input_tokens":3,"cache_read_input_tokens":0}}`,
		`{"content":[{"text":"cache"}]}`: `{"content":[{"text":"cache"}]}`,
		"data: {\"usage\":\ndata: {\"input_tokens\":7,\"cache_read_input_tokens\":64}}\n\n": "data: {\"usage\":\ndata: {\"input_tokens\":0,\"cache_read_input_tokens\":0 }}\n\n",
	} {
		if out := HideMessagesCache(nil, []byte(in)); string(out) != want {
			t.Errorf("%s became %s, want %s", in, out, want)
		}
	}
	long := []byte(`{"usage":{"input_tokens":7,"cache_read_input_tokens":64,"output_tokens":3}}`)
	if (&CacheMask{Uncached: true}).Hide(long); string(long) != `{"usage":{"input_tokens":0,"cache_read_input_tokens":0 ,"output_tokens":3}}` {
		t.Errorf("in pieces: %s", long)
	}
}

func TestMessagesErrors(t *testing.T) {
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error", 408: "invalid_request_error",
		409: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 0: "api_error",
	} {
		kind := TypeServer
		if status/100 == 4 {
			kind = TypeInvalid
		}
		e := Error{Status: status, Kind: kind, Message: `a "b"`}
		if got, want := string(e.MessagesBody("req-1")), `{"type":"error","error":{"type":"`+want+`","message":"a \"b\""},"request_id":"req-1"}`; got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
		if body := e.MessagesBody("r"); !IsMessagesError(body) || IsMessagesError(e.Body()) {
			t.Errorf("%s is not told from %s", body, e.Body())
		}
	}
	e := Error{Kind: TypeServer, Message: "m"}
	for path, want := range map[string]string{
		chatPath:      "data: {\"error\":",
		responsesPath: "event: error\ndata: {\"error\":",
		pathMessages:  "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"m\"},\"request_id\":\"r\"}\n\n",
	} {
		if got := string(endpoints[path].ErrorEvent(&e, "r")); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]bool{pathMessages: true, pathCountTokens: true, "/v1/messages/batches": true, "/v1/messagesx": false, chatPath: false} {
		if IsMessagesPath(path) != want {
			t.Errorf("%s: IsMessagesPath is %v", path, !want)
		}
	}
}

// The bound, the user and the number of answers are read from the API's own fields.
func TestMessagesCallFields(t *testing.T) {
	body := with(turns(user(`"a"`)), `"metadata":{"user_id":"u-1"},"user":"other","n":3`)
	c, err := parseCall([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	e, count := endpoints[pathMessages], endpoints[pathCountTokens]
	if c.MaxOutput(e) != 9 || string(c.User(e)) != "u-1" || string(c.User(endpoints[chatPath])) != "other" {
		t.Errorf("bound %d, users %q and %q", c.MaxOutput(e), c.User(e), c.User(endpoints[chatPath]))
	}
	if !e.EstimatesTokens() || count.EstimatesTokens() || c.Answers(e) == 0 || c.Answers(count) != 0 {
		t.Errorf("answers %d and %d", c.Answers(e), c.Answers(count))
	}
	if ch := c.Changes(e, ResolvedModel{Model: "m"}); len(ch.Edits) != 0 || ch.Continuable {
		t.Errorf("changes %+v", ch)
	}
	if ch := c.Changes(e, ResolvedModel{Model: "real", Adapter: "m"}); len(ch.Edits) != 0 {
		t.Errorf("changes of an adapter %+v", ch)
	}
	if ch := c.Changes(e, ResolvedModel{Model: "real"}); len(ch.Edits) != 1 || string(ch.Edits[0].With) != `"real"` {
		t.Errorf("changes of an alias %+v", ch)
	}
}

// FuzzMessages renders any body, with any answer, in one piece and in a stream. Bodies that are
// accepted are rendered without a crash, and their key does not depend on white space.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(turns(user(`"a"`))), []byte(blockEvents(0, `{"type":"tool_use","name":"f","input":{}}`, "input_json_delta", "partial_json", `{"a":"\u00`, 3)))
	f.Add([]byte(turns(user(`[{"type":"tool_result","content":[{"type":"tool_result","content":[]}]}]`))), []byte(event("message_delta", `,"usage":{"input_tokens":1}`)))
	f.Add([]byte(`{"messages":[{"content":[{"type":"text","text":[{"type":"text"}]},{"type":"document","source":{"content":[{"source":{"url":1}}]}}]}],"system":[1,{"text":2}],"tools":[1,{}]}`), []byte(`{"content":[1],"usage":[]}`))
	f.Fuzz(func(t *testing.T, body, answer []byte) {
		c, err := parseCall(body)
		if err != nil {
			return
		}
		for _, path := range []string{pathMessages, pathCountTokens} {
			r := Render(1, endpoints[path], &c, ResolvedModel{Model: "m"})
			spaced := append([]byte(" \n"), body...)
			again, err := parseCall(spaced)
			if err != nil {
				t.Fatalf("%q is rejected with a space before it: %v", body, err)
			}
			if other := Render(1, endpoints[path], &again, ResolvedModel{Model: "m"}); !slices.Equal(r.Key(), other.Key()) {
				t.Fatalf("%q has another key with a space before it", body)
			}
			a := Answer{Messages: true, Rendering: r, RemainingKeyBytes: 1000}
			a.Whole(answer)
			a.Event(EventData(answer))
			a.Event(answer)
			a.Finish()
			HideMessagesCache(nil, answer)
		}
	})
}
