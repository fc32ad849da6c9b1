package lbd

import (
	"bufio"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// publicServer is the public listener of a balancer without replicas.
func publicServer(t *testing.T) (*http.Server, *proxy.Runtime) {
	t.Helper()
	p, err := policy.New("cost")
	if err != nil {
		t.Fatal(err)
	}
	rt, err := proxy.New(proxy.Options{Self: service.BalancerConfig{ID: "lb", Region: "local/us"}, Core: core.DefaultConfig(p)})
	if err != nil {
		t.Fatal(err)
	}
	s := (&balancer{log: slog.New(slog.DiscardHandler)}).server(rt.Handler())
	enableHTTP2(s, proxy.DefaultLimits().StreamWindow)
	return s, rt
}

// A slow client is disconnected, even if it sends a little all the time.
func TestSlowClients(t *testing.T) {
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	for name, c := range map[string]struct {
		first, every string // text sent immediately, and then every second
		after        time.Duration
		status       int // 0: no response
	}{
		"says nothing":                               {"", "", readHeaderTimeout, 0},
		"never ends its header":                      {head, "", readHeaderTimeout, 0},
		"sends its header bit by bit":                {head, "X-A: 1\r\n", readHeaderTimeout, 0},
		"never sends its body":                       {head + "Content-Length: 9\r\n\r\n", "", proxy.DefaultLimits().BodyTimeout, http.StatusRequestTimeout},
		"sends its body bit by bit":                  {head + "Content-Length: 99999\r\n\r\n", "x", proxy.DefaultLimits().BodyTimeout, http.StatusRequestTimeout},
		"sends its chunks bit by bit":                {head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", proxy.DefaultLimits().BodyTimeout, http.StatusRequestTimeout},
		"never sends the body of a GET":              {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", "", proxy.DefaultLimits().BodyTimeout, http.StatusOK},
		"sends the body of a GET bit by bit":         {"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", "x", proxy.DefaultLimits().BodyTimeout, http.StatusOK},
		"never sends the body of a rejected request": {"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", "", proxy.DefaultLimits().BodyTimeout, http.StatusNotFound},
		"asks once and then is idle":                 {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "", idleTimeout, http.StatusOK},
		"begins HTTP/2 and no more":                  {"PRI * HTTP/2.0\r\n\r\n", "", readHeaderTimeout, 0},
		"is idle over HTTP/2":                        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "", pingAfter + pingTimeout, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, rt := publicServer(t)
				listener := testkit.NewPipes()
				var running sync.WaitGroup
				running.Go(func() { _ = server.Serve(listener) })
				client, err := listener.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				running.Go(func() {
					_, err := io.WriteString(client, c.first)
					for err == nil && c.every != "" {
						time.Sleep(time.Second)
						_, err = io.WriteString(client, c.every)
					}
				})
				answer, _ := io.ReadAll(client) // until the server closes it
				if took := time.Since(began); took < c.after || took > c.after+5*time.Second {
					t.Errorf("the connection was closed after %s, want %s", took, c.after)
				}
				if resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(answer))), nil); c.status != 0 && (err != nil || resp.StatusCode != c.status) {
					t.Errorf("got %.200q, want %d", answer, c.status)
				}
				if got := rt.View().Counts; got.Arrived != 0 {
					t.Errorf("counts %+v", got)
				}
				client.Close()
				_ = server.Close()
				running.Wait()
			})
		})
	}
}
