package agent

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"skyserve/internal/testkit"
)

// An engine may respond before it has read the whole request. The proxy then forwards both bodies at
// the same time: it neither waits for the request nor closes the engine's connection.
func TestProxyForwardsEarlyResponses(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "data: %q %v\n\n", body, err)
	}))
	defer engine.Close()
	f, err := (&Agent{log: slog.New(slog.DiscardHandler)}).newProxy(Proxy{To: engine.URL})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(f)
	defer proxy.Close()
	defer engine.CloseClientConnections() // else Close waits for a proxy that waits for the request

	body, send := io.Pipe()
	defer send.Close()
	go func() { _, _ = io.WriteString(send, "first ") }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(len("first second"))
	resp, err := (&http.Client{Timeout: testkit.Timeout}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	const early, rest = "data: 1\n\n", "data: \"first second\" <nil>\n\n"
	got := make([]byte, len(early))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != early {
		t.Fatalf("before the end of the request: %q (%v)", got, err)
	}
	if _, err := io.WriteString(send, "second"); err != nil {
		t.Fatal(err)
	}
	send.Close()
	if got, err = io.ReadAll(resp.Body); err != nil || string(got) != rest {
		t.Errorf("after it: %q (%v), want %q", got, err, rest)
	}
}
