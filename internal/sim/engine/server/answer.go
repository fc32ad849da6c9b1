package server

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/sim/engine"
)

// answerer writes one answer while the engine makes it.
type answerer struct {
	server   *Server
	job      *job
	stream   *stream
	response http.ResponseWriter
	request  *http.Request

	batch batch
}

// next waits for the next tokens. When the client or the engine is gone first,
// it takes the request out of the engine and closes the connection without an
// end: a broken answer never looks whole.
func (a *answerer) next() *batch {
	select {
	case <-a.stream.ready:
		a.stream.take(&a.batch)
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

// abort gives the request up and closes the connection.
func (a *answerer) abort() {
	a.server.driver.cancel(a.stream)
	panic(http.ErrAbortHandler)
}

// broken says whether a fault breaks the connection after this many tokens.
func (a *answerer) broken(sent int) bool {
	most := a.server.faults.current().ResetAfterTokens
	return most > 0 && sent >= most
}

// usage is how the answer's tokens are counted for the client.
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

// completion is the document of an answer that is not streamed.
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

// toolCall is a function that the answer calls; of a streamed call everything but
// the arguments comes first.
type toolCall struct {
	Index    *int         `json:"index,omitempty"` // of a streamed call
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// call is the call that a job's answer makes.
func (j *job) call(arguments string) toolCall {
	_, unique, _ := strings.Cut(j.id, "-")
	return toolCall{ID: "call_" + unique, Type: "function", Function: functionCall{j.form.tool, arguments}}
}

// whole answers with one document when everything is there.
func (a *answerer) whole() {
	var text strings.Builder
	for sent := 0; ; {
		b := a.next()
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

func (a *answerer) writeWhole(text string, end engine.Event) {
	c := choice{FinishReason: a.job.ending(end.Reason)}
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

// streamed answers with server-sent events, each flushed as it comes: one a token,
// or one every Options.StreamInterval tokens after the first. The last one carries the
// finish reason.
func (a *answerer) streamed() {
	header := a.response.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	a.response.WriteHeader(http.StatusOK)
	a.flush()
	f := newFrame(a.job)
	var text strings.Builder // of tokens that are not sent
	for sent, made := 0, 0; ; {
		b := a.next()
		for i, w := range b.words {
			reason := ""
			if b.ended() && i == len(b.words)-1 {
				reason = a.job.ending(b.last.Reason)
			}
			text.WriteString(w)
			made++
			if sent == 0 || reason != "" || made-sent >= a.server.opts.StreamInterval {
				a.write(f.chunk(text.String(), sent == 0, reason, b.last.PromptTokens, made))
				text.Reset()
				sent = made
			}
			if a.broken(made) {
				a.flush()
				a.abort()
			}
		}
		if b.ended() {
			a.write(f.end(b.last))
			a.flush()
			return
		}
		a.flush()
	}
}

// write sends bytes to the client, giving up when it is gone.
func (a *answerer) write(p []byte) {
	if _, err := a.response.Write(p); err != nil {
		a.abort()
	}
}

func (a *answerer) flush() {
	if err := http.NewResponseController(a.response).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.abort()
	}
}
