package proxy

import (
	"sync"

	"skyserve/lbd/prefix"
)

// renderer writes a call's prompt into a key in the order in which a chat
// template renders it, such that a prompt with its answer is the beginning of
// the conversation's next prompt:
//
//	<|model|>\n cache salt \n tools, then for each message
//	<|role|>\n content, tool calls \n, and <|assistant|>\n before an answer
type renderer struct {
	hash    prefix.Hasher
	scratch []byte
	// answer says how an answer goes on after the prompt.
	answer answerKind
}

// answerKind is how an answer is appended to a prompt.
type answerKind int

const (
	answerUnknown answerKind = iota // the next prompt does not begin with it
	answerTurn                      // as the assistant's next message
	answerText                      // right after the prompt's text
)

var renderers = sync.Pool{New: func() any { return new(renderer) }}

// renderKey starts a renderer with a call's prompt. The caller gives it back
// with releaseRenderer when no more of the answer will come.
func renderKey(seed uint64, e *endpoint, c *call, model string) *renderer {
	r := renderers.Get().(*renderer)
	r.hash.Reset(seed, false)
	r.hash.Grow(len(c.body)) // what is rendered is not much longer
	r.answer = answerUnknown
	r.str("<|")
	r.str(model)
	r.str("|>\n")
	r.raw(c, c.cacheSalt)
	r.str("\n")
	e.render(r, c)
	return r
}

func releaseRenderer(r *renderer) {
	if cap(r.scratch) > maxPooled {
		r.scratch = nil
	}
	renderers.Put(r)
}

func (r *renderer) str(s string) { _, _ = r.hash.WriteString(s) }

func (r *renderer) raw(c *call, s span) { _, _ = r.hash.Write(s.of(c.body)) }

// text writes what a quoted string says.
func (r *renderer) text(quoted []byte) {
	said, memory := text(quoted, r.scratch)
	r.scratch = memory
	_, _ = r.hash.Write(said)
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

// members calls do for every member of an object; keys come with their quotes.
func members(raw []byte, do func(key, value []byte)) {
	in := cursor{data: raw}
	if in.peek() != '{' {
		return
	}
	in.at++
	for first := true; ; first = false {
		if more, err := in.more('}', first); err != nil || !more {
			return
		}
		key, err := in.key()
		if err != nil {
			return
		}
		v, err := in.value()
		if err != nil {
			return
		}
		do(key.of(raw), v.of(raw))
	}
}

func (r *renderer) chat(c *call) {
	r.raw(c, c.tools)
	r.messages(c.messages.of(c.body))
	r.answer = answerTurn
}

func (r *renderer) messages(raw []byte) { each(raw, r.message) }

// message writes one message; its keys may stand in any order.
func (r *renderer) message(raw []byte) {
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
	r.turn(role)
	r.content(content)
	each(calls, r.toolCall)
	r.str("\n")
}

// turn begins a message.
func (r *renderer) turn(role []byte) {
	r.str("<|")
	if kindOf(role) == '"' {
		r.text(role)
	}
	r.str("|>\n")
}

// content writes a message's content: a string, or parts.
func (r *renderer) content(raw []byte) {
	switch kindOf(raw) {
	case '"':
		r.text(raw)
	case '[':
		each(raw, r.part)
	}
}

// part writes a part of a content: its text, or all of it when it is an image
// or the like.
func (r *renderer) part(raw []byte) {
	var said []byte
	members(raw, func(key, value []byte) {
		if string(key) == `"text"` && kindOf(value) == '"' {
			said = value
		}
	})
	if said != nil {
		r.text(said)
		return
	}
	r.str("<|part|>")
	_, _ = r.hash.Write(raw)
}

// toolCall writes the function called; ids are not part of a prompt.
func (r *renderer) toolCall(raw []byte) {
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
		r.callName(name)
		r.content(arguments)
	})
}

// callName begins a tool call.
func (r *renderer) callName(name []byte) {
	r.str("<|call|>")
	r.content(name)
	r.str("\n")
}

func (r *renderer) completion(c *call) {
	raw := c.prompt.of(c.body)
	if kindOf(raw) == '"' {
		r.text(raw)
		r.answer = answerText
		return
	}
	r.texts(raw)
}

// texts writes a string, or an array of strings or of tokens.
func (r *renderer) texts(raw []byte) {
	if kindOf(raw) != '[' {
		r.content(raw)
		return
	}
	each(raw, func(element []byte) {
		if kindOf(element) == '"' {
			r.text(element)
		} else {
			_, _ = r.hash.Write(element)
		}
		r.str("\x00")
	})
}

func (r *renderer) responses(c *call) {
	r.raw(c, c.tools)
	if said := c.instructions.of(c.body); kindOf(said) == '"' {
		r.turn([]byte(`"system"`))
		r.text(said)
		r.str("\n")
	}
	raw := c.input.of(c.body)
	if kindOf(raw) == '"' {
		r.turn([]byte(`"user"`))
		r.text(raw)
		r.str("\n")
	} else {
		r.messages(raw)
	}
	r.answer = answerTurn
}

func (r *renderer) embeddings(c *call) { r.texts(c.input.of(c.body)) }

func (r *renderer) rerank(c *call) {
	r.texts(c.query.of(c.body))
	r.str("\x00")
	r.texts(c.documents.of(c.body))
}

func (r *renderer) tokenize(c *call) {
	r.texts(c.prompt.of(c.body))
	r.messages(c.messages.of(c.body))
}
