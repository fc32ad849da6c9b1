package server

import (
	"encoding/json"
	"strings"
	"testing"
)

const (
	messagesPath = "/v1/messages"
	countPath    = "/v1/messages/count_tokens"
)

// messageReply is a response of the Messages API.
type messageReply struct {
	Type, Role string
	Content    []struct {
		Type, Text, Name string
		Input            json.RawMessage
	}
	StopReason string `json:"stop_reason"`
	Usage      messagesUsage
}

// message sends a request that must succeed.
func (b *bench) message(body string) messageReply {
	b.t.Helper()
	status, text := b.post(messagesPath, body)
	var r messageReply
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || len(r.Content) != 1 {
		b.t.Fatalf("POST %s: %d %s (%v)", messagesPath, status, text, err)
	}
	return r
}

// A message is generated like the same chat, whether text is a string or in blocks.
func TestMessageEqualsChatCompletion(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		chat := b.complete(chatPath, `{"max_tokens":9,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}]}`)
		for _, body := range []string{
			`{"max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`,
			`{"max_tokens":9,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}`,
		} {
			m := b.message(body)
			if m.Type != "message" || m.Role != "assistant" || m.StopReason != "max_tokens" || m.Content[0].Text != chat.text() {
				t.Errorf("%s: %+v, the chat has %q", body, m, chat.text())
			}
			if u := m.Usage; u.OutputTokens != 9 || u.InputTokens+u.CacheRead != chat.Usage.PromptTokens {
				t.Errorf("usage %+v, the chat has %+v", u, chat.Usage)
			}
		}
		if status, text := b.post(countPath, `{"system":"be brief","messages":[{"role":"user","content":"hello"}]}`); status != 200 || !strings.Contains(text, `"input_tokens":`) {
			t.Errorf("counting: %d %s", status, text)
		}
	})
}

// A stream consists of the events of one message, in their order, and has the text of the message.
func TestMessageStream(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		const body = `{"max_tokens":3,"messages":[{"role":"user","content":"hello"}]`
		whole := b.message(body + `}`)
		_, stream := b.post(messagesPath, body+`,"stream":true}`)
		var kinds, text strings.Builder
		for event := range strings.SplitSeq(strings.TrimSpace(stream), "\n\n") {
			name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
			var e struct {
				Type  string
				Delta struct{ Text string }
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil || e.Type != name {
				t.Fatalf("event %q: %v", event, err)
			}
			kinds.WriteString(name + " ")
			text.WriteString(e.Delta.Text)
		}
		const want = "message_start content_block_start ping content_block_delta content_block_delta content_block_delta content_block_stop message_delta message_stop "
		if kinds.String() != want || text.String() != whole.Content[0].Text {
			t.Errorf("events %s with %q, want %s with %q", kinds.String(), text.String(), want, whole.Content[0].Text)
		}
	})
}

// A required tool is called with an input of its schema. Its result is part of the next prompt.
func TestMessageToolUse(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		const tools = `"max_tokens":200,"tools":[{"name":"weather","input_schema":{"type":"object","properties":{"days":{"type":"integer"}}}}]`
		m := b.message(`{` + tools + `,"tool_choice":{"type":"any"},"messages":[{"role":"user","content":"hello"}]}`)
		var input struct{ Days *int }
		if c := m.Content[0]; c.Type != "tool_use" || c.Name != "weather" || json.Unmarshal(c.Input, &input) != nil || input.Days == nil || m.StopReason != "tool_use" {
			t.Fatalf("message %+v", m)
		}
		next := b.message(`{` + tools + `,"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"weather","input":{"days":1}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"sunny"}]}]}`)
		if next.Usage.CacheRead == 0 || next.Content[0].Type != "text" {
			t.Errorf("the next turn is %+v: nothing of its prompt was cached", next)
		}
	})
}

// Errors have Anthropic's format.
func TestMessageErrors(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for body, want := range map[string]string{
			`{"max_tokens":9}`: "messages: must contain at least one message",
			`{"messages":[{"role":"user","content":"hello"}]}`:                            "max_tokens is required",
			`{"max_tokens":9,"messages":[{"role":"user","content":[{"text":"a"}]}]}`:      "messages[0].content[0]: must be a block with a type",
			`{"model":"gpt-9","max_tokens":9,"messages":[{"role":"user","content":"a"}]}`: "gpt-9",
		} {
			_, text := b.post(messagesPath, body)
			var e struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil || e.Type != "error" || e.Error.Type == "" || !strings.Contains(e.Error.Message, want) {
				t.Errorf("%s: %s, want %s", body, text, want)
			}
		}
	})
}
