package wire

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// blockedClose is a body whose Close waits.
type blockedClose struct {
	io.Reader
	until <-chan struct{}
}

func (b blockedClose) Close() error {
	<-b.until
	return nil
}

// A second attempt uses the same request, so it begins after the upload of the first one has ended.
func TestRetryWaitsForFirstUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("x", maxInlineBody+1)
		var connections atomic.Int32
		tr := NewTransport(Options{DialContext: piped(func(host net.Conn, in *bufio.Reader) {
			if connections.Add(1) == 1 {
				if _, _, err := take(in); err != nil {
					return
				}
				_, _ = io.WriteString(host, hi)
				_, _ = http.ReadRequest(in)
				return // without a response
			}
			always(hi)(host, in)
		})})
		defer tr.CloseIdleConnections()
		ask(t, tr, request(t, http.MethodGet, "http://engine", ""))

		release, copies := make(chan struct{}), atomic.Int32{}
		req := request(t, http.MethodPost, "http://engine", text)
		req.Header["Idempotency-Key"] = nil
		req.Body = blockedClose{strings.NewReader(text), release}
		req.GetBody = func() (io.ReadCloser, error) {
			copies.Add(1)
			return io.NopCloser(strings.NewReader(text)), nil
		}
		done := make(chan seen)
		go func() { done <- observe(tr, req) }()
		synctest.Wait()
		if copies.Load() != 0 {
			t.Error("the second attempt began during the first upload")
		}
		close(release)
		if got := <-done; got.headErr != nil || got.Body != "hi" || copies.Load() != 1 {
			t.Errorf("got %q, %v after %d copies of the body", got.Body, got.headErr, copies.Load())
		}
	})
}
