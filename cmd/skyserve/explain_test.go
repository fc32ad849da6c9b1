package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/explain"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// newExplainAdmin serves the admin API of a balancer with one request.
func newExplainAdmin(t *testing.T, d record.RequestRecord) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/decisions", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(telemetry.DecisionMemory{Balancer: d.Balancer, Region: d.Region, Recorded: 1, Limit: 4096, Since: &d.At})
	})
	mux.HandleFunc("GET /v1/decisions/{request...}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("request") != d.Request {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(d)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// forwardedPair returns two balancers; one forwarded request a/b to the other.
func forwardedPair(t *testing.T) (us, eu string) {
	t.Helper()
	record := func(id string, region service.Region, kind core.ActionKind, target string) record.RequestRecord {
		d := &core.Decision{Policy: "cost", Reason: policy.ReasonLeastCost, PromptBytes: 640, Considered: []core.ConsideredTarget{
			{ID: target, Peer: kind == core.ActionForward, Available: true, Score: policy.Known(0.25)},
		}}
		return record.RequestRecord{
			Request: "a/b", At: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Balancer: id, Region: region, Model: "llama", Tier: "IW-F",
			Attempts: []record.Attempt{{Kind: kind, Target: target, Reason: d.Reason, Decision: d}}, State: "finished", Status: 200,
		}
	}
	there := record("lb-eu-0", "local/eu", core.ActionDispatch, "eu-0")
	there.From = "lb-us-0"
	return newExplainAdmin(t, record("lb-us-0", "local/us", core.ActionForward, "lb-eu-0")), newExplainAdmin(t, there)
}

// explains runs `skyserve explain` and returns its output.
func explains(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newExplainCmd()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestExplainJoinsTwoBalancers(t *testing.T) {
	us, eu := forwardedPair(t)
	out, err := explains(t, "a/b", "--admin", eu+","+us)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []string{"request a/b", "lb-us-0 (local/us), from a client", "forwarded to peer lb-eu-0", "lb-eu-0 (local/eu), forwarded by lb-us-0", "sent to replica eu-0"} {
		i := strings.Index(out[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing or misplaced in\n%s", want, out)
		}
		at += i
	}
	for line := range strings.SplitSeq(out, "\n") {
		if len(line) > explainWidth {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
}

func TestExplainAsJSON(t *testing.T) {
	us, eu := forwardedPair(t)
	out, err := explains(t, "a/b", "-o", "json", "--admin", us, "--admin", eu)
	var explanation explain.Explanation
	if err != nil || json.Unmarshal([]byte(out), &explanation) != nil || len(explanation.Parts) != 2 || len(explanation.Balancers) != 2 || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExplainOfUnknownRequest(t *testing.T) {
	us, _ := forwardedPair(t)
	for _, format := range []string{"text", "json"} {
		out, err := explains(t, "nope", "-o", format, "--admin", us)
		var ee *exitError
		if !errors.As(err, &ee) || ee.code != exitFailed || !strings.Contains(err.Error(), "lb-us-0 in local/us: 1 recorded since ") {
			t.Errorf("%s: %v", format, err)
		}
		if want := format == "json"; (out != "") != want || want && !strings.Contains(out, `"parts":[]`) {
			t.Errorf("%s: printed %q", format, out)
		}
	}
}
