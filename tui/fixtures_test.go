package tui

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/explain"
	"skyserve/lbd/policy"
)

var update = flag.Bool("update", false, "write the golden frames anew")

// noon is the time of every test.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// wave returns n values that oscillate around a mean.
func wave(n int, mean, swing float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = mean + swing*math.Sin(float64(i)/2)
	}
	return v
}

// crowd is a service of many replicas in several regions.
func crowd(regions, replicas int) *telemetry.Snapshot {
	s := &telemetry.Snapshot{At: noon, Service: "chat"}
	for i := range regions {
		var rs []telemetry.ReplicaSnapshot
		for k := range replicas {
			rs = append(rs, replica(fmt.Sprintf("r%d-%d", i, k), []string{"L4", "H100"}[k%2], float64((i*31+k*17)%100)/100))
		}
		r := region(fmt.Sprintf("aws/region-%d", i), rs...)
		r.Queued = i % 10 * 9 / 10
		s.Regions = append(s.Regions, r)
	}
	return s
}

// hostile is a service whose names contain control sequences.
func hostile() *telemetry.Snapshot {
	s := normal()
	s.Service = "\x1b[2J\x1b]0;owned\x07界界界"
	for i := range s.Regions {
		r := &s.Regions[i]
		r.Name = service.Region(fmt.Sprintf("雲/\u202eevil-%d\n\x00", i))
		for k := range r.Replicas {
			r.Replicas[k].ID = fmt.Sprintf("複製品-%d\x1b[31m\xff", k)
			r.Replicas[k].Model = "👩‍👩‍👧‍👦/模型e\u0301\u200d🏳️‍🌈"
			r.Replicas[k].Reason = "line\r\none\ttab\u2028sep"
		}
	}
	return s
}

// deployedFrom is a service.yaml with the regions of a snapshot.
func deployedFrom(s *telemetry.Snapshot) *service.Spec {
	spec := &service.Spec{Name: s.Service, Models: []service.Model{{Name: llama}}}
	for _, r := range s.Regions {
		spec.Regions = append(spec.Regions, service.RegionSpec{Name: r.Name})
	}
	return spec
}

// script is a fetcher that returns what the test sets.
type script struct {
	snapshot *telemetry.Snapshot
	err      error
	calls    int
}

func (s *script) Fetch(context.Context) (*telemetry.Snapshot, string, error) {
	s.calls++
	if s.err != nil {
		return nil, "", s.err
	}
	copied := *s.snapshot
	return &copied, "http://127.0.0.1:8101", nil
}

func (s *script) String() string { return "http://127.0.0.1:8101" }

var errRefused = errors.New("http://127.0.0.1:8101: connection refused")

// checkFrame fails if a frame exceeds its size or contains control characters other than
// colour codes.
func checkFrame(t *testing.T, frame string, w, h int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if h > 0 && len(lines) > h {
		t.Errorf("%dx%d: %d lines", w, h, len(lines))
	}
	for i, l := range lines {
		if n := max(ansi.StringWidth(l), ansi.StringWidthWc(l)); w > 0 && n > w {
			t.Errorf("%dx%d: line %d is %d wide: %q", w, h, i, n, l)
		}
		for _, r := range ansi.Strip(l) {
			if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' || r == '\u200d' {
				t.Errorf("%dx%d: line %d holds %U: %q", w, h, i, r, l)
			}
		}
	}
}

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("reading the golden frame (write it with -update): %v", err)
	}
	if got+"\n" != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", file, got, want)
	}
}

// deskOperator returns the results that a test sets, and records the actions that it
// receives.
type deskOperator struct {
	err    error
	spec   *service.Spec // that was deployed from this machine
	orders []Action
}

func (o *deskOperator) Requests(context.Context, int) ([]RequestRow, error) {
	row := func(id, state, target, reason string, at time.Duration, queued float64) RequestRow {
		r := telemetry.RequestSummary{
			Request: id, At: noon.Add(-at), Balancer: "lb-us-east-1-0", Region: "aws/us-east-1", Model: llama, Tier: "IW-F", State: state,
			Target: target, Policy: "cost", Reason: reason, Tries: 1, MatchBytes: 1536, PromptBytes: 2048, QueuedMillis: queued,
		}
		return RequestRow{r, explain.Why(r)}
	}
	done := row("req-2", "finished", "us-1", policy.ReasonLeastCost, 3*time.Second, 0.4)
	done.Status, done.TTFTMillis, done.E2EMillis, done.PromptTokens, done.CachedTokens, done.OutputTokens = 200, ptr(182.0), ptr(2410.0), ptr(512), ptr(384), ptr(64)
	otherCloud := row("req-3", "sent", "lb-europe-west4-0", policy.ReasonForward, 2*time.Second, 1240)
	otherCloud.Forwarded, otherCloud.Tenant = true, "acme"
	refused := row("req-1", "rejected", "", core.RejectWaitExceeded, 9*time.Second, 60000)
	refused.Status, refused.Tier = 503, "NIW"
	waits := row("req-4", "queued", "us-0", "", time.Second, 820)
	return []RequestRow{waits, otherCloud, done, refused}, o.err
}

func (o *deskOperator) Explain(_ context.Context, request string, _ int) (string, error) {
	return "all about " + request + "\nPolicy cost chose us-1: lowest cost in seconds", o.err
}

func (o *deskOperator) Load(context.Context) ([]LoadSeries, error) {
	return loadHistory(), o.err
}

func (o *deskOperator) Spec(context.Context) (string, error) {
	return "name: chat\nmodels:\n- name: llama\n", o.err
}

func (o *deskOperator) Deployed(context.Context) (*service.Spec, error) { return o.spec, o.err }

func (o *deskOperator) Logs(_ context.Context, id string, n int) ([]string, error) {
	lines := make([]string, min(n, 100))
	for i := range lines {
		lines[i] = fmt.Sprintf("%s says line %d", id, i)
	}
	return lines, o.err
}

func (o *deskOperator) Shell(_ context.Context, id string) (*exec.Cmd, error) {
	return exec.Command("true", id), o.err
}

func (o *deskOperator) Perform(_ context.Context, order Action) (string, error) {
	o.orders = append(o.orders, order)
	return "done", o.err
}
