package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// source is a balancer in memory.
type source struct {
	name   string
	record *record.RequestRecord // nil = none
	memory telemetry.DecisionMemory
	broken error
	hangs  bool
}

func (s *source) Base() string { return "http://" + s.name }

func (s *source) Decision(ctx context.Context, id string) (json.RawMessage, error) {
	switch {
	case s.hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case s.broken != nil:
		return nil, s.broken
	case s.record == nil || s.record.Request != id:
		return nil, fmt.Errorf("GET: %w", telemetry.ErrNotFound)
	}
	return json.Marshal(s.record)
}

func (s *source) Decisions(context.Context) (telemetry.DecisionMemory, error) {
	return s.memory, s.broken
}

var arrived = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// considered contains the candidates of the policy cost at the origin.
func considered() []core.ConsideredTarget {
	return []core.ConsideredTarget{
		{ID: "us-0", Outstanding: 24, Pending: policy.Known(3), KV: policy.Known(0.97), MatchBytes: 1024, HeldRequests: 2, Score: policy.Known(4.25), Age: 80 * time.Millisecond},
		{ID: "us-1", Available: true, Outstanding: 30, KV: policy.Known(0.5), Age: 12 * time.Second},
		{ID: "lb-asia-0", Peer: true, Available: true, Outstanding: 3, Queued: 1, Score: policy.Known(0.9), Age: 60 * time.Millisecond},
		{ID: "lb-eu-0", Peer: true, Available: true, Outstanding: 5, MatchBytes: 1536, Score: policy.Known(0.625), Age: 70 * time.Millisecond},
	}
}

// origin and remote are the two parts of a forwarded request: a failed attempt, a wait and a
// forward; and the service at the peer.
func origin() *record.RequestRecord {
	d := &core.Decision{Policy: "cost", Reason: policy.ReasonLeastCost, PromptBytes: 2048, Considered: considered()[1:2]}
	f := &core.Decision{Policy: "cost", Reason: policy.ReasonForward, MatchBytes: 1536, PromptBytes: 2048, Waited: 220 * time.Millisecond, Attempt: 1, Considered: considered()}
	return &record.RequestRecord{
		Request: "r1", At: arrived, Balancer: "lb-us-0", Region: "local/us", Model: "llama", Tier: "IW-F", Tenant: "key-00ff",
		PromptBytes: 2100, PromptEstimate: 525, Kind: core.ActionForward, Target: "lb-eu-0", Reason: f.Reason, Decision: f,
		Attempts: []record.Attempt{
			{AtMillis: 0.1, Kind: core.ActionDispatch, Target: "us-1", Reason: d.Reason, Decision: d, Failure: "us-1 answered 500", EndedMillis: ptr(40.0)},
			{AtMillis: 220, Kind: core.ActionForward, Target: "lb-eu-0", Reason: f.Reason, Decision: f},
		},
		State: "finished", Status: 200, TTFTMillis: ptr(410.0), E2EMillis: ptr(1820.0),
		PromptTokens: ptr(500), CachedTokens: ptr(128), OutputTokens: ptr(64),
	}
}

func remote() *record.RequestRecord {
	d := &core.Decision{Policy: "skylb", Reason: policy.ReasonPrefixMatch, MatchBytes: 1536, PromptBytes: 2048, Considered: []core.ConsideredTarget{
		{ID: "eu-0", Available: true, Outstanding: 4, Pending: policy.Known(0), KV: policy.Known(0.4), MatchBytes: 1536, Age: 33 * time.Millisecond},
		{ID: "eu-1", Available: true, Outstanding: 2, Pending: policy.Known(0), Age: 35 * time.Millisecond},
	}}
	return &record.RequestRecord{
		Request: "r1", At: arrived.Add(-time.Hour), Balancer: "lb-eu-0", Region: "local/eu", Model: "llama", Tier: "IW-F", From: "lb-us-0", Hop: core.HopRemote,
		PromptBytes: 2100, PromptEstimate: 525, Kind: core.ActionDispatch, Target: "eu-0",
		Attempts: []record.Attempt{{AtMillis: 0.2, Kind: core.ActionDispatch, Target: "eu-0", Reason: d.Reason, Decision: d}},
		State:    "finished", Status: 200, E2EMillis: ptr(1500.0), PromptTokens: ptr(500), CachedTokens: ptr(128), OutputTokens: ptr(64),
	}
}

// gather queries balancers about r1.
func gather(t *testing.T, sources ...*source) *Explanation {
	t.Helper()
	var all []Source
	for _, s := range sources {
		all = append(all, s)
	}
	return Gather(t.Context(), "chat", "r1", all)
}

