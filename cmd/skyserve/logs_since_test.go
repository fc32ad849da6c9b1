package main

import (
	"slices"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The times of skyserve's, Python's and vLLM's lines are read.
func TestLineTime(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	now := time.Date(2027, 1, 1, 0, 10, 0, 0, zone)
	for line, want := range map[string]string{
		`time=2026-11-26T12:00:00.123Z level=INFO msg=x`:                  "2026-11-26T12:00:00Z",
		`{"time":"2026-11-26T12:00:00+02:00","level":"INFO"}`:             "2026-11-26T10:00:00Z",
		`2026-11-26 12:00:00,123 INFO x`:                                  "2026-11-26T11:00:00Z",
		`[2026-11-26 12:00:00] Prefill batch`:                             "2026-11-26T11:00:00Z",
		`INFO 12-31 23:59:00 [loggers.py:123] Engine 000`:                 "2026-12-31T22:59:00Z",
		`(APIServer pid=1) INFO 01-01 00:05:00 [api_server.py:1] started`: "2026-12-31T23:05:00Z",
		`Traceback (most recent call last):`:                              "",
		`  File "/usr/lib/python3/x.py", line 2026-11-26 12:00:00`:        "",
		`time=2026-13-99T12:00:00Z level=INFO`:                            "",
	} {
		at, known := lineTime(line, now)
		if known != (want != "") || known && at.UTC().Truncate(time.Second).Format(time.RFC3339) != want {
			t.Errorf("%s: got %s, %v, want %q", line, at.UTC(), known, want)
		}
	}
}

// Lines from a time on are kept, with lines that have no time of their own; a log without times is kept whole.
func TestLogSince(t *testing.T) {
	since := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	before, at, rest := "time=2026-11-26T11:59:59Z msg=a", "time=2026-11-26T12:00:00Z msg=b", "  goroutine 1"
	for _, c := range []struct{ lines, want []string }{
		{[]string{before, rest, at, rest, before}, []string{at, rest, before}},
		{[]string{before, rest}, nil},
		{[]string{rest, rest}, []string{rest, rest}},
		{nil, nil},
	} {
		if got := logSince(c.lines, since, time.UTC); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q", c.lines, got)
		}
	}
	if got := logSince([]string{before}, time.Time{}, time.UTC); len(got) != 1 {
		t.Errorf("without a time: %q", got)
	}
}

// Times without a zone are those of the machine that wrote the log: VMs write UTC, wherever the operator is.
func TestLogSinceReadsTimesOfTheMachine(t *testing.T) {
	since := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	lines := []string{"2026-11-26 11:59:59,000 INFO a", "2026-11-26 12:00:01,000 INFO b"}
	for region, want := range map[service.Region]*time.Location{"aws/us-east-1": time.UTC, "gcp/us-central1": time.UTC, "local/us": time.Local} {
		if got := logZone(provision.Object{ID: "us-0", Region: region}); got != want {
			t.Errorf("%s: zone %s, want %s", region, got, want)
		}
	}
	if got := logSince(lines, since, time.UTC); !slices.Equal(got, lines[1:]) {
		t.Errorf("in UTC: %q", got)
	}
	if got := logSince(lines, since, time.FixedZone("CET", 3600)); len(got) != 0 {
		t.Errorf("in CET: %q", got)
	}
}
