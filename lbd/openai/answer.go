package openai

import (
	"bytes"
	"strconv"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Answer is what is learned from an engine's answer as it passes.
type Answer struct {
	// Tokens is how many tokens have come: the engine's count where it gives one with
	// each event (Exact: with the latest text), else the events that hold text.
	Tokens         int
	Exact          bool
	AskedForCounts bool // the target at hand was asked for that
	Events         int  // of the try at hand that held text
	Usage          Usage
	// Done: the stream says that it is complete, or why it has come to its end (Bounded:
	// because it was to be no longer); Failed: it reports an error; Faulty: one that is the
	// engine's and not the request's.
	Done       bool
	Bounded    bool
	Failed     bool
	Faulty     bool
	OnlyText   bool        // the event at hand says nothing but a text
	Transcript *Transcript // nil when the answer cannot be continued elsewhere
	id         []byte      // of an answer that is whole, as JSON writes it

	template chunkTemplate
	quotedText   []byte // of the event at hand: the text of its first choice, as JSON writes it
	isCompletion  bool   // quoted is a completion's
	hasOther    bool   // the event at hand says more than that text and its usage
	usageJSON    []byte // of the event at hand: its usage, as JSON writes it

	Rendering    *Rendering // nil when no key is wanted
	KeyBytesLeft int        // bytes that may still enter the key
	turnStarted       bool       // the assistant's turn has begun
	keyIncomplete      bool       // something of the answer is missing in the key
}

// Figure is a number that an engine may have told.
type Figure = policy.Maybe[int]

// Usage is an engine's own count.
type Usage struct{ Prompt, Cached, Output policy.Maybe[int] }

// Finding is what one event was.
type Finding struct {
	hasText      bool // it holds text
	UsageOnly bool // it holds the usage and no choice
	// Counts is where the usage so far stands in an event that holds more; zero = there
	// is none.
	Counts Span
}

// Event learns from an event of a stream.
func (a *Answer) Event(data []byte) Finding {
	if f, ok := a.matchTemplate(data); ok {
		return f
	}
	a.quotedText, a.usageJSON, a.hasOther = nil, nil, false
	f := a.readEvent(data)
	if a.quotedText != nil && !a.hasOther {
		a.template.learn(data, a.quotedText, a.usageJSON, f.Counts, a.isCompletion)
	}
	a.quotedText, a.usageJSON = nil, nil // they are the reader's memory
	return f
}

// matchTemplate is event for one that differs from those before in its text and its usage
// only.
func (a *Answer) matchTemplate(data []byte) (f Finding, ok bool) {
	quoted, usageJSON := a.template.match(data)
	if quoted == nil {
		return f, false
	}
	if usageJSON != nil {
		if !a.template.usage.read(&a.Usage, usageJSON) {
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

// countText counts an event that holds text; counted: the engine tells how many tokens there
// are with it.
func (a *Answer) countText(counted bool) {
	a.Events++
	a.Tokens++
	if a.Exact = counted && a.AskedForCounts && a.Usage.Output.Known; a.Exact {
		a.Tokens = max(a.Tokens, a.Usage.Output.Value)
	}
}

// readEvent is event for one that may be like none before.
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
	counted := a.Usage.read(usageJSON)
	if a.usageJSON = usageJSON; !counted {
		a.usageJSON = nil // it is like the rest of the event
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

// serverFault says whether an error in a stream is the engine's: vLLM and SGLang
// say so by an HTTP status in code when what computes has died under the server.
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

// readChoices learns from the choices of a chunk; only the first choice enters the
// key. It says whether any of them holds text.
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

// readDelta learns from a piece of a chat message.
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

// readContent learns from a piece of a chat's text; it says whether that is one.
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

// recordText notes a text of the event at hand.
func (a *Answer) recordText(raw []byte, plain bool) {
	a.hasOther = a.hasOther || a.quotedText != nil
	a.quotedText, a.isCompletion = raw, plain
}

// addToTranscript keeps a piece of the text for the case that it must be continued. Only
// one answer can be.
func (a *Answer) addToTranscript(quoted []byte, first bool) {
	if first {
		a.Transcript.appendText(quoted)
	} else {
		a.Transcript.Discard()
	}
}

// renderCallDelta writes a piece of a tool call as renderer.toolCall writes the whole.
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

// readText learns from a piece of a completion.
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

// startTurn begins the assistant's turn in the key once; it says whether n more
// bytes may follow.
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

// reserveKeyBytes says whether n more bytes may enter the key.
func (a *Answer) reserveKeyBytes(n int) bool {
	if a.keyIncomplete || n > a.KeyBytesLeft {
		a.keyIncomplete = true
		return false
	}
	a.KeyBytesLeft -= n
	return true
}

// readResponse learns from the response object that a Responses stream ends with.
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

// Whole learns from an answer that came in one piece.
func (a *Answer) Whole(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"id"`:
			a.id = value
		case `"usage"`:
			a.Usage.read(value)
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

// Finish is the key of the prompt with its answer; nil when it is not known.
func (a *Answer) Finish() prefix.Key {
	if a.Rendering == nil || a.Rendering.answer == answerUnknown || a.keyIncomplete {
		return nil
	}
	return a.Rendering.hash.Key()
}

// readEvent takes an engine's usage object; it says whether that is one.
func (u *Usage) read(raw []byte) bool {
	return eachUsageField(raw, func(field usageField, value []byte) { parseCount(u.fieldOf(field), value) })
}

// fieldOf is where a number of a usage is kept; nil for another one.
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

// eachUsageField calls do for the members of an engine's usage object that are kept; it says
// whether raw is an object.
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

// parseCount takes a number of tokens; one that cannot be is as good as none.
func parseCount(into *policy.Maybe[int], raw []byte) {
	if n, err := strconv.Atoi(string(raw)); err == nil && n >= 0 && n <= maxRequested {
		*into = policy.Known(n)
	}
}

// CheckWhole reads an answer that came in one piece: an error says that it is JSON
// without its end, fault that it is an error of the engine.
func CheckWhole(body []byte) (fault bool, err error) {
	in := cursor{data: body}
	if _, err := in.value(); err != nil && in.at >= len(body) {
		return false, err
	}
	members(body, func(key, value []byte) { fault = fault || (string(key) == `"error"` && serverFault(value)) })
	return fault, nil
}

// TakeID gives the id of a whole answer, once, as far as it has at most so many bytes in
// JSON.
func (a *Answer) TakeID(most int) (id string, ok bool) {
	raw := a.id
	if kindOf(raw) != '"' || len(raw) > most {
		return "", false
	}
	a.id = nil
	plain, _ := text(raw, nil)
	return string(plain), true
}

// BeginTry forgets what the target before said of the end of the answer.
func (a *Answer) BeginTry() {
	a.Usage, a.Done, a.Failed, a.Faulty = Usage{}, false, false, false
	a.Events = 0
}
