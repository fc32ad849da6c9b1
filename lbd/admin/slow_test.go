package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"
)

// dial serves h to one client that has sent text.
func dial(t *testing.T, h http.Handler, text string) net.Conn {
	p := testkit.NewPipes()
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(p); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	ours, err := p.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ours.Close()
		_ = srv.Close()
		serving.Wait()
	})
	if _, err := io.WriteString(ours, text); err != nil {
		t.Fatal(err)
	}
	return ours
}

const local = "Host: localhost\r\n"

// watched reports when a subscription ends.
type watched struct {
	*balancer
	ended chan struct{}
}

func (w *watched) Subscribe() (<-chan json.RawMessage, func()) {
	return w.events, func() { close(w.ended) }
}

func TestWatcherThatDoesNotReadIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{&balancer{events: make(chan json.RawMessage, 100)}, make(chan struct{})}
		a := api(w.balancer, func(o *Options) { o.Decisions = w })
		conn := dial(t, a, "GET /v1/events HTTP/1.1\r\n"+local+"\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		time.Sleep(eventsTick - time.Second) // three of these are longer than the write timeout
		for range cap(w.events) {
			w.events <- json.RawMessage(`{"text":"` + strings.Repeat("x", 1000) + `"}`)
		}
		began := time.Now()
		<-w.ended
		if took := time.Since(began); took > writeTimeout {
			t.Errorf("it is let go after %s", took)
		}
	})
}

func TestQuietEventStreamStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dial(t, api(&balancer{events: make(chan json.RawMessage)}, nil), "GET /v1/events HTTP/1.1\r\n"+local+"\r\n")
		pulses := 0
		for lines := bufio.NewScanner(conn); pulses < 10 && lines.Scan(); {
			if lines.Text() == ": keep-alive" {
				pulses++
			}
		}
		if pulses != 10 {
			t.Errorf("it ended after %d pulses", pulses)
		}
	})
}

func TestUnreadResponseTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		a := api(&balancer{}, nil)
		dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			a.ServeHTTP(w, r)
		}), "GET /debug/none"+strings.Repeat("x", 10_000)+" HTTP/1.1\r\n"+local+"\r\n")
		began := time.Now()
		<-ended
		if took := time.Since(began); took > writeTimeout {
			t.Errorf("it is given up after %s", took)
		}
	})
}

// A declared body that is not sent blocks nothing, whether it is required, ignored, or from an
// unauthorized client.
func TestBodyTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"wanted":      {"POST /workers HTTP/1.1\r\n" + local + "Authorization: Bearer s3cret\r\nContent-Length: 9\r\n\r\n{", http.StatusRequestTimeout},
		"not wanted":  {"GET /workers HTTP/1.1\r\n" + local + "Authorization: Bearer s3cret\r\nContent-Length: 9\r\n\r\n", http.StatusOK},
		"not let in":  {"POST /workers HTTP/1.1\r\n" + local + "Content-Length: 9\r\n\r\n", http.StatusUnauthorized},
		"in chunks":   {"POST /reload HTTP/1.1\r\n" + local + "Authorization: Bearer s3cret\r\nTransfer-Encoding: chunked\r\n\r\n", http.StatusNotFound},
		"for nothing": {"POST /none HTTP/1.1\r\n" + local + "Content-Length: 9\r\n\r\n", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dial(t, api(&balancer{}, func(o *Options) { o.Token = "s3cret" }), c.request)
				began := time.Now()
				in := bufio.NewReader(conn)
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if res.StatusCode != c.status {
					t.Errorf("status %d, want %d", res.StatusCode, c.status)
				}
				if _, err := io.Copy(io.Discard, in); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 2*bodyTimeout {
					t.Errorf("the connection ends after %s", took)
				}
			})
		})
	}
}

func TestWatchersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := api(&balancer{events: make(chan json.RawMessage)}, nil)
		all, end := context.WithCancel(t.Context())
		defer end()
		watch := func() (w *httptest.ResponseRecorder, leave func()) {
			ctx, cancel := context.WithCancel(all)
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events", nil)
			r.Host = "localhost"
			w = httptest.NewRecorder()
			go a.ServeHTTP(w, r)
			synctest.Wait()
			return w, cancel
		}
		var leave func()
		for range maxWatchers {
			var w *httptest.ResponseRecorder
			if w, leave = watch(); w.Code != http.StatusOK {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
		}
		if w, _ := watch(); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "already receive events") {
			t.Errorf("one more: status %d: %s", w.Code, w.Body)
		}
		leave()
		synctest.Wait()
		if w, _ := watch(); w.Code != http.StatusOK {
			t.Errorf("once another has left: status %d: %s", w.Code, w.Body)
		}
	})
}
