package proxy

import (
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// A summary contains the relevant part of a request's record.
func TestSummary(t *testing.T) {
	ended := func(ms float64) *float64 { return &ms }
	decided := &core.Decision{Policy: "skylb", Reason: "prefix_match", MatchBytes: 640, PromptBytes: 1000}
	sent := record.Attempt{AtMillis: 2, Kind: core.ActionDispatch, Target: "us-0", Reason: "prefix_match", Decision: decided}
	broken := sent
	broken.Failure, broken.EndedMillis = "us-0 returned 500", ended(10)
	for name, c := range map[string]struct {
		state   string
		keptFor string
		tries   []record.Attempt
		want    telemetry.RequestSummary
	}{
		"queued": {state: record.StateQueued, want: telemetry.RequestSummary{State: "queued", Policy: "cost", QueuedMillis: 50}},
		"queued for a replica": {
			state: record.StateQueued, keptFor: "us-3",
			want: telemetry.RequestSummary{State: "queued", Target: "us-3", Policy: "cost", QueuedMillis: 50},
		},
		"sent": {
			state: record.StateSent, tries: []record.Attempt{sent},
			want: telemetry.RequestSummary{State: "sent", Target: "us-0", Policy: "skylb", Reason: "prefix_match", MatchBytes: 640, Tries: 1, QueuedMillis: 2},
		},
		"queued again": {
			state: record.StateSent, tries: []record.Attempt{broken},
			want: telemetry.RequestSummary{State: "queued", Policy: "cost", Tries: 1, QueuedMillis: 40},
		},
		"forwarded after a failure": {
			state: record.StateFinished, tries: []record.Attempt{broken, {AtMillis: 13, Kind: core.ActionForward, Target: "eu", Reason: "offload", Decision: &core.Decision{Policy: "skylb"}}},
			want: telemetry.RequestSummary{State: "finished", Target: "eu", Forwarded: true, Policy: "skylb", Reason: "offload", Tries: 2, QueuedMillis: 3},
		},
		"refused after a failure": {
			state: record.StateRejected, tries: []record.Attempt{broken, {AtMillis: 11, Kind: core.ActionReject, Reason: core.RejectRetriesExhausted}},
			want: telemetry.RequestSummary{State: "rejected", Target: "us-0", Policy: "skylb", Reason: core.RejectRetriesExhausted, MatchBytes: 640, Tries: 2, QueuedMillis: 1},
		},
		"refused at once": {
			state: record.StateRejected, tries: []record.Attempt{{Kind: core.ActionReject, Reason: core.RejectNoReplica}},
			want: telemetry.RequestSummary{State: "rejected", Reason: core.RejectNoReplica, Tries: 1},
		},
		"bounced": {
			state: record.StateBounced, tries: []record.Attempt{{AtMillis: 7, Kind: core.ActionBounce, Target: "lb-us-0"}},
			want: telemetry.RequestSummary{State: "bounced", Tries: 1, QueuedMillis: 7},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := record.RequestRecord{Request: "r1", Model: "m", PromptBytes: 1000, State: c.state, HeldFor: c.keptFor, Attempts: c.tries}
			c.want.Request, c.want.Model, c.want.PromptBytes = "r1", "m", 1000
			if got := summaryOf(&d, 50*time.Millisecond, "cost"); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// The ring returns the newest first, like a list of all requests.
func TestNewestRequestsComeFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 6).Draw(t, "size")
		g := newRing(size)
		var all []*record.RequestRecord
		for range rapid.IntRange(0, 20).Draw(t, "came") {
			d := &record.RequestRecord{Request: rapid.StringMatching("[a-c]").Draw(t, "id")}
			all = append(all, d)
			g.addRecord(d)
		}
		limit := rapid.IntRange(0, size).Draw(t, "limit")
		slices.Reverse(all)
		want := all[:min(limit, size, len(all))]
		records := make([]*record.RequestRecord, limit)
		if got := records[:g.newest(records)]; !slices.Equal(got, want) {
			t.Fatalf("got %d entries, want %d, or others", len(got), len(want))
		}
	})
}

