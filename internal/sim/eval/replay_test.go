package eval

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
	"skyserve/lbd/record"
)

const replayModel = "llama"

// Secrets that a record must not contain.
const (
	secretPrompt = "the recognisable prompt"
	secretAnswer = "the recognisable response"
	secretKey    = "sk-recognisable"
	secretToken  = "the peer token"
	secretUser   = "ann@example.com"
)

// recordedBalancer is a running balancer with a recorder.
type recordedBalancer struct {
	*proxy.Runtime
	url    string
	record *bytes.Buffer
	end    func() // of the record
}

// newRecorded starts a balancer in a region with a policy; reports of its targets never expire.
func newRecorded(t *testing.T, policyName, id string, region service.Region) *recordedBalancer {
	t.Helper()
	cfg := core.DefaultConfig(newPolicy(t, policyName))
	cfg.ProbeInterval = time.Hour
	b := &recordedBalancer{record: new(bytes.Buffer)}
	var err error
	b.Runtime, err = proxy.New(proxy.Options{
		Self: service.BalancerConfig{
			Service: "chat", ID: id, Region: region, PeerToken: secretToken,
			Models: []service.BalancerModel{{Name: replayModel}},
		},
		Core: cfg, Keys: []service.APIKey{{Secret: secretKey, Name: "one", Tenant: "one"}}, Record: b.record,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.Start(ctx)
	srv := httptest.NewServer(b.Handler())
	b.url = srv.URL
	b.end = sync.OnceFunc(func() {
		srv.Close()
		stop()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.end)
	return b
}

// attach adds a replica served by h and reports it idle.
func (b *recordedBalancer) attach(t *testing.T, id string, h http.HandlerFunc) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	if _, err := b.AddReplica(service.ReplicaConfig{ID: id, URL: srv.URL, Model: replayModel}); err != nil {
		t.Fatal(err)
	}
	b.report(id)
}

func (b *recordedBalancer) report(id string) {
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: id, Report: &core.ProbeReport{
		Ready: true, Pending: policy.Known(0), Running: policy.Known(1), KV: policy.Known(0.1),
	}})
}

// send sends one request, reads its response and returns the status and body.
func (b *recordedBalancer) send(ctx context.Context, client *http.Client, n int) (status int, body string) {
	text := fmt.Sprintf(`{"model":%q,"stream":true,"user":%q,"messages":[{"role":"user","content":%q}]}`,
		replayModel, secretUser, strings.Repeat(fmt.Sprintf("%s %d. ", secretPrompt, n%5), 12))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/chat/completions", strings.NewReader(text))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+secretKey)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(got)
}

func replayEvent(w http.ResponseWriter, content string) {
	_, _ = fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":%q}}]}`+"\n\n", content)
	_ = http.NewResponseController(w).Flush()
}

// streamResponse streams a response; every fails-th fails, and every breaks-th is cut off.
func streamResponse(fails, breaks int64) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		i := n.Add(1)
		if fails > 0 && i%fails == 0 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		replayEvent(w, secretAnswer)
		if breaks > 0 && i%breaks == 0 {
			panic(http.ErrAbortHandler)
		}
		replayEvent(w, " goes on")
		_, _ = io.WriteString(w, `data: {"choices":[],"usage":{"prompt_tokens":80,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":20}}}`+"\n\ndata: [DONE]\n\n")
	}
}

// hangAfterFirstToken starts a response and returns when its client has disconnected.
func hangAfterFirstToken(begun chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		replayEvent(w, secretAnswer)
		begun <- struct{}{}
		<-req.Context().Done()
	}
}

