package batch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/testkit"
	"skyserve/lbd/batch/job"
)

// A batch runs to its end; its files have every line once, in the order of the input.
func TestBatchRuns(t *testing.T) {
	e := newEngine(func(_ context.Context, prompt string, attempt int) Response {
		switch {
		case prompt == "p3":
			return Response{Status: 400, Body: []byte(`{"error":{"message":"no"}}`)}
		case prompt == "p5" && attempt == 1:
			return Response{Status: 503}
		case prompt == "p7":
			return Response{Status: 200, Body: fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("<x>", 1<<20))}
		}
		return echo(prompt)
	})
	n := startNode(t, serveStore(t), e, Options{})
	me := Caller{Tenant: "a.b c"}
	b := n.submit(me, "24h", lines(150)...)
	if b.Status != job.Validating || b.ExpiresAt-b.CreatedAt != 86400 || b.Metadata["job"] != "night" {
		t.Errorf("created: %+v", b)
	}
	b = n.await(me, b.ID, job.Completed)
	if want := (job.Counts{Total: 150, Completed: 149, Failed: 1}); b.RequestCounts != want || b.CompletedAt == nil || b.FinalizingAt == nil || b.InProgressAt == nil {
		t.Errorf("completed: %+v", b)
	}
	output, failures := n.outputs(me, b.OutputFileID), n.outputs(me, b.ErrorFileID)
	if len(failures) != 1 || failures[0].CustomID != "id-3" || failures[0].Response.StatusCode != 400 {
		t.Errorf("errors: %+v", failures)
	}
	at := 0
	for i := range 150 {
		if i == 3 {
			continue
		}
		o := output[at]
		want := fmt.Sprintf(`{"text":"p%d"}`, i)
		if i == 7 {
			want = fmt.Sprintf(`{"text":%q}`, strings.Repeat("<x>", 1<<20))
		}
		if o.CustomID != fmt.Sprint("id-", i) || string(o.Response.Body) != want || o.Error != nil || o.ID == "" || o.Response.RequestID == "" {
			t.Fatalf("line %d: %.200v", i, o)
		}
		at++
	}
	if at != len(output) {
		t.Errorf("%d lines, want %d", len(output), at)
	}
	if got := e.total(); got != 151 {
		t.Errorf("%d requests are sent", got)
	}
	testkit.Eventually(t, "the results are removed", func() bool {
		left, err := n.results.Keys(t.Context(), b.ID+".")
		return err == nil && len(left) == 0
	})
}

