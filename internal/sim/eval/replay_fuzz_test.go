package eval

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// checkReplay checks that any record yields a report or an error.
func checkReplay(t *testing.T, data []byte) {
	t.Helper()
	report, err := ReplayRecord(context.Background(), "r", bytes.NewReader(data))
	if (report == nil) == (err == nil) {
		t.Fatalf("report %v, error %v", report, err)
	}
	if err == nil && report.Replay.Identical != (report.Replay.Difference == nil) {
		t.Fatalf("%+v", report.Replay)
	}
}

// Any bytes read as a record yield a report or an error.
func FuzzReplayRecord(f *testing.F) {
	for _, name := range []string{"cost", "skylb", "sageserve"} {
		f.Add(recordOf(f, name, twoReplicas()...))
	}
	f.Add([]byte("{\"record\":2}\n{\"t\":1,\"event\":{\"kind\":\"tick\"}}\n"))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(checkReplay)
}

// FuzzReplaySteps is FuzzReplayRecord after a valid header.
func FuzzReplaySteps(f *testing.F) {
	header := recordOf(f, "cost")
	f.Add(recordOf(f, "cost", twoReplicas()...)[len(header):])
	f.Add([]byte(`{"t":1,"config":{"policy":"bf-io","order":"dpa","tau_n_ns":-1},"actions":[]}` + "\n"))
	f.Add([]byte(`{"t":1,"event":{"kind":"peer_report","target":"p","peer_report":{"models":[{}]}},"actions":[]}` + "\n"))
	f.Fuzz(func(t *testing.T, steps []byte) { checkReplay(t, append(bytes.Clone(header), steps...)) })
}

// randomEvent draws an event with few distinct IDs, so that events interact, and with extreme values.
func randomEvent(r *rapid.T) core.Event {
	id := rapid.SampledFrom([]string{"", "1", "2", "3", "4"})
	target := rapid.SampledFrom([]string{"", "a", "b", "p", "q"})
	model := rapid.SampledFrom([]string{"", "m", "n"})
	number := rapid.SampledFrom([]int{0, 1, 7, 4096, -1, math.MaxInt, math.MinInt})
	duration := rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Minute, -time.Second, math.MaxInt64, math.MinInt64})
	share := rapid.SampledFrom([]float64{0, 0.5, 1, -3, 1e300})
	hop := rapid.SampledFrom([]core.Hop{core.HopNone, core.HopLocal, core.HopRemote, core.HopBoth, "odd"})
	maybe := func(name string) policy.Maybe[int] {
		return policy.Maybe[int]{Value: number.Draw(r, name), Known: rapid.Bool().Draw(r, "known "+name)}
	}
	e := core.Event{Kind: rapid.SampledFrom(kinds()).Draw(r, "kind"), ID: id.Draw(r, "id"), Target: target.Draw(r, "target"), Tokens: number.Draw(r, "tokens")}
	e.Request = &core.Request{
		ID: e.ID, Model: model.Draw(r, "model"), Session: id.Draw(r, "session"), Tenant: id.Draw(r, "tenant"),
		Tier: rapid.SampledFrom([]service.Tier{"IW-F", "IW-N", "NIW", ""}).Draw(r, "tier"), Prompt: rapid.SliceOfN(rapid.Uint64Range(0, 3), 0, 5).Draw(r, "prompt"), PromptTokens: number.Draw(r, "prompt tokens"),
		Streamed: rapid.Bool().Draw(r, "streamed"), MaxTokens: number.Draw(r, "max tokens"), Hop: hop.Draw(r, "hop"), From: target.Draw(r, "from"),
		SessionAge: duration.Draw(r, "age"), MaxWait: duration.Draw(r, "wait"),
	}
	e.Outcome = &core.Outcome{
		PromptTokens: maybe("prompt"), CachedTokens: maybe("cached"), OutputTokens: maybe("output"),
		Key: rapid.SliceOfN(rapid.Uint64Range(0, 3), 0, 7).Draw(r, "key"), Retryable: rapid.Bool().Draw(r, "retryable"), Unreachable: rapid.Bool().Draw(r, "unreachable"),
	}
	e.Replica = &core.ReplicaInfo{ID: e.Target, Model: model.Draw(r, "serves"), MaxOutstanding: number.Draw(r, "most"), Draining: rapid.Bool().Draw(r, "drains")}
	e.Report = &core.ProbeReport{
		Age: duration.Draw(r, "report age"), Ready: rapid.Bool().Draw(r, "ready"), Pending: maybe("pending"), Running: maybe("running"),
		KV: policy.Maybe[float64]{Value: share.Draw(r, "kv"), Known: true},
	}
	e.CacheUpdates = []core.CacheUpdate{{
		Replica: target.Draw(r, "cached at"), Tenant: id.Draw(r, "cached for"), Key: rapid.SliceOfN(rapid.Uint64Range(0, 3), 0, 5).Draw(r, "cached prompt"),
		CacheLost: rapid.Bool().Draw(r, "lost"), Age: duration.Draw(r, "update age"), SessionAge: duration.Draw(r, "session age"),
	}}
	e.Peer = &core.PeerInfo{ID: e.Target, SameRegion: rapid.Bool().Draw(r, "same region")}
	e.PeerReport = &core.PeerReport{Age: duration.Draw(r, "peer age"), RTT: duration.Draw(r, "rtt"), Models: []core.ModelLoad{{
		Model: model.Draw(r, "offers"), Replicas: number.Draw(r, "replicas"), Available: number.Draw(r, "available"), Queued: number.Draw(r, "queued"),
		Outstanding: number.Draw(r, "outstanding"), KV: policy.Known(share.Draw(r, "peer kv")), ExpectedWait: duration.Draw(r, "peer wait"), Residence: duration.Draw(r, "residence"),
	}}}
	return e
}

