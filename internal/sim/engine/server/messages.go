package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"

	"skyserve/internal/sim/engine"
)

// messagesBody is the request body of /v1/messages and /v1/messages/count_tokens, Anthropic's API;
// unknown fields are ignored.
type messagesBody struct {
	Model      string          `json:"model"`
	System     json.RawMessage `json:"system"`
	Messages   []message       `json:"messages"`
	MaxTokens  *int            `json:"max_tokens"`
	Stream     bool            `json:"stream"`
	Tools      []messagesTool  `json:"tools"`
	ToolChoice *toolChoice     `json:"tool_choice"`
}

type messagesTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
}

type toolChoice struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// messageBlock is a block of a message.
type messageBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Content json.RawMessage `json:"content"`
}

// chat returns the chat that a request is converted to.
func (m *messagesBody) chat() (*body, error) {
	b := &body{Model: m.Model, MaxTokens: m.MaxTokens, Stream: m.Stream}
	if firstByte(m.System) != 0 {
		text, err := contentText(m.System, "system")
		if err != nil {
			return nil, err
		}
		b.Messages = append(b.Messages, message{Role: "system", Content: quoted(text)})
	}
	for i := range m.Messages {
		converted, err := m.Messages[i].converted(i)
		if err != nil {
			return nil, err
		}
		b.Messages = append(b.Messages, converted...)
	}
	if len(m.Messages) == 0 {
		return nil, malformed("messages", "messages: must contain at least one message")
	}
	b.Tools, b.ToolChoice = m.chatTools(), m.chatChoice()
	return b, nil
}

// quoted returns a text as JSON.
func quoted(text string) json.RawMessage {
	raw, _ := json.Marshal(text) // a string always marshals
	return raw
}

// converted returns the i-th message as messages of a chat: each tool result becomes a message.
func (m *message) converted(i int) ([]message, error) {
	if firstByte(m.Content) != '[' {
		return []message{*m}, nil
	}
	var blocks []json.RawMessage
	if err := json.Unmarshal(m.Content, &blocks); err != nil {
		return nil, malformed("messages", fmt.Sprintf("messages[%d].content: %v", i, err))
	}
	var results []message
	var rest []json.RawMessage
	own := message{Role: m.Role}
	for n, raw := range blocks {
		var block messageBlock
		if err := json.Unmarshal(raw, &block); err != nil || block.Type == "" {
			return nil, malformed("messages", fmt.Sprintf("messages[%d].content[%d]: must be a block with a type, got %s", i, n, excerpt(raw)))
		}
		switch block.Type {
		case "tool_use":
			own.ToolCalls = append(append(own.ToolCalls, quoted(block.Name)...), block.Input...)
		case "tool_result":
			results = append(results, message{Role: "tool", Content: block.Content})
		default:
			rest = append(rest, raw)
		}
	}
	if len(rest) == 0 && len(results) > 0 {
		return results, nil
	}
	own.Content, _ = json.Marshal(rest) // JSON values always marshal
	return append(results, own), nil
}

// chatTools returns the tools as those of a chat; nil if there are none.
func (m *messagesBody) chatTools() json.RawMessage {
	if len(m.Tools) == 0 {
		return nil
	}
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var tools []tool
	for _, t := range m.Tools {
		tools = append(tools, tool{"function", function{t.Name, t.Description, t.InputSchema}})
	}
	raw, _ := json.Marshal(tools) // texts and JSON values always marshal
	return raw
}

// chatChoice returns the tool choice as that of a chat.
func (m *messagesBody) chatChoice() json.RawMessage {
	if m.ToolChoice == nil {
		return nil
	}
	switch m.ToolChoice.Type {
	case "any":
		return quoted("required")
	case "tool":
		raw, _ := json.Marshal(map[string]any{"type": "function", "function": map[string]string{"name": m.ToolChoice.Name}}) // strings always marshal
		return raw
	}
	return quoted(m.ToolChoice.Type)
}

// serveMessages handles a request to /v1/messages.
func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		writeMessagesError(w, errDraining)
		return
	}
	j, err := s.readMessages(w, r)
	if err != nil {
		writeMessagesError(w, err)
		return
	}
	if s.faults.countRequest() {
		writeMessagesError(w, errFault)
		return
	}
	s.waitGate(r.Context()) // this request may have triggered hang-after
	a := messageResponder{responder{server: s, job: j, stream: s.driver.submit(j.rank, j.request, j.texts()), response: w, request: r}}
	if j.stream {
		a.respondStream()
	} else {
		a.respondWhole()
	}
}

// readMessages parses and validates a request.
func (s *Server) readMessages(w http.ResponseWriter, r *http.Request) (*job, error) {
	var m messagesBody
	if err := s.readBody(w, r, &m); err != nil {
		return nil, err
	}
	if m.MaxTokens == nil {
		return nil, malformed("max_tokens", "max_tokens is required")
	}
	b, err := m.chat()
	if err != nil {
		return nil, err
	}
	j, err := s.jobOf(r, b, true)
	if err != nil {
		return nil, err
	}
	j.id = fmt.Sprintf("msg_%016x", rand.Uint64())
	return j, nil
}

// serveCountTokens counts the tokens of a prompt.
func (s *Server) serveCountTokens(w http.ResponseWriter, r *http.Request) {
	n, err := s.countTokens(w, r)
	if err != nil {
		writeMessagesError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": n})
}

func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) (int, error) {
	var m messagesBody
	if err := s.readBody(w, r, &m); err != nil {
		return 0, err
	}
	if _, _, err := s.resolve(m.Model); err != nil {
		return 0, err
	}
	b, err := m.chat()
	if err != nil {
		return 0, err
	}
	text, _, err := b.render()
	return engine.CountTokens(text), err
}