func text(t *testing.T, s *Explanation, width int) string {
	t.Helper()
	var out bytes.Buffer
	if err := s.WriteText(&out, width, time.UTC); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The clocks of two balancers are not compared: the remote part is second although its time is an
// hour earlier.
func TestForwardedRequestIsJoined(t *testing.T) {
	us, eu, asia := &source{name: "us", record: origin()}, &source{name: "eu", record: remote()}, &source{name: "asia"}
	for _, order := range [][]*source{{us, eu, asia}, {eu, asia, us}} {
		s := gather(t, order...)
		if len(s.Parts) != 2 || s.Parts[0].Balancer != "lb-us-0" || s.Parts[1].Balancer != "lb-eu-0" {
			t.Fatalf("parts %+v, want the origin's and the peer's", s.Parts)
		}
		compareGolden(t, "forwarded-80.txt", text(t, s, 80))
		compareGolden(t, "forwarded-60.txt", text(t, s, 60))
	}
}

// compareGolden compares text with a file of testdata; UPDATE=1 rewrites it.
func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// A client that uses an id twice has two stories; a part whose origin has no record of it is
// separate.
func TestSameIDUsedTwiceAndLostOrigin(t *testing.T) {
	later := origin()
	later.Balancer, later.At, later.Attempts = "lb-asia-0", arrived.Add(time.Second), later.Attempts[:1]
	later.Attempts[0].Failure = ""
	page := text(t, gather(t, &source{name: "asia", record: later}, &source{name: "us", record: origin()}, &source{name: "eu", record: remote()}), 80)
	first, second, found := strings.Cut(page, "Another request with the same id:")
	if !found || !strings.Contains(first, "lb-eu-0 (local/eu), forwarded by lb-us-0") || !strings.Contains(second, "lb-asia-0 (local/us), from a client") {
		t.Errorf("got\n%s", page)
	}
	page = text(t, gather(t, &source{name: "eu", record: remote()}), 80)
	if !strings.Contains(page, "lb-eu-0 (local/eu), forwarded by lb-us-0") || !strings.Contains(page, "request r1 of chat") {
		t.Errorf("got\n%s", page)
	}
	page = text(t, gather(t, &source{name: "us", record: origin()}), 80)
	if !strings.Contains(page, "The peer has no record of it.") {
		t.Errorf("a part that is missing goes unsaid:\n%s", page)
	}
}

func TestUnsuccessfulRequests(t *testing.T) {
	base := func(change func(*record.RequestRecord)) *record.RequestRecord {
		d := origin()
		d.Attempts, d.Decision, d.PromptTokens, d.CachedTokens, d.OutputTokens, d.TTFTMillis = nil, nil, nil, nil, nil, nil
		change(d)
		return d
	}
	for _, c := range []struct {
		name   string
		record *record.RequestRecord
		want   []string
	}{
		{"waits", base(func(d *record.RequestRecord) { d.State, d.Status, d.E2EMillis = "queued", 0, nil }), []string{"still queued", "Still in progress."}},
		{"kept", base(func(d *record.RequestRecord) { d.State, d.Status, d.E2EMillis, d.HeldFor = "queued", 0, nil, "us-7" }), []string{"still queued, for replica us-7"}},
		{"cold", base(func(d *record.RequestRecord) {
			d.State, d.Status, d.E2EMillis, d.Reason = "queued", 0, nil, core.QueuedForStart
		}), []string{"still queued: the model had no replica, waiting for one to start"}},
		{"was cold", base(func(d *record.RequestRecord) {
			d.Attempts = origin().Attempts[1:]
			d.Attempts[0].Cold = true
		}), []string{"Queued for 220 ms: the model had no replica, waiting for one to start"}},
		{"shared prefill", base(func(d *record.RequestRecord) {
			d.State, d.Status, d.E2EMillis, d.Reason = "queued", 0, nil, core.QueuedForPrefill
		}), []string{"still queued: its replica computed the beginning of its prompt"}},
		{"had shared prefill", base(func(d *record.RequestRecord) {
			d.Attempts = origin().Attempts[1:]
			d.Attempts[0].SharedPrefill = true
		}), []string{"Queued for 220 ms: its replica computed the beginning of its prompt for"}},
		{"was kept", base(func(d *record.RequestRecord) {
			d.Attempts = origin().Attempts[1:]
			d.Attempts[0].HeldFor = "us-0"
		}), []string{"Queued for 220 ms: us-0, though full, was expected to be faster than"}},
		{"waits again", base(func(d *record.RequestRecord) {
			d.State, d.Status, d.E2EMillis, d.Attempts = "sent", 0, nil, origin().Attempts[:1]
		}), []string{"Failed after 40 ms: us-1 answered 500.", "still queued"}},
		{"rejected", base(func(d *record.RequestRecord) {
			d.State, d.Status = "rejected", 503
			d.Attempts = []record.Attempt{{AtMillis: 60000, Kind: core.ActionReject, Reason: core.RejectWaitExceeded}}
		}), []string{"at 60.00 s rejected: no capacity within the maximum queue time", "Rejected: status 503"}},
		{"kills engines", base(func(d *record.RequestRecord) {
			d.State, d.Status = "rejected", 400
			d.Attempts = []record.Attempt{{Kind: core.ActionReject, Reason: core.RejectKills, Engines: []string{"us-0", "us-3"}}}
		}), []string{"rejected: engines died while serving it", "Engines that died: us-0, us-3.", "Rejected: status 400"}},
		{"bounced", base(func(d *record.RequestRecord) {
			d.State, d.Status, d.From = "bounced", 503, "lb-eu-0"
			d.Attempts = []record.Attempt{{AtMillis: 1, Kind: core.ActionBounce, Target: "lb-eu-0"}}
		}), []string{"returned to lb-eu-0"}},
		{"escape codes", base(func(d *record.RequestRecord) { d.Model = "a\x1b[2Jb" }), []string{`a\x1b[2Jb`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := text(t, gather(t, &source{name: "us", record: c.record}), 80)
			for _, want := range c.want {
				if !strings.Contains(page, want) {
					t.Errorf("%q is missing in\n%s", want, page)
				}
			}
		})
	}
}

func TestUnknownRequestListsBalancers(t *testing.T) {
	s := gather(t,
		&source{name: "us", memory: telemetry.DecisionMemory{Balancer: "lb-us-0", Region: "local/us", Recorded: 7, Limit: 10, Since: &arrived}},
		&source{name: "eu", memory: telemetry.DecisionMemory{Balancer: "lb-eu-0", Region: "local/eu", Limit: 10}},
		&source{name: "asia", broken: errors.New("GET http://asia: connection refused")},
	)
	want := `request "r1" not found on any reachable balancer
  lb-us-0 in local/us: 7 recorded since 2026-03-04 05:06:07 UTC
  lb-eu-0 in local/eu: none recorded yet
  GET http://asia: connection refused`
	if got := s.Missing(time.UTC); s.Found() || got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A balancer that hangs delays the result by a bounded time and is named; the parts of the others
// are shown.
func TestUnresponsiveBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := gather(t, &source{name: "us", record: origin()}, &source{name: "eu", hangs: true})
		if took := time.Since(began); took != queryTimeout {
			t.Errorf("it took %s, want %s", took, queryTimeout)
		}
		if page := text(t, s, 80); len(s.Parts) != 1 || !strings.Contains(page, "A balancer did not respond, so parts may be missing: context deadline") {
			t.Errorf("got\n%s", page)
		}
	})
}

