package server

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"

	"skyserve/internal/sim/engine"
)

// chatPrompt renders a chat as the engine reads it: the tools, then each
// message as
//
//	<|role|>
//	content
//
// and at the end <|assistant|>, where the response begins. With
// continue_final_message the last message is left open instead, and the response
// continues where it ends; with add_generation_prompt false alone, nothing is
// added. A chat of more tokens than limit is a problem.
func (b *body) chatPrompt(limit int) (prompt, error) {
	text, open, err := b.render()
	if err != nil {
		return prompt{}, err
	}
	if err := b.checkLength(text, limit); err != nil {
		return prompt{}, err
	}
	// Every message starts after a newline, which is a token of its own, so the two halves tokenise like
	// the whole.
	tokens := engine.Tokenize(nil, text[:open])
	before := len(tokens)
	tokens = engine.Tokenize(tokens, text[open:])
	return prompt{tokens: tokens, continued: len(tokens) - before}, nil
}

// render returns the text of a chat and the position where the response starts.
func (b *body) render() (text string, open int, err error) {
	if len(b.Messages) == 0 {
		return "", 0, malformed("messages", "messages: must contain at least one message")
	}
	if b.ContinueFinal && b.AddPrompt != nil && *b.AddPrompt {
		return "", 0, malformed("continue_final_message", "continue_final_message and add_generation_prompt: mutually exclusive")
	}
	if last := len(b.Messages) - 1; b.ContinueFinal && firstByte(b.Messages[last].Content) == 0 {
		return "", 0, malformed("messages", fmt.Sprintf("messages[%d].content: continue_final_message is set but the final message has no content to continue", last))
	}
	var out strings.Builder
	if firstByte(b.Tools) != 0 {
		out.Write(b.Tools)
		out.WriteByte('\n')
	}
	for i := range b.Messages {
		m := &b.Messages[i]
		content, err := m.text(i)
		if err != nil {
			return "", 0, err
		}
		fmt.Fprintf(&out, "<|%s|>\n", m.Role)
		open = out.Len()
		out.WriteString(content)
		if i < len(b.Messages)-1 || !b.ContinueFinal {
			out.WriteByte('\n')
		}
	}
	if b.ContinueFinal {
		return out.String(), open, nil
	}
	if b.AddPrompt == nil || *b.AddPrompt {
		out.WriteString("<|assistant|>\n")
	}
	return out.String(), out.Len(), nil
}

// text returns the content of the i-th message.
func (m *message) text(i int) (string, error) {
	if m.Role == "" {
		return "", malformed("messages", fmt.Sprintf("messages[%d].role is required", i))
	}
	content, err := contentText(m.Content, fmt.Sprintf("messages[%d].content", i))
	if err != nil {
		return "", err
	}
	if firstByte(m.ToolCalls) != 0 {
		content += string(m.ToolCalls)
	}
	return content, nil
}

// part is an element of a content array.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// contentText parses a content: a string, an array of parts, or nothing.
func contentText(raw json.RawMessage, at string) (string, error) {
	switch firstByte(raw) {
	case 0:
		return "", nil
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case '[':
		return partsText(raw, at)
	}
	return "", malformed("messages", at+": must be a string or an array of parts, got "+excerpt(raw))
}

// partsText joins text parts. Other parts (images, audio) are represented by a hash of their bytes, so
// that equal ones share a prefix.
func partsText(raw json.RawMessage, at string) (string, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return "", malformed("messages", at+": "+err.Error())
	}
	var out strings.Builder
	for i, element := range elements {
		var p part
		if err := json.Unmarshal(element, &p); err != nil || p.Type == "" {
			return "", malformed("messages", fmt.Sprintf("%s[%d]: must be a part with a type, got %s", at, i, excerpt(element)))
		}
		if p.Type == "text" {
			out.WriteString(p.Text)
			continue
		}
		fmt.Fprintf(&out, "<%s %016x>", p.Type, xxh3.Hash(element))
	}
	return out.String(), nil
}
