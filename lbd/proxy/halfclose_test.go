package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A client that closes its half of the connection counts as disconnected. It must not accept the
// remaining bytes as a response: no bytes as an empty one, or a part as the whole.
func TestHalfClosedClientGetsNoPartialResponse(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		begun http.HandlerFunc
		want  string // part of the text before the end
	}{
		"before the response": {plainBody, func(http.ResponseWriter, *http.Request) {}, ""},
		"before a stream":     {streamBody, func(http.ResponseWriter, *http.Request) {}, ""},
		"within a stream": {streamBody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, chunk("a"))
		}, chunk("a")},
		"within a large response": {plainBody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.Repeat(" ", 9000))
		}, "    "},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Limits.MaxBufferedResponse = 4 << 10
			b := start(t, o)
			requested := make(chan struct{})
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				c.begun(w, req)
				_ = http.NewResponseController(w).Flush()
				close(requested)
				<-req.Context().Done()
			}))
			conn, err := net.Dial("tcp", b.srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(c.body), c.body)
			<-requested
			var received []byte
			for piece := make([]byte, 4<<10); !strings.Contains(string(received), c.want); {
				n, err := conn.Read(piece)
				if err != nil {
					t.Fatalf("after %q: %v", received, err)
				}
				received = append(received, piece[:n]...)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(conn) // a reset is an end too
			received = append(received, rest...)
			if c.want == "" && len(received) > 0 || strings.HasSuffix(string(received), "\r\n0\r\n\r\n") {
				t.Errorf("got a response: %q", received)
			}
			if n := b.settled(); n.Cancelled != 1 || n.Outstanding != 0 {
				t.Errorf("counts %+v", n)
			}
		})
	}
}
