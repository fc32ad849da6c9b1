package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// eventServer is the admin API of a balancer with events.
type eventServer struct {
	mu     sync.Mutex
	status int // 0 = 200
	report telemetry.EventReport
	query  string            // of the last request
	old    []telemetry.Event // that a limit omits
}

func (s *eventServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *eventServer) serve(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.query = r.URL.RawQuery
		if s.status != 0 {
			w.WriteHeader(s.status)
		}
		report := s.report
		if !r.URL.Query().Has("limit") {
			report.Events = append(slices.Clone(s.old), report.Events...)
		}
		_ = json.NewEncoder(w).Encode(report)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

var (
	eventNoon  = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	someEvents = []telemetry.Event{
		{ID: "1", At: eventNoon, Actor: "controller", Kind: telemetry.EventDeath, Region: "local/us", Object: "us-0", Message: "us-0 ended unexpectedly", Reason: "process exited (pid 7)"},
		{ID: "2", At: eventNoon.Add(time.Minute), Actor: "autoscaler", Kind: telemetry.EventLaunch, Region: "local/us", Object: "us-3", Message: "launched us-3", Reason: "KV memory 80 % used", Plan: &eventNoon},
		{ID: "3", At: eventNoon.Add(time.Hour), Actor: "operator:ann", Kind: "teleport", Message: "moved\x1b[2J everything"},
	}
)

func TestEventsTable(t *testing.T) {
	s := &eventServer{report: telemetry.EventReport{Complete: true, Events: someEvents}}
	var out, errOut bytes.Buffer
	o := &eventsOptions{admins: []string{s.serve(t)}, limit: 50, list: outputFlags{output: "text"}, since: "2026-11-24T12:00:00Z", kinds: []string{"death", "drain"}, region: "us", zone: time.UTC}
	if err := runEvents(t.Context(), o, &out, &errOut); err != nil {
		t.Fatal(err)
	}
	want := `TIME                 ACTOR         KIND      REGION    OBJECT  MESSAGE                  REASON
2026-11-24 12:00:00  controller    death     local/us  us-0    us-0 ended unexpectedly  process exited (pid 7)
2026-11-24 12:01:00  autoscaler    launch    local/us  us-3    launched us-3            KV memory 80 % used (plan of 2026-11-24 12:00:00)
2026-11-24 13:00:00  operator:ann  teleport  -         -       moved[2J everything      -
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if s.query != "kind=death&kind=drain&limit=50&region=us&since=2026-11-24T12%3A00%3A00Z" {
		t.Errorf("asked %s", s.query)
	}
	if errOut.Len() != 0 {
		t.Errorf("stderr: %s", errOut.String())
	}
}

func TestEventsJSON(t *testing.T) {
	s := &eventServer{report: telemetry.EventReport{Complete: true, Events: someEvents}}
	var out, errOut bytes.Buffer
	if err := runEvents(t.Context(), &eventsOptions{admins: []string{s.serve(t)}, limit: 50, list: outputFlags{output: "json"}}, &out, &errOut); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || lines[0] != `{"id":"1","at":"2026-11-24T12:00:00Z","actor":"controller","kind":"death","region":"local/us","object":"us-0","message":"us-0 ended unexpectedly","reason":"process exited (pid 7)"}` {
		t.Errorf("got %s", out.String())
	}
}

// While the store is unavailable, the events in memory are shown, and stderr says so. A balancer that
// does not respond is skipped.
func TestEventsWithoutAStore(t *testing.T) {
	away := &eventServer{report: telemetry.EventReport{Problem: "store unavailable: no connection", Events: someEvents[:1]}}
	broken := &eventServer{status: http.StatusInternalServerError}
	more := &eventServer{report: telemetry.EventReport{Problem: "store unavailable: no connection", Events: someEvents[:2]}}
	var out, errOut bytes.Buffer
	o := &eventsOptions{admins: []string{away.serve(t), broken.serve(t), more.serve(t)}, limit: 50, list: outputFlags{output: "json"}}
	if err := runEvents(t.Context(), o, &out, &errOut); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d events: %s", n, out.String())
	}
	if got := errOut.String(); !strings.Contains(got, "incomplete: showing only the events in a balancer's memory: store unavailable: no connection; retry in a few seconds") {
		t.Errorf("stderr: %s", got)
	}
	none := &eventsOptions{admins: []string{broken.serve(t)}, limit: 50, list: outputFlags{output: "text"}}
	if err := runEvents(t.Context(), none, &out, &errOut); err == nil || !strings.Contains(err.Error(), "fetching the events: ") {
		t.Errorf("got %v", err)
	}
	var refused *exitError
	closed := &eventsOptions{admins: []string{"http://127.0.0.1:1"}, limit: 50, list: outputFlags{output: "text"}}
	if err := runEvents(t.Context(), closed, &out, &errOut); !errors.As(err, &refused) || refused.hint != hintAdmin {
		t.Errorf("nothing listens at --admin: got %#v", err)
	}
	// A balancer that answers says itself what to do.
	for status, want := range map[int]string{http.StatusInternalServerError: "'skyserve status', on the machine that deployed the service, shows whether it is running", http.StatusNotFound: ""} {
		var e *exitError
		o := &eventsOptions{admins: []string{(&eventServer{status: status}).serve(t)}, limit: 50, list: outputFlags{output: "text"}}
		if err := runEvents(t.Context(), o, &out, &errOut); !errors.As(err, &e) || e.hint != want {
			t.Errorf("status %d: got %#v", status, err)
		}
	}
}

func TestEventsFlags(t *testing.T) {
	now := eventNoon
	kinds := "--kind: must be one of " + strings.Join(eventKinds(), ", ")
	for _, c := range []struct {
		o    eventsOptions
		want string // the error
	}{
		{eventsOptions{list: outputFlags{output: "text"}}, "--limit: must be from 1 to 10000, got 0"},
		{eventsOptions{list: outputFlags{output: "text"}, limit: 10_001}, "--limit: must be from 1 to 10000, got 10001"},
		{eventsOptions{list: outputFlags{output: "text"}, limit: 1, kinds: []string{""}}, kinds + `, got ""`},
		{eventsOptions{list: outputFlags{output: "text"}, limit: 1, kinds: []string{"death", "deth"}}, kinds + `, got "deth"`},
		{eventsOptions{list: outputFlags{output: "text"}, limit: 1, since: "yesterday"}, `--since: must be a duration such as 2h or 7d, or a time such as 2026-11-24T12:00:00Z, got "yesterday"`},
		{eventsOptions{list: outputFlags{output: "text"}, limit: 1, since: "-2h"}, `--since: must be a duration such as 2h or 7d, or a time such as 2026-11-24T12:00:00Z, got "-2h"`},
	} {
		_, err := c.o.query(now)
		var coded *exitError
		if !errors.As(err, &coded) || coded.code != exitUsage || err.Error() != c.want {
			t.Errorf("%+v: got %v, want %s", c.o, err, c.want)
		}
	}
	for since, want := range map[string]time.Time{"2h": now.Add(-2 * time.Hour), "7d": now.AddDate(0, 0, -7), "0s": now, "2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} {
		if got, err := sinceTime(since, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %s, %v; want %s", since, got, err, want)
		}
	}
}

// syncBuffer is a buffer that is written and read concurrently.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// --watch prints each new event once, none that --limit omitted, continues after failures, and ends with ctx.
func TestEventsWatch(t *testing.T) {
	s := &eventServer{report: telemetry.EventReport{Complete: true, Events: someEvents[:1]}, old: []telemetry.Event{{ID: "0", Kind: telemetry.EventLaunch}}}
	var out, errOut syncBuffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	o := &eventsOptions{admins: []string{s.serve(t)}, limit: 50, list: outputFlags{output: "json"}, watch: true, poll: time.Millisecond}
	go func() { done <- runEvents(ctx, o, &out, &errOut) }()
	testkit.Eventually(t, "the first event", func() bool { return strings.Count(out.String(), "\n") == 1 })
	s.set(func() { s.status = http.StatusServiceUnavailable })
	testkit.Eventually(t, "the failure is printed", func() bool { return strings.Contains(errOut.String(), "; retrying\n") })
	s.set(func() { s.status, s.report.Events = 0, someEvents[:2] })
	testkit.Eventually(t, "the second event", func() bool { return strings.Count(out.String(), "\n") == 2 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := out.String(); strings.Count(got, `"id":"1"`) != 1 || strings.Contains(got, `"id":"0"`) || strings.Count(errOut.String(), "retrying") != 1 {
		t.Errorf("got %s and %s", got, errOut.String())
	}
}

// An event of the time since the watch began is read within a minute after it is stored, however late that is. The other
// reads are short. An event from long before the watch is not new.
func TestWatchReadsEventsThatAreStoredLate(t *testing.T) {
	w := newEventWatch(telemetry.EventQuery{Limit: 50, Region: "us"}, eventNoon)
	late := telemetry.Event{At: eventNoon.Add(time.Minute), Region: "local/us"}
	old := telemetry.Event{At: eventNoon.Add(-watchOverlap - time.Second), Region: "local/us"}
	stored, found, long := eventNoon.Add(3*time.Hour), time.Time{}, 0
	for now := eventNoon; now.Before(eventNoon.Add(4 * time.Hour)); now = now.Add(eventsPoll) {
		q := w.query(now)
		if q.Limit != 0 || q.Region != "us" || q.Matches(old) {
			t.Fatalf("at %s: the query is %+v", now, q)
		}
		if q.Since.Before(now.Add(-watchOverlap)) {
			long++
		}
		if found.IsZero() && !now.Before(stored) && q.Matches(late) {
			found = now
		}
	}
	if d := found.Sub(stored); d < 0 || d > time.Minute {
		t.Errorf("the event was stored at %s and read at %s", stored, found)
	}
	if long > 240 {
		t.Errorf("%d reads of more than %s in four hours", long, watchOverlap)
	}
	if q := newEventWatch(telemetry.EventQuery{}, eventNoon).query(eventNoon.Add(10 * 24 * time.Hour)); !q.Since.Equal(eventNoon.Add(9 * 24 * time.Hour)) {
		t.Errorf("after ten days the query begins at %s", q.Since)
	}
}
