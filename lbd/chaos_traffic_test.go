package lbd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/engine/server"
)

// chaosRequest is a request with its only correct response.
type chaosRequest struct {
	kind, path, body string
	session          string
	stream, usage    bool
	want             clientResponse
}

// clientResponse is a response as its client assembles it.
type clientResponse struct {
	text, tools, finish string
	prompt, output      int // tokens from the usage; 0 = not reported
	ends                int // [DONE]
	broken              string
}

// piece is a chunk of a stream, a non-streamed response, or an error.
type piece struct {
	Choices []struct {
		Text    string
		Delta   message
		Message message
		Finish  string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	}
	Error *struct{ Message, Code string }
}

type message struct {
	Content string
	Tools   []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
}

// parseEvent adds a piece to a response; it fails for an event that no engine sends.
func (s *clientResponse) parseEvent(data []byte) error {
	if string(data) == "[DONE]" {
		s.ends++
		return nil
	}
	var p piece
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	if p.Error != nil {
		s.broken = p.Error.Code + ": " + p.Error.Message
	}
	for _, c := range p.Choices {
		s.text += c.Text + c.Delta.Content + c.Message.Content
		for _, call := range append(c.Delta.Tools, c.Message.Tools...) {
			s.tools += call.Function.Arguments
		}
		s.finish += c.Finish
	}
	if p.Usage != nil {
		s.prompt, s.output = p.Usage.Prompt, p.Usage.Output
	}
	return nil
}

// chaosRequests returns requests of all kinds. Conversations continue from what a replica generates.
func chaosRequests(t *testing.T, random *rand.Rand) []chaosRequest {
	t.Helper()
	s, err := server.New(server.Options{Model: "llama", Speed: 1e6, Seed: voice})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	oracle := &scriptedEngine{t: t, sim: s.Handler()}
	var all []chaosRequest
	for i := range 10 {
		talk := []turn{{"system", words(random.IntN(3))}}
		for k := range 1 + random.IntN(3) {
			talk = append(talk, turn{"user", fmt.Sprintf("%d: what of the %x?", k, random.Uint32())})
			w := oracle.wish(t, "chat", chatPath, i, map[string]any{"messages": talk, "max_tokens": 8 + random.IntN(56), "stream": random.IntN(4) > 0})
			all = append(all, w)
			talk = append(talk, turn{"assistant", w.want.text})
		}
	}
	tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "look"}}}
	for i := range 3 {
		topic := fmt.Sprintf("%x", random.Uint32())
		one := []turn{{"user", "Tell me of " + topic}}
		large := []turn{{"user", strings.Repeat(words(10+i), 15) + topic}}
		all = append(all,
			oracle.wish(t, "unbounded", chatPath, i, map[string]any{"messages": one, "stream": true, "seed": 1}),
			oracle.wish(t, "large", chatPath, i, map[string]any{"messages": large, "max_tokens": 24, "stream": true}),
			oracle.wish(t, "completion", "/v1/completions", i, map[string]any{"prompt": "The " + topic + " in the valley", "max_tokens": 40, "stream": true}),
			oracle.wish(t, "whole completion", "/v1/completions", i, map[string]any{"prompt": "Every " + topic, "max_tokens": 30}),
			oracle.wish(t, "JSON", chatPath, i, map[string]any{"messages": one, "max_tokens": 48, "stream": true, "response_format": map[string]string{"type": "json_object"}}),
			oracle.wish(t, "tools", chatPath, i, map[string]any{"messages": one, "stream": true, "tool_choice": "required", "tools": tools}),
			oracle.wish(t, "whole tools", chatPath, i, map[string]any{"messages": one, "tool_choice": "required", "tools": tools}),
		)
	}
	return all
}

// voice is the seed of all engines: they generate the same text for the same prompt.
const voice = 5

// scriptedEngine is an engine that calls a tool if one is required, and otherwise behaves like the
// simulated engine.
type scriptedEngine struct {
	t    *testing.T
	sim  http.Handler
	pace time.Duration // between two pieces of a tool call
}

func (e *scriptedEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != chatPath {
		e.sim.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its client has disconnected
	}
	var requested struct {
		Stream     bool
		Messages   []turn
		ToolChoice string          `json:"tool_choice"`
		Format     json.RawMessage `json:"response_format"`
	}
	if err := json.Unmarshal(body, &requested); err != nil {
		e.t.Errorf("an engine got %q: %v", body, err)
		return
	}
	last := requested.Messages[len(requested.Messages)-1]
	if last.Role == "assistant" && (requested.ToolChoice != "" || requested.Format != nil) {
		e.t.Errorf("an engine is asked to continue a response with a form: %s", body)
	}
	if requested.ToolChoice == "" {
		r.Body = io.NopCloser(bytes.NewReader(body))
		e.sim.ServeHTTP(w, r)
		return
	}
	e.call(w, r, requested.Stream, last.Content)
}

// call responds with a tool call whose arguments repeat the request.
func (e *scriptedEngine) call(w http.ResponseWriter, r *http.Request, stream bool, requested string) {
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"look","arguments":%q}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":9,"completion_tokens":5}}`, requested+requested)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	timer := time.NewTicker(max(e.pace, time.Nanosecond))
	defer timer.Stop()
	for _, half := range []string{requested, requested} {
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":%q}}]},"finish_reason":null}]}`+"\n\n", half)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`+"\n\ndata: [DONE]\n\n")
}