// constants lists the values of a package's string constants by their prefix.
func constants(t *testing.T, pattern, prefix string) (values []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, prefix) && len(v.Values) == 1 {
				if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					values = append(values, value)
				}
			}
			return true
		})
	}
	if len(values) < 5 {
		t.Fatalf("%s has the constants %q: too few to be all", pattern, values)
	}
	return values
}

func TestEveryReasonHasDescription(t *testing.T) {
	for _, reason := range constants(t, "../policy/*.go", "Reason") {
		if chosenBecause[reason] == "" {
			t.Errorf("no sentence for the choice %q", reason)
		}
	}
	for _, reason := range constants(t, "../core/event.go", "Reject") {
		if rejectedBecause[reason] == "" {
			t.Errorf("no sentence for the refusal %q", reason)
		}
	}
	if got := because(chosenBecause, "of_tomorrow"); got != `"of_tomorrow"` {
		t.Errorf("an unknown reason is shown as %s", got)
	}
}

func TestWhy(t *testing.T) {
	for _, c := range []struct {
		row  telemetry.RequestSummary
		want string
	}{
		{telemetry.RequestSummary{State: "queued", Policy: "skylb"}, "no capacity"},
		{telemetry.RequestSummary{State: "queued", Policy: "cost"}, "no capacity, or waiting for a full replica was expected to be faster"},
		{telemetry.RequestSummary{State: "queued", Policy: "cost", Target: "us-3"}, "us-3, though full, was expected to be faster than any other target"},
		{telemetry.RequestSummary{State: "sent", Policy: "skylb", Target: "us-0", Reason: policy.ReasonPrefixMatch}, "longest cached prefix"},
		{telemetry.RequestSummary{State: "finished", Policy: "skylb", Target: "eu", Forwarded: true, Reason: policy.ReasonForward}, "no local replica available; forwarded to a peer with capacity"},
		{telemetry.RequestSummary{State: "finished", Policy: "consistent-hash", Target: "us-0", Reason: "of_tomorrow"}, `"of_tomorrow"`},
		{telemetry.RequestSummary{State: "rejected", Reason: core.RejectQueueFull}, "the queue was full"},
		{telemetry.RequestSummary{State: "failed", Policy: "skylb", Target: "us-0", Reason: core.RejectFailed}, "its replica failed after part of the response was sent"},
		{telemetry.RequestSummary{State: "bounced", From: "lb-us-0"}, "no live replica here"},
		{telemetry.RequestSummary{State: "cancelled"}, "client disconnected while queued"},
		{telemetry.RequestSummary{State: "cancelled", Policy: "skylb", Target: "us-0", Reason: policy.ReasonLeastLoad}, "fewest outstanding requests"},
		{telemetry.RequestSummary{State: "sent", Policy: "power-of-two", Target: "us-0", Reason: policy.ReasonPowerOfTwo}, "better of two candidates"},
		{telemetry.RequestSummary{State: "sent", Policy: "dualmap", Target: "us-0", Reason: policy.ReasonPowerOfTwo}, "better of two candidates"},
	} {
		if got := Why(c.row); got != c.want {
			t.Errorf("%+v: %q, want %q", c.row, got, c.want)
		}
	}
	for reason := range chosenBecause {
		if _, both := rejectedBecause[reason]; both {
			t.Errorf("%q is a choice and a refusal: a row cannot tell them apart", reason)
		}
	}
}

