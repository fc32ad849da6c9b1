package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// The error contains the key as the client wrote it.
func TestAmbiguousKeyIsShownVerbatim(t *testing.T) {
	for body, want := range map[string]string{
		`{"max_\u0074okens":3}`: `key "max_tokens": must be written without escapes, got "max_\u0074okens"`,
		`{"Stop":3}`:            `key "stop": must be written in lower case, got "Stop"`,
	} {
		if _, err := parseCall([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", body, err, want)
		}
	}
}

// Values that engines convert to a number or boolean are converted here too.
func TestValuesThatEnginesConvert(t *testing.T) {
	for body, want := range map[string]int{
		`{"max_tokens":16}`: 16, `{"max_tokens":"16"}`: 16, `{"max_tokens":" 16 "}`: 16, `{"max_tokens":"16.0"}`: 16, `{"max_tokens":"1_6"}`: 16, `{"max_tokens":"\u0031\u0036"}`: 16,
		`{"max_tokens":"sixteen"}`: 0, `{"max_tokens":""}`: 0, `{"max_tokens":"-16"}`: 0, `{"max_tokens":[16]}`: 0, `{"max_tokens":null}`: 0, `{"max_tokens":true}`: 0,
		`{"max_completion_tokens":7,"max_tokens":16}`: 7, `{"max_output_tokens":7,"max_tokens":16}`: 16, `{"max_output_tokens":7}`: 0,
	} {
		c, err := parseCall([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.MaxOutput(endpoints[chatPath]); got != want {
			t.Errorf("%s: bound %d, want %d", body, got, want)
		}
	}
	for value, want := range map[string]bool{
		`true`: true, `1`: true, `1.0`: true, `"true"`: true, `"True"`: true, `"on"`: true, `"yes"`: true, `"1"`: true, `"y"`: true, `"t"`: true,
		`false`: false, `0`: false, `null`: false, `"false"`: false, `"off"`: false, `2`: false, `"maybe"`: false, `{}`: false,
	} {
		c, err := parseCall([]byte(`{"stream":` + value + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.streamRequested() != want {
			t.Errorf("stream: %s is read as %v", value, !want)
		}
	}
	for _, bound := range []string{`"max_tokens":[16]`, `"max_tokens":"many"`, `"min_tokens":{}`, `"max_completion_tokens":true`} {
		c, err := parseCall([]byte(with(streamBody, bound)))
		if err != nil {
			t.Fatal(err)
		}
		if c.continuable(endpoints[chatPath]) {
			t.Errorf("%s: what it bounds is not known, and the answer would be continued", bound)
		}
	}
}

// FuzzKeys compares the fields of a parsed body with a decoder. Either the body is rejected, or
// each used key has the decoder's value, no other key is similar to a used one, and no key occurs
// twice.
func FuzzKeys(f *testing.F) {
	for _, s := range bodySeeds {
		f.Add([]byte(s))
	}
	for key := range readKeys {
		f.Add([]byte(`{"` + key + `":1}`))
		f.Add([]byte(`{"` + escaped(key) + `":1}`))
		f.Add([]byte(`{"` + key + `":1,"` + key + `":[]}`))
		f.Add([]byte(`{"a":{"` + key + `":{}},"` + strings.ToUpper(key) + `":1}`))
	}
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Add([]byte(`{"a":NaN}`))
	f.Add([]byte(`{"a":-Infinity,"model\u0000":1,"mod\ud800el":2,"previou\u017f_response_id":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := parseCall(body)
		if err != nil {
			return
		}
		keys, values := decodeMembers(t, body)
		count := map[string]int{}
		for _, k := range keys {
			for name := range readKeys {
				if strings.EqualFold(k, name) {
					count[name]++
					if k != name {
						t.Fatalf("%q has the key %q, which some take for %q", body, k, name)
					}
				}
			}
		}
		for name, at := range readKeys {
			if count[name] > 1 {
				t.Fatalf("%q has the key %q twice", body, name)
			}
			if got, want := at(&c).of(body), values[name]; !bytes.Equal(got, want) {
				t.Fatalf("%q: %s is read as %q, a decoder reads %q", body, name, got, want)
			}
		}
	})
}

// decodeMembers decodes a body's top-level keys, including duplicates, and its values.
func decodeMembers(t *testing.T, body []byte) (keys []string, values map[string]json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal(body, &values); err != nil {
		t.Fatalf("%q was read, and a decoder says %v", body, err)
	}
	in := json.NewDecoder(bytes.NewReader(body))
	_, err := in.Token()
	for err == nil && in.More() {
		var key json.Token
		if key, err = in.Token(); err == nil {
			keys = append(keys, key.(string))
			var value json.RawMessage
			err = in.Decode(&value)
		}
	}
	if err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return keys, values
}

// Below the top level escapes are allowed, because schemas and templates contain keys of their
// users. The rendered text is the decoded text.
func TestNestedKeysRenderAsDecodersReadThem(t *testing.T) {
	plain := `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]}`
	spelt := plain
	for _, key := range []string{"role", "content", "text", "tool_calls", "function", "name", "arguments"} {
		spelt = strings.ReplaceAll(spelt, `"`+key+`":`, `"`+escaped(key)+`":`)
	}
	if spelt == plain || keyOf(t, chatPath, plain) != keyOf(t, chatPath, spelt) {
		t.Errorf("%s is another prompt than %s", spelt, plain)
	}
	twice := strings.Replace(plain, `"role":"user"`, `"role":"system","role":"user"`, 1)
	if keyOf(t, chatPath, plain) != keyOf(t, chatPath, twice) {
		t.Errorf("%s is another prompt than %s", twice, plain)
	}
}

// readKeys contains the top-level keys that the balancer uses, and the field of each.
var readKeys = map[string]func(*Call) Span{
	"model": func(c *Call) Span { return c.model }, "messages": func(c *Call) Span { return c.messages },
	"prompt": func(c *Call) Span { return c.prompt }, "input": func(c *Call) Span { return c.input },
	"instructions": func(c *Call) Span { return c.instructions }, "query": func(c *Call) Span { return c.query },
	"documents": func(c *Call) Span { return c.documents }, "tools": func(c *Call) Span { return c.tools },
	"cache_salt": func(c *Call) Span { return c.cacheSalt }, "prompt_cache_key": func(c *Call) Span { return c.cacheKey },
	"user": func(c *Call) Span { return c.userField }, "stream": func(c *Call) Span { return c.stream },
	"stream_options": func(c *Call) Span { return c.streamOptions }, "max_tokens": func(c *Call) Span { return c.maxTokens },
	"max_completion_tokens": func(c *Call) Span { return c.maxCompletion }, "max_output_tokens": func(c *Call) Span { return c.maxOutputTokens },
	"n": func(c *Call) Span { return c.number }, "previous_response_id": func(c *Call) Span { return c.previous },
	"min_tokens": func(c *Call) Span { return c.minTokens }, "continue_final_message": func(c *Call) Span { return c.continueFinal },
	"add_generation_prompt": func(c *Call) Span { return c.addPrompt }, "chat_template": func(c *Call) Span { return c.template },
	"chat_template_kwargs": func(c *Call) Span { return c.templateArgs }, "reasoning_effort": func(c *Call) Span { return c.effort },
	"reasoning": func(c *Call) Span { return c.reasoning }, "stop": func(c *Call) Span { return c.stop },
	"system": func(c *Call) Span { return c.messagesFields().system }, "thinking": func(c *Call) Span { return c.messagesFields().thinking },
	"output_config": func(c *Call) Span { return c.messagesFields().outputConfig }, "metadata": func(c *Call) Span { return c.messagesFields().metadata },
}

// escaped returns a key with its last character written as an escape.
func escaped(key string) string {
	last := len(key) - 1
	return key[:last] + `\u00` + strings.ToUpper(hexOf(key[last]))
}

func hexOf(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}

// Every key that two parsers of a body could interpret differently is rejected with its name.
func TestAmbiguousKeys(t *testing.T) {
	refused := func(key, member string) {
		t.Helper()
		_, err := parseCall([]byte(`{"model":"chat-small","input":"x",` + member + `}`))
		var twofold *AmbiguousKeyError
		if !errors.As(err, &twofold) || twofold.Key != key || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: the error does not name %s: %v", member, key, err)
		}
	}
	for key := range readKeys {
		refused(key, `"`+escaped(key)+`":"resp_theirs"`)
		refused(key, `"`+strings.ToUpper(key[:1])+key[1:]+`":"resp_theirs"`)
		refused(key, `"`+key+`":null,"`+key+`":null`)
	}
	refused("previous_response_id", `"previous\u005fresponse_id":"resp_theirs"`)
	refused("previous_response_id", `"\u0070\u0072\u0065vious_response_id":"resp_theirs"`)
	refused("previous_response_id", `"previou\u017f_response_id":"resp_theirs"`) // a long s, which some parsers treat as an s
	refused("previous_response_id", `"previou`+"\u017f"+`_response_id":"resp_theirs"`)
	refused("logprobs", `"log\u0070robs":true`) // not stored in a field, but it prevents a continuation
	refused("echo", `"Echo":true`)
	refused("temperature", `"temperatur\u0065":1`) // unnecessary escapes are ambiguous in any parameter name
}
