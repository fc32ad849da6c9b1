package lbd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// overHTTP2 returns a client that uses only HTTP/2, over one connection at a time. MaxConnsPerHost: a transport shares a
// connection only after it has delivered it to the request that opened it, so that the next request could open a second one.
func overHTTP2(t *testing.T, secure *tls.Config) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: secure, Protocols: new(http.Protocols), MaxConnsPerHost: 1,
		HTTP2: &http.HTTP2Config{StrictMaxConcurrentRequests: true},
	}
	transport.Protocols.SetHTTP2(secure != nil)
	transport.Protocols.SetUnencryptedHTTP2(secure == nil)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testkit.Timeout}
}

// dials counts the connections that a client opens.
func dials(hc *http.Client) *atomic.Int64 {
	var n atomic.Int64
	hc.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return &n
}

// serving starts a replica that serves every generation with h and returns its URL.
func serving(t *testing.T, h http.HandlerFunc) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"llama","object":"model"}]}`)
	})
	mux.HandleFunc("GET /metrics", http.NotFound)
	mux.HandleFunc("POST /", h)
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// paced is an engine that sends one word for each token in a channel, and reports when its client has
// disconnected.
type paced struct {
	word chan string
	gone chan struct{}
}

func (p *paced) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if bytes.Contains(body, []byte("continue_final_message")) { // the balancer's own check of the engine would take a word
		http.Error(w, "unknown parameter", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		select {
		case text := <-p.word:
			if text == "" {
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
				return
			}
			fmt.Fprintf(w, "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			p.gone <- struct{}{}
			return
		}
	}
}

// streamOf requests a stream; its response is not read yet.
func streamOf(ctx context.Context, t *testing.T, hc *http.Client, public string) *http.Response {
	t.Helper()
	body := `{"model":"llama","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, public+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// outstanding returns how many requests a balancer has in flight.
func (n *node) outstanding(t *testing.T) (sum int) {
	t.Helper()
	for _, r := range n.snapshot(t).Regions {
		sum += r.Queued
		for _, rep := range r.Replicas {
			sum += rep.Outstanding
		}
	}
	return sum
}

// quiet waits until a balancer has nothing in flight.
func (n *node) quiet(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "nothing is in flight", func() bool { return n.outstanding(t) == 0 })
}

// With both ways to use HTTP/2, every event arrives before the next is generated. A stream reset by
// its client is cancelled at the engine, while the connection stays open.
func TestHTTP2(t *testing.T) {
	for _, way := range []string{"clear text", "TLS"} {
		t.Run(way, func(t *testing.T) {
			p := &paced{word: make(chan string), gone: make(chan struct{}, 1)}
			cfg := config("lb-us-0", "local/us")
			cfg.Replicas = []service.ReplicaConfig{{ID: "us-0", URL: serving(t, p.serve), Model: "llama"}}
			var secure *tls.Config
			if way == "TLS" {
				cfg.Balancer.TLS, secure = copiedCertificate(t)
			}
			n := start(t, cfg, Options{})
			hc := overHTTP2(t, secure)
			testkit.Eventually(t, "the balancer is ready", func() bool { return status(t, hc, n.public+"/readyz") == http.StatusOK })

			go func() { p.word <- "zero" }()
			resp := streamOf(t.Context(), t, hc, n.public)
			if resp.ProtoMajor != 2 || resp.Header.Get("Connection") != "" {
				t.Fatalf("%s, headers %v", resp.Proto, resp.Header)
			}
			_ = resp.Body.Close()
			<-p.gone
			ctx, leave := context.WithCancel(t.Context())
			var lines *bufio.Reader
			for _, text := range []string{"one", "two", "three"} {
				go func() { p.word <- text }()
				if lines == nil {
					lines = bufio.NewReader(streamOf(ctx, t, hc, n.public).Body)
				}
				line, err := lines.ReadString('\n')
				if err != nil || !strings.Contains(line, text) {
					t.Fatalf("got %q, %v; want %s", line, err, text)
				}
				_, _ = lines.ReadString('\n') // the empty line
			}
			leave()
			<-p.gone
			n.quiet(t)
			if got := status(t, hc, n.public+"/healthz"); got != http.StatusOK {
				t.Errorf("afterwards: %d", got)
			}
		})
	}
}

func TestManyStreamsOverOneConnection(t *testing.T) {
	const streams = 200
	p := &paced{word: make(chan string), gone: make(chan struct{}, streams)}
	cfg := config("lb-us-0", "local/us")
	cfg.Balancer.Push = "blind"
	cfg.Replicas = []service.ReplicaConfig{{ID: "us-0", URL: serving(t, p.serve), Model: "llama"}}
	n := start(t, cfg, Options{})
	hc := overHTTP2(t, nil)
	dialled := dials(hc)
	testkit.Eventually(t, "the balancer is ready", func() bool { return status(t, hc, n.public+"/readyz") == http.StatusOK })
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			resp := streamOf(t.Context(), t, hc, n.public)
			text, err := io.ReadAll(resp.Body)
			if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
	testkit.Eventually(t, "every stream is at the engine", func() bool { return n.outstanding(t) == streams })
	for range streams {
		p.word <- "word"
	}
	for range streams {
		p.word <- ""
	}
	all.Wait()
	n.quiet(t)
	if got := dialled.Load(); got != 1 {
		t.Errorf("%d connections were opened in turn", got)
	}
}

// The limit on streams is in the first frame that the server sends.
func TestStreamsPerConnectionAreLimited(t *testing.T) {
	n := start(t, config("lb-us-0", "local/us"), Options{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.public, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 9) // length (3), type, flags, stream (4): RFC 9113, section 4.1
	if _, err := io.ReadFull(conn, head); err != nil || head[3] != 4 {
		t.Fatalf("the first frame is %v, %v; want settings", head, err)
	}
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(conn, settings); err != nil {
		t.Fatal(err)
	}
	const maxConcurrentStreams = 3
	for ; len(settings) >= 6; settings = settings[6:] {
		if binary.BigEndian.Uint16(settings) == maxConcurrentStreams {
			if got := binary.BigEndian.Uint32(settings[2:]); got != maxStreams {
				t.Errorf("%d streams may be open, want %d", got, maxStreams)
			}
			return
		}
	}
	t.Error("no limit on streams is set")
}
