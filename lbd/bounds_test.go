package lbd

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/testkit"
)

// overPipe runs a test of the server behind a balancer's listeners, with a fake clock.
func overPipe(t *testing.T, h http.HandlerFunc, test func(t *testing.T, conn net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{log: slog.New(slog.DiscardHandler)}
		srv := b.server(h)
		l := testkit.NewPipes()
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(l) })
		near, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		test(t, near)
		_ = near.Close()
		_ = srv.Close()
		serving.Wait()
	})
}

func fine(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }

const getRequest = "GET / HTTP/1.1\r\nHost: b\r\n\r\n"

// answered reads one response.
func answered(t *testing.T, r *bufio.Reader) int {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func TestTooLargeHeader(t *testing.T) {
	overPipe(t, fine, func(t *testing.T, conn net.Conn) {
		go func() { // ends when the server stops reading and closes
			_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: b\r\nX-Long: %s\r\n\r\n", strings.Repeat("x", 2*maxHeaderBytes))
		}()
		if status := answered(t, bufio.NewReader(conn)); status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("status %d", status)
		}
	})
}

// A peer's connection also serves requests of clients, whose deadlines remain set.
func TestDeadlineOfEarlierRequest(t *testing.T) {
	overPipe(t, func(w http.ResponseWriter, r *http.Request) {
		setWriteDeadline(w)
		fine(w, r)
	}, func(t *testing.T, conn net.Conn) {
		r := bufio.NewReader(conn)
		for range 3 {
			if _, err := io.WriteString(conn, getRequest); err != nil {
				t.Fatal(err)
			}
			if status := answered(t, r); status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			time.Sleep(2 * writeTimeout)
		}
	})
}