// Both balancers of a forwarded request list it, each with its own part.
func TestRequestsOfTwoBalancers(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.attach("eu-0", engine(t, speak("a", " b")))
	us.receiveReport("lb-eu-0")
	for i := range 3 {
		expect(t, us.post(chatPath, streamBody, fmt.Sprintf("X-Request-ID: r%d", i)), http.StatusOK, "")
	}
	us.settled()
	eu.settled()
	if n := len(us.Requests(0)) + len(us.Requests(-1)); n != 0 {
		t.Errorf("requested none, got %d", n)
	}
	for _, side := range []struct {
		b    *balancer
		want telemetry.RequestSummary
	}{
		{us, telemetry.RequestSummary{Balancer: "lb-us-0", Region: "local/us", Target: "lb-eu-0", Forwarded: true, Reason: "offload"}},
		{eu, telemetry.RequestSummary{Balancer: "lb-eu-0", Region: "local/eu", Target: "eu-0", From: "lb-us-0", Reason: "rotation"}},
	} {
		rows := side.b.Requests(2)
		if len(rows) != 2 || rows[0].Request != "r2" || rows[1].Request != "r1" {
			t.Fatalf("%s: got %+v, want r2 and r1", side.want.Balancer, rows)
		}
		d, _ := side.b.Decision("r2")
		want := side.want
		want.Request, want.At, want.Model, want.Tier, want.State, want.Status = "r2", d.At, testModel, "IW-F", "finished", 200
		want.Policy, want.PromptBytes, want.Tries, want.QueuedMillis = "round-robin", d.PromptBytes, 1, d.Attempts[0].AtMillis
		want.TTFTMillis, want.E2EMillis, want.Tenant = d.TTFTMillis, d.E2EMillis, d.Tenant
		want.PromptTokens, want.CachedTokens, want.OutputTokens = d.PromptTokens, d.CachedTokens, d.OutputTokens
		if !reflect.DeepEqual(rows[0], want) || rows[0].TTFTMillis == nil || *rows[0].OutputTokens != 2 {
			t.Errorf("got  %+v\nwant %+v", rows[0], want)
		}
	}
}

// The first token is recorded when it arrives, not when the last one does.
func TestRunningRequestHasFirstToken(t *testing.T) {
	b := start(t, testOptions(t))
	goOn := make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a"))
		_ = http.NewResponseController(w).Flush()
		<-goOn
		_, _ = io.WriteString(w, chunk(" b")+doneEvent)
	}))
	resp := b.post(chatPath, streamBody, "X-Request-ID: r1")
	b.until(func() bool { return b.Requests(1)[0].TTFTMillis != nil })
	running := b.Requests(1)[0]
	close(goOn)
	read(t, resp)
	b.settled()
	ended := b.Requests(1)[0]
	if running.State != "sent" || running.E2EMillis != nil {
		t.Errorf("while it runs: %+v", running)
	}
	if ended.E2EMillis == nil || *ended.TTFTMillis != *running.TTFTMillis || *ended.TTFTMillis > *ended.E2EMillis {
		t.Errorf("at the end: %+v", ended)
	}
}

// Readers do not block decisions, and receive each request once and complete.
func TestRequestsWhileTheyRun(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxDecisions = 2 * summaryBatch
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 2 * summaryBatch {
				resp, err := client.Post(b.url+chatPath, "application/json", strings.NewReader(plainBody))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	for range 50 {
		seen := map[string]bool{}
		for _, row := range b.Requests(2 * summaryBatch) {
			if seen[row.Request] || row.Model != testModel || row.QueuedMillis < 0 {
				t.Fatalf("%+v, seen before: %v", row, seen[row.Request])
			}
			seen[row.Request] = true
		}
	}
	clients.Wait()
	b.settled()
	for _, row := range b.Requests(2 * summaryBatch) {
		if row.State != "finished" || row.E2EMillis == nil {
			t.Errorf("at the end: %+v", row)
		}
	}
}
