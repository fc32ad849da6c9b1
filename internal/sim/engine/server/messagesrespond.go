package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"skyserve/internal/sim/engine"
)

// messagesTypes maps statuses to the types of Anthropic's errors.
var messagesTypes = map[int]string{
	http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusInternalServerError: "api_error", http.StatusServiceUnavailable: "overloaded_error",
}

// writeMessagesError sends an error in Anthropic's format, with status 400 unless it is a problem.
func writeMessagesError(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = malformed("", err.Error())
	}
	kind := messagesTypes[p.status]
	if kind == "" {
		kind = "invalid_request_error"
	}
	writeJSON(w, p.status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": p.message}})
}

// messageResponder writes a response of Anthropic's API.
type messageResponder struct{ responder }

// messageDocument is a response, or its beginning in the first event of a stream.
type messageDocument struct {
	ID           string        `json:"id"`
	Type         string        `json:"type"`
	Role         string        `json:"role"`
	Model        string        `json:"model"`
	Content      []any         `json:"content"`
	StopReason   *string       `json:"stop_reason"`
	StopSequence *string       `json:"stop_sequence"`
	Usage        messagesUsage `json:"usage"`
}

// messagesUsage is the token usage. The prompt is the sum of the input tokens.
type messagesUsage struct {
	InputTokens  int `json:"input_tokens"`
	CacheCreated int `json:"cache_creation_input_tokens"`
	CacheRead    int `json:"cache_read_input_tokens"`
	OutputTokens int `json:"output_tokens"`
}

func messagesUsageOf(ev engine.Event, output int) messagesUsage {
	return messagesUsage{InputTokens: ev.PromptTokens - ev.CachedTokens, CacheRead: ev.CachedTokens, OutputTokens: output}
}

// document returns the response without content.
func (a *messageResponder) document(ev engine.Event, output int) messageDocument {
	return messageDocument{ID: a.job.id, Type: "message", Role: "assistant", Model: a.job.model, Content: []any{}, Usage: messagesUsageOf(ev, output)}
}

// block returns the block of the response, with its text or the input of its call.
func (a *messageResponder) block(text string, input json.RawMessage) map[string]any {
	if a.job.tool() == "" {
		return map[string]any{"type": "text", "text": text}
	}
	return map[string]any{"type": "tool_use", "id": "toolu_" + a.job.id[len("msg_"):], "name": a.job.tool(), "input": input}
}

// stopReason returns the reason why the response ended.
func (a *messageResponder) stopReason() string {
	switch a.job.finishReason(a.batch.last.Reason) {
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	}
	return "end_turn"
}

// respondWhole sends one document after generation has ended.
func (a *messageResponder) respondWhole() {
	var text strings.Builder
	for sent := 0; ; {
		b := a.nextBatch()
		for _, w := range b.words {
			text.WriteString(w)
		}
		if sent += len(b.words); a.broken(sent) {
			a.abort()
		}
		if b.ended() {
			break
		}
	}
	end := a.batch.last
	d, reason := a.document(end, end.OutputTokens), a.stopReason()
	input := json.RawMessage(text.String())
	if !json.Valid(input) { // the limit cut it
		input = json.RawMessage("{}")
	}
	d.Content, d.StopReason = []any{a.block(text.String(), input)}, &reason
	writeJSON(a.response, http.StatusOK, d)
}

// send writes an event.
func (a *messageResponder) send(kind string, fields map[string]any) {
	fields["type"] = kind
	data, _ := json.Marshal(fields) // texts, numbers and documents of them always marshal
	a.writeBytes(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, data))
}

// respondStream sends the events of a message with one block: its beginning with the first token, a
// delta per token, and its end with the usage.
func (a *messageResponder) respondStream() {
	header := a.response.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	for sent := 0; ; {
		b := a.nextBatch()
		for _, w := range b.words {
			if sent == 0 {
				a.send("message_start", map[string]any{"message": a.document(b.last, 1)})
				a.send("content_block_start", map[string]any{"index": 0, "content_block": a.block("", json.RawMessage("{}"))})
				a.send("ping", map[string]any{})
			}
			a.send("content_block_delta", map[string]any{"index": 0, "delta": a.delta(w)})
			if sent++; a.broken(sent) {
				a.flush()
				a.abort()
			}
		}
		if b.ended() {
			break
		}
		a.flush()
	}
	end := a.batch.last
	a.send("content_block_stop", map[string]any{"index": 0})
	a.send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": a.stopReason(), "stop_sequence": nil}, "usage": messagesUsageOf(end, end.OutputTokens),
	})
	a.send("message_stop", map[string]any{})
	a.flush()
}

// delta returns a piece of the response's block.
func (a *messageResponder) delta(word string) map[string]any {
	if a.job.tool() == "" {
		return map[string]any{"type": "text_delta", "text": word}
	}
	return map[string]any{"type": "input_json_delta", "partial_json": word}
}
