package openai

import (
	"strings"
	"testing"

	"skyserve/lbd/prefix"
)

// keyFor returns the key of a body's prompt as rendered by the endpoint for a model.
func keyFor(t *testing.T, path, body string, resolved ResolvedModel) prefix.Key {
	t.Helper()
	c, err := parseCall([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	r := Render(1, endpoints[path], &c, resolved)
	defer r.Release()
	return r.hash.Key()
}

// common returns the number of equal leading blocks of two keys.
func common(a, b prefix.Key) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// long returns a text of many blocks.
func long(word string) string { return strings.Repeat(word+" ", 600) }

// Fields that are part of an engine's prompt change the key from their position on: text before
// them still matches, later text does not.
func TestRenderedFieldsChangeKey(t *testing.T) {
	const (
		atFront   = 0
		somewhere = 18 // after the first long text, which has that many blocks
	)
	plain := ResolvedModel{Model: "m"}
	messages := func(first, second string) string {
		return `"messages":[{"role":"system","content":"` + long(first) + `"},{"role":"user","content":` + second + `}]`
	}
	text := `"` + long("b") + `"`
	image := func(url string) string {
		return `[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":` + text + `}]`
	}
	base := messages("a", text)
	tail := `,{"role":"tool","tool_call_id":"x","content":"` + long("c") + `"}]`
	called := func(call string) string {
		return strings.TrimSuffix(base, "]") + `,{"role":"assistant","tool_calls":[` + call + `]}` + tail
	}
	input := func(items string) string {
		return `{"input":[{"role":"user","content":"` + long("a") + `"},` + items + `,{"role":"user","content":` + text + `}]}`
	}
	for name, c := range map[string]struct {
		path, one, other string
		resolved         ResolvedModel // of the other body
		from             int           // the minimum number of shared blocks
	}{
		"model":               {chatPath, `{` + base + `}`, `{` + base + `}`, ResolvedModel{Model: "n"}, atFront},
		"adapter":             {chatPath, `{` + base + `}`, `{` + base + `}`, ResolvedModel{"m", "sql"}, atFront},
		"salt":                {chatPath, `{` + base + `}`, `{"cache_salt":"s",` + base + `}`, plain, atFront},
		"tools":               {chatPath, `{"tools":[{"a":1}],` + base + `}`, `{` + base + `,"tools":[{"a":2}]}`, plain, atFront},
		"template":            {chatPath, `{` + base + `}`, `{"chat_template":"x",` + base + `}`, plain, atFront},
		"template arguments":  {chatPath, `{"chat_template_kwargs":{"enable_thinking":true},` + base + `}`, `{"chat_template_kwargs":{"enable_thinking":false},` + base + `}`, plain, atFront},
		"effort":              {chatPath, `{"reasoning_effort":"low",` + base + `}`, `{"reasoning_effort":"high",` + base + `}`, plain, atFront},
		"documents":           {chatPath, `{"documents":[{"text":"x"}],` + base + `}`, `{"documents":[{"text":"y"}],` + base + `}`, plain, atFront},
		"first message":       {chatPath, `{` + base + `}`, `{` + messages("z", text) + `}`, plain, atFront},
		"second message":      {chatPath, `{` + base + `}`, `{` + messages("a", `"`+long("z")+`"`) + `}`, plain, somewhere},
		"image":               {chatPath, `{` + messages("a", image("x")) + `}`, `{` + messages("a", image("y")) + `}`, plain, somewhere},
		"call":                {chatPath, `{` + called(`{"function":{"name":"f","arguments":"1"}}`) + `}`, `{` + called(`{"function":{"name":"f","arguments":"2"}}`) + `}`, plain, 2 * somewhere},
		"role":                {chatPath, `{` + base + `}`, `{` + strings.Replace(base, `"user"`, `"tool"`, 1) + `}`, plain, somewhere},
		"instructions":        {responsesPath, `{"instructions":"a","input":` + text + `}`, `{"instructions":"b","input":` + text + `}`, plain, atFront},
		"previous response":   {responsesPath, `{"previous_response_id":"a","input":` + text + `}`, `{"previous_response_id":"b","input":` + text + `}`, plain, atFront},
		"reasoning":           {responsesPath, `{"reasoning":{"effort":"low"},"input":` + text + `}`, `{"input":` + text + `}`, plain, atFront},
		"response tools":      {responsesPath, `{"tools":[{"a":1}],"input":` + text + `}`, `{"input":` + text + `}`, plain, atFront},
		"call of a response":  {responsesPath, input(`{"type":"function_call","name":"f","arguments":"1","call_id":"c"}`), input(`{"type":"function_call","name":"g","arguments":"1","call_id":"c"}`), plain, 10},
		"what a call gave":    {responsesPath, input(`{"type":"function_call_output","call_id":"c","output":"1"}`), input(`{"type":"function_call_output","call_id":"c","output":"2"}`), plain, 10},
		"another item":        {responsesPath, input(`{"type":"computer_call","action":1}`), input(`{"type":"computer_call","action":2}`), plain, 10},
		"prompt":              {"/v1/completions", `{"prompt":"` + long("a") + `x` + long("b") + `"}`, `{"prompt":"` + long("a") + `y` + long("b") + `"}`, plain, 10},
		"tools of a counting": {"/tokenize", `{"tools":[1],` + base + `}`, `{` + base + `}`, plain, atFront},
	} {
		t.Run(name, func(t *testing.T) {
			one, other := keyFor(t, c.path, c.one, plain), keyFor(t, c.path, c.other, c.resolved)
			n := common(one, other)
			if n < c.from || n > min(len(one), len(other))-9 {
				t.Errorf("%d of %d blocks are alike, want at least %d and none of the last text's", n, min(len(one), len(other)), c.from)
			}
			if c.from == atFront && n != 0 {
				t.Errorf("%d blocks are alike, although it stands in front", n)
			}
		})
	}
}

// Fields that only affect the answer do not change the prompt or the key.
func TestOtherFieldsDoNotChangeKey(t *testing.T) {
	plain := ResolvedModel{Model: "m"}
	base := `"messages":[{"role":"user","content":"` + long("a") + `"}]`
	want := keyFor(t, chatPath, `{`+base+`}`, plain)
	for _, extra := range []string{
		`"response_format":{"type":"json_object"}`, `"temperature":0.1`, `"max_tokens":5`, `"stop":["x"]`, `"user":"u"`, `"seed":1`, `"logprobs":true`,
		`"stream":true`, `"tool_choice":"auto"`, `"prompt_cache_key":"k"`, `"tools":null`, `"cache_salt":null`, `"chat_template_kwargs":null`,
	} {
		if got := keyFor(t, chatPath, `{`+extra+`,`+base+`}`, plain); len(got) != len(want) || common(got, want) != len(want) {
			t.Errorf("%s changes the key", extra)
		}
	}
}

func TestLongerConversationKeepsSharedPrefix(t *testing.T) {
	plain := ResolvedModel{Model: "m"}
	turn := func(role, text string) string { return `{"role":"` + role + `","content":"` + long(text) + `"}` }
	for path, list := range map[string]string{chatPath: "messages", responsesPath: "input"} {
		var turns []string
		before := prefix.Key(nil)
		for _, next := range []string{turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d"), turn("user", "e")} {
			turns = append(turns, next)
			key := keyFor(t, path, `{"tools":[{"x":1}],"`+list+`":[`+strings.Join(turns, ",")+`]}`, ResolvedModel{"m", "sql"})
			if n := common(before, key); n < len(before)-1 || len(key) <= len(before) { // the last block may not be full
				t.Errorf("%s: %d of the %d blocks of the conversation before are alike", path, n, len(before))
			}
			if n := common(key, keyFor(t, path, `{"tools":[{"x":1}],"`+list+`":[`+strings.Join(turns, ",")+`]}`, plain)); n != 0 {
				t.Errorf("%s: the model itself shares %d blocks with its adapter", path, n)
			}
			before = key
		}
	}
}
