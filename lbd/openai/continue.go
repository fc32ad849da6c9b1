package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// forbids reports whether a top-level field of a request prevents a continuation: several answers
// at once, figures per token, constrained output, or a prompt that is not the text that was sent.
func forbids(key, value []byte) bool {
	switch string(key) {
	case `"echo"`, `"logprobs"`, `"prompt_logprobs"`, `"use_beam_search"`, `"return_token_ids"`, `"return_hidden_states"`:
		return kindOf(value) != 'n' && kindOf(value) != 'f'
	case `"response_format"`:
		return kindOf(value) != 'n' && !plainText(value)
	case `"skip_special_tokens"`, // the text contains special tokens that a prompt must not repeat
		// The engine leaves reasoning out (vLLM), or writes it into the text (SGLang). A target that
		// starts to reason instead of continuing could not be detected.
		`"include_reasoning"`, `"separate_reasoning"`:
		return kindOf(value) == 'f'
	case `"modalities"`:
		return arrayContains(value, "audio")
	case `"structured_outputs"`, `"structural_tag"`, `"grammar"`, `"regex"`, `"ebnf"`, `"json_schema"`, // vLLM's and SGLang's
		`"suffix"`, `"audio"`, `"prompt_embeds"`, `"truncate_prompt_tokens"`, `"kv_transfer_params"`:
		return kindOf(value) != 'n'
	}
	return bytes.HasPrefix(key, []byte(`"guided_`)) && kindOf(value) != 'n'
}

// arrayContains reports whether an array contains a text.
func arrayContains(array []byte, word string) (found bool) {
	each(array, func(element []byte) {
		if kindOf(element) == '"' {
			plain, _ := text(element, nil)
			found = found || string(plain) == word
		}
	})
	return found
}

// plainText reports whether a response format sets no constraint.
func plainText(format []byte) (plain bool) {
	members(format, func(key, value []byte) {
		if string(key) == `"type"` {
			plain = string(value) == `"text"`
		}
	})
	return plain
}

// continuable reports whether an answer to the call can be continued while it consists only of
// text.
func (c *Call) continuable(e *Endpoint) bool {
	if e.extend == nil || c.forbidden || !c.streamRequested() {
		return false
	}
	for _, s := range []Span{c.number, c.bestOf} {
		if n := s.of(c.body); len(n) > 0 && kindOf(n) != 'n' && string(n) != "1" {
			return false
		}
	}
	_, ok := e.extend(c, nil)
	return ok && c.readsBounds()
}

// ContinuationOverhead is an upper bound of the bytes added to a body in addition to the text.
const ContinuationOverhead = 256

// ContinuationBody is the request for the remainder of an answer: the body as it was sent first,
// with the text so far (JSON-encoded, without quotes) appended to its prompt and its bounds reduced
// by the tokens that the client has. An answer without any text is requested from its beginning.
// implied is a bound that the body does not contain; 0 = none. The offset of the edit counts is
// adjusted. ok is false if a continuation is not possible.
func ContinuationBody(e *Endpoint, body, soFar []byte, tokens, implied int, counts *Edit) (rest []byte, ok bool) {
	c, err := parseCall(body)
	if err != nil {
		return nil, false
	}
	var edits []Edit
	if len(soFar) > 0 {
		if edits, ok = e.extend(&c, soFar); !ok || breaksContinuation(&c, soFar) {
			return nil, false
		}
	}
	defer func() {
		grown := Growth(edits, counts.From)
		counts.From, counts.To = counts.From+grown, counts.To+grown
	}()
	edits = append(edits, c.reduceBound(c.maxTokens, tokens, 1)...)
	edits = append(edits, c.reduceBound(c.maxCompletion, tokens, 1)...)
	edits = append(edits, c.reduceBound(c.minTokens, tokens, 0)...)
	if remaining := implied - tokens; tokens > 0 && remaining > 0 {
		edits = append(edits, c.setMembers(setting{member: `"max_tokens":` + strconv.Itoa(remaining)})...)
	}
	return applyEdits(make([]byte, 0, len(body)+len(soFar)+ContinuationOverhead), body, edits), true
}

// controlMarks are strings that an engine does not treat as plain text in a prompt. Templates of
// reasoning models (Qwen3, DeepSeek-R1) cut an assistant's message at the end of its reasoning:
// vLLM then responds with 400, or the reasoning is lost. Tokenizers convert the text of a control
// token in a prompt to the token itself.
var controlMarks = []string{"<think>", "</think>", "<|", "</s>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"}

// hasControlMark reports whether a text contains a control mark.
func hasControlMark(plain []byte) bool {
	return slices.ContainsFunc(controlMarks, func(m string) bool { return bytes.Contains(plain, []byte(m)) })
}

// decoded returns a copy of a JSON-encoded text without quotes as plain text.
func decoded(encoded []byte) []byte {
	quoted := append(append(append(make([]byte, 0, len(encoded)+2), '"'), encoded...), '"')
	plain, _ := text(quoted, nil)
	return plain
}

