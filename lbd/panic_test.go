package lbd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A panic in a handler is logged as an error, with the stack, and the connection is closed.
// http.ErrAbortHandler is not logged.
func TestPanicsOfHandlersAreLogged(t *testing.T) {
	for name, c := range map[string]struct {
		why    any
		logged bool
	}{
		"panic":    {"index out of range", true},
		"abort":    {http.ErrAbortHandler, false},
		"no panic": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out lines
			b := &balancer{log: out.logger()}
			h := b.reportPanics(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				if c.why != nil {
					panic(c.why)
				}
			}))
			var cut any
			func() {
				defer func() { cut = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", nil))
			}()
			if want := c.why != nil; (cut == http.ErrAbortHandler) != want { //nolint:errorlint // a panic's value is compared as net/http does
				t.Errorf("the connection ends with %v", cut)
			}
			if logged := strings.Contains(out.String(), "index out of range") && strings.Contains(out.String(), "panic_test.go"); logged != c.logged || (!logged && out.String() != "") {
				t.Errorf("the log has %q", out.String())
			}
		})
	}
}
