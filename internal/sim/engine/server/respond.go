package server

import (
	"container/list"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// maxResponses is the number of stored responses that later ones can continue: more than a day of tests
// needs, and small.
const maxResponses = 4096

// responseBody is the request body of /v1/responses; unknown fields are ignored.
type responseBody struct {
	Model           string          `json:"model"`
	Input           json.RawMessage `json:"input"`
	Instructions    *string         `json:"instructions"`
	Previous        *string         `json:"previous_response_id"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Tools           json.RawMessage `json:"tools"`
	Stream          bool            `json:"stream"`
	Store           *bool           `json:"store"`
	CacheSalt       string          `json:"cache_salt"`
}

// inputItem is an element of an input: a message, a function call, or its output.
type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// response is a response of OpenAI's Responses API.
type response struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	CreatedAt         int64          `json:"created_at"`
	Status            string         `json:"status"`
	Model             string         `json:"model"`
	Previous          *string        `json:"previous_response_id"`
	Error             *struct{}      `json:"error"`
	Incomplete        *incomplete    `json:"incomplete_details"`
	Instructions      *string        `json:"instructions"`
	Output            []outputItem   `json:"output"`
	ParallelToolCalls bool           `json:"parallel_tool_calls"`
	ToolChoice        string         `json:"tool_choice"`
	Tools             []struct{}     `json:"tools"`
	Metadata          struct{}       `json:"metadata"`
	Usage             *responseUsage `json:"usage"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type outputItem struct {
	ID      string       `json:"id"`
	Type    string       `json:"type"`
	Status  string       `json:"status"`
	Role    string       `json:"role"`
	Content []outputText `json:"content"`
}

type outputText struct {
	Type        string     `json:"type"`
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations"`
}

type responseUsage struct {
	InputTokens   int           `json:"input_tokens"`
	InputDetails  promptDetails `json:"input_tokens_details"`
	OutputTokens  int           `json:"output_tokens"`
	OutputDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// stored holds the conversations of stored responses, the latest first.
type stored struct {
	mu     sync.Mutex
	recent list.List // of conversation
	byID   map[string]*list.Element
}

// conversation holds all messages including a response, with the response and its input.
type conversation struct {
	id       string
	messages []message
	document response
	input    json.RawMessage
}

func (s *stored) putConversation(c conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[c.id] = s.recent.PushFront(c)
	if s.recent.Len() > maxResponses {
		delete(s.byID, s.recent.Remove(s.recent.Back()).(conversation).id)
	}
}

func (s *stored) find(id string) (c conversation, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil {
		return c, false
	}
	return e.Value.(conversation), true
}

// dropConversation deletes a response and reports whether it existed.
func (s *stored) dropConversation(id string) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e != nil {
		s.recent.Remove(e)
		delete(s.byID, id)
	}
	return e != nil
}

// serveResponse handles a request to /v1/responses.
func (s *Server) serveResponse(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		errDraining.writeError(w)
		return
	}
	var b responseBody
	if err := s.readBody(w, r, &b); err != nil {
		writeError(w, err)
		return
	}
	q, err := s.readResponse(r, &b)
	if err != nil {
		writeError(w, err)
		return
	}
	if s.faults.countRequest() {
		errFault.writeError(w)
		return
	}
	s.waitGate(r.Context()) // this request may have triggered hang-after
	q.responder = responder{server: s, job: q.job, response: w, request: r, stream: s.driver.submit(q.job.rank, q.job.request, nil)}
	if b.Stream {
		q.respondStream()
	} else {
		q.respondWhole()
	}
}

// responseRequest is a valid request to /v1/responses.
type responseRequest struct {
	responder
	body     *responseBody
	messages []message // before the response
	document response
}

// readResponse parses and validates a request.
func (s *Server) readResponse(r *http.Request, b *responseBody) (*responseRequest, error) {
	model, adapter, err := s.resolve(b.Model)
	if err != nil {
		return nil, err
	}
	rank, err := s.rankOf(r.Header)
	if err != nil {
		return nil, err
	}
	messages, err := s.conversationOf(b)
	if err != nil {
		return nil, err
	}
	chat := body{Messages: messages, Tools: b.Tools, MaxTokens: b.MaxOutputTokens, CacheSalt: b.CacheSalt}
	if b.Instructions != nil { // instructions apply to this response only
		quoted, _ := json.Marshal(*b.Instructions) // a string always marshals
		chat.Messages = append([]message{{Role: "system", Content: quoted}}, messages...)
	}
	p, err := chat.chatPrompt(s.opts.Profile.KVTokens)
	if err != nil {
		return nil, err
	}
	request, err := s.plan(&chat, p, adapter)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("resp_%016x%016x", rand.Uint64(), rand.Uint64())
	q := &responseRequest{body: b, messages: messages, document: response{
		ID: id, Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress", Model: model,
		Previous: b.Previous, Instructions: b.Instructions, Output: []outputItem{}, ParallelToolCalls: true, ToolChoice: "auto", Tools: []struct{}{},
	}}
	q.job = &job{id: id, model: model, chat: true, stream: b.Stream, request: request, rank: rank}
	return q, nil
}

// conversationOf returns the messages of the previous response and of the input.
func (s *Server) conversationOf(b *responseBody) (messages []message, err error) {
	if b.Previous != nil {
		before, known := s.stored.find(*b.Previous)
		if !known {
			return nil, &problem{
				status: http.StatusNotFound, kind: "invalid_request_error", param: "previous_response_id", code: "previous_response_not_found",
				message: fmt.Sprintf("previous_response_id: response %q not found", *b.Previous),
			}
		}
		messages = append(messages, before.messages...)
	}
	switch firstByte(b.Input) {
	case '"':
		return append(messages, message{Role: "user", Content: b.Input}), nil
	case '[':
	case 0:
		return nil, malformed("input", "input: is required, a string or an array of items")
	default:
		return nil, malformed("input", "input: must be a string or an array of items, got "+excerpt(b.Input))
	}
	var items []inputItem
	if err := json.Unmarshal(b.Input, &items); err != nil {
		return nil, explainJSON(err)
	}
	for i, it := range items {
		switch it.Type {
		case "", "message":
			messages = append(messages, message{Role: it.Role, Content: it.Content})
		case "function_call":
			called, _ := json.Marshal([]string{it.Name, it.Arguments}) // strings always marshal
			messages = append(messages, message{Role: "assistant", ToolCalls: called})
		case "function_call_output":
			messages = append(messages, message{Role: "tool", Content: it.Output})
		default:
			return nil, malformed("input", fmt.Sprintf("input[%d].type: must be message, function_call or function_call_output, got %q", i, it.Type))
		}
	}
	return messages, nil
}

// complete finishes the document and stores it, unless store is false.
func (q *responseRequest) complete(text string) {
	d, end := &q.document, q.batch.last
	d.Status = "completed"
	if end.Reason.String() == "length" {
		d.Status, d.Incomplete = "incomplete", &incomplete{"max_output_tokens"}
	}
	d.Output = []outputItem{q.item(d.Status, text)}
	u := usageOf(end)
	d.Usage = &responseUsage{InputTokens: u.PromptTokens, InputDetails: u.PromptTokensDetails, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	if q.body.Store == nil || *q.body.Store {
		quoted, _ := json.Marshal(text) // a string always marshals
		messages := append(q.messages[:len(q.messages):len(q.messages)], message{Role: "assistant", Content: quoted})
		q.server.stored.putConversation(conversation{d.ID, messages, *d, q.body.Input})
	}
}

// item returns the message of a response.
func (q *responseRequest) item(status, text string) outputItem {
	return outputItem{
		ID: "msg_" + q.document.ID[len("resp_"):], Type: "message", Status: status, Role: "assistant",
		Content: []outputText{{Type: "output_text", Text: text, Annotations: []struct{}{}}},
	}
}

// respondWhole sends one document after generation has ended.
func (q *responseRequest) respondWhole() {
	var text strings.Builder
	for sent := 0; ; {
		b := q.nextBatch()
		for _, w := range b.words {
			text.WriteString(w)
		}
		if sent += len(b.words); q.broken(sent) {
			q.abort()
		}
		if b.ended() {
			q.complete(text.String())
			writeJSON(q.response, http.StatusOK, &q.document)
			return
		}
	}
}

// respondStream sends events: the start of each item, a delta per token, and the completed items.
func (q *responseRequest) respondStream() {
	header := q.response.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	sequence := 0
	send := func(kind string, fields map[string]any) {
		fields["type"], fields["sequence_number"] = kind, sequence
		sequence++
		data, _ := json.Marshal(fields) // texts, numbers and documents of them always marshal
		q.writeBytes(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, data))
	}
	place := func(more map[string]any) map[string]any {
		more["item_id"], more["output_index"], more["content_index"] = q.item("", "").ID, 0, 0
		return more
	}
	send("response.created", map[string]any{"response": &q.document})
	item := q.item("in_progress", "")
	item.Content = []outputText{}
	send("response.output_item.added", map[string]any{"output_index": 0, "item": item})
	send("response.content_part.added", place(map[string]any{"part": q.item("", "").Content[0]}))
	q.flush()
	var text strings.Builder
	for sent := 0; ; {
		b := q.nextBatch()
		for _, w := range b.words {
			text.WriteString(w)
			send("response.output_text.delta", place(map[string]any{"delta": w}))
			if sent++; q.broken(sent) {
				q.flush()
				q.abort()
			}
		}
		if b.ended() {
			break
		}
		q.flush()
	}
	q.complete(text.String())
	done := q.document.Output[0]
	send("response.output_text.done", place(map[string]any{"text": text.String()}))
	send("response.content_part.done", place(map[string]any{"part": done.Content[0]}))
	send("response.output_item.done", map[string]any{"output_index": 0, "item": done})
	send("response."+q.document.Status, map[string]any{"response": &q.document})
	q.flush()
}
