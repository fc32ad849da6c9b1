package openai

import (
	"bytes"
	"strconv"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Answer contains the data that the balancer extracts from an engine's answer while forwarding it.
type Answer struct {
	// Tokens is the number of tokens that have arrived: the engine's count if it reports one with
	// each event (Exact: with the latest text), else the number of events with text.
	Tokens         int
	Exact          bool
	AskedForCounts bool // these counts were requested from the current target
	Events         int  // of the current attempt that contain text
	Usage          Usage
	// Done: the stream is marked complete, or has a finish reason (Bounded: the length bound); Failed:
	// it reports an error; Faulty: an error of the engine and not of the request.
	Done       bool
	Bounded    bool
	Failed     bool
	Faulty     bool
	OnlyText   bool        // the current event contains only text
	Transcript *Transcript // nil if no other target can continue the answer
	id         []byte      // id of an answer that is not a stream, JSON-encoded
	Messages   bool        // the answer has the format of Anthropic's Messages API

	template     chunkTemplate
	quotedText   []byte // text of the current event's first choice, JSON-encoded
	isCompletion bool   // quotedText is from a completion, not from a chat
	hasOther     bool   // the current event contains more than that text and its usage
	usageJSON    []byte // usage of the current event, JSON-encoded

	Rendering         *Rendering // nil if no key is needed
	RemainingKeyBytes int        // bytes that may still enter the key
	turnStarted       bool       // the assistant's turn has begun
	keyIncomplete     bool       // the key does not contain the whole answer
	inputMissing      bool       // the current block of a message is a tool call without input so far
}

// Figure is a number that an engine may have reported.
type Figure = policy.Maybe[int]

// Usage is an engine's own count.
type Usage struct{ Prompt, Cached, Output policy.Maybe[int] }

// Finding describes one event.
type Finding struct {
	hasText   bool // the event contains text
	UsageOnly bool // it contains the usage and no choice
	// Counts is the position of the usage so far, in an event that also contains other members;
	// zero = none.
	Counts Span
}

// Event processes an event of a stream.
func (a *Answer) Event(data []byte) Finding {
	if f, ok := a.matchTemplate(data); ok {
		return f
	}
	a.quotedText, a.usageJSON, a.hasOther = nil, nil, false
	var f Finding
	if a.Messages {
		f = a.readMessagesEvent(data)
	} else {
		f = a.readEvent(data)
	}
	if a.quotedText != nil && !a.hasOther {
		a.template.learnChunk(data, a.quotedText, a.usageJSON, f.Counts, a.isCompletion)
	}
	a.quotedText, a.usageJSON = nil, nil // they point into memory of the caller
	return f
}

// matchTemplate is Event for an event that differs from earlier ones only in its text and usage.
func (a *Answer) matchTemplate(data []byte) (f Finding, ok bool) {
	quoted, usageJSON := a.template.match(data)
	if quoted == nil {
		return f, false
	}
	if usageJSON != nil {
		if !a.template.usage.readUsage(&a.Usage, usageJSON) {
			return f, false
		}
		f.Counts = a.template.countsSpan(data, usageJSON)
	}
	if a.template.isCompletion {
		a.readText(quoted, true)
	} else {
		a.readContent(quoted, true)
	}
	a.quotedText = nil
	a.countText(usageJSON != nil)
	a.OnlyText = usageJSON == nil
	f.hasText = true
	return f, true
}

// countText counts an event with text; counted: the engine reports the number of tokens with it.
func (a *Answer) countText(counted bool) {
	a.Events++
	a.Tokens++
	if a.Exact = counted && a.AskedForCounts && a.Usage.Output.Known; a.Exact {
		a.Tokens = max(a.Tokens, a.Usage.Output.Value)
	}
}

// readEvent is Event for an event that may differ from all earlier ones.
func (a *Answer) readEvent(data []byte) Finding {
	if string(data) == "[DONE]" {
		a.Done = true
		a.Transcript.markClosed()
		return Finding{}
	}
	var f Finding
	var choices, usageJSON, usageKey, delta, whole, kind []byte
	members(data, func(key, value []byte) {
		switch string(key) {
		case `"choices"`:
			choices = value
		case `"usage"`:
			usageJSON, usageKey = value, key
		case `"error"`:
			a.hasOther = true
			a.Failed = a.Failed || kindOf(value) != 'n'
			a.Faulty = a.Faulty || serverFault(value)
		case `"id"`, `"created"`, `"model"`:
			a.Transcript.recordHead(key, value)
		case `"type"`:
			kind = value
		case `"delta"`:
			delta = value
			a.hasOther = true
		case `"response"`:
			whole = value
			a.hasOther = true
		}
	})
	counted := a.Usage.readUsage(usageJSON)
	if a.usageJSON = usageJSON; !counted {
		a.usageJSON = nil // it is treated like any other member
	}
	f.hasText = a.readChoices(choices) || (kindOf(delta) == '"' && len(delta) > 2)
	if f.UsageOnly = counted && emptyArray(choices); counted && !f.UsageOnly {
		f.Counts = memberAt(data, usageKey, usageJSON)
	}
	if whole != nil {
		a.readResponse(kind, whole)
	}
	if f.hasText {
		a.countText(counted)
	}
	return f
}

// serverFault reports whether the engine is the cause of an error in a stream: vLLM and SGLang set
// code to an HTTP status if the compute process of the server has died.
func serverFault(raw []byte) (fault bool) {
	members(raw, func(key, value []byte) {
		if string(key) == `"code"` {
			status, err := strconv.Atoi(string(value))
			fault = err == nil && status >= 500
		}
	})
	return fault
}

func emptyArray(raw []byte) bool {
	return kindOf(raw) == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// readChoices processes the choices of a chunk; only the first choice is added to the key. It
// reports whether any of them contains text.
func (a *Answer) readChoices(raw []byte) (hasText bool) {
	first := true
	each(raw, func(choice []byte) {
		members(choice, func(key, value []byte) {
			switch string(key) {
			case `"delta"`:
				hasText = a.readDelta(value, first) || hasText
			case `"text"`:
				hasText = a.readText(value, first) || hasText
			case `"finish_reason"`:
				if kindOf(value) == '"' {
					a.hasOther = true
					a.Done, a.Bounded = true, string(value) == `"length"`
					a.Transcript.markEnded()
				}
			}
		})
		a.hasOther = a.hasOther || !first
		first = false
	})
	return hasText
}

// readDelta processes a piece of a chat message.
func (a *Answer) readDelta(raw []byte, keyed bool) (hasText bool) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"content"`:
			hasText = a.readContent(value, keyed) || hasText
		case `"tool_calls"`:
			each(value, func(call []byte) {
				hasText, a.hasOther = true, true
				a.Transcript.Discard()
				if keyed && a.startTurn(len(call)) {
					a.renderCallDelta(call)
				}
			})
		case `"reasoning_content"`, `"reasoning"`, `"refusal"`:
			if kindOf(value) == '"' && len(value) > 2 {
				hasText, a.hasOther = true, true
				a.Transcript.Discard()
			}
		case `"function_call"`, `"audio"`:
			if kindOf(value) == '{' {
				a.hasOther = true
				a.Transcript.Discard()
			}
		case `"role"`:
			a.Transcript.recordRole()
		}
	})
	return hasText
}

// readContent processes a piece of a chat's text; it reports whether raw is one.
func (a *Answer) readContent(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.recordText(raw, false)
	a.addToTranscript(raw, keyed)
	if keyed && a.startTurn(len(raw)) {
		a.Rendering.writeText(raw)
	}
	return true
}

// recordText records a text of the current event.
func (a *Answer) recordText(raw []byte, plain bool) {
	a.hasOther = a.hasOther || a.quotedText != nil
	a.quotedText, a.isCompletion = raw, plain
}

// addToTranscript keeps a piece of the text in case the answer must be continued. This is possible
// for one choice only.
func (a *Answer) addToTranscript(quoted []byte, first bool) {
	if first {
		a.Transcript.appendText(quoted)
	} else {
		a.Transcript.Discard()
	}
}

// renderCallDelta writes a piece of a tool call in the form in which Rendering.toolCall writes a
// complete one.
func (a *Answer) renderCallDelta(raw []byte) {
	members(raw, func(key, function []byte) {
		if string(key) != `"function"` {
			return
		}
		members(function, func(key, value []byte) {
			switch {
			case kindOf(value) != '"':
			case string(key) == `"name"`:
				a.Rendering.startCall(value)
			case string(key) == `"arguments"`:
				a.Rendering.writeText(value)
			}
		})
	})
}

// readText processes a piece of a completion.
func (a *Answer) readText(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.recordText(raw, true)
	a.addToTranscript(raw, keyed)
	if keyed && a.Rendering != nil && a.Rendering.answer == answerText && a.reserveKeyBytes(len(raw)) {
		a.Rendering.writeText(raw)
	}
	return true
}

// startTurn starts the assistant's turn in the key, once; it reports whether n more bytes may
// follow.
func (a *Answer) startTurn(n int) bool {
	if a.Rendering == nil || a.Rendering.answer != answerTurn || !a.reserveKeyBytes(n) {
		return false
	}
	if !a.turnStarted {
		a.turnStarted = true
		a.Rendering.startTurn([]byte(`"assistant"`))
	}
	return true
}

// reserveKeyBytes reports whether n more bytes may be added to the key.
func (a *Answer) reserveKeyBytes(n int) bool {
	if a.keyIncomplete || n > a.RemainingKeyBytes {
		a.keyIncomplete = true
		return false
	}
	a.RemainingKeyBytes -= n
	return true
}

// readResponse processes the response object at the end of a Responses stream.
func (a *Answer) readResponse(kind, raw []byte) {
	switch string(kind) {
	case `"response.completed"`, `"response.incomplete"`:
		a.Done = true
	case `"response.failed"`:
		a.Failed = true
		return
	default:
		return
	}
	a.Whole(raw)
}

// Whole processes an answer that is not a stream.
func (a *Answer) Whole(raw []byte) {
	if a.Messages {
		a.readMessage(raw)
		return
	}
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"id"`:
			a.id = value
		case `"usage"`:
			a.Usage.readUsage(value)
		case `"choices"`:
			first := true
			each(value, func(choice []byte) {
				if first {
					a.readWholeChoice(choice)
				}
				first = false
			})
		case `"output"`:
			if a.Rendering != nil && a.Rendering.answer == answerTurn && a.reserveKeyBytes(len(value)) {
				a.Rendering.items(value)
			}
		}
	})
}

