package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A client that closes its half of the connection counts as disconnected. It must not take the
// remaining bytes for a response: nothing for an empty one, a part for the whole.
func TestHalfClosedClientGetsNoPartialResponse(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		begun http.HandlerFunc
		want  string // of what precedes the end
	}{
		"before the answer": {plainBody, func(http.ResponseWriter, *http.Request) {}, ""},
		"before a stream":   {streamBody, func(http.ResponseWriter, *http.Request) {}, ""},
		"in a stream": {streamBody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, chunk("a"))
		}, chunk("a")},
		"in a large answer": {plainBody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.Repeat(" ", 9000))
		}, "    "},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Limits.MaxHeldAnswer = 4 << 10
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
			var heard []byte
			for piece := make([]byte, 4<<10); !strings.Contains(string(heard), c.want); {
				n, err := conn.Read(piece)
				if err != nil {
					t.Fatalf("after %q: %v", heard, err)
				}
				heard = append(heard, piece[:n]...)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(conn) // a reset counts as an end too
			heard = append(heard, rest...)
			if c.want == "" && len(heard) > 0 || strings.HasSuffix(string(heard), "\r\n0\r\n\r\n") {
				t.Errorf("it was answered %q", heard)
			}
			if n := b.settled(); n.Cancelled != 1 || n.Outstanding != 0 {
				t.Errorf("counts %+v", n)
			}
		})
	}
}
