package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"skyserve/internal/sim/engine"
)

// frame builds the server-sent events of a stream. It formats the common part of all events once.
type frame struct {
	job           *job
	chat          bool
	withUsage     bool
	usageInEvents bool   // each event has the usage so far
	head          []byte // up to the value of "choices"
	buf           []byte
}

func newFrame(j *job) *frame {
	object := "text_completion"
	if j.chat {
		object = "chat.completion.chunk"
	}
	model, _ := json.Marshal(j.model) // a string always marshals
	return &frame{
		job: j, chat: j.chat, withUsage: j.withUsage, usageInEvents: j.usageInEvents,
		head: fmt.Appendf(nil, `data: {"id":"%s","object":"%s","created":%d,"model":%s,"choices":`, j.id, object, time.Now().Unix(), model),
	}
}

// chunk returns the event for some text, valid until the next call. The first event of a chat has the
// role; the last has a reason. prompt and output are the tokens of the prompt, and of the response so
// far.
func (f *frame) chunk(text string, first bool, reason string, prompt, output int) []byte {
	b := append(f.buf[:0], f.head...)
	b = append(b, `[{"index":0,`...)
	switch {
	case f.job.form != nil:
		b = append(append(b, `"delta":`...), f.formed(text, first)...)
	case f.chat && first:
		b = append(b, `"delta":{"role":"assistant","content":`...)
	case f.chat:
		b = append(b, `"delta":{"content":`...)
	default:
		b = append(b, `"text":`...)
	}
	if f.job.form == nil {
		b = strconv.AppendQuote(b, text) // words are plain ASCII, so this is JSON
		if f.chat {
			b = append(b, '}')
		}
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if reason == "" {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendQuote(b, reason)
	}
	b = append(b, "}]"...)
	switch {
	case f.usageInEvents:
		b = fmt.Appendf(b, `,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, prompt, prompt+output, output)
	case f.withUsage:
		b = append(b, `,"usage":null`...)
	}
	f.buf = append(b, "}\n\n"...)
	return f.buf
}

// formed returns the delta of a token of a response with a form.
func (f *frame) formed(text string, first bool) []byte {
	delta := struct {
		Role      string     `json:"role,omitempty"`
		Content   *string    `json:"content,omitempty"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}{}
	if first {
		delta.Role = "assistant"
	}
	switch {
	case f.job.tool() == "":
		delta.Content = &text
	case first:
		delta.ToolCalls = []toolCall{f.job.call(text)}
	default:
		delta.ToolCalls = []toolCall{{Function: functionCall{Arguments: text}}}
	}
	for i := range delta.ToolCalls {
		delta.ToolCalls[i].Index = &i
	}
	encoded, _ := json.Marshal(delta) // texts always marshal
	return encoded
}

// end returns the events after the last token: the usage, if requested, and [DONE].
func (f *frame) end(last engine.Event) []byte {
	b := f.buf[:0]
	if f.withUsage {
		u, _ := json.Marshal(usageOf(last)) // numbers always marshal
		b = append(b, f.head...)
		b = append(b, `[],"usage":`...)
		b = append(b, u...)
		b = append(b, "}\n\n"...)
	}
	f.buf = append(b, "data: [DONE]\n\n"...)
	return f.buf
}
