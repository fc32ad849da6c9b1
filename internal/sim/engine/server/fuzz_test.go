package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzBody sends random bytes to every route with a body. The response is always a document, errors are
// in OpenAI's format, and the status is never 500.
func FuzzBody(f *testing.F) {
	f.Add(chat("hello", `,"max_tokens":3,"seed":1`))
	f.Add(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}],"stream":true}`)
	f.Add(`{"messages":[{"role":"assistant","content":"I am"}],"continue_final_message":true}`)
	f.Add(`{"prompt":[1,2,3],"min_tokens":2}`)
	f.Add(`{"input":["a","b"],"dimensions":3,"encoding_format":"base64"}`)
	f.Add(`{"slow":2,"error-rate":"0.5"}`)
	f.Fuzz(func(t *testing.T, data string) {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // what would be generated is abandoned at once
		for _, path := range []string{chatPath, textPath, "/tokenize", "/v1/embeddings"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", path, strings.NewReader(data)).WithContext(ctx)
			if serve(s, w, r); w.Code >= 400 {
				errorOf(t, w.Body.String())
			}
			if w.Code >= 500 {
				t.Errorf("POST %s %q: %d", path, data, w.Code)
			}
		}
		_, _ = ParseFaults([]string{data})
	})
}

// serve lets a handler abort a connection without failing the test.
func serve(s *Server, w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	s.Handler().ServeHTTP(w, r)
}
