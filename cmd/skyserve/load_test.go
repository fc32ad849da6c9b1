package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/sim/load"
	"skyserve/internal/sim/workload"
)

// chatServer responds to every chat with two tokens, or with the status that reject
// returns.
func chatServer(t *testing.T, reject func(n int64) int) *httptest.Server {
	t.Helper()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"llama"}]}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"model":"llama"`) {
			http.Error(w, `{"error":{"message":"no such model"}}`, http.StatusNotFound)
			return
		}
		if status := reject(requests.Add(1) - 1); status != 0 {
			http.Error(w, `{"error":{"message":"rejected"}}`, status)
			return
		}
		_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":" a"}}]}`+"\n\n"+
			`data: {"choices":[{"delta":{"content":" b"}}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\n"+
			"data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	return server
}

func accept(int64) int { return 0 }

// runCommand runs the command line and returns its output and exit code.
func runCommand(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	code = execute(ctx, args, &out, &errOut)
	return out.String(), errOut.String(), code
}

// traceFile writes a trace of n simultaneous rows.
func traceFile(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.csv")
	text := "t_s,input_tokens,output_tokens\n" + strings.Repeat("0,10,2\n", n)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadReplaysAFile(t *testing.T) {
	us, eu := chatServer(t, accept), chatServer(t, accept)
	stdout, stderr, code := runCommand(context.Background(), "load", "--workload", traceFile(t, 30),
		"--target", fmt.Sprintf("us=%s,eu=%s", us.URL, eu.URL), "--weights", "us=2,eu=1", "-o", "json")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	var r struct {
		Requests, OK int
		Hits         float64 `json:"prefix_hit_rate"`
		Skipped      *int    `json:"rows_skipped"`
		TTFT         *struct{ P50 float64 }
		ByRegion     map[string]struct{ OK int } `json:"by_region"`
		ByStatus     map[string]int              `json:"by_status"`
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if r.Requests != 30 || r.OK != 30 || r.Hits != 0.4 || r.Skipped == nil || r.ByStatus["200"] != 30 ||
		r.ByRegion["us"].OK <= r.ByRegion["eu"].OK || r.ByRegion["eu"].OK == 0 {
		t.Errorf("report %s", stdout)
	}
}

func TestLoadRunsClientsAndPrintsATable(t *testing.T) {
	server := chatServer(t, accept)
	stdout, stderr, code := runCommand(context.Background(), "load", "--workload", "arena", "--target", "us="+server.URL,
		"--clients", "2", "--duration", "200ms", "--model", "llama")
	if code != exitOK || stderr != "" || strings.Contains(stdout, "\x1b") {
		t.Fatalf("exit code %d, stderr %q, stdout %q", code, stderr, stdout)
	}
	for _, want := range []string{"requests ", " 0 failed", "prefix hits 40.0%", "TTFT", "\nus  "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
}

// The help describes every generated workload, and the hint about an unknown one lists them.
func TestLoadNamesEveryWorkload(t *testing.T) {
	_, err := (&loadOptions{workload: "complete"}).prepare(nil)
	var unknown *exitError
	if !errors.As(err, &unknown) {
		t.Fatalf("got %v", err)
	}
	for _, kind := range workload.Kinds() {
		if !strings.Contains(newLoadCmd().Long, "\n  "+string(kind)+" ") {
			t.Errorf("the help does not describe %s", kind)
		}
		if !strings.Contains(unknown.hint, string(kind)) {
			t.Errorf("no %s in the hint %q", kind, unknown.hint)
		}
	}
}

func TestLoadExitCodes(t *testing.T) {
	t.Setenv("SOME_KEY", "sk-1")
	for _, c := range []struct {
		name   string
		reject func(n int64) int
		args   []string
		code   int
		stderr string
	}{
		{"some failed", func(n int64) int { return []int{500, 0}[n%2] }, nil, exitOK, ""},
		{"too many failed", func(n int64) int { return []int{500, 0}[n%2] }, []string{"--max-failed", "4"}, exitFailed, "error: 5 requests failed, --max-failed is 4: status 500: rejected\n"},
		{"as many failed as may", func(n int64) int { return []int{500, 0}[n%2] }, []string{"--max-failed", "5"}, exitOK, ""},
		{"rejected is not failed", func(n int64) int { return []int{429, 0}[n%2] }, []string{"--max-failed", "0"}, exitOK, ""},
		{"all rejected", func(int64) int { return 429 }, nil, exitFailed, "error: none of 10 requests succeeded: status 429: rejected\n"},
		{"unknown model", accept, []string{"--model", "gpt"}, exitFailed, "error: none of 10 requests succeeded: status 404: no such model\n"},
		{"key", accept, []string{"--api-key", "env:SOME_KEY", "--tier", "niw", "--quiet"}, exitOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := chatServer(t, c.reject)
			args := append([]string{"load", "--workload", traceFile(t, 10), "--target", "us=" + server.URL}, c.args...)
			stdout, stderr, code := runCommand(context.Background(), args...)
			if code != c.code || stderr != c.stderr || !strings.HasPrefix(stdout, "requests ") {
				t.Errorf("exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
			}
		})
	}
}

// A service with API keys names the flag for the key.
func TestLoadWithoutResponsesSaysWhy(t *testing.T) {
	err := (&loadOptions{maxFailed: -1}).resultError(&load.Report{ClientFigures: load.ClientFigures{Requests: 1, Cancelled: 1}})
	var coded *exitError
	if !errors.As(err, &coded) || coded.Error() != "none of 1 request succeeded: 1 cancelled when the load ended, before a response" || !strings.Contains(coded.hint, "skyserve status") {
		t.Errorf("%v", err)
	}
}

func TestLoadWithoutKeyNamesTheFlag(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":{"message":"missing or invalid API key"}}`, http.StatusUnauthorized)
	}))
	defer server.Close()
	_, stderr, code := runCommand(t.Context(), "load", "--target", "us="+server.URL, "--clients", "1")
	if code != exitFailed || !strings.Contains(stderr, "/v1/models returned 401: missing or invalid API key\nhint: pass the API key or identity token with --api-key env:NAME or file:PATH\n") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestInterruptedLoadPrintsItsReport(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := chatServer(t, func(n int64) int {
		if n == 50 {
			cancel() // as ctrl-c does
		}
		return 0
	})
	start := time.Now()
	stdout, stderr, code := runCommand(ctx, "load", "--target", "us="+server.URL, "--clients", "2", "--duration", "10h", "-o", "json")
	if code != exitInterrupted || stderr != "error: interrupted\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	var r struct {
		OK          int
		Interrupted bool
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || !r.Interrupted || r.OK < 40 {
		t.Errorf("after %s: %v, report %s", time.Since(start), err, stdout)
	}
}

func TestExecuteFailsOnBrokenOutput(t *testing.T) {
	server := chatServer(t, accept)
	root := newRoot()
	root.SetArgs([]string{"load", "--workload", traceFile(t, 1), "--target", "us=" + server.URL})
	root.SetOut(brokenPipe{})
	if err := root.Execute(); !errors.Is(err, errPipe) {
		t.Errorf("error %v, want the writer's", err)
	}
}

var errPipe = errors.New("broken pipe")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }
