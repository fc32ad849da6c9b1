package openai

import (
	"sync"

	"skyserve/lbd/buffer"
	"skyserve/lbd/prefix"
)

// Rendering writes a call's prompt into a key in the order in which a chat template renders it, so
// that a prompt with its answer is the beginning of the conversation's next prompt:
//
//	<|model|>\n adapter, cache salt, other inputs of the template, tools,
//	each with its name, then for each message
//	<|role|>\n content, tool calls \n, and <|assistant|>\n before an answer
//
// Fields that only guide the answer (response_format, tool_choice) are not part of a prompt:
// engines share the cache of equal prompts for all formats of the answer.
type Rendering struct {
	hash    prefix.Hasher
	scratch []byte
	// answer is the way in which an answer follows the prompt.
	answer answerKind
	// guarded is the set of guarded parameters in its messages.
	guarded Parameters
	json    jsonFilter // of the JSON that writeJSON writes in pieces
}

// answerKind is the way in which an answer is appended to a prompt.
type answerKind int

const (
	answerUnknown answerKind = iota // the next prompt does not begin with prompt and answer
	answerTurn                      // as the assistant's next message
	answerText                      // right after the prompt's text
)

var renderingPool = sync.Pool{New: func() any { return new(Rendering) }}

// Render returns a Rendering of a call's prompt. The caller calls Release when the answer has
// ended.
func Render(seed uint64, e *Endpoint, c *Call, resolved ResolvedModel) *Rendering {
	r := renderingPool.Get().(*Rendering)
	r.hash.Reset(seed, false)
	r.hash.Grow(len(c.body)) // the rendering is rarely longer
	r.answer, r.guarded = answerUnknown, 0
	r.writeString("<|")
	r.writeString(resolved.Model)
	r.writeString("|>\n")
	if resolved.Adapter != "" {
		r.writeString("<|adapter|>")
		r.writeString(resolved.Adapter)
		r.writeString("\n")
	}
	r.writeOption(c, "cache_salt", c.cacheSalt)
	e.render(r, c)
	if !e.EstimatesTokens() {
		r.answer = answerUnknown
	}
	return r
}

// writeOption writes a field that precedes the messages; null is the same as absent.
func (r *Rendering) writeOption(c *Call, name string, s Span) {
	raw := s.of(c.body)
	if k := kindOf(raw); k == 0 || k == 'n' {
		return
	}
	r.writeString("<|")
	r.writeString(name)
	r.writeString("|>")
	_, _ = r.hash.Write(raw)
	r.writeString("\n")
}

// Len returns the number of rendered bytes.
func (r *Rendering) Len() int { return r.hash.Len() }

// Key returns the key of the rendered bytes.
func (r *Rendering) Key() prefix.Key { return r.hash.Key() }

// Release returns the Rendering to its pool.
func (r *Rendering) Release() {
	if cap(r.scratch) > buffer.MaxPooled {
		r.scratch = nil
	}
	renderingPool.Put(r)
}

func (r *Rendering) writeString(s string) { _, _ = r.hash.WriteString(s) }

// writeText writes the decoded text of a quoted string.
func (r *Rendering) writeText(quoted []byte) {
	plain, memory := text(quoted, r.scratch)
	r.scratch = memory
	_, _ = r.hash.Write(plain)
}

// each calls do for every element of an array.
func each(raw []byte, do func(element []byte)) {
	in := cursor{data: raw}
	if in.peek() != '[' {
		return
	}
	in.at++
	for first := true; ; first = false {
		if more, err := in.more(']', first); err != nil || !more {
			return
		}
		v, err := in.value()
		if err != nil {
			return
		}
		do(v.of(raw))
	}
}

// members calls do for every member of an object; keys are quoted and decoded. It returns the
// offset of the object's end, -1 if raw is not an object.
func members(raw []byte, do func(key, value []byte)) (end int) {
	return membersAsWritten(raw, func(key, value []byte) { do(canonical(key), value) })
}

// membersAsWritten is members with the keys as written in the body.
func membersAsWritten(raw []byte, do func(key, value []byte)) (end int) {
	in := cursor{data: raw}
	if in.peek() != '{' {
		return -1
	}
	in.at++
	for first := true; ; first = false {
		more, err := in.more('}', first)
		switch {
		case err != nil:
			return -1
		case !more:
			return in.at
		}
		key, err := in.key()
		if err != nil {
			return -1
		}
		v, err := in.value()
		if err != nil {
			return -1
		}
		do(key.of(raw), v.of(raw))
	}
}

func (r *Rendering) chat(c *Call) {
	// A template may render these anywhere; most do so before the messages.
	r.writeOption(c, "chat_template", c.template)
	r.writeOption(c, "chat_template_kwargs", c.templateArgs)
	r.writeOption(c, "reasoning_effort", c.effort)
	r.writeOption(c, "documents", c.documents)
	r.writeOption(c, "tools", c.tools)
	r.messages(c.messages.of(c.body))
	r.answer = answerTurn
}

func (r *Rendering) messages(raw []byte) { each(raw, r.message) }

// message writes one message; its keys may be in any order.
func (r *Rendering) message(raw []byte) {
	var role, content, calls []byte
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"role"`:
			role = value
		case `"content"`:
			content = value
		case `"tool_calls"`:
			calls = value
		}
	})
	r.startTurn(role)
	r.content(content)
	each(calls, r.toolCall)
	r.writeString("\n")
}

// startTurn writes the head of a message.
func (r *Rendering) startTurn(role []byte) {
	r.writeString("<|")
	if kindOf(role) == '"' {
		r.writeText(role)
	}
	r.writeString("|>\n")
}

// content writes a message's content: a string, or a list of parts.
func (r *Rendering) content(raw []byte) {
	switch kindOf(raw) {
	case '"':
		r.writeText(raw)
	case '[':
		each(raw, r.part)
	}
}

// part writes a part of a content: its text, or the whole part if it is an image or similar.
func (r *Rendering) part(raw []byte) {
	var own []byte
	members(raw, func(key, value []byte) {
		if string(key) == `"text"` && kindOf(value) == '"' {
			own = value
			return
		}
		r.guarded |= guardedPart(key, value)
	})
	if own != nil {
		r.writeText(own)
		return
	}
	r.writeString("<|part|>")
	_, _ = r.hash.Write(raw)
}

// toolCall writes the called function; ids are not part of a prompt.
func (r *Rendering) toolCall(raw []byte) {
	members(raw, func(key, function []byte) {
		if string(key) != `"function"` {
			return
		}
		var name, arguments []byte
		members(function, func(key, value []byte) {
			switch string(key) {
			case `"name"`:
				name = value
			case `"arguments"`:
				arguments = value
			}
		})
		r.startCall(name)
		r.content(arguments)
	})
}

// startCall writes the head of a tool call.
func (r *Rendering) startCall(name []byte) {
	r.writeString("<|call|>")
	r.content(name)
	r.writeString("\n")
}

func (r *Rendering) completion(c *Call) {
	raw := c.prompt.of(c.body)
	if kindOf(raw) == '"' {
		r.writeText(raw)
		r.answer = answerText
		return
	}
	r.texts(raw)
}

// texts writes a string, or an array of strings or of tokens.
func (r *Rendering) texts(raw []byte) {
	if kindOf(raw) != '[' {
		r.content(raw)
		r.guarded |= guardedParts(raw, partsDepth)
		return
	}
	each(raw, func(element []byte) {
		if kindOf(element) == '"' {
			r.writeText(element)
		} else {
			_, _ = r.hash.Write(element)
			r.guarded |= guardedParts(element, partsDepth)
		}
		r.writeString("\x00")
	})
}

func (r *Rendering) responses(c *Call) {
	// The text of a stored response is unknown here. It precedes everything else.
	r.writeOption(c, "previous_response_id", c.previous)
	r.writeOption(c, "reasoning", c.reasoning)
	r.writeOption(c, "tools", c.tools)
	if quoted := c.instructions.of(c.body); kindOf(quoted) == '"' {
		r.startTurn([]byte(`"system"`))
		r.writeText(quoted)
		r.writeString("\n")
	}
	raw := c.input.of(c.body)
	if kindOf(raw) == '"' {
		r.startTurn([]byte(`"user"`))
		r.writeText(raw)
		r.writeString("\n")
	} else {
		r.items(raw)
	}
	r.answer = answerTurn
}

// items writes the items of a Responses input or output.
func (r *Rendering) items(raw []byte) { each(raw, r.item) }

// item writes a message, a function call, the output of one, or any other item as a whole.
// Reasoning is not repeated in later turns.
func (r *Rendering) item(raw []byte) {
	var kind, name, arguments, output []byte
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"type"`:
			kind = value
		case `"name"`:
			name = value
		case `"arguments"`:
			arguments = value
		case `"output"`:
			output = value
		}
	})
	switch string(kind) {
	case "", `"message"`:
		r.message(raw)
	case `"function_call"`:
		r.startTurn([]byte(`"assistant"`))
		r.startCall(name)
		r.content(arguments)
		r.writeString("\n")
	case `"function_call_output"`:
		r.startTurn([]byte(`"tool"`))
		r.content(output)
		r.writeString("\n")
	case `"reasoning"`:
	default:
		r.part(raw)
	}
}

func (r *Rendering) embeddings(c *Call) {
	r.texts(c.input.of(c.body))
	r.messages(c.messages.of(c.body)) // vLLM accepts images and text as messages
}

func (r *Rendering) rerank(c *Call) {
	r.texts(c.query.of(c.body))
	r.writeString("\x00")
	r.texts(c.documents.of(c.body))
}

func (r *Rendering) tokenize(c *Call) {
	r.writeOption(c, "tools", c.tools)
	r.texts(c.prompt.of(c.body))
	r.messages(c.messages.of(c.body))
}
