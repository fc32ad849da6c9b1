package deploy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The reason of a balancer that is not ready is its own, not only the status.
func TestProbeProblemHasTheReason(t *testing.T) {
	for body, want := range map[string]string{
		"no replica is ready\n":       "returned 503 Service Unavailable: no replica is ready",
		"":                            "returned 503 Service Unavailable",
		"a\x1b[31m\nb\n":              "returned 503 Service Unavailable: a",
		strings.Repeat("x", 1<<20):    "returned 503 Service Unavailable: " + strings.Repeat("x", 100),
		"no replica is ready\nat all": "returned 503 Service Unavailable: no replica is ready",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(body))
		}))
		got := probeProblem(t.Context(), s.URL+"/readyz")
		s.Close()
		if !strings.HasPrefix(got, "GET "+s.URL+"/readyz "+want) || len(got) > 400 || strings.ContainsAny(got, "\n\x1b") {
			t.Errorf("%.20q: got %q, want %q", body, got, want)
		}
	}
}
