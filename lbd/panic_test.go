package lbd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What panics in a handler is told where people look, with the stack, and the
// connection is cut off. An end that a handler asks for is no news.
func TestPanicsOfHandlersAreLogged(t *testing.T) {
	for name, c := range map[string]struct {
		why  any
		told bool
	}{
		"a fault":      {"index out of range", true},
		"a cut":        {http.ErrAbortHandler, false},
		"nothing ends": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var said lines
			b := &balancer{log: said.logger()}
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
			if told := strings.Contains(said.String(), "index out of range") && strings.Contains(said.String(), "panic_test.go"); told != c.told || (!told && said.String() != "") {
				t.Errorf("the log says %q", said.String())
			}
		})
	}
}
