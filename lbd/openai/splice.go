package openai

import (
	"bytes"
	"strconv"

	"skyserve/lbd/policy"
)

// Splice rewrites the chunks of the target that continues an answer as those of the original
// target, so that the client receives one stream.
type Splice struct {
	chunkHead
	roleKnown   bool // the client has the role of the message
	HidesCounts bool // the usage so far is hidden from the client
	// TokensBefore is the number of tokens that the client had before. TokensInPrompt is the number
	// of those that were part of this target's prompt.
	TokensBefore, TokensInPrompt int
	// Prompt is the original prompt's length, if the first target reported it.
	Prompt policy.Maybe[int]
	// Diverges: this target emits reasoning, or something other than text that continues the answer.
	Diverges bool
	// space is the white space at the end of the client's text that was not sent to this target,
	// which is likely to generate it again.
	space []byte
	// guard detects that this target begins the answer anew.
	guard restartGuard
	// Restarted: this target began the answer anew.
	Restarted bool
}

// NewSplice returns a Splice for another target. soFar is the text sent to the target, space the
// white space that was not sent, and tokens the number of tokens that the client has.
func NewSplice(t *Transcript, soFar, space []byte, tokens int) *Splice {
	s := &Splice{chunkHead: t.head, roleKnown: t.roleKnown, TokensBefore: tokens, space: bytes.Clone(space)}
	if len(soFar) > 0 {
		s.TokensInPrompt = tokens
	}
	return s
}

// GuardRestart makes Admit detect a target that begins the answer anew. soFar is the text sent to the
// target.
func (s *Splice) GuardRestart(soFar []byte) { s.guard = newRestartGuard(soFar) }

// Admit returns the events of the new target that Event can process now, given the next event: none
// while the target may be beginning the answer anew. If it is, Restarted is set. The result is valid
// until the next call.
func (s *Splice) Admit(event []byte) (events [][]byte) {
	events, s.Restarted = s.guard.admit(event)
	return events
}

// Event appends a complete event of the new target to dst, rewritten for the client. It appends
// nothing if the event has no new content.
func (s *Splice) Event(dst, event []byte) []byte {
	data := EventData(event)
	if data == nil {
		return append(dst, event...)
	}
	in := cursor{data: data}
	if _, err := in.value(); err != nil || kindOf(data) != '{' {
		return appendEvent(dst, data)
	}
	mark := len(dst)
	dst = append(dst, "data: "...)
	dst, hasContent := s.appendChunk(dst, data)
	if !hasContent {
		return dst[:mark]
	}
	return append(dst, "\n\n"...)
}

// appendEvent appends an event with this data.
func appendEvent(dst, data []byte) []byte {
	for line := range bytes.Lines(data) {
		dst = append(dst, "data: "...)
		dst = append(dst, bytes.TrimRight(line, "\n")...)
		dst = append(dst, '\n')
	}
	return append(dst, '\n')
}

// memberWriter appends a member's value, possibly changed, to dst and reports whether to keep the
// member.
type memberWriter func(dst, key, value []byte) ([]byte, bool)

// rewriteMembers appends an object; do writes each of its members.
func rewriteMembers(dst, object []byte, do memberWriter) []byte {
	dst = append(dst, '{')
	first := true
	membersAsWritten(object, func(key, value []byte) {
		mark := len(dst)
		if !first {
			dst = append(dst, ',')
		}
		dst = append(append(dst, key...), ':')
		var stays bool
		if dst, stays = do(dst, key, value); stays {
			first = false
		} else {
			dst = dst[:mark]
		}
	})
	return append(dst, '}')
}

// appendChunk appends a chunk; hasContent is false if it contains nothing new for the client.
func (s *Splice) appendChunk(dst, data []byte) (out []byte, hasContent bool) {
	var chosen, counted bool
	out = rewriteMembers(dst, data, func(dst, key, value []byte) ([]byte, bool) {
		if known := s.field(key); known != nil {
			if *known != nil {
				value = *known
			}
			return append(dst, oneLine(value)...), true
		}
		switch string(key) {
		case `"choices"`:
			var any bool
			dst, any = s.appendChoices(dst, value)
			hasContent, chosen = hasContent || any, !emptyArray(value)
			return dst, true
		case `"usage"`:
			if kindOf(value) == '{' {
				counted = true
				return s.appendUsage(dst, value), true
			}
		case `"error"`:
			hasContent = hasContent || kindOf(value) != 'n'
		}
		return append(dst, oneLine(value)...), true
	})
	return out, hasContent || counted && (!s.HidesCounts || !chosen)
}

