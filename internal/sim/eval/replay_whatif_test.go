package eval

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// requestHistory is a history of n requests, ten per second, with two kinds of prompt: all but the last two are
// completed with response tokens after half a second.
func requestHistory(n, response int) []recordedEvent {
	ready := &core.ProbeReport{Ready: true, Pending: policy.Known(0)}
	events := []recordedEvent{
		{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "a", Model: "m"}}},
		{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "b", Model: "m"}}},
		{0, core.Event{Kind: core.EventPeerAdded, Peer: &core.PeerInfo{ID: "far"}}},
		{0, core.Event{Kind: core.EventPeerReport, Target: "far", PeerReport: &core.PeerReport{
			RTT: 80 * time.Millisecond, Models: []core.ModelLoad{{Model: "m", Replicas: 3, Available: 3}},
		}}},
	}
	for i := range n {
		at, id := time.Duration(i)*100*time.Millisecond, fmt.Sprint(i)
		blocks := make([]uint64, 8)
		for k := range blocks {
			blocks[k] = uint64(1000*(i%2) + k)
		}
		events = append(events,
			recordedEvent{at, core.Event{Kind: core.EventReplicaReport, Target: "a", Report: ready}},
			recordedEvent{at, core.Event{Kind: core.EventReplicaReport, Target: "b", Report: ready}},
			recordedEvent{at, core.Event{Kind: core.EventArrived, Request: &core.Request{
				ID: id, Model: "m", Prompt: append(blocks, uint64(10_000+i)), PromptTokens: 150, MaxTokens: 64, Session: fmt.Sprint("s", i%2), Tier: "IW-F",
			}}})
		if i < n-2 {
			events = append(events, recordedEvent{at + 50*time.Millisecond, core.Event{Kind: core.EventFinished, ID: id, Outcome: &core.Outcome{
				PromptTokens: policy.Known(120), CachedTokens: policy.Known(0), OutputTokens: policy.Known(response),
			}}})
		}
	}
	return append(events, recordedEvent{time.Duration(n)*100*time.Millisecond + time.Minute, core.Event{Kind: core.EventTick}})
}

func whatIf(policies ...string) WhatIf {
	return WhatIf{Policies: policies, Profile: engine.Profiles()[0], Speed: 1, Seeds: 1}
}

