package server

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
)

// responder writes a response while the engine generates it.
type responder struct {
	server   *Server
	job      *job
	stream   *stream
	response http.ResponseWriter
	request  *http.Request

	batch batch
}

// nextBatch waits for the next tokens. If the client disconnects or the engine stops first, it cancels the
// request and closes the connection without an end of stream, so that a truncated response never looks
// complete.
func (a *responder) nextBatch() *batch {
	select {
	case <-a.stream.ready:
		a.stream.drain(&a.batch)
		if a.batch.last.Kind == engine.Rejected {
			a.abort()
		}
		return &a.batch
	case <-a.request.Context().Done():
	case <-a.server.driver.done:
	}
	a.abort()
	return nil
}

// abort cancels the request and closes the connection.
func (a *responder) abort() {
	a.server.driver.cancel(a.stream)
	panic(http.ErrAbortHandler)
}

// broken reports whether a fault resets the connection after this many tokens.
func (a *responder) broken(sent int) bool {
	limit := a.server.faults.current().ResetAfterTokens
	return limit > 0 && sent >= limit
}

// usage is the token usage of a response.
type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

func usageOf(ev engine.Event) usage {
	return usage{ev.PromptTokens, ev.OutputTokens, ev.PromptTokens + ev.OutputTokens, promptDetails{ev.CachedTokens}}
}

// completion is a response that is not streamed.
type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   usage    `json:"usage"`
}

type choice struct {
	Index        int          `json:"index"`
	Message      *chatMessage `json:"message,omitempty"`
	Text         *string      `json:"text,omitempty"`
	Logprobs     *struct{}    `json:"logprobs"`
	FinishReason string       `json:"finish_reason"`
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// toolCall is a function call in a response. The first event of a streamed call has everything but the
// arguments.
type toolCall struct {
	Index    *int         `json:"index,omitempty"` // streamed calls only
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// call returns the function call of a job's response.
func (j *job) call(arguments string) toolCall {
	_, unique, _ := strings.Cut(j.id, "-")
	return toolCall{ID: "call_" + unique, Type: "function", Function: functionCall{j.form.tool, arguments}}
}

// respondWhole sends one document after generation has ended.
func (a *responder) respondWhole() {
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
			a.writeWhole(text.String(), b.last)
			return
		}
	}
}

func (a *responder) writeWhole(text string, end engine.Event) {
	c := choice{FinishReason: a.job.finishReason(end.Reason)}
	object := "text_completion"
	if a.job.chat {
		object = "chat.completion"
		c.Message = &chatMessage{Role: "assistant", Content: &text}
		if a.job.tool() != "" {
			c.Message.Content, c.Message.ToolCalls = nil, []toolCall{a.job.call(text)}
		}
	} else {
		c.Text = &text
	}
	writeJSON(a.response, http.StatusOK, completion{
		ID: a.job.id, Object: object, Created: time.Now().Unix(), Model: a.job.model,
		Choices: []choice{c}, Usage: usageOf(end),
	})
}

// respondStream sends server-sent events and flushes each: one per token, or one per Options.StreamInterval
// tokens after the first. The last one has the finish reason.
func (a *responder) respondStream() {
	header := a.response.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	a.response.WriteHeader(http.StatusOK)
	a.flush()
	f := newFrame(a.job)
	var text strings.Builder // of tokens not yet sent
	for sent, made := 0, 0; ; {
		b := a.nextBatch()
		for i, w := range b.words {
			reason := ""
			if b.ended() && i == len(b.words)-1 {
				reason = a.job.finishReason(b.last.Reason)
			}
			text.WriteString(w)
			made++
			if sent == 0 || reason != "" || made-sent >= a.server.opts.StreamInterval {
				a.writeBytes(f.chunk(text.String(), sent == 0, reason, b.last.PromptTokens, made))
				text.Reset()
				sent = made
			}
			if a.broken(made) {
				a.flush()
				a.abort()
			}
		}
		if b.ended() {
			a.writeBytes(f.end(b.last))
			a.flush()
			return
		}
		a.flush()
	}
}

// writeBytes sends bytes to the client, and aborts if it has disconnected.
func (a *responder) writeBytes(p []byte) {
	if _, err := a.response.Write(p); err != nil {
		a.abort()
	}
}

func (a *responder) flush() {
	if err := http.NewResponseController(a.response).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.abort()
	}
}
