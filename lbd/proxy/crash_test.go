package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// Environment variables of TestPanickingPolicyProcess in a separate process.
const (
	envCrash  = "SKYSERVE_TEST_CRASH"  // the place where the policy panics
	envRecord = "SKYSERVE_TEST_RECORD" // the file of the record
)

// panicking is a policy that panics when it places the request with the id deadly.
type panicking struct{ policy.RoundRobin }

func (p *panicking) Choose(f *policy.Facts) policy.Choice {
	if f.ID == "deadly" {
		panic("no such candidate")
	}
	return p.RoundRobin.Choose(f)
}

// TestPanickingPolicyProcess is the process of TestPanicInDecisionEndsProcess: a balancer whose policy
// panics, while goroutines wait for its lock. It never returns; without its environment variables it
// does nothing.
func TestPanickingPolicyProcess(t *testing.T) {
	where := os.Getenv(envCrash)
	if where == "" {
		return
	}
	record, err := os.Create(os.Getenv(envRecord))
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	o.Core.Policy, o.Record = &panicking{}, record
	b := start(t, o)
	lookup := func() {
		resp, err := http.Post(b.url+chatPath, "application/json", strings.NewReader(plainBody))
		if err == nil {
			resp.Body.Close()
		}
	}
	deadly := func() {
		req, _ := http.NewRequest(http.MethodPost, b.url+chatPath, strings.NewReader(plainBody))
		req.Header.Set(headerRequestID, "deadly")
		_, _ = http.DefaultClient.Do(req)
	}
	switch where {
	case "a client's request":
		b.attach("us-0", engine(t, whole(plainReply)))
		lookup()
		go deadly()
	case "a probe's report":
		if _, err := b.AddReplica(service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:1", Model: testModel}); err != nil {
			t.Fatal(err)
		}
		go deadly()
		b.until(func() bool { return b.View().Counts.Queued == 1 })
		go b.report("us-0")
	}
	for { // these calls need the lock
		lookup()
		b.View()
		b.ModelLoads()
	}
}

// A panic in a decision ends the process with exit code 1, the stack on stderr and, when recording,
// the event. No goroutine waits for the lock forever.
func TestPanicInDecisionEndsProcess(t *testing.T) {
	for where, kind := range map[string]core.EventKind{"a client's request": core.EventArrived, "a probe's report": core.EventReplicaReport} {
		t.Run(where, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "record")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPanickingPolicyProcess$")
			cmd.Env = append(os.Environ(), envCrash+"="+where, envRecord+"="+file)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if ctx.Err() != nil || !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("it ended with %v (%v), want exit code 1\n%s", err, ctx.Err(), &stderr)
			}
			for _, want := range []string{"panic: no such candidate", "event " + string(kind), "(*panicking).Choose", "(*Balancer).Step"} {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr lacks %q:\n%s", want, &stderr)
				}
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var last record.Line
			for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
				last = record.Line{}
				if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
					t.Fatalf("%q: %v", lines.Text(), err)
				}
			}
			if last.Event == nil || last.Event.Kind != kind || last.Panic != "no such candidate" || len(last.Actions) != 0 {
				t.Errorf("the record ends in %+v", last)
			}
		})
	}
}

// frailWriter is a response writer that panics.
type frailWriter struct{ http.ResponseWriter }

func (frailWriter) WriteHeader(int) { panic("on purpose") }

// A panic of a handler outside of a decision ends only its request. The request is counted.
func TestPanicInHandlerEndsItsRequest(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attach("us-0", engine(t, speak("fine")))
	for _, body := range []string{plainBody, streamBody, `{"model":"nobody's"}`} {
		func() {
			defer func() {
				if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
					t.Errorf("%s: the connection ends with %v, want it cut off", body, v)
				}
			}()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(body))
			b.Handler().ServeHTTP(frailWriter{httptest.NewRecorder()}, req)
		}()
	}
	b.free()
	expect(t, b.post(chatPath, plainBody), http.StatusOK, "")
}