// appendChoices appends a chunk's choices; an empty list is not content.
func (s *Splice) appendChoices(dst, list []byte) (out []byte, hasContent bool) {
	if kindOf(list) != '[' {
		return append(dst, list...), false
	}
	out = append(dst, '[')
	first := true
	each(list, func(choice []byte) {
		if !first {
			out = append(out, ',')
		}
		first = false
		if kindOf(choice) != '{' {
			out = append(out, oneLine(choice)...)
			return
		}
		out = rewriteMembers(out, choice, func(dst, key, value []byte) ([]byte, bool) {
			dst, any := s.appendChoice(dst, key, value)
			hasContent = hasContent || any
			return dst, true
		})
	})
	return append(out, ']'), hasContent
}

// appendChoice appends a member of a choice.
func (s *Splice) appendChoice(dst, key, value []byte) (out []byte, hasContent bool) {
	switch string(key) {
	case `"delta"`:
		if kindOf(value) == '{' {
			return s.appendDelta(dst, value)
		}
	case `"text"`:
		return s.appendText(dst, value)
	case `"finish_reason"`:
		hasContent = kindOf(value) != 'n'
	}
	return append(dst, oneLine(value)...), hasContent
}

// appendDelta appends a piece of a message. The client receives the role only once.
func (s *Splice) appendDelta(dst, raw []byte) (out []byte, hasContent bool) {
	out = rewriteMembers(dst, raw, func(dst, key, value []byte) ([]byte, bool) {
		switch string(key) {
		case `"role"`:
			if s.roleKnown {
				return dst, false
			}
			s.roleKnown, hasContent = true, true
		case `"content"`:
			var any bool
			dst, any = s.appendText(dst, value)
			hasContent = hasContent || any
			return dst, true
		case `"reasoning_content"`, `"reasoning"`:
			thinks := kindOf(value) == '"' && len(value) > 2
			hasContent, s.Diverges = hasContent || thinks, s.Diverges || thinks && s.TokensInPrompt > 0
		default:
			hasContent = hasContent || (kindOf(value) != 'n' && string(value) != `""` && !emptyArray(value))
		}
		return append(dst, oneLine(value)...), true
	})
	return out, hasContent
}

// appendText appends a piece of the text, without the white space that the client already has.
func (s *Splice) appendText(dst, value []byte) (out []byte, hasContent bool) {
	if kindOf(value) != '"' {
		return append(dst, oneLine(value)...), false
	}
	inner := value[1 : len(value)-1]
	for len(s.space) > 0 && len(inner) > 0 {
		n := spaceLen(s.space)
		if !bytes.HasPrefix(inner, s.space[:n]) {
			s.space = nil
			break
		}
		inner, s.space = inner[n:], s.space[n:]
	}
	dst = append(append(dst, '"'), inner...)
	return append(dst, '"'), len(inner) > 0
}

// appendUsage appends the engine's usage, converted to the usage of the whole answer: text of the
// answer that was sent in the prompt does not count as prompt.
func (s *Splice) appendUsage(dst, raw []byte) []byte {
	var u Usage
	u.readUsage(raw)
	prompt := s.Prompt.Or(max(0, u.Prompt.Or(0)-s.TokensInPrompt))
	output := s.TokensBefore + u.Output.Or(0)
	return rewriteMembers(dst, raw, func(dst, key, value []byte) ([]byte, bool) {
		switch string(key) {
		case `"prompt_tokens"`:
			return strconv.AppendInt(dst, int64(prompt), 10), true
		case `"completion_tokens"`:
			return strconv.AppendInt(dst, int64(output), 10), true
		case `"total_tokens"`:
			return strconv.AppendInt(dst, int64(prompt+output), 10), true
		case `"prompt_tokens_details"`:
			if kindOf(value) == '{' {
				return appendPromptDetails(dst, value, prompt), true
			}
		}
		return append(dst, oneLine(value)...), true
	})
}

// appendPromptDetails appends the details of a prompt, with cached tokens limited to its length.
func appendPromptDetails(dst, raw []byte, prompt int) []byte {
	return rewriteMembers(dst, raw, func(dst, key, value []byte) ([]byte, bool) {
		if n, err := strconv.Atoi(string(value)); err == nil && string(key) == `"cached_tokens"` {
			return strconv.AppendInt(dst, int64(min(n, prompt)), 10), true
		}
		return append(dst, oneLine(value)...), true
	})
}

// oneLine returns a JSON value with its line ends, which are white space, replaced by spaces,
// because an SSE event is divided into lines.
func oneLine(value []byte) []byte {
	if bytes.IndexByte(value, '\n') < 0 && bytes.IndexByte(value, '\r') < 0 {
		return value
	}
	return bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, value)
}
