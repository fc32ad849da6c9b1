package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a server in a bubble, with a client.
type bench struct {
	t      *testing.T
	server *Server
	client *http.Client
	stop   context.CancelFunc // ends Run
	ended  chan error         // what Run returned
}

// bubble runs a test against a server in fake time, and stops the server at the end.
func bubble(t *testing.T, opts Options, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		listener := testkit.NewPipes()
		ctx, cancel := context.WithCancel(context.Background())
		transport := &http.Transport{DialContext: listener.Dial}
		b := &bench{t: t, server: s, client: &http.Client{Transport: transport}, stop: cancel, ended: make(chan error, 1)}
		go func() { b.ended <- s.Run(ctx, listener) }()
		test(t, b)
		transport.CloseIdleConnections()
		cancel()
		synctest.Wait()
		time.Sleep(time.Minute) // simulated time: every pending request has ended
	})
}

// send posts a body and returns the response.
func (b *bench) send(path, body string) *http.Response {
	b.t.Helper()
	resp, err := b.client.Post("http://engine"+path, "application/json", strings.NewReader(body))
	if err != nil {
		b.t.Fatalf("POST %s: %v", path, err)
	}
	return resp
}

// read empties and closes a response.
func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading a response: %v", err)
	}
	return string(data)
}

// post sends a body and returns status and text of the response.
func (b *bench) post(path, body string) (int, string) {
	b.t.Helper()
	resp := b.send(path, body)
	return resp.StatusCode, read(b.t, resp)
}

func (b *bench) get(path string) (int, string) {
	b.t.Helper()
	resp, err := b.client.Get("http://engine" + path)
	if err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, read(b.t, resp)
}

// reply is a complete response of either route.
type reply struct {
	Model   string
	Choices []struct {
		Text         string
		Message      struct{ Role, Content string }
		FinishReason string `json:"finish_reason"`
	}
	Usage usage
}

func (r reply) text() string { return r.Choices[0].Text + r.Choices[0].Message.Content }

// complete sends a body that must succeed.
func (b *bench) complete(path, body string) reply {
	b.t.Helper()
	status, text := b.post(path, body)
	var r reply
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != http.StatusOK || len(r.Choices) != 1 {
		b.t.Fatalf("POST %s: %d %s (%v)", path, status, text, err)
	}
	return r
}

// chunk is an event of a stream.
type chunk struct {
	at      time.Duration // since the request
	data    string
	Object  string
	Choices []struct {
		Text         string
		Delta        struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *usage
}

// stream reads the events of a stream to its end.
func (b *bench) stream(path, body string) (chunks []chunk, err error) {
	b.t.Helper()
	start := time.Now()
	resp := b.send(path, body)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.t.Fatalf("POST %s: %d", path, resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		c := chunk{at: time.Since(start), data: data}
		if data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				b.t.Fatalf("event %q: %v", data, err)
			}
		}
		chunks = append(chunks, c)
	}
	return chunks, lines.Err()
}

// chat returns a body with one user message.
func chat(content string, more string) string {
	text, _ := json.Marshal(content)
	return `{"messages":[{"role":"user","content":` + string(text) + `}]` + more + `}`
}

// errorOf returns the message of an error response.
func errorOf(t *testing.T, text string) errorDetail {
	t.Helper()
	var e errorBody
	d := json.NewDecoder(bytes.NewBufferString(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("%q is not an error in OpenAI's format: %v", text, err)
	}
	return e.Error
}
