package server

import (
	"crypto/subtle"
	"net/http"
)

// publicPaths need no API key. Faults are for tests.
var publicPaths = map[string]bool{"/health": true, "/healthz": true, "/ping": true, "/metrics": true, "/fault": true}

// keyed rejects requests without the API key, if there is one.
func (s *Server) keyed(next http.Handler) http.Handler {
	if s.opts.APIKey == "" {
		return next
	}
	want := []byte("Bearer " + s.opts.APIKey)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !publicPaths[r.URL.Path] && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			(&problem{status: http.StatusUnauthorized, kind: "authentication_error", code: "invalid_api_key", message: "the API key is missing or wrong"}).writeError(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}
