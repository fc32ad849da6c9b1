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
	quoted   []byte // of the event at hand: the text of its first choice, as JSON writes it
	plainly  bool   // quoted is a completion's
	mixed    bool   // the event at hand says more than that text and its usage
	tally    []byte // of the event at hand: its usage, as JSON writes it

	Rendering    *Rendering // nil when no key is wanted
	KeyBytesLeft int        // bytes that may still enter the key
	turned       bool       // the assistant's turn has begun
	partial      bool       // something of the answer is missing in the key
}

// Figure is a number that an engine may have told.
type Figure = policy.Maybe[int]

// Usage is an engine's own count.
type Usage struct{ Prompt, Cached, Output policy.Maybe[int] }

// Finding is what one event was.
type Finding struct {
	text      bool // it holds text
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
	a.quoted, a.tally, a.mixed = nil, nil, false
	f := a.read(data)
	if a.quoted != nil && !a.mixed {
		a.template.learn(data, a.quoted, a.tally, f.Counts, a.plainly)
	}
	a.quoted, a.tally = nil, nil // they are the reader's memory
	return f
}

// matchTemplate is event for one that differs from those before in its text and its usage
// only.
func (a *Answer) matchTemplate(data []byte) (f Finding, ok bool) {
	quoted, tally := a.template.match(data)
	if quoted == nil {
		return f, false
	}
	if tally != nil {
		if !a.template.usage.read(&a.Usage, tally) {
			return f, false
		}
		f.Counts = a.template.counts(data, tally)
	}
	if a.template.plain {
		a.plain(quoted, true)
	} else {
		a.content(quoted, true)
	}
	a.quoted = nil
	a.countText(tally != nil)
	a.OnlyText = tally == nil
	f.text = true
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

// read is event for one that may be like none before.
func (a *Answer) read(data []byte) Finding {
	if string(data) == "[DONE]" {
		a.Done = true
		a.Transcript.close()
		return Finding{}
	}
	var f Finding
	var choices, tally, tallyKey, delta, whole, kind []byte
	members(data, func(key, value []byte) {
		switch string(key) {
		case `"choices"`:
			choices = value
		case `"usage"`:
			tally, tallyKey = value, key
		case `"error"`:
			a.mixed = true
			a.Failed = a.Failed || kindOf(value) != 'n'
			a.Faulty = a.Faulty || serverFault(value)
		case `"id"`, `"created"`, `"model"`:
			a.Transcript.noteChunk(key, value)
		case `"type"`:
			kind = value
		case `"delta"`:
			delta = value
			a.mixed = true
		case `"response"`:
			whole = value
			a.mixed = true
		}
	})
	counted := a.Usage.read(tally)
	if a.tally = tally; !counted {
		a.tally = nil // it is like the rest of the event
	}
	f.text = a.choices(choices) || (kindOf(delta) == '"' && len(delta) > 2)
	if f.UsageOnly = counted && emptyArray(choices); counted && !f.UsageOnly {
		f.Counts = memberAt(data, tallyKey, tally)
	}
	if whole != nil {
		a.response(kind, whole)
	}
	if f.text {
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

// choices learns from the choices of a chunk; only the first choice enters the
// key. It says whether any of them holds text.
func (a *Answer) choices(raw []byte) (hasText bool) {
	first := true
	each(raw, func(choice []byte) {
		members(choice, func(key, value []byte) {
			switch string(key) {
			case `"delta"`:
				hasText = a.delta(value, first) || hasText
			case `"text"`:
				hasText = a.plain(value, first) || hasText
			case `"finish_reason"`:
				if kindOf(value) == '"' {
					a.mixed = true
					a.Done, a.Bounded = true, string(value) == `"length"`
					a.Transcript.end()
				}
			}
		})
		a.mixed = a.mixed || !first
		first = false
	})
	return hasText
}

// delta learns from a piece of a chat message.
func (a *Answer) delta(raw []byte, keyed bool) (hasText bool) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"content"`:
			hasText = a.content(value, keyed) || hasText
		case `"tool_calls"`:
			each(value, func(call []byte) {
				hasText, a.mixed = true, true
				a.Transcript.Discard()
				if keyed && a.turn(len(call)) {
					a.callPiece(call)
				}
			})
		case `"reasoning_content"`, `"reasoning"`, `"refusal"`:
			if kindOf(value) == '"' && len(value) > 2 {
				hasText, a.mixed = true, true
				a.Transcript.Discard()
			}
		case `"function_call"`, `"audio"`:
			if kindOf(value) == '{' {
				a.mixed = true
				a.Transcript.Discard()
			}
		case `"role"`:
			a.Transcript.noteRole()
		}
	})
	return hasText
}

// content learns from a piece of a chat's text; it says whether that is one.
func (a *Answer) content(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.noteText(raw, false)
	a.keepText(raw, keyed)
	if keyed && a.turn(len(raw)) {
		a.Rendering.text(raw)
	}
	return true
}

// noteText notes a text of the event at hand.
func (a *Answer) noteText(raw []byte, plain bool) {
	a.mixed = a.mixed || a.quoted != nil
	a.quoted, a.plainly = raw, plain
}

// keepText keeps a piece of the text for the case that it must be continued. Only
// one answer can be.
func (a *Answer) keepText(quoted []byte, first bool) {
	if first {
		a.Transcript.add(quoted)
	} else {
		a.Transcript.Discard()
	}
}

// callPiece writes a piece of a tool call as renderer.toolCall writes the whole.
func (a *Answer) callPiece(raw []byte) {
	members(raw, func(key, function []byte) {
		if string(key) != `"function"` {
			return
		}
		members(function, func(key, value []byte) {
			switch {
			case kindOf(value) != '"':
			case string(key) == `"name"`:
				a.Rendering.callName(value)
			case string(key) == `"arguments"`:
				a.Rendering.text(value)
			}
		})
	})
}

// plain learns from a piece of a completion.
func (a *Answer) plain(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.noteText(raw, true)
	a.keepText(raw, keyed)
	if keyed && a.Rendering != nil && a.Rendering.answer == answerText && a.enter(len(raw)) {
		a.Rendering.text(raw)
	}
	return true
}

// turn begins the assistant's turn in the key once; it says whether n more
// bytes may follow.
func (a *Answer) turn(n int) bool {
	if a.Rendering == nil || a.Rendering.answer != answerTurn || !a.enter(n) {
		return false
	}
	if !a.turned {
		a.turned = true
		a.Rendering.turn([]byte(`"assistant"`))
	}
	return true
}

// enter says whether n more bytes may enter the key.
func (a *Answer) enter(n int) bool {
	if a.partial || n > a.KeyBytesLeft {
		a.partial = true
		return false
	}
	a.KeyBytesLeft -= n
	return true
}

// response learns from the response object that a Responses stream ends with.
func (a *Answer) response(kind, raw []byte) {
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
					a.wholeChoice(choice)
				}
				first = false
			})
		case `"output"`:
			if a.Rendering != nil && a.Rendering.answer == answerTurn && a.enter(len(value)) {
				a.Rendering.items(value)
			}
		}
	})
}

func (a *Answer) wholeChoice(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"message"`:
			if a.Rendering != nil && a.Rendering.answer == answerTurn && a.enter(len(value)) {
				a.Rendering.message(value)
			}
		case `"text"`:
			a.plain(value, true)
		}
	})
}

// Finish is the key of the prompt with its answer; nil when it is not known.
func (a *Answer) Finish() prefix.Key {
	if a.Rendering == nil || a.Rendering.answer == answerUnknown || a.partial {
		return nil
	}
	return a.Rendering.hash.Key()
}

// read takes an engine's usage object; it says whether that is one.
func (u *Usage) read(raw []byte) bool {
	return eachFigure(raw, func(field usageField, value []byte) { count(u.figure(field), value) })
}

// figure is where a number of a usage is kept; nil for another one.
func (u *Usage) figure(field usageField) *Figure {
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

// eachFigure calls do for the members of an engine's usage object that are kept; it says
// whether raw is an object.
func eachFigure(raw []byte, do func(field usageField, value []byte)) bool {
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

// count takes a number of tokens; one that cannot be is as good as none.
func count(into *policy.Maybe[int], raw []byte) {
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
