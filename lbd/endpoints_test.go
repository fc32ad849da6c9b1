package lbd

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Scores, rendered prompts and compressed bodies pass the whole balancer.
func TestEndpointsOfEngines(t *testing.T) {
	n := simulatedNode(t, Options{Version: "1.2.3"})
	web := client(t)
	for path, c := range map[string]struct{ body, want string }{
		"/v1/score":                   {`{"model":"small","text_1":"a","text_2":["b","c"]}`, `"index":1,"object":"score"`},
		"/score":                      {`{"model":"small","queries":"a","documents":"b"}`, `"object":"list"`},
		"/v2/rerank":                  {`{"model":"small","query":"a","documents":["b"]}`, `"relevance_score"`},
		"/rerank":                     {`{"model":"small","query":"a","documents":["b"]}`, `"relevance_score"`},
		"/v1/chat/completions/render": {`{"model":"small","messages":[{"role":"user","content":"hi"}]}`, `{"token_ids":[`},
		"/v1/completions/render":      {`{"model":"small","prompt":"hi"}`, `[{"token_ids":[`},
		"/v1/completions":             {`{"model":"small","prompt":"hi","max_tokens":4}`, `"completion_tokens":4`},
	} {
		var body bytes.Buffer
		z := gzip.NewWriter(&body)
		_, _ = io.WriteString(z, c.body)
		_ = z.Close()
		req, err := http.NewRequest(http.MethodPost, n.public+path, &body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Encoding", "gzip")
		resp, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(got), c.want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
	for path, want := range map[string]string{"/health": "ok\n", "/ping": "ok\n", "/version": `{"version":"1.2.3"}` + "\n"} {
		resp, err := web.Get(n.public + path)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(got) != want {
			t.Errorf("%s returns %q", path, got)
		}
	}
}

// Who asks the public address for a path of the admin API learns where it is.
func TestAdminPathsAtPublicAddress(t *testing.T) {
	n := simulatedNode(t, Options{})
	web := client(t)
	const named = "; this path is served at the balancer's admin address"
	for path, want := range map[string]string{"/metrics": named, "/v1/snapshot": named, "/add_worker": named, "/nothing": ""} {
		resp, err := web.Get(n.public + path)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if message := `"unknown request URL: GET ` + path + want + `"`; resp.StatusCode != http.StatusNotFound || !strings.Contains(string(got), message) {
			t.Errorf("%d %s, want %s", resp.StatusCode, got, message)
		}
	}
}

// A WebSocket to a simulated engine transcribes audio, and is closed when the balancer shuts down.
func TestRealtimeSession(t *testing.T) {
	n := simulatedNode(t, Options{DrainTimeout: time.Millisecond})
	ctx := t.Context()
	conn, _, err := websocket.Dial(ctx, strings.Replace(n.public, "http", "ws", 1)+"/v1/realtime?model=small", &websocket.DialOptions{HTTPClient: client(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	receive := func(want string) {
		t.Helper()
		if _, got, err := conn.Read(ctx); err != nil || string(got) != want {
			t.Errorf("received %s, %v; want %s", got, err, want)
		}
	}
	receive(`{"type":"session.created","model":"llama"}`)
	for _, event := range []string{`{"type":"input_audio_buffer.append","audio":"` + strings.Repeat("A", 8000) + `"}`, `{"type":"input_audio_buffer.commit"}`} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(event)); err != nil {
			t.Fatal(err)
		}
	}
	receive(`{"type":"transcription.delta","text":"Audio of 6000 bytes."}`)
	receive(`{"type":"transcription.done","text":"Audio of 6000 bytes."}`)
	n.stop()
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusServiceRestart {
		t.Errorf("at shutdown the client receives %v", err)
	}
}