func (a *Answer) readWholeChoice(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"message"`:
			if a.Rendering != nil && a.Rendering.answer == answerTurn && a.reserveKeyBytes(len(value)) {
				a.Rendering.message(value)
			}
		case `"text"`:
			a.readText(value, true)
		}
	})
}

// Finish returns the key of the prompt with its answer; nil if it is unknown.
func (a *Answer) Finish() prefix.Key {
	if a.Rendering == nil || a.Rendering.answer == answerUnknown || a.keyIncomplete {
		return nil
	}
	return a.Rendering.hash.Key()
}

// readUsage parses an engine's usage object; it reports whether raw is one.
func (u *Usage) readUsage(raw []byte) bool {
	return eachUsageField(raw, func(field usageField, value []byte) { parseCount(u.fieldOf(field), value) })
}

// fieldOf returns the field for a number of a usage; nil for any other number.
func (u *Usage) fieldOf(field usageField) *Figure {
	switch field {
	case fieldPrompt:
		return &u.Prompt
	case fieldCached:
		return &u.Cached
	case fieldOutput:
		return &u.Output
	}
	return nil
}

// eachUsageField calls do for the relevant members of an engine's usage object; it reports whether
// raw is an object.
func eachUsageField(raw []byte, do func(field usageField, value []byte)) bool {
	if kindOf(raw) != '{' {
		return false
	}
	return members(raw, func(key, value []byte) {
		switch string(key) {
		case `"prompt_tokens"`, `"input_tokens"`:
			do(fieldPrompt, value)
		case `"completion_tokens"`, `"output_tokens"`:
			do(fieldOutput, value)
		case `"prompt_tokens_details"`, `"input_tokens_details"`:
			members(value, func(key, value []byte) {
				if string(key) == `"cached_tokens"` {
					do(fieldCached, value)
				}
			})
		}
	}) == len(raw)
}

// parseCount parses a number of tokens; an impossible number is ignored.
func parseCount(into *policy.Maybe[int], raw []byte) {
	if n, err := strconv.Atoi(string(raw)); err == nil && n >= 0 && n <= maxRequested {
		*into = policy.Known(n)
	}
}

// CheckWhole parses an answer that is not a stream: it returns an error if the JSON is truncated;
// fault reports an error of the engine.
func CheckWhole(body []byte) (fault bool, err error) {
	in := cursor{data: body}
	if _, err := in.value(); err != nil && in.at >= len(body) {
		return false, err
	}
	members(body, func(key, value []byte) { fault = fault || (string(key) == `"error"` && serverFault(value)) })
	return fault, nil
}

// TakeID returns the id of a complete answer, once. It returns no id that has more than limit bytes
// in JSON.
func (a *Answer) TakeID(limit int) (id string, ok bool) {
	raw := a.id
	if kindOf(raw) != '"' || len(raw) > limit {
		return "", false
	}
	a.id = nil
	plain, _ := text(raw, nil)
	return string(plain), true
}

// BeginTry discards the previous target's report about the end of the answer.
func (a *Answer) BeginTry() {
	a.Usage, a.Done, a.Failed, a.Faulty = Usage{}, false, false, false
	a.Events = 0
}