// serve drives two balancers that forward to each other, with replicas that fail, break off and are
// cancelled, until no request is in flight.
func serve(t *testing.T, policyName string) (us, eu *recordedBalancer) {
	t.Helper()
	us, eu = newRecorded(t, policyName, "lb-us-0", "local/us"), newRecorded(t, policyName, "lb-eu-0", "local/eu")
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: eu.url}, nil)
	eu.AddPeer(service.PeerConfig{ID: "lb-us-0", Region: "local/us", URL: us.url}, nil)
	exchangeReports := func() {
		us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{
			RTT: 3 * time.Millisecond, Models: []core.ModelLoad{{Model: replayModel, Replicas: 2, Available: 2, KV: policy.Known(0.25)}},
		}})
	}
	eu.attach(t, "eu-0", streamResponse(0, 0))
	eu.attach(t, "eu-1", streamResponse(4, 0))
	exchangeReports()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	many := func(n int) {
		var requests sync.WaitGroup
		for i := range n {
			requests.Go(func() { us.send(t.Context(), client, i) })
		}
		requests.Wait()
	}
	many(8) // no replica yet: all are forwarded
	us.attach(t, "us-0", streamResponse(3, 5))
	us.attach(t, "us-1", streamResponse(0, 0))
	exchangeReports()
	many(24)
	begun := make(chan struct{}, 1)
	us.attach(t, "us-2", hangAfterFirstToken(begun))
	for _, id := range []string{"us-0", "us-1"} {
		if _, err := us.RemoveReplica(id, 0); err != nil {
			t.Fatal(err)
		}
	}
	us.RemovePeer("lb-eu-0")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() { defer close(gone); us.send(ctx, client, 0) }()
	<-begun
	leave()
	<-gone
	drained, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, b := range []*recordedBalancer{us, eu} {
		if err := b.Drain(drained); err != nil {
			t.Fatal(err)
		}
	}
	us.end()
	eu.end()
	return us, eu
}

// Recorded decisions of any policy, with failing replicas and cancelled requests, replay identically;
// the record contains no secret.
func TestRecordedDecisionsReplayIdentically(t *testing.T) {
	testkit.Slow(t)
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits for half a second, in Drain
			us, eu := serve(t, name)
			for _, b := range []*recordedBalancer{us, eu} {
				report, err := ReplayRecord(t.Context(), "r.jsonl", bytes.NewReader(b.record.Bytes()))
				if err != nil {
					t.Fatal(err)
				}
				if !report.Replay.Identical || report.Replay.Truncated || report.Replay.Difference != nil {
					t.Fatalf("%v", report.Replay.Difference)
				}
				checkRow(t, &report.Rows[0], b.View().Counts)
				for _, word := range []string{secretPrompt, secretAnswer, secretKey, secretToken, secretUser, "recognisable"} {
					if bytes.Contains(b.record.Bytes(), []byte(word)) {
						t.Errorf("the record contains %q", word)
					}
				}
			}
			if c := us.View().Counts; c.Cancelled != 1 || c.ForwardedOut == 0 || c.Finished == 0 {
				t.Errorf("counts %+v: the run must forward, finish and cancel", c)
			}
			if !bytes.Contains(us.record.Bytes(), []byte(`"kind":"failed"`)) {
				t.Error("nothing failed in the run")
			}
		})
	}
}

// checkRow compares the figures of a record with the counts of its balancer.
func checkRow(t *testing.T, row *ReplayRow, c core.Counts) {
	t.Helper()
	if int64(row.Completed) != c.Finished || int64(row.Rejected) != c.Rejected || int64(row.Forwarded) != c.ForwardedOut {
		t.Errorf("record has %+v, balancer counted %+v", row, c)
	}
	if c.Finished > 0 && (row.TTFT == nil || row.E2E == nil || row.TTFT.Max > row.E2E.Max || row.PrefixHitRate == nil || *row.PrefixHitRate != 0.25) {
		t.Errorf("TTFT %+v, E2E %+v, hit rate %v", row.TTFT, row.E2E, row.PrefixHitRate)
	}
}

// recordOf writes a record of a balancer with two replicas, without network: lines as the proxy writes
// them.
func recordOf(tb testing.TB, policyName string, events ...recordedEvent) []byte {
	tb.Helper()
	return recordWith(tb, core.DefaultConfig(newPolicy(tb, policyName)), events...)
}