// wish builds a request from fields and fetches its expected response.
func (e *scriptedEngine) wish(t *testing.T, kind, path string, session int, fields map[string]any) chaosRequest {
	t.Helper()
	w := chaosRequest{kind: kind, path: path, session: fmt.Sprint(kind, session)}
	w.stream, _ = fields["stream"].(bool)
	w.usage = w.stream && session%2 == 0
	fields["model"] = "llama"
	if w.usage {
		fields["stream_options"] = map[string]bool{"include_usage": true}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	w.body = string(body)
	answer := httptest.NewRecorder()
	e.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	if answer.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", body, answer.Code, answer.Body)
	}
	if err := w.want.read(bufio.NewReader(answer.Body), w.stream, nil); err != nil || w.want.text+w.want.tools == "" {
		t.Fatalf("%s: %+v, %v", body, w.want, err)
	}
	return w
}

// read assembles a response; each is called after each event.
func (s *clientResponse) read(r *bufio.Reader, stream bool, each func()) error {
	if !stream {
		whole, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return s.parseEvent(whole)
	}
	for {
		line, err := r.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case err != nil:
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			if err := s.parseEvent(data); err != nil {
				return err
			}
			if each != nil {
				each()
			}
		}
	}
}

// outcome is the result of a request for its client.
type outcome string

const (
	served    outcome = "served"
	rejected  outcome = "rejected"
	cancelled outcome = "cancelled" // by the client
	broken    outcome = "broken"    // reported in an error event
	orphaned  outcome = "orphaned"  // its balancer was killed during the request
	unreached outcome = "unreached" // no process accepted the connection: no balancer received the request
	lost      outcome = "lost"      // none of these
)

// attempt is a request in flight, and its result.
type attempt struct {
	chaosRequest
	id      string
	fate    outcome
	why     string // of a rejection or a loss
	first   time.Time
	latest  time.Time
	pause   time.Duration // the longest between two events
	reply   clientResponse
	noUsage bool // it was requested and did not arrive
}

// send sends a request to a balancer and checks the response. gone reports whether the balancer was
// killed since the request began; slow readers read slowly.
func (a *attempt) send(ctx context.Context, hc *http.Client, base string, tier string, slow bool, gone func() bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+a.path, strings.NewReader(a.body))
	if err != nil {
		a.fate, a.why = lost, err.Error()
		return
	}
	for name, value := range map[string]string{"X-Request-Id": a.id, "X-Session-Id": a.session, "X-Skyserve-Tier": tier, "Content-Type": "application/json"} {
		req.Header.Set(name, value)
	}
	resp, err := hc.Do(req)
	if err != nil {
		a.cut(ctx, err, gone)
		return
	}
	defer resp.Body.Close()
	a.latest = time.Now()
	body := bufio.NewReader(resp.Body)
	if resp.StatusCode != http.StatusOK {
		a.refused(ctx, resp.StatusCode, body, gone)
		return
	}
	err = a.reply.read(body, a.stream, func() { a.event(ctx, slow) })
	if a.first.IsZero() {
		a.first = time.Now()
	}
	if err != nil {
		a.cut(ctx, err, gone)
		return
	}
	a.judge()
}

// event records the time of an event.
func (a *attempt) event(ctx context.Context, slow bool) {
	now := time.Now()
	if a.first.IsZero() {
		a.first = now
	} else {
		a.pause = max(a.pause, now.Sub(a.latest))
	}
	a.latest = now
	if slow {
		timer := time.NewTimer(2 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// cut classifies an interrupted connection.
func (a *attempt) cut(ctx context.Context, err error, gone func() bool) {
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		a.fate = cancelled
	case errors.As(err, &op) && op.Op == "dial":
		a.fate = unreached
	case gone():
		a.fate = orphaned
	default:
		a.fate, a.why = lost, err.Error()
	}
}

// refused classifies an error response.
func (a *attempt) refused(ctx context.Context, status int, body *bufio.Reader, gone func() bool) {
	err := a.reply.read(body, false, nil)
	code, _, _ := strings.Cut(a.reply.broken, ":")
	switch {
	case err != nil && (ctx.Err() != nil || gone()):
		a.cut(ctx, err, gone)
	case err != nil || code == "":
		a.fate, a.why = lost, fmt.Sprintf("status %d without a reason: %v", status, err)
	default:
		a.fate, a.why = rejected, code
	}
}

// judge compares a complete response with the expected one.
func (a *attempt) judge() {
	got, want := a.reply, a.want
	whole := got.text == want.text && got.tools == want.tools && got.finish == want.finish
	counted := !a.usage && a.stream || want.output == 0 || got.prompt == want.prompt && got.output == want.output
	a.noUsage = !counted && got.output == 0 && got.prompt == 0
	switch {
	case a.stream && got.broken != "" && got.ends == 0 && strings.HasPrefix(want.text, got.text) && strings.HasPrefix(want.tools, got.tools):
		a.fate = broken
	case got.broken == "" && got.ends == want.ends && whole && (counted || a.noUsage && a.stream):
		a.fate = served
	default:
		a.fate, a.why = lost, fmt.Sprintf("heard %+v\nwant %+v", got, want)
	}
}
