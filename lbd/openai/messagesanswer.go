package openai

// readMessagesEvent is readEvent for a stream of Anthropic's Messages API. Events of the type ping,
// and of types that are not known, contain nothing for the balancer.
func (a *Answer) readMessagesEvent(data []byte) (f Finding) {
	var kind, object, delta, usageJSON []byte
	members(data, func(key, value []byte) {
		switch string(key) {
		case `"type"`:
			kind = value
		case `"message"`, `"content_block"`:
			object = value
		case `"delta"`:
			delta = value
		case `"usage"`:
			usageJSON = value
		case `"error"`:
			a.hasOther = true
			a.Failed, a.Faulty = a.Failed || kindOf(value) == '{', a.Faulty || messagesFault(value)
		}
	})
	switch string(kind) {
	case `"message_start"`:
		a.readMessageStart(object)
	case `"content_block_start"`:
		f.hasText = a.readBlockStart(object)
	case `"content_block_delta"`:
		f.hasText = a.readBlockDelta(delta)
	case `"content_block_stop"`:
		a.endBlock()
	case `"message_delta"`:
		a.Usage.readMessages(usageJSON, true)
		a.Bounded = a.Bounded || string(memberText(delta, `"stop_reason"`)) == "max_tokens"
	case `"message_stop"`:
		a.Done = true
	}
	if f.hasText {
		a.countText(false)
	}
	return f
}

// messagesFault reports whether the engine is the cause of an error in a stream. internal_error is
// vLLM's and SGLang's word for api_error.
func messagesFault(raw []byte) bool {
	switch string(memberText(raw, `"type"`)) {
	case "api_error", "internal_error", "overloaded_error":
		return true
	}
	return false
}

// readMessageStart processes the first event. Its output_tokens is not the length of the answer.
func (a *Answer) readMessageStart(message []byte) {
	if usage, found := memberSpan(message, `"usage"`); found {
		a.Usage.readMessages(usage.of(message), false)
	}
}

// readBlockStart processes the start of a block, which usually is empty.
func (a *Answer) readBlockStart(raw []byte) (hasText bool) {
	var b contentBlock
	members(raw, func(key, value []byte) {
		if f := b.field(key); f != nil {
			*f = value
		}
	})
	switch string(b.kind) {
	case `"text"`:
		return a.readContent(b.text, true)
	case `"thinking"`:
		if a.startTurn(len(raw)) {
			a.Rendering.startThinking()
		}
		return a.readKeyed(b.thinking)
	case `"tool_use"`:
		a.inputMissing = true
		if a.startTurn(len(raw)) {
			a.Rendering.startInput(b.name)
		}
		if in := (cursor{data: b.input, at: 1}); kindOf(b.input) == '{' && in.peek() != '}' {
			a.writeInput(b.input)
		}
		return true
	case `"redacted_thinking"`:
		return false
	}
	a.keyIncomplete = true // it is unknown how the next prompt contains such a block
	return false
}

// readBlockDelta processes a piece of a block.
func (a *Answer) readBlockDelta(raw []byte) (hasText bool) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"text"`:
			hasText = a.readContent(value, true) || hasText
		case `"thinking"`:
			hasText = a.readKeyed(value) || hasText
		case `"partial_json"`:
			if kindOf(value) == '"' && len(value) > 2 {
				hasText = true
				plain, _ := text(value, nil)
				a.writeInput(plain)
			}
		}
	})
	return hasText
}

// readKeyed processes a quoted piece of reasoning; it reports whether raw is one.
func (a *Answer) readKeyed(raw []byte) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	if a.startTurn(len(raw)) {
		a.Rendering.writeText(raw)
	}
	return true
}

// writeInput writes a piece of the input of a tool call.
func (a *Answer) writeInput(piece []byte) {
	a.inputMissing = false
	if a.startTurn(len(piece)) {
		a.Rendering.writeJSON(piece)
	}
}

// endBlock ends a block. A tool call without input has an empty object in the next prompt.
func (a *Answer) endBlock() {
	if a.inputMissing {
		a.writeInput([]byte("{}"))
	}
}

// readMessage is Whole for a message of the Messages API.
func (a *Answer) readMessage(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"usage"`:
			a.Usage.readMessages(value, true)
		case `"content"`:
			if a.startTurn(len(value)) {
				a.Rendering.blocks(value, false)
			}
		}
	})
}

// readMessages parses a usage object of the Messages API, whose input_tokens does not include the
// cached part of the prompt. A prompt has at least one token: 0 means that the engine does not know
// its length yet. output: output_tokens is the length of the answer.
func (u *Usage) readMessages(raw []byte, output bool) {
	var input, read, written Figure
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"input_tokens"`:
			parseCount(&input, value)
		case `"cache_read_input_tokens"`:
			parseCount(&read, value)
		case `"cache_creation_input_tokens"`:
			parseCount(&written, value)
		case `"output_tokens"`:
			if output {
				parseCount(&u.Output, value)
			}
		}
	})
	if read.Known {
		u.Cached = read
	}
	if n := input.Or(0) + read.Or(0) + written.Or(0); input.Known && n > 0 {
		u.Prompt.Known, u.Prompt.Value = true, n
	}
}