func newPolicy(tb testing.TB, name string) policy.Policy {
	tb.Helper()
	p, err := policy.New(name)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// recordWith is recordOf with any configuration.
func recordWith(tb testing.TB, cfg core.Config, events ...recordedEvent) []byte {
	tb.Helper()
	var out bytes.Buffer
	rt, err := proxy.New(proxy.Options{Self: service.BalancerConfig{Service: "chat", ID: "lb", Region: "local/us"}, Core: cfg, Record: &out})
	if err != nil {
		tb.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		tb.Fatal(err)
	}
	b := core.New(cfg)
	enc := json.NewEncoder(&out)
	for _, e := range events {
		if err := enc.Encode(record.Line{T: e.at, Event: &e.Event, Actions: b.Step(e.at, e.Event)}); err != nil {
			tb.Fatal(err)
		}
	}
	return out.Bytes()
}

type recordedEvent struct {
	at time.Duration
	core.Event
}

// twoReplicas is a small history: two requests at two replicas; one ends after a second with three
// tokens.
func twoReplicas() []recordedEvent {
	ready := &core.ProbeReport{Ready: true, Pending: policy.Known(0)}
	return []recordedEvent{
		{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "a", Model: "m"}}},
		{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "b", Model: "m"}}},
		{0, core.Event{Kind: core.EventReplicaReport, Target: "a", Report: ready}},
		{0, core.Event{Kind: core.EventReplicaReport, Target: "b", Report: ready}},
		{0, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "1", Model: "m", Prompt: []uint64{1, 2}, PromptTokens: 32}}},
		{0, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "2", Model: "m", Prompt: []uint64{1, 2}, PromptTokens: 32}}},
		{200 * time.Millisecond, core.Event{Kind: core.EventFirstToken, ID: "1"}},
		{time.Second, core.Event{Kind: core.EventFinished, ID: "1", Outcome: &core.Outcome{
			PromptTokens: policy.Known(40), CachedTokens: policy.Known(10), OutputTokens: policy.Known(3),
		}}},
		{2 * time.Second, core.Event{Kind: core.EventTick}},
	}
}

func TestRecordedFigures(t *testing.T) {
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(recordOf(t, "round-robin", twoReplicas()...)))
	if err != nil {
		t.Fatal(err)
	}
	row := report.Rows[0]
	if row.Completed != 1 || row.Rejected != 0 || row.OutputTokensPerSecond != 1.5 || *row.PrefixHitRate != 0.25 ||
		row.TTFT.P50 != 200 || row.TPOT.P50 != 400 || row.E2E.P50 != 1000 || row.Seed != nil {
		t.Errorf("row %+v", row)
	}
	// One replica was busy for one second of two, the other for both.
	if row.OutstandingMaxOverMin == nil || *row.OutstandingMaxOverMin != 2 {
		t.Errorf("max over min %v, want 2", row.OutstandingMaxOverMin)
	}
	if report.Replay.Steps != 9 || report.Replay.Seconds != 2 || report.Constants.Config.Policy != "round-robin" {
		t.Errorf("replay %+v of %+v", report.Replay, report.Constants)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "9 steps replayed: all actions identical") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// The 90th percentile of ten values is the ninth.
func TestRecordedPercentilesAreNearestRank(t *testing.T) {
	run := recordedRun{ttft: []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}}
	if p := run.figures().TTFT; p.P10 != 1 || p.P50 != 5 || p.P90 != 9 || p.P95 != 10 || p.Mean != 5.5 {
		t.Errorf("percentiles %+v", p)
	}
}

