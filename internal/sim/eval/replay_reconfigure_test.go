package eval

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// changedRecord is a record in which the push mode is relaxed while one of two requests is queued, with
// the resulting actions.
func changedRecord(t *testing.T) []byte {
	t.Helper()
	cfg := core.DefaultConfig(newPolicy(t, "skylb"))
	cfg.Push = core.PushMode{Kind: core.PushOutstanding, N: 1}
	ready := &core.ProbeReport{Ready: true, Pending: policy.Known(0)}
	events := []recordedEvent{
		{0, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: "a", Model: "m"}}},
		{0, core.Event{Kind: core.EventReplicaReport, Target: "a", Report: ready}},
		{0, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "1", Model: "m", Prompt: []uint64{1, 2}, PromptTokens: 32}}},
		{0, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: "2", Model: "m", Prompt: []uint64{1, 2}, PromptTokens: 32}}},
	}
	out := bytes.NewBuffer(recordWith(t, cfg, events...))
	b := core.New(cfg)
	for _, e := range events {
		b.Step(e.at, e.Event)
	}
	header, _, _ := strings.Cut(out.String(), "\n")
	var h record.Header
	if err := json.Unmarshal([]byte(header), &h); err != nil {
		t.Fatal(err)
	}
	h.Config.Policy, h.Config.Push = "least-load", "outstanding:2"
	next, err := h.Config.Core()
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(out)
	end := core.Event{Kind: core.EventFinished, ID: "2", Outcome: &core.Outcome{OutputTokens: policy.Known(5)}}
	for _, line := range []record.Line{
		{T: 900 * time.Millisecond, Config: &h.Config, Actions: b.Reconfigure(900*time.Millisecond, next)},
		{T: 2 * time.Second, Event: &end, Actions: b.Step(2*time.Second, end)},
	} {
		if err := enc.Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// A replay across a configuration change is identical, and compares the actions that the change causes.
func TestReplayAcrossConfigChange(t *testing.T) {
	record := changedRecord(t)
	if !bytes.Contains(record, []byte(`"kind":"dispatch","id":"2"`)) {
		t.Fatalf("the change caused no action:\n%s", record)
	}
	report, err := ReplayRecord(t.Context(), "r", bytes.NewReader(record))
	if err != nil || !report.Replay.Identical || report.Replay.Steps != 6 || report.Replay.Reconfigured != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	if row := report.Rows[0]; row.Completed != 1 || row.MaxWaitMillis != 900 {
		t.Errorf("row %+v, want the request that waited for the change", row)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "the configuration changed 1 time;") {
		t.Errorf("%v\n%s", err, table.String())
	}

	other := bytes.Replace(record, []byte(`"push":"outstanding:2"`), []byte(`"push":"outstanding:1"`), 1)
	report, err = ReplayRecord(t.Context(), "r", bytes.NewReader(other))
	if err != nil || report.Replay.Difference == nil {
		t.Fatalf("%+v, %v, want a difference", report, err)
	}
	if got := report.Replay.Difference.String(); got != "line 6, new configuration at 0.900 s: recorded dispatch 2 to a (least_load), replayed no action" {
		t.Errorf("got %s", got)
	}
}
