package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A request that a balancer asks to repeat is repeated, if a repetition cannot create anything twice.
func TestBatchRequestsAreRepeated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(file, []byte("the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	upload := func(c *batchClient) error {
		_, err := c.upload(t.Context(), file, func(int64) {})
		return err
	}
	create := func(c *batchClient) error {
		_, err := c.callBatch(t.Context(), http.MethodPost, "/v1/batches", map[string]string{})
		return err
	}
	for name, tt := range map[string]struct {
		call       func(*batchClient) error
		failures   int // responses with 503 before one with 200
		retryAfter string
		requests   int
		fails      bool
	}{
		"upload":                   {upload, 1, "0", 2, false},
		"upload, always refused":   {upload, 9, "0", 3, true},
		"upload, without a time":   {upload, 1, "", 1, true},
		"upload, in a minute":      {upload, 1, "60", 1, true},
		"list":                     {func(c *batchClient) error { _, err := c.batches(t.Context(), 1); return err }, 2, "0", 3, false},
		"create, which may exist":  {create, 1, "0", 1, true},
		"upload, accepted at once": {upload, 0, "0", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				text, err := io.ReadAll(r.Body)
				if strings.HasPrefix(name, "upload") && (err != nil || !strings.Contains(string(text), "the file")) {
					t.Errorf("request %d: %q, %v", requests, text, err)
				}
				if requests <= tt.failures {
					w.Header().Set("Retry-After", tt.retryAfter)
					http.Error(w, `{"error":{"message":"the store does not respond","code":"store_unavailable"}}`, http.StatusServiceUnavailable)
					return
				}
				fmt.Fprint(w, "{}")
			}))
			defer srv.Close()
			err := tt.call(&batchClient{bases: []string{srv.URL}})
			if requests != tt.requests || (err != nil) != tt.fails {
				t.Errorf("%d requests, %v; want %d, failed: %t", requests, err, tt.requests, tt.fails)
			}
		})
	}
}