func TestInvalidInput(t *testing.T) {
	n := startNode(t, serveStore(t), newEngine(nil), Options{})
	b := n.submit(Caller{}, "1h", line("a", "x"), "{", line("a", "x"), strings.Replace(line("b", "x"), "llama", "gpt", 1))
	b = n.await(Caller{}, b.ID, job.Failed)
	var got []string
	for _, p := range b.Errors.Data {
		got = append(got, fmt.Sprint(*p.Line, " ", p.Code))
	}
	if want := []string{"2 invalid_json_line", "3 duplicate_custom_id", "4 model_not_found"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	file := n.outputs(Caller{}, b.ErrorFileID)
	if len(file) != 3 || file[1].CustomID != "a" || file[2].Error.Code != "model_not_found" {
		t.Errorf("error file: %+v", file)
	}
	if b.OutputFileID != nil || b.FailedAt == nil {
		t.Errorf("%+v", b)
	}
}

// Cancelling stops what is in flight, and the files have what was finished before and the rest as
// cancelled.
func TestCancelStopsAtOnce(t *testing.T) {
	e := newEngine(func(ctx context.Context, prompt string, _ int) Response {
		if prompt == "p0" {
			return echo(prompt)
		}
		<-ctx.Done() // ends only by cancellation
		return Response{Status: 499}
	})
	n := startNode(t, serveStore(t), e, Options{})
	b := n.submit(Caller{}, "24h", lines(70)...)
	testkit.Eventually(t, "all are sent", func() bool { return e.total() == 70 })
	testkit.Eventually(t, "one is recorded", func() bool {
		left, err := n.results.Keys(t.Context(), b.ID+".")
		return err == nil && len(left) == 1
	})
	if status := n.get(Caller{Tenant: "other"}, "POST", PathBatches+"/"+b.ID+"/cancel", nil); status != http.StatusNotFound {
		t.Errorf("another tenant cancels: %d", status)
	}
	var cancelling job.Batch
	if status := n.get(Caller{}, "POST", PathBatches+"/"+b.ID+"/cancel", &cancelling); status != 200 || cancelling.Status != job.Cancelling {
		t.Errorf("%d %+v", status, cancelling)
	}
	b = n.await(Caller{}, b.ID, job.Cancelled)
	output, failures := n.outputs(Caller{}, b.OutputFileID), n.outputs(Caller{}, b.ErrorFileID)
	if len(output) != 1 || output[0].CustomID != "id-0" || len(failures) != 69 || failures[68].CustomID != "id-69" || failures[0].Error.Code != "batch_cancelled" {
		t.Errorf("%d lines, %d errors", len(output), len(failures))
	}
	if status := n.get(Caller{}, "POST", PathBatches+"/"+b.ID+"/cancel", nil); status != http.StatusConflict {
		t.Errorf("cancelled again: %d", status)
	}
	testkit.Eventually(t, "nothing is in flight", func() bool { return n.worker.inFlightCount() == 0 })
}

// At its deadline a batch ends: what has no result is batch_expired.
func TestBatchExpires(t *testing.T) {
	e := newEngine(func(ctx context.Context, prompt string, _ int) Response {
		if prompt == "p1" {
			return echo(prompt)
		}
		return Response{Status: 429, Header: http.Header{"Retry-After": {"3600"}}}
	})
	n := startNode(t, serveStore(t), e, Options{})
	b := n.submit(Caller{}, "1m", lines(3)...)
	n.await(Caller{}, b.ID, job.InProgress)
	testkit.Eventually(t, "all are sent", func() bool { return e.total() == 3 })
	testkit.Eventually(t, "one is recorded", func() bool {
		left, err := n.results.Keys(t.Context(), b.ID+".")
		return err == nil && len(left) == 1
	})
	// The deadline passes: the record is that of a batch which was created earlier.
	if _, _, err := n.updateBatch(t.Context(), batchKey("", b.ID), func(r *job.Record) error { r.CreatedMillis -= 61_000; return nil }); err != nil {
		t.Fatal(err)
	}
	b = n.await(Caller{}, b.ID, job.Expired)
	output, failures := n.outputs(Caller{}, b.OutputFileID), n.outputs(Caller{}, b.ErrorFileID)
	if len(output) != 1 || output[0].CustomID != "id-1" || len(failures) != 2 || failures[1].Error.Code != "batch_expired" || b.ExpiredAt == nil {
		t.Errorf("%+v %+v %+v", b, output, failures)
	}
}

// A request that can never be admitted fails with its message instead of waiting until the batch expires.
func TestBatchFailsRequestBeyondLimit(t *testing.T) {
	e := newEngine(func(_ context.Context, prompt string, _ int) Response {
		if prompt == "p1" {
			return Response{Status: 429, Body: []byte(`{"error":{"message":"larger than the quota"}}`), Final: true}
		}
		return echo(prompt)
	})
	n := startNode(t, serveStore(t), e, Options{})
	b := n.await(Caller{}, n.submit(Caller{}, "24h", lines(3)...).ID, job.Completed)
	failures := n.outputs(Caller{}, b.ErrorFileID)
	if len(failures) != 1 || failures[0].Response.StatusCode != 429 || !strings.Contains(string(failures[0].Response.Body), "larger than the quota") || e.total() != 3 {
		t.Errorf("%d requests are sent; errors: %+v", e.total(), failures)
	}
}

// A batch whose requests wait for a quota says for which one, until one of them is sent again.
func TestBatchWaitsForQuota(t *testing.T) {
	var admitted atomic.Bool
	until := time.Now().Add(24 * time.Hour)
	e := newEngine(func(ctx context.Context, prompt string, _ int) Response {
		switch {
		case prompt == "p0":
			return echo(prompt)
		case !admitted.Load():
			return Response{Status: 429, WaitsFor: "quota of key bob (1 request per day)", WaitsUntil: until}
		}
		<-ctx.Done() // it runs
		return Response{Status: statusClientGone}
	})
	n := startNode(t, serveStore(t), e, Options{})
	b := n.submit(Caller{}, "48h", lines(3)...)
	wait := func() string {
		w := httptest.NewRecorder()
		n.Serve(w, httptest.NewRequest("GET", PathBatches+"/"+b.ID, http.NoBody), Caller{})
		return w.Header().Get(job.HeaderWait)
	}
	want := fmt.Sprintf(`"quota of key bob (1 request per day)"; until=%d`, until.Unix())
	testkit.Eventually(t, "it waits", func() bool { return wait() == want })
	admitted.Store(true)
	testkit.Eventually(t, "it runs", func() bool { return wait() == "" })
}

// A batch that runs has read its input: one whose input is lost then ends at its deadline with the results that it has.
func TestBatchThatReadLostInputExpires(t *testing.T) {
	e := newEngine(func(ctx context.Context, prompt string, _ int) Response {
		if prompt == "p1" {
			return echo(prompt)
		}
		<-ctx.Done()
		return Response{Status: 499}
	})
	n := startNode(t, serveStore(t), e, Options{lostAfter: time.Millisecond})
	b := n.submit(Caller{}, "1m", lines(3)...)
	testkit.Eventually(t, "one is recorded", func() bool {
		left, err := n.results.Keys(t.Context(), b.ID+".")
		return err == nil && len(left) == 1
	})
	if err := n.store.DeleteObject(t.Context(), b.InputFileID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.updateBatch(t.Context(), batchKey("", b.ID), func(r *job.Record) error { r.CreatedMillis -= 61_000; return nil }); err != nil {
		t.Fatal(err)
	}
	b = n.await(Caller{}, b.ID, job.Expired)
	output, failures := n.outputs(Caller{}, b.OutputFileID), n.outputs(Caller{}, b.ErrorFileID)
	if len(output) != 1 || output[0].CustomID != "id-1" || len(failures) != 2 || failures[0].CustomID != "" || failures[1].Error.Code != "batch_expired" {
		t.Errorf("%+v %+v %+v", b, output, failures)
	}
}

// Complaint: a batch whose input file was lost was read again until its deadline. It fails, with an error that names the
// file, and keeps the results that it has.
func TestBatchWithLostInputFails(t *testing.T) {
	for name, damaged := range map[string]bool{"missing": false, "damaged": true} {
		t.Run(name+" before the validation", func(t *testing.T) {
			srv := serveStore(t)
			n := startNode(t, srv, nil, Options{})
			b := n.submit(Caller{}, "24h", lines(3)...)
			n.loseObject(b.InputFileID, damaged)
			b = startNode(t, srv, newEngine(nil), Options{lostAfter: time.Millisecond}).await(Caller{}, b.ID, job.Failed)
			expectLostInput(t, b)
		})
		t.Run(name+" before another worker continues", func(t *testing.T) {
			srv := serveStore(t)
			first := startNode(t, srv, newEngine(func(ctx context.Context, prompt string, _ int) Response {
				if prompt == "p1" {
					return echo(prompt)
				}
				<-ctx.Done()
				return Response{Status: 499}
			}), Options{})
			b := first.submit(Caller{}, "24h", lines(3)...)
			testkit.Eventually(t, "one is recorded", func() bool {
				left, err := first.results.Keys(t.Context(), b.ID+".")
				return err == nil && len(left) == 1
			})
			first.loseObject(b.InputFileID, damaged)
			first.end()
			n := startNode(t, srv, newEngine(nil), Options{lostAfter: time.Millisecond})
			b = n.await(Caller{}, b.ID, job.Failed)
			expectLostInput(t, b)
			output, failures := n.outputs(Caller{}, b.OutputFileID), n.outputs(Caller{}, b.ErrorFileID)
			if len(output) != 1 || output[0].CustomID != "id-1" || len(failures) != 2 || failures[0].CustomID != "" || failures[1].Error.Code != "input_lost" || b.RequestCounts != (job.Counts{Total: 3, Completed: 1, Failed: 2}) {
				t.Errorf("%+v %+v %+v", b, output, failures)
			}
		})
	}
}

// expectLostInput checks the error of a batch whose input is lost.
func expectLostInput(t *testing.T, b job.Batch) {
	t.Helper()
	if b.FailedAt == nil || b.Errors == nil || len(b.Errors.Data) != 1 {
		t.Fatalf("%+v", b)
	}
	if p := b.Errors.Data[0]; p.Code != "input_lost" || p.Param == nil || *p.Param != "input_file_id" || !strings.Contains(p.Message, b.InputFileID) || !strings.Contains(p.Message, "upload it again") {
		t.Errorf("%+v", p)
	}
}

// A member of the store may have a file later than another one: the input is not lost before lostAfter.
func TestLateInputIsNotLost(t *testing.T) {
	srv := serveStore(t)
	n := startNode(t, srv, nil, Options{})
	b := n.submit(Caller{}, "24h", lines(3)...)
	content := strings.Join(lines(3), "\n")
	n.loseObject(b.InputFileID, false)
	other := startNode(t, srv, newEngine(nil), Options{lostAfter: time.Hour})
	testkit.Eventually(t, "the validation begins", func() bool {
		r, err := n.stored(b.ID)
		return err == nil && r.Worker != ""
	})
	if _, err := n.store.WriteObject(t.Context(), b.InputFileID, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	other.await(Caller{}, b.ID, job.Completed)
}

// stored returns the record of a batch.
func (n *node) stored(id string) (r job.Record, err error) {
	value, _, err := n.records.Get(n.t.Context(), batchKey("", id))
	if err == nil {
		err = json.Unmarshal(value, &r)
	}
	return r, err
}

// loseObject deletes an object, or all but one byte of it.
func (n *node) loseObject(name string, damaged bool) {
	n.t.Helper()
	err := n.store.DeleteObject(n.t.Context(), name)
	if damaged && err == nil {
		_, err = n.store.WriteObject(n.t.Context(), name, strings.NewReader("{"))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// A batch of which a large result is lost ends: the error file has the request, and the other results are kept.
func TestBatchWithLostResultEnds(t *testing.T) {
	tests := map[string]struct {
		lostInput bool
		damaged   bool
		customID  string
	}{
		"a result":                       {false, false, "id-1"},
		"a result and the input":         {true, false, ""},
		"a damaged result":               {false, true, "id-1"},
		"a damaged result and the input": {true, true, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			e := newEngine(func(_ context.Context, prompt string, _ int) Response {
				if prompt == "p2" {
					<-release
					return echo(prompt)
				}
				return Response{Status: 200, Body: []byte(`"` + strings.Repeat("x", store.MaxBucketValue) + `"`)}
			})
			n := startNode(t, serveStore(t), e, Options{lostAfter: time.Millisecond})
			b := n.submit(Caller{}, "24h", lines(3)...)
			testkit.Eventually(t, "two are recorded", func() bool {
				left, err := n.results.Keys(t.Context(), b.ID+".")
				return err == nil && len(left) == 2
			})
			results, err := n.chunkResults(t.Context(), b.ID, 0)
			if err != nil {
				t.Fatal(err)
			}
			n.loseObject(results[1].Object, test.damaged)
			if test.lostInput {
				n.loseObject(b.InputFileID, test.damaged)
			}
			close(release)
			b = n.await(Caller{}, b.ID, job.Completed)
			output, failures := n.outputs(Caller{}, b.OutputFileID), n.outputs(Caller{}, b.ErrorFileID)
			if len(output) != 2 || output[0].CustomID != "id-0" || output[1].CustomID != "id-2" || b.RequestCounts != (job.Counts{Total: 3, Completed: 2, Failed: 1}) {
				t.Errorf("%+v; output: %d lines", b, len(output))
			}
			if len(failures) != 1 || failures[0].CustomID != test.customID || failures[0].Error == nil || failures[0].Error.Code != "result_lost" {
				t.Errorf("errors: %+v", failures)
			}
		})
	}
}

// A balancer without a replica of the model leaves the batch to others, until it is urgent.
func TestOnlyReplicasClaim(t *testing.T) {
	srv := serveStore(t)
	far, near := newEngine(nil), newEngine(nil)
	far.models["llama"] = 0
	n := startNode(t, srv, far, Options{})
	b := n.submit(Caller{}, "10h", lines(3)...)
	n.await(Caller{}, b.ID, job.InProgress)
	testkit.Eventually(t, "the batch is listed as open", func() bool {
		open := n.OpenBatches()
		return len(open) == 1 && open[0].Batch.ID == b.ID && open[0].Batch.RequestCounts.Total == 3 && open[0].Batch.Model == "llama"
	})
	startNode(t, srv, near, Options{})
	n.await(Caller{}, b.ID, job.Completed)
	testkit.Eventually(t, "no batch is open", func() bool { return len(n.OpenBatches()) == 0 })
	if far.total() != 0 || near.total() != 3 {
		t.Errorf("%d and %d requests are sent", far.total(), near.total())
	}
	w := n.worker
	if got := w.maxInFlightFor([]string{"llama"}, false); got != 0 {
		t.Errorf("capacity %d", got)
	}
	if got := w.maxInFlightFor([]string{"llama"}, true); got != inFlightPerReplica {
		t.Errorf("urgent capacity %d", got)
	}
}

// Whatever balancers die, every custom_id is in the output once, and only requests that were in flight are
// repeated.
func TestKilledBalancersLoseNothing(t *testing.T) {
	for seed := 0; seed < 4; seed += testkit.Stride(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { killBalancers(t, uint64(seed)) })
	}
}

func killBalancers(t *testing.T, seed uint64) {
	const requests, kills = 400, 5
	srv := serveStore(t)
	gate := make(chan struct{}, 4*requests)
	e := newEngine(func(ctx context.Context, prompt string, _ int) Response {
		select {
		case <-gate:
			return echo(prompt)
		case <-ctx.Done():
			return Response{Status: 499}
		}
	})
	api := startNode(t, srv, nil, Options{})
	b := api.submit(Caller{}, "24h", lines(requests)...)
	start := func() *node { return startNode(t, srv, e, Options{heartbeat: time.Hour}) }
	nodes := []*node{start(), start()}
	inFlight := 0
	for kill := range kills {
		done := (kill + 1) * requests / (kills + 2)
		for range requests / (kills + 2) {
			gate <- struct{}{}
		}
		testkit.Eventually(t, "results are recorded", func() bool {
			left, err := api.results.Keys(t.Context(), b.ID+".")
			return err == nil && len(left) >= done
		})
		victim := int(seed>>kill+uint64(kill)) % len(nodes)
		inFlight += nodes[victim].worker.inFlightCount()
		nodes[victim].kill()
		// Its heartbeat is too old.
		if err := api.records.Delete(t.Context(), workerPrefix+nodes[victim].worker.id); err != nil {
			t.Fatal(err)
		}
		nodes[victim] = start()
	}
	close(gate)
	b = api.await(Caller{}, b.ID, job.Completed)
	output := api.outputs(Caller{}, b.OutputFileID)
	if b.RequestCounts.Completed != requests || len(output) != requests || b.ErrorFileID != nil {
		t.Fatalf("%+v, %d lines", b.RequestCounts, len(output))
	}
	for i, o := range output {
		if o.CustomID != fmt.Sprint("id-", i) || string(o.Response.Body) != fmt.Sprintf(`{"text":"p%d"}`, i) {
			t.Fatalf("line %d: %+v", i, o)
		}
	}
	if sent := e.total(); sent > requests+inFlight {
		t.Errorf("%d requests are sent for %d, and %d were in flight at kills", sent, requests, inFlight)
	}
}

// An orderly stop gives claims back: the next balancer does not wait for the heartbeat to become too old.
func TestStoppedBalancerReleasesClaims(t *testing.T) {
	srv := serveStore(t)
	stuck := newEngine(func(ctx context.Context, _ string, _ int) Response { <-ctx.Done(); return Response{Status: 499} })
	n := startNode(t, srv, stuck, Options{heartbeat: time.Hour})
	b := n.submit(Caller{}, "24h", lines(10)...)
	testkit.Eventually(t, "all are sent", func() bool { return stuck.total() == 10 })
	n.stop()
	<-n.ended
	next := startNode(t, srv, newEngine(nil), Options{heartbeat: time.Hour})
	if b = next.await(Caller{}, b.ID, job.Completed); b.RequestCounts.Completed != 10 {
		t.Errorf("%+v", b.RequestCounts)
	}
}

// A worker of another process sends the requests of a user with the limits that the user had at the creation.
func TestWorkerSendsLimitsOfUser(t *testing.T) {
	srv := serveStore(t)
	alice := Caller{Tenant: "corp", Key: "alice~1", IsUser: true, Limits: &service.KeyLimits{RequestsPerMinute: 3, TokensPerDay: 1000, Concurrent: 2}}
	b := startNode(t, srv, nil, Options{}).submit(alice, "24h", lines(1)...)
	e := newEngine(nil)
	startNode(t, srv, e, Options{}).await(alice, b.ID, job.Completed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !reflect.DeepEqual(e.caller, alice) {
		t.Errorf("the caller is %+v, want %+v", e.caller, alice)
	}
}

func TestSweep(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	status, body := n.upload(Caller{}, line("a", "x"), "purpose", "batch", "expires_after[anchor]", "created_at", "expires_after[seconds]", "3600")
	var f job.File
	if json.Unmarshal(body, &f) != nil || status != 200 || f.ExpiresAt-f.CreatedAt != 3600 {
		t.Fatalf("%d %s", status, body)
	}
	kept := n.mustUpload(Caller{}, line("a", "x"))
	open := n.submitFile(Caller{}, "24h", kept)
	for _, batch := range []string{open.ID, "batch_gone"} {
		if _, err := n.results.Create(t.Context(), batch+".0.0", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	later := time.Now().Add(2 * time.Hour)
	n.now = func() time.Time { return later }
	if status := n.get(Caller{}, "GET", PathFiles+"/"+f.ID, nil); status != 404 {
		t.Errorf("an expired file: %d", status)
	}
	if err := n.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, _ := n.records.Keys(t.Context(), "file.")
	results, _ := n.results.Keys(t.Context(), "")
	if len(files) != 1 || !strings.HasSuffix(files[0].Key, kept) || len(results) != 1 || !strings.HasPrefix(results[0].Key, open.ID) {
		t.Errorf("remaining: %v, %v", files, results)
	}
}

// A batch is estimated from the one before it; the estimate tells its client at creation that it would end too late.
func TestEstimate(t *testing.T) {
	srv, c := serveStore(t), Caller{Tenant: "acme"}
	release := make(chan struct{})
	used := newEngine(func(_ context.Context, prompt string, _ int) Response {
		if strings.HasPrefix(prompt, "wait") {
			<-release
		}
		return Response{Status: 200, Body: []byte(`{"usage":{"prompt_tokens":40,"completion_tokens":10}}`)}
	})
	n := startNode(t, srv, used, Options{Price: func(model string) (job.TokenPrice, bool) {
		return job.TokenPrice{Input: 1e-3, Output: 2e-3}, model == "llama"
	}})
	defer close(release)
	create := func(window string, lines ...string) (b job.Batch, e job.Estimate) {
		t.Helper()
		params := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":%q}`, n.mustUpload(c, strings.Join(lines, "\n")), window)
		w := httptest.NewRecorder()
		n.Serve(w, httptest.NewRequest("POST", PathBatches, strings.NewReader(params)), c)
		e, err := job.ParseEstimate(w.Header().Get(job.HeaderEstimate))
		if err != nil || json.Unmarshal(w.Body.Bytes(), &b) != nil {
			t.Fatalf("%v, %s", err, w.Body)
		}
		return b, e
	}
	first, e := create("24h", lines(20)...)
	if e.Requests != 20 || e.InputTokens != nil || e.CostUSD != nil || e.FinishAt != nil {
		t.Errorf("before anything was measured: %+v", e)
	}
	n.await(c, first.ID, job.Completed)
	var same job.Batch
	if n.get(c, "GET", PathBatches+"/"+first.ID, &same); same.Status != job.Completed {
		t.Errorf("%+v", same)
	}
	var waiting []string
	for i := range 40 {
		waiting = append(waiting, line(fmt.Sprint(i), fmt.Sprint("wait", i%10)))
	}
	testkit.Eventually(t, "the batch that ended is measured", func() bool {
		_, e = create("24h", waiting...)
		return e.InputTokens != nil
	})
	if e.Requests != 40 || *e.OutputTokens != 400 || *e.InputTokens < 1400 || *e.InputTokens > 1800 || *e.CostUSD < 2.2 || *e.CostUSD > 2.6 {
		t.Errorf("%s", e.Header())
	}
	for _, b := range n.OpenBatches() {
		if len(b.Backlog) != 1 || b.Backlog[0].Model != "llama" || b.Backlog[0].InputTokens < 1400 || b.Backlog[0].InputTokens > 1800 {
			t.Errorf("backlog: %+v", b.Backlog)
		}
	}
}

// pausedValidation is an engine that is asked for its models by a validation, which it pauses at its first line.
type pausedValidation struct {
	*engine
	lines         atomic.Int32
	begun, resume chan struct{}
}

func (p *pausedValidation) Accepts(model string) bool {
	if p.lines.Add(1) == 1 {
		close(p.begun)
		<-p.resume
	}
	return p.engine.Accepts(model)
}

// Cancelling a batch ends its validation, which may take minutes.
func TestCancelEndsValidation(t *testing.T) {
	sender := &pausedValidation{engine: newEngine(nil), begun: make(chan struct{}), resume: make(chan struct{})}
	n := startNode(t, serveStore(t), sender, Options{})
	all := lines(2000)
	for i := range all {
		all[i] += strings.Repeat(" ", 2000)
	}
	b := n.submit(Caller{}, "24h", all...)
	<-sender.begun
	if status := n.get(Caller{}, "POST", PathBatches+"/"+b.ID+"/cancel", nil); status != http.StatusOK {
		t.Fatalf("cancelling: %d", status)
	}
	testkit.Eventually(t, "the worker knows of it", func() bool {
		r, _ := n.worker.batch(batchKey("", b.ID))
		return r.Batch.Status == job.Cancelling
	})
	close(sender.resume)
	b = n.await(Caller{}, b.ID, job.Cancelled)
	if read := sender.lines.Load(); int(read) == len(all) || b.OutputFileID != nil || b.ErrorFileID != nil {
		t.Errorf("%d of %d lines were validated; the batch: %+v", read, len(all), b)
	}
}
