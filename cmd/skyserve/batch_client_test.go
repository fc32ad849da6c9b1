package main

import (
	"errors"
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

// A wrong parameter of a batch is a usage error that names its flag, and nothing is sent.
func TestBatchParametersAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(file, []byte(`{"custom_id":"a","method":"POST","url":"/v1/foo","body":{}}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("sent %s %s", r.Method, r.URL) }))
	defer srv.Close()
	const url = "/v1/chat/completions"
	for name, tt := range map[string]struct {
		url, window string
		metadata    map[string]string
		want        string
	}{
		"window too short":    {url, "1s", nil, `--window: must be a duration from 1m to 720h such as 24h, got "1s"`},
		"window without unit": {url, "24", nil, `--window: must be a duration from 1m to 720h such as 24h, got "24"`},
		"url":                 {"/v1/foo", "24h", nil, `--url: must be one of /v1/chat/completions, `},
		"url of the file":     {"", "24h", nil, file + `:1: url: must be one of /v1/chat/completions, `},
		"metadata":            {url, "24h", map[string]string{"k": strings.Repeat("v", 600)}, `--metadata: keys must have at most `},
	} {
		o := batchOptions{target: srv.URL, url: tt.url, window: tt.window, metadata: tt.metadata}
		err := o.submit(t.Context(), file, io.Discard, io.Discard)
		var coded *exitError
		if !errors.As(err, &coded) || coded.code != exitUsage || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want exit %d and %q", name, err, exitUsage, tt.want)
		}
	}
}

// An unknown key of a path exits with 1 after a batch was submitted or cancelled: exit code 2 would claim that nothing
// was changed.
func TestUnknownKeyAfterBatchActionFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, `{"id":"batch_1","status":"completed"}`)
	}))
	defer srv.Close()
	o := batchOptions{target: srv.URL, url: "/v1/completions", window: "24h", output: outputFlags{output: outputPath + "{.stats}"}}
	waits := o
	waits.wait = true
	for name, err := range map[string]error{
		"submit":        o.submit(t.Context(), file, io.Discard, io.Discard),
		"submit --wait": waits.submit(t.Context(), file, io.Discard, io.Discard),
		"cancel":        o.cancel(t.Context(), "batch_1", io.Discard),
	} {
		var coded *exitError
		if !errors.As(err, &coded) || coded.code != exitFailed || coded.hint != "the action itself is done; did you mean 'status'?" {
			t.Errorf("%s: got %+v", name, err)
		}
	}
}

// A batch whose input file was deleted has no file of errors: its cause is in the batch itself.
func TestFailedBatchWithoutErrorFileNamesShow(t *testing.T) {
	batch := `{"id":"batch_1","status":"failed","errors":{"data":[{"message":"the input file was deleted"}]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, batch+"}") }))
	defer srv.Close()
	o := batchOptions{target: srv.URL, wait: true}
	failures := o
	failures.errors = true
	checkHints := func(want string) {
		t.Helper()
		for name, err := range map[string]error{
			"download": o.download(t.Context(), "batch_1", io.Discard, io.Discard),
			"show":     o.show(t.Context(), "batch_1", io.Discard, io.Discard),
		} {
			var coded *exitError
			if !errors.As(err, &coded) || coded.hint != want {
				t.Errorf("%s: got %+v, want the hint %s", name, err, want)
			}
		}
	}
	checkHints("'skyserve batch show batch_1' shows why it failed")
	var coded *exitError
	if err := failures.download(t.Context(), "batch_1", io.Discard, io.Discard); !errors.As(err, &coded) || coded.hint != "'skyserve batch show batch_1' shows why it failed" {
		t.Errorf("download --errors: got %+v", err)
	}
	batch += `,"error_file_id":"file_1"`
	checkHints("'skyserve batch download batch_1 --errors' writes the requests that failed")
}