// The recorded requests are simulated with the recorded policy and the others; the result is
// reproducible.
func TestWhatIfSimulatesRecordedRequests(t *testing.T) {
	record := recordOf(t, "cost", requestHistory(30, 20)...)
	report, err := ReplayWhatIf(t.Context(), "r", bytes.NewReader(record), whatIf("round-robin", "cost"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range report.Rows {
		rows = append(rows, fmt.Sprintf("%s %s %s %.0f", r.Source, r.Policy, r.Push, r.Completed))
	}
	if want := []string{"recorded cost pending 28", "simulated cost pending 30", "simulated round-robin pending 30"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	for _, r := range report.Rows[1:] {
		// Of 120 prompt tokens, 8 blocks of 13 are shared with every second request.
		if r.PrefixHitRate == nil || *r.PrefixHitRate < 0.5 || *r.PrefixHitRate > 0.9 || r.Seed == nil || *r.Seed != 1 {
			t.Errorf("%s: hit rate %v, seed %v: shared prefixes are lost", r.Policy, r.PrefixHitRate, r.Seed)
		}
	}
	c := report.Simulated
	if c == nil || len(c.Regions) != 2 || c.Regions[0].Replicas != 2 || c.Regions[1].Replicas != 3 || len(c.Links) != 1 || c.Links[0].RTT != 80 || c.MaxNew != 64 || c.Trace.Requests != 30 {
		t.Errorf("simulated %+v", c)
	}
	for _, want := range []string{"peer far has 3 replicas, as it reported,", "2 requests without a recorded response, taken to have the mean output of the others, 20 tokens"} {
		if !strings.Contains(strings.Join(report.Assumed, "\n"), want) {
			t.Errorf("assumptions lack %q: %q", want, report.Assumed)
		}
	}
	again, err := ReplayWhatIf(t.Context(), "r", bytes.NewReader(record), whatIf("round-robin", "cost"))
	if err != nil || toJSON(t, report) != toJSON(t, again) {
		t.Errorf("the same options yield another report: %v", err)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "simulated with l4-llama3.1-8b; assumed:") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// The proxy submits a rejected request again, with its ID, for the next model of its fallback: the outcome
// belongs to that model.
func TestWhatIfCountsRetriesOfRejectedIDs(t *testing.T) {
	arrived := func(id, model string) recordedEvent {
		return recordedEvent{3 * time.Second, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: id, Model: model, PromptTokens: 32}}}
	}
	finished := func(id string) recordedEvent {
		return recordedEvent{4 * time.Second, core.Event{Kind: core.EventFinished, ID: id, Outcome: &core.Outcome{OutputTokens: policy.Known(7)}}}
	}
	load := newRecordedLoad()
	record := recordOf(t, "cost", append(twoReplicas(), arrived("3", "absent"), arrived("3", "m"), arrived("3", "m"), finished("3"))...)
	if _, err := replayRecord(t.Context(), "r", bytes.NewReader(record), load.applyStep); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range load.requests {
		got = append(got, fmt.Sprint(load.requests[i].model, " ", load.requests[i].row.OutputTokens))
	}
	if want := []string{"m 3", "m 0", "absent 0", "m 7"}; !slices.Equal(got, want) {
		t.Errorf("requests with output tokens %q, want %q", got, want)
	}
}

// A push mode alone simulates the recorded policy with it, in addition to the recorded one.
func TestWhatIfWithPushMode(t *testing.T) {
	w := whatIf()
	w.Push, w.Speed = "outstanding:4", 10
	report, err := ReplayWhatIf(t.Context(), "r", bytes.NewReader(recordOf(t, "skylb", requestHistory(12, 20)...)), w)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 3 || report.Rows[1].Push != "pending" || report.Rows[2].Push != "outstanding:4" || report.Rows[2].Policy != "skylb" || report.Simulated.Profile != "l4-llama3.1-8b x10" {
		t.Errorf("rows %+v of %s", report.Rows, report.Simulated.Profile)
	}
}

func TestWhatIfErrors(t *testing.T) {
	bad := func(change func(*WhatIf)) WhatIf {
		w := whatIf("cost")
		change(&w)
		return w
	}
	long := requestHistory(4, 20)
	for i := range long {
		if r := long[i].Request; r != nil {
			r.PromptTokens = 30_000
		}
		if o := long[i].Outcome; o != nil {
			o.PromptTokens = policy.Known(30_000)
		}
	}
	for name, c := range map[string]struct {
		w      WhatIf
		events []recordedEvent
		want   string
	}{
		"policy":       {bad(func(w *WhatIf) { w.Policies = []string{"best"} }), requestHistory(4, 20), `unknown policy "best"`},
		"push":         {bad(func(w *WhatIf) { w.Push = "hard" }), requestHistory(4, 20), `unknown push mode "hard"`},
		"seeds":        {bad(func(w *WhatIf) { w.Seeds = 0 }), requestHistory(4, 20), "seeds: must be at least 1, got 0"},
		"no request":   {whatIf("cost"), requestHistory(0, 20), "simulating r: the record contains no request to simulate"},
		"no response":  {whatIf("cost"), requestHistory(2, 20), "simulating r: the record contains no response"},
		"long prompts": {whatIf("cost"), long, "simulating r: every prompt in the record exceeds the"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReplayWhatIf(t.Context(), "r", bytes.NewReader(recordOf(t, "cost", c.events...)), c.w)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A record whose replay differs is not simulated.
func TestWhatIfSkipsDifferingRecords(t *testing.T) {
	record := bytes.Replace(recordOf(t, "round-robin", requestHistory(6, 20)...), []byte(`"target":"b"`), []byte(`"target":"x"`), 1)
	report, err := ReplayWhatIf(t.Context(), "r", bytes.NewReader(record), whatIf("cost"))
	if err != nil || report.Replay.Difference == nil || report.Simulated != nil || len(report.Rows) != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}
