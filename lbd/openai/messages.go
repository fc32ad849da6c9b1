package openai

import "bytes"

// Paths of Anthropic's Messages API.
const (
	pathMessages    = "/v1/messages"
	pathCountTokens = pathMessages + "/count_tokens"
)

// messagesFields are fields that only calls of the Messages API use. They are allocated when one of
// them is present, so that other calls have no memory for them.
type messagesFields struct{ system, thinking, outputConfig, metadata Span }

// messagesFields returns the fields of the Messages API.
func (c *Call) messagesFields() *messagesFields {
	if c.ofMessages == nil {
		c.ofMessages = new(messagesFields)
	}
	return c.ofMessages
}

// messagesCall writes the prompt of a message in the order in which engines convert it to a chat:
// tools, system prompt, messages. A conversation of text has the same key as the same chat.
func (r *Rendering) messagesCall(c *Call) {
	r.writeOption(c, "chat_template", c.template)
	r.writeOption(c, "chat_template_kwargs", c.templateArgs)
	own := c.messagesFields()
	r.writeMember("thinking", own.thinking.of(c.body), `"type"`)
	r.writeMember("reasoning_effort", own.outputConfig.of(c.body), `"effort"`)
	r.blockTools(c.tools.of(c.body))
	r.system(own.system.of(c.body))
	each(c.messages.of(c.body), r.blockMessage)
	r.answer = answerTurn
}

// countedMessages writes a prompt whose tokens are only counted: no answer follows.
func (r *Rendering) countedMessages(c *Call) {
	r.messagesCall(c)
	r.answer = answerUnknown
}

// writeMember writes a string in a top-level object that affects the template, if it is present.
func (r *Rendering) writeMember(name string, object []byte, key string) {
	value, found := memberSpan(object, key)
	if !found || kindOf(value.of(object)) != '"' {
		return
	}
	r.writeString("<|")
	r.writeString(name)
	r.writeString("|>")
	r.writeText(value.of(object))
	r.writeString("\n")
}

// memberText returns the text of an object's member; nil if it is not a string.
func memberText(object []byte, key string) []byte {
	value, found := memberSpan(object, key)
	if !found || kindOf(value.of(object)) != '"' {
		return nil
	}
	plain, _ := text(value.of(object), nil)
	return plain
}

// blockTools writes the tools.
func (r *Rendering) blockTools(raw []byte) {
	if kindOf(raw) != '[' || emptyArray(raw) {
		return
	}
	r.writeString("<|tools|>")
	each(raw, r.uncached)
	r.writeString("\n")
}

// uncached writes a tool or a block without the members that do not reach the model. Clients move
// cache_control from turn to turn.
func (r *Rendering) uncached(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"cache_control"`, `"citations"`:
			return
		}
		_, _ = r.hash.Write(key)
		_, _ = r.hash.Write(value)
	})
}

// system writes the system prompt: a string, or a list of blocks.
func (r *Rendering) system(raw []byte) {
	if k := kindOf(raw); k != '"' && k != '[' {
		return
	}
	r.startTurn([]byte(`"system"`))
	r.systemBlocks(raw)
	r.writeString("\n")
}

// billingHeader is the beginning of a block of the system prompt of Claude Code that differs in
// every request. Engines remove it (vLLM), because otherwise no two prompts would share a prefix.
var billingHeader = []byte(`"x-anthropic-billing-header`)

// systemBlocks writes the content of a system message.
func (r *Rendering) systemBlocks(raw []byte) {
	if kindOf(raw) != '[' {
		r.blocks(raw, false)
		return
	}
	each(raw, func(block []byte) {
		if value, found := memberSpan(block, `"text"`); found && bytes.HasPrefix(value.of(block), billingHeader) {
			return
		}
		r.block(block, false)
	})
}

// blockMessage writes one message.
func (r *Rendering) blockMessage(raw []byte) {
	var role, content []byte
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"role"`:
			role = value
		case `"content"`:
			content = value
		}
	})
	r.startTurn(role)
	if string(role) == `"system"` {
		r.systemBlocks(content)
	} else {
		r.blocks(content, false)
	}
	r.writeString("\n")
}

// blocks writes a content: a string, or a list of blocks. nested: the content is that of a tool
// result.
func (r *Rendering) blocks(raw []byte, nested bool) {
	switch kindOf(raw) {
	case '"':
		r.writeText(raw)
	case '[':
		each(raw, func(block []byte) { r.block(block, nested) })
	}
}

// contentBlock is a block of a message, with the members that are part of the prompt.
type contentBlock struct{ kind, text, thinking, name, input, content []byte }

// field returns the field for a member of a block; nil for any other member.
func (b *contentBlock) field(key []byte) *[]byte {
	switch string(key) {
	case `"type"`:
		return &b.kind
	case `"text"`:
		return &b.text
	case `"thinking"`:
		return &b.thinking
	case `"name"`:
		return &b.name
	case `"input"`:
		return &b.input
	case `"content"`:
		return &b.content
	}
	return nil
}

// block writes a block. Ids and signatures are not part of a prompt. Nested blocks are texts or
// media: deeper nesting would be parsed once per level.
func (r *Rendering) block(raw []byte, nested bool) {
	var b contentBlock
	members(raw, func(key, value []byte) {
		if f := b.field(key); f != nil {
			*f = value
		}
		r.guarded |= guardedBlock(key, value, sourceDepth)
	})
	switch kind := string(b.kind); {
	case kind == `"text"`:
		r.quoted(b.text)
	case kind == `"redacted_thinking"`: // engines skip it
	case kind == `"thinking"`:
		r.startThinking()
		r.quoted(b.thinking)
	case kind == `"tool_use"`:
		r.startInput(b.name)
		r.writeJSON(b.input)
	case kind == `"tool_result"` && !nested:
		r.writeString("<|tool|>\n")
		r.blocks(b.content, true)
		r.writeString("\n")
	default:
		r.writeString("<|part|>")
		r.uncached(raw)
	}
}

// quoted writes the text of a value that must be a string.
func (r *Rendering) quoted(raw []byte) {
	if kindOf(raw) == '"' {
		r.writeText(raw)
	}
}

// startThinking writes the head of the reasoning that precedes an answer.
func (r *Rendering) startThinking() { r.writeString("<|thinking|>\n") }

// startInput writes the head of a tool call, whose input writeJSON writes.
func (r *Rendering) startInput(name []byte) {
	r.startCall(name)
	r.json = jsonFilter{}
}

// sourceDepth exceeds the nesting of sources: a document whose source is blocks with sources.
const sourceDepth = 3

// guardedBlock returns the guarded parameters of a member of a block: as of a message part, and
// URLs of its source.
func guardedBlock(key, value []byte, depth int) (found Parameters) {
	switch string(key) {
	case `"text"`, `"input"`, `"thinking"`:
		return 0
	case `"source"`:
		members(value, func(key, value []byte) { found |= guardedSource(key, value, depth-1) })
		return found
	}
	return guardedPart(key, value)
}

// guardedSource returns the guarded parameters of a member of a source.
func guardedSource(key, value []byte, depth int) (found Parameters) {
	switch string(key) {
	case `"url"`:
		if kindOf(value) == '"' {
			found = guardedURL(value)
		}
	case `"content"`:
		if depth > 0 {
			each(value, func(block []byte) {
				members(block, func(key, value []byte) { found |= guardedBlock(key, value, depth) })
			})
		}
	}
	return found
}