// breaksContinuation reports whether the JSON-encoded text so far cannot be the end of a prompt: it
// contains control marks, or ends in a possible beginning of a stop string, which no engine detects
// if its beginning is in the prompt. vLLM withholds such text; SGLang, and vLLM with
// include_stop_str_in_output, do not.
func breaksContinuation(c *Call, soFar []byte) bool {
	plain := decoded(soFar)
	if hasControlMark(plain) {
		return true
	}
	value := c.stop.of(c.body)
	if len(value) == 0 {
		return false
	}
	var stops []string
	var stop string
	if json.Unmarshal(value, &stops) != nil {
		if json.Unmarshal(value, &stop) != nil {
			return true // the stop strings are unknown
		}
		stops = []string{stop}
	}
	for _, s := range stops {
		for n := 1; n < len(s); n++ {
			if bytes.HasSuffix(plain, []byte(s[:n])) {
				return true
			}
		}
	}
	return false
}

// reduceBound subtracts tokens from a bound. The result is at least minimum. It returns no edit if
// the bound is not a number.
func (c *Call) reduceBound(s Span, tokens, minimum int) []Edit {
	n, ok := wholeNumber(s.of(c.body))
	if !ok || tokens == 0 {
		return nil
	}
	return []Edit{{s, strconv.AppendInt(nil, int64(max(n-tokens, minimum)), 10)}}
}

// extendString returns the edit that appends to a quoted string; no edit if soFar is empty.
func extendString(s Span, soFar []byte) []Edit {
	if len(soFar) == 0 {
		return nil
	}
	return []Edit{{Span{s.To - 1, s.To - 1}, soFar}}
}

// extendPrompt appends the text so far to a completion's prompt: a string, or a list with one
// string. Token ids cannot be extended with text.
func (c *Call) extendPrompt(soFar []byte) ([]Edit, bool) {
	raw := c.prompt.of(c.body)
	switch kindOf(raw) {
	case '"':
		return extendString(c.prompt, soFar), true
	case '[':
		last, n := lastElement(raw)
		if n == 1 && kindOf(last.of(raw)) == '"' {
			return extendString(Span{c.prompt.From + last.From, c.prompt.From + last.To}, soFar), true
		}
	}
	return nil, false
}

// extendChat appends the text so far to a chat as the beginning of the assistant's message, and
// marks the message as incomplete: continue_final_message, which vLLM and SGLang support, requires
// add_generation_prompt to be false. If the client itself continues the last message, that message
// is extended.
func (c *Call) extendChat(soFar []byte) ([]Edit, bool) {
	raw := c.messages.of(c.body)
	if kindOf(raw) != '[' {
		return nil, false
	}
	if string(c.continueFinal.of(c.body)) == "true" {
		return c.extendLast(raw, soFar)
	}
	if string(c.addPrompt.of(c.body)) == "false" {
		return nil, false // the next turn is not known
	}
	if len(soFar) == 0 {
		return nil, true
	}
	message := make([]byte, 0, len(soFar)+48)
	if !emptyArray(raw) {
		message = append(message, ',')
	}
	message = append(message, `{"role":"assistant","content":"`...)
	message = append(append(message, soFar...), `"}`...)
	end := c.messages.To - 1
	edits := []Edit{{Span{end, end}, message}}
	return append(edits, c.setMembers(
		setting{c.continueFinal, `"continue_final_message":true`, "true"}, setting{c.addPrompt, `"add_generation_prompt":false`, "false"},
	)...), true
}

// extendLast extends the last message's content, which must be a string.
func (c *Call) extendLast(messages, soFar []byte) ([]Edit, bool) {
	last, n := lastElement(messages)
	if n == 0 {
		return nil, false
	}
	message := last.of(messages)
	content, found := memberSpan(message, `"content"`)
	if !found || kindOf(content.of(message)) != '"' {
		return nil, false
	}
	at := c.messages.From + last.From
	return extendString(Span{at + content.From, at + content.To}, soFar), true
}

// setting is a top-level member and the value to set: the span of its present value, the whole
// member and the new value.
type setting struct {
	Span
	member, value string
}

// setMembers returns the edits that set members; missing members are added in one edit.
func (c *Call) setMembers(settings ...setting) []Edit {
	var edits []Edit
	var added []byte
	for _, f := range settings {
		if f.Span != (Span{}) {
			edits = append(edits, Edit{f.Span, []byte(f.value)})
			continue
		}
		added = append(append(added, ','), f.member...)
	}
	if len(added) > 0 {
		end := bytes.LastIndexByte(c.body, '}')
		edits = append(edits, Edit{Span{end, end}, added})
	}
	return edits
}

// lastElement returns the last of an array's n elements.
func lastElement(array []byte) (last Span, n int) {
	in := cursor{data: array}
	if in.open('[', "") != nil {
		return last, 0
	}
	for ; ; n++ {
		if more, err := in.more(']', n == 0); err != nil || !more {
			return last, n
		}
		in.peek()
		v, err := in.value()
		if err != nil {
			return last, n
		}
		last = v
	}
}

// memberSpan returns the value of an object's member; of duplicate keys, the last one.
func memberSpan(object []byte, name string) (found Span, ok bool) {
	in := cursor{data: object}
	if in.open('{', "") != nil {
		return found, false
	}
	for first := true; ; first = false {
		if more, err := in.more('}', first); err != nil || !more {
			return found, ok
		}
		key, err := in.key()
		if err != nil {
			return found, ok
		}
		v, err := in.value()
		if err != nil {
			return found, ok
		}
		if string(canonical(key.of(object))) == name {
			found, ok = v, true
		}
	}
}