// A request that reached the maximum wait, and one without any replica.
func TestRecordedRejectionFigures(t *testing.T) {
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(recordOf(t, "cost",
		recordedEvent{0, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "0", Model: "m"}}},
		recordedEvent{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "a", Model: "m"}}},
		recordedEvent{time.Second, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "1", Model: "m"}}},
		recordedEvent{61 * time.Second, core.Event{Kind: core.EventTick}},
	)))
	if err != nil {
		t.Fatal(err)
	}
	if row := report.Rows[0]; row.Rejected != 2 || row.MaxWaitMillis != 60_000 || row.TTFT != nil || row.OutstandingMaxOverMin != nil {
		t.Errorf("row %+v, want two rejections, one after a minute", row)
	}
}

func TestReplayReadsGzip(t *testing.T) {
	plain := recordOf(t, "skylb", twoReplicas()...)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want, err := ReplayRecord(t.Context(), "r", bytes.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReplayRecord(t.Context(), "r", bytes.NewReader(packed.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := toJSON(t, want), toJSON(t, got); a != b {
		t.Errorf("packed %s, plain %s", b, a)
	}
	cut, err := ReplayRecord(t.Context(), "r", bytes.NewReader(packed.Bytes()[:packed.Len()/2]))
	if err == nil && !cut.Replay.Truncated {
		t.Error("a truncated gzip record is accepted")
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The report contains the first step that differs with its recorded and replayed actions.
func TestReplayReportsFirstDifference(t *testing.T) {
	record := recordOf(t, "round-robin", twoReplicas()...)
	changed := bytes.Replace(record, []byte(`"actions":[{"kind":"dispatch","id":"2","target":"b"`), []byte(`"actions":[{"kind":"dispatch","id":"2","target":"a"`), 1)
	if bytes.Equal(record, changed) {
		t.Fatalf("the record has no such action:\n%s", record)
	}
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(changed))
	if err != nil {
		t.Fatal(err)
	}
	d := report.Replay.Difference
	if d == nil || report.Replay.Identical || d.Line != 7 || report.Replay.Steps != 5 {
		t.Fatalf("replay %+v, want a difference in line 7", report.Replay)
	}
	want := "line 7, event arrived at 0.000 s: recorded dispatch 2 to a (rotation), replayed dispatch 2 to b (rotation)"
	if d.String() != want || !bytes.Contains(d.Recorded, []byte(`"target":"a"`)) || !bytes.Contains(d.Replayed, []byte(`"target":"b"`)) {
		t.Errorf("got %s, want %s", d, want)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "first difference: line 7") {
		t.Errorf("%v\n%s", err, table.String())
	}
	// An action only in the replay, and an action only in the record.
	for from, to := range map[string]string{
		`,"actions":[{"kind":"dispatch","id":"1"`: `,"actions":null,"x":[{"kind":"dispatch","id":"1"`,
		`{"t":2000000000,"event":{"kind":"tick"}`: `{"t":2000000000,"event":{"kind":"tick"},"actions":[{"kind":"hold","id":"1"}]`,
	} {
		changed := strings.Replace(string(record), from, to, 1)
		report, err := ReplayRecord(t.Context(), "r", strings.NewReader(changed))
		switch {
		case changed == string(record):
			t.Errorf("the record has no %s", from)
		case strings.Contains(to, `"x"`):
			if err == nil || !strings.Contains(err.Error(), `unknown field "x"`) {
				t.Errorf("%s: %v, want an error with the unknown field", to, err)
			}
		case err != nil || report.Replay.Difference == nil || formatActions(report.Replay.Difference.Replayed) != "no action":
			t.Errorf("%s: %+v, %v", to, report, err)
		}
	}
}

// A killed balancer leaves a partial last line: the steps before it count.
func TestReplayOfTruncatedRecord(t *testing.T) {
	record := recordOf(t, "cost", twoReplicas()...)
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(record[:len(record)-5]))
	if err != nil || !report.Replay.Truncated || !report.Replay.Identical || report.Replay.Steps != 8 {
		t.Errorf("%+v, %v", report, err)
	}
}

// A record that ends in a panic is replayed up to the step before it.
func TestReplayStopsBeforePanic(t *testing.T) {
	record := recordOf(t, "cost", twoReplicas()...)
	whole, err := ReplayRecord(t.Context(), "r", bytes.NewReader(record))
	if err != nil {
		t.Fatal(err)
	}
	record = append(record, `{"t":9000000000000,"event":{"kind":"tick"},"panic":"no such candidate"}`+"\n"...)
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(record))
	if err != nil || report.Replay.Panic != "no such candidate" || !report.Replay.Identical || report.Replay.Steps != whole.Replay.Steps {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestReplayRejectsInvalidRecords(t *testing.T) {
	whole := string(recordOf(t, "cost", twoReplicas()...))
	header, _, _ := strings.Cut(whole, "\n")
	header += "\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":        {"", "reading r: not a record"},
		"something else": {"{\"a\":1}\n", "reading r: not a record"},
		"no JSON":        {"GIF89a\n", "reading r: not a record"},
		"bad gzip":       {"\x1f\x8bxxxxxxxxxxxxxxxxxxx", "reading r: decompressing gzip"},
		"older":          {strings.Replace(header, fmt.Sprintf(`{"record":%d`, record.Version), `{"record":1`, 1), fmt.Sprintf("reading r:1: record version must be %d, got 1", record.Version)},
		"newer":          {strings.Replace(header, fmt.Sprintf(`{"record":%d`, record.Version), `{"record":99`, 1), "got 99"},
		"policy":         {strings.Replace(header, `"policy":"cost"`, `"policy":"best"`, 1), `reading r:1: config.policy: unknown policy "best"`},
		"push":           {strings.Replace(header, `"push":"pending"`, `"push":"hard"`, 1), `reading r:1: config.push: unknown push mode "hard"`},
		"gap":            {header + `{"t":3,"gap":12}` + "\n", "reading r:2: 12 steps are missing: the disk"},
		"broken line":    {header + "{\"t\":\n{}\n", "reading r:2: decoding a step"},
		"no event":       {header + `{"t":3}` + "\n", "reading r:2: event: missing"},
		"unknown event":  {header + `{"t":3,"event":{"kind":"wedding"}}` + "\n", `reading r:2: event.kind: unknown kind "wedding"`},
		"empty event":    {header + `{"t":3,"event":{"kind":"arrived"}}` + "\n", "reading r:2: event.request: missing in an event of kind arrived"},
		"bad change":     {header + `{"t":3,"config":{"policy":"best"}}` + "\n", `reading r:2: config.policy: unknown policy "best"`},
		"change beside":  {header + `{"t":3,"config":{"policy":"cost"},"event":{"kind":"tick"}}` + "\n", "reading r:2: config: must not be combined with an event"},
		"back in time":   {header + `{"t":3,"event":{"kind":"tick"}}` + "\n" + `{"t":2,"event":{"kind":"tick"}}` + "\n", "reading r:3: t: must not be before 3ns, got 2ns"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReplayRecord(t.Context(), "r", strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Replay supports every event kind that the core declares.
func TestReplaySupportsEveryEventKind(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../../lbd/core/event.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(parsed, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && fmt.Sprint(v.Type) == "EventKind" {
			declared += len(v.Names)
		}
		return true
	})
	if declared != len(requiredFields) {
		t.Errorf("core declares %d kinds of event, replay supports %d", declared, len(requiredFields))
	}
	for kind := range requiredFields {
		e := core.Event{
			Kind: kind, Request: &core.Request{Model: "m"}, Replica: &core.ReplicaInfo{}, Report: &core.ProbeReport{},
			Peer: &core.PeerInfo{}, PeerReport: &core.PeerReport{},
		}
		if err := checkEvent(&e); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		core.New(core.DefaultConfig(newPolicy(t, "cost"))).Step(0, e) // panics on an unknown kind
	}
}

func TestReplayReturnsOnCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReplayRecord(ctx, "r", bytes.NewReader(recordOf(t, "cost", twoReplicas()...))); err == nil || ctx.Err() == nil {
		t.Errorf("got %v, want the context's end", err)
	}
}
