package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Requests whose deadline is shorter than a dial succeed as soon as the first dial has ended.
func TestLateDialServesNextRequest(t *testing.T) {
	const deadline, dialing = time.Second, 1500 * time.Millisecond
	for _, tt := range []struct {
		limit, wantDials, wantServed int
	}{
		{0, 5, 0},
		{1, 2, 3}, // the request that starts before the late dial has ended dials too
		{4, 2, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			var dials atomic.Int32
			served := 0
			tr := NewTransport(Options{LateDials: tt.limit, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials.Add(1)
				select {
				case <-time.After(dialing):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				client, host := net.Pipe()
				go func() {
					defer host.Close()
					in := bufio.NewReader(host)
					for {
						if _, err := http.ReadRequest(in); err != nil {
							return
						}
						_, _ = io.WriteString(host, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				}()
				return client, nil
			}})
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://host:1/", nil)
				res, err := tr.RoundTrip(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
					served++
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				<-ctx.Done()
				cancel()
			}
			if dials := int(dials.Load()); dials != tt.wantDials || served != tt.wantServed {
				t.Errorf("limit %d: %d dials, %d requests served; want %d and %d", tt.limit, dials, served, tt.wantDials, tt.wantServed)
			}
			tr.CloseIdleConnections()
		})
	}
}

// A dial ends with a request that is cancelled, and with the transport's connections.
func TestLateDialEnds(t *testing.T) {
	for _, atDeadline := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var ended time.Duration
			began := time.Now()
			tr := NewTransport(Options{LateDials: 1, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				ended = time.Since(began)
				return nil, ctx.Err()
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if !atDeadline {
				time.AfterFunc(time.Second/2, cancel)
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://host:1/", nil)
			if _, err := tr.RoundTrip(req); err == nil {
				t.Error("a request without a connection succeeded")
			}
			want := time.Second / 2
			if atDeadline {
				want = 2 * time.Second
				time.Sleep(time.Second)
				tr.CloseIdleConnections()
			}
			synctest.Wait()
			cancel()
			if ended != want {
				t.Errorf("at the deadline %t: the dial ended after %s, want %s", atDeadline, ended, want)
			}
		})
	}
}