// No line is wider than the page, for any figures.
func TestPagesFitWidth(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		width := rapid.SampledFrom([]int{60, 72, 80, 100}).Draw(r, "width")
		var rows []core.ConsideredTarget
		id := rapid.StringMatching(`[a-z0-9/-]{1,60}`)
		for range rapid.IntRange(1, 6).Draw(r, "rows") {
			c := core.ConsideredTarget{
				ID: id.Draw(r, "id"), Peer: rapid.Bool().Draw(r, "peer"), Available: rapid.Bool().Draw(r, "room"),
				Outstanding: rapid.IntRange(0, 99999).Draw(r, "out"), Queued: rapid.IntRange(0, 99999).Draw(r, "queued"),
				HeldRequests: rapid.IntRange(0, 9999).Draw(r, "held"), MatchBytes: rapid.IntRange(0, 2048).Draw(r, "match"),
				Age: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(r, "age")),
			}
			if rapid.Bool().Draw(r, "scored") {
				c.Score = policy.Known(rapid.Float64Range(0, 9999).Draw(r, "score"))
			}
			rows = append(rows, c)
		}
		d := origin()
		d.Attempts[1].Decision.Considered = rows
		var out bytes.Buffer
		if err := (&Explanation{Request: "r1", Parts: []record.RequestRecord{*d}}).WriteText(&out, width, time.UTC); err != nil {
			r.Fatal(err)
		}
		for line := range strings.SplitSeq(out.String(), "\n") {
			if len(line) > width {
				r.Fatalf("%d columns, want at most %d: %q", len(line), width, line)
			}
		}
	})
}

// Candidates are sorted by score, those without one follow in their order. A narrow page hides
// columns and lists them.
func TestCandidatesAreSortedByScore(t *testing.T) {
	for width, narrow := range map[int]bool{100: false, 60: true} {
		page := text(t, gather(t, &source{name: "us", record: origin()}), width)
		_, table, _ := strings.Cut(page, "peer lb-eu-0\n")
		at := -1
		for _, id := range []string{"* lb-eu-0", "  lb-asia-0", "  us-0", "  us-1"} {
			i := strings.Index(table, "\n    "+id)
			if i <= at {
				t.Errorf("%q is not where it belongs in\n%s", id, table)
			}
			at = i
		}
		if got := strings.Contains(table, "Columns hidden at this width: KV, SEEN"); got != narrow {
			t.Errorf("width %d: columns given up %t, want %t:\n%s", width, got, narrow, table)
		}
	}
}
