package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Every response of the public API has an X-Request-ID: the client's, or a new one. Paths without
// inference are no exception.
func TestEveryPathReturnsARequestID(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	paths := []string{chatPath, "/no/such/path", "/v1/models/" + testModel, "/v1/models/unknown"}
	for _, own := range routes {
		paths = append(paths, own.path)
	}
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
			id := func(given string) string {
				req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp := b.do(req, "X-Request-ID: "+given)
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if got := resp.Header.Values("X-Request-ID"); len(got) != 1 {
					t.Errorf("%s %s: X-Request-ID %q, want one value", method, path, got)
				}
				return resp.Header.Get("X-Request-ID")
			}
			if got := id("mine-1"); got != "mine-1" {
				t.Errorf("%s %s: X-Request-ID %q, want the client's", method, path, got)
			}
			if a, b := id(""), id(""); !strings.HasPrefix(a, "req-") || a == b {
				t.Errorf("%s %s: X-Request-ID %q and %q, want two new ones", method, path, a, b)
			}
		}
	}
}