// kinds returns the kinds of event in a fixed order.
func kinds() []core.EventKind {
	return []core.EventKind{
		core.EventArrived, core.EventFirstToken, core.EventProgress, core.EventFinished, core.EventFailed, core.EventCancelled, core.EventBounced,
		core.EventReplicaAdded, core.EventReplicaRemoved, core.EventReplicaDraining, core.EventReplicaReport,
		core.EventPeerAdded, core.EventPeerRemoved, core.EventPeerReport, core.EventPeerCacheUpdates, core.EventTick,
	}
}

// Any history replays identically, including one with extreme values: the record is readable and
// complete.
func TestRandomHistoriesReplayIdentically(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.SampledFrom(policy.Names()).Draw(r, "policy")
		var events []recordedEvent
		at := time.Duration(0)
		for range rapid.IntRange(1, 40).Draw(r, "events") {
			at += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(r, "gap"))
			events = append(events, recordedEvent{at, randomEvent(r)})
		}
		cfg := core.DefaultConfig(newPolicy(t, name))
		cfg.Order = rapid.SampledFrom([]core.QueueOrder{core.OrderFCFS, core.OrderEDF, core.OrderPF, core.OrderDPA}).Draw(r, "order")
		cfg.Push = rapid.SampledFrom([]core.PushMode{{Kind: core.PushPending}, {Kind: core.PushBlind}, {Kind: core.PushOutstanding, N: 2}}).Draw(r, "push")
		cfg.QueueLimit, cfg.PoolLimit = rapid.IntRange(0, 4).Draw(r, "queue limit"), rapid.IntRange(0, 4).Draw(r, "pool limit")
		report, err := ReplayRecord(context.Background(), "r", bytes.NewReader(recordWith(t, cfg, events...)))
		if err != nil || !report.Replay.Identical {
			r.Fatalf("%+v, %v", report, err)
		}
	})
}

// BenchmarkReplay replays a record with one request after the other.
func BenchmarkReplay(b *testing.B) {
	events := twoReplicas()[:4]
	for i := range 1000 {
		at, id := time.Duration(i)*time.Millisecond, fmt.Sprint(i)
		events = append(events,
			recordedEvent{at, core.Event{Kind: core.EventReplicaReport, Target: "a", Report: events[2].Report}},
			recordedEvent{at, core.Event{Kind: core.EventArrived, Request: &core.Request{ID: id, Model: "m", Prompt: []uint64{1, uint64(i)}}}},
			recordedEvent{at, core.Event{Kind: core.EventFirstToken, ID: id}},
			recordedEvent{at, core.Event{Kind: core.EventFinished, ID: id, Outcome: &core.Outcome{}}})
	}
	record := recordOf(b, "cost", events...)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		report, err := ReplayRecord(context.Background(), "r", bytes.NewReader(record))
		if err != nil || !report.Replay.Identical {
			b.Fatalf("%+v, %v", report, err)
		}
	}
}
