package probe

import (
	"slices"
	"testing"

	"skyserve/lbd/policy"
)

const (
	liveLoads = `{"timestamp": "2026-01-02T03:04:05+00:00", "version": "0.5.8", "accelerator": null, "num_accelerators": 4, "loads": [
 {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 500, "token_usage": 0.5, "cache_hit_rate": 0.0, "queues": {"waiting": 1, "grammar": 7}},
 {"dp_rank": 1, "num_running_reqs": 5, "num_waiting_reqs": 2, "token_usage": 1.0}]}`
	oldLoads = `[{"rid": null, "dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, "num_tokens": 900, "ts_tic": 1.5}]`
)

// loadsOf parses a response for a number of ranks.
func loadsOf(body string, ranks int) (found bool, got []EngineFigures) {
	all := make([]rankFigures, ranks)
	for i := range all {
		all[i].EngineFigures = EngineFigures{Pending: known(99), Running: known(99), KV: known(0.99)}
	}
	found = parseLoads([]byte(body), all)
	for i := range all {
		got = append(got, all[i].EngineFigures)
	}
	return found, got
}

func TestParseLoads(t *testing.T) {
	none := EngineFigures{}
	for _, c := range []struct {
		name, body string
		ranks      int
		found      bool
		want       []EngineFigures
	}{
		{"one replica", liveLoads, 1, true, []EngineFigures{{Pending: known(3), Running: known(8), KV: known(0.75)}}},
		{"two ranks", liveLoads, 2, true, []EngineFigures{{Pending: known(1), Running: known(3), KV: known(0.5)}, {Pending: known(2), Running: known(5), KV: known(1.0)}}},
		{"more ranks than loads", liveLoads, 3, true, []EngineFigures{{Pending: known(1), Running: known(3), KV: known(0.5)}, {Pending: known(2), Running: known(5), KV: known(1.0)}, none}},
		{"older", oldLoads, 1, true, []EngineFigures{{Pending: known(1), Running: known(3)}}},
		{"oldest", `{"load": 4}`, 1, false, []EngineFigures{none}},
		{"no loads yet", `{"loads": []}`, 1, true, []EngineFigures{none}},
		{"rank unknown", `[{"dp_rank": null, "num_reqs": 4, "num_waiting_reqs": 1}]`, 2, true, []EngineFigures{{Pending: known(1), Running: known(3)}, none}},
		{"negative", `[{"num_reqs": 1, "num_waiting_reqs": -1}]`, 1, true, []EngineFigures{{Running: known(2)}}},
		{"fewer than waiting", `[{"num_reqs": 1, "num_waiting_reqs": 3}]`, 1, true, []EngineFigures{{Pending: known(3)}}},
		{"no counts", `{"loads": [{"dp_rank": 0}]}`, 1, true, []EngineFigures{none}},
		{"text for a count", `{"loads": [{"num_running_reqs": 1, "num_waiting_reqs": "2"}]}`, 1, true, []EngineFigures{{Running: known(1)}}},
		{"no objects", `[1, 2]`, 1, true, []EngineFigures{none}},
		{"cut off", liveLoads[:len(liveLoads)-2], 1, false, []EngineFigures{none}},
		{"cut off in a number", `{"loads": [{"num_running_reqs": 1`, 1, false, []EngineFigures{none}},
		{"a page of a front", "<html>", 1, false, []EngineFigures{none}},
		{"nothing", "", 1, false, []EngineFigures{none}},
	} {
		if found, got := loadsOf(c.body, c.ranks); found != c.found || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %+v\nwant %v, %+v", c.name, found, got, c.found, c.want)
		}
	}
}

func TestParseLoadsAllocatesNothing(t *testing.T) {
	body, ranks := []byte(liveLoads), make([]rankFigures, 2)
	if n := testing.AllocsPerRun(100, func() { parseLoads(body, ranks) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkParseLoads(b *testing.B) {
	body, ranks := []byte(liveLoads), make([]rankFigures, 1)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		parseLoads(body, ranks)
	}
}

// plausible fails unless the figures are plausible, and unknown ones are zero.
func plausible(t *testing.T, f EngineFigures) {
	t.Helper()
	for name, n := range map[string]policy.Maybe[int]{"pending": f.Pending, "running": f.Running} {
		if n.Value < 0 || n.Value > 8*maxCount || (!n.Known && n.Value != 0) {
			t.Errorf("%s: %+v", name, n)
		}
	}
	for name, s := range map[string]policy.Maybe[float64]{"kv": f.KV, "hit rate": f.HitRate} {
		if !(s.Value >= 0 && s.Value <= 1) || (!s.Known && s.Value != 0) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func FuzzParseLoads(f *testing.F) {
	f.Add(liveLoads)
	f.Add(oldLoads)
	f.Add(`{"loads": [{"num_waiting_reqs": 1e300, "x": [{"\"": {}}, -1], "dp_rank": -1e9}], }`)
	f.Add(`{"loads"`)
	f.Add(`[[],{"a":}]`)
	f.Fuzz(func(t *testing.T, body string) {
		for _, ranks := range []int{1, 3} {
			_, got := loadsOf(body, ranks)
			for _, f := range got {
				plausible(t, f)
			}
		}
	})
}

func TestParseIterations(t *testing.T) {
	for _, c := range []struct {
		name, page   string
		some, isList bool
		want         EngineFigures
	}{
		{
			"the last step counts", `[{"iter": 1, "numActiveRequests": 99}, {"iter": 2, "numActiveRequests": 5, "numQueuedRequests": 3, "iterLatencyMS": 15.5,
 "kvCacheStats": {"cacheHitRate": 0.85, "maxNumBlocks": 1000, "usedNumBlocks": 600}, "inflightBatchingStats": {"numPausedRequests": 1}}]`, true, true,
			EngineFigures{Pending: known(4), Running: known(5), KV: known(0.6), HitRate: known(0.85), Beat: known(15.5)},
		},
		{"no step since the last request", "[]", false, true, EngineFigures{}},
		{"no counts", `[{"iter": 1}]`, true, true, EngineFigures{}},
		{"no memory", `[{"numQueuedRequests": 0, "kvCacheStats": {"maxNumBlocks": 0, "usedNumBlocks": 0}}]`, true, true, EngineFigures{Pending: known(0)}},
		{"garbage", `[{"numQueuedRequests": "lots", "numActiveRequests": -4, "kvCacheStats": 7}]`, true, true, EngineFigures{}},
		{"cut off", `[{"numQueuedRequests": 1}`, false, false, EngineFigures{}},
		{"Prometheus", "vllm:num_requests_waiting 1\n", false, false, EngineFigures{}},
		{"nothing", "", false, false, EngineFigures{}},
	} {
		if f, some, isList := parseIterations([]byte(c.page)); f != c.want || some != c.some || isList != c.isList {
			t.Errorf("%s: got %+v, %v, %v\nwant %+v", c.name, f, some, isList, c.want)
		}
	}
}

func FuzzParseIterations(f *testing.F) {
	f.Add(`[{"numActiveRequests": 5, "kvCacheStats": {"maxNumBlocks": 2, "usedNumBlocks": 1}}]`)
	f.Add(`[{"kvCacheStats": {"kvCacheStats": {"maxNumBlocks": 1e-300, "usedNumBlocks": 1e300}}}]`)
	f.Fuzz(func(t *testing.T, page string) {
		got, _, _ := parseIterations([]byte(page))
		plausible(t, got)
	})
}

func TestSlotsOfLlamaCPP(t *testing.T) {
	for body, want := range map[string]policy.Maybe[int]{
		`{"default_generation_settings":{"n_ctx":4096},"total_slots":4,"model_path":"m.gguf"}`: known(4),
		`{"total_slots":0}`:      {},
		`{"total_slots":-1}`:     {},
		`{"total_slots":1e9}`:    {},
		`{"total_slots":"4"}`:    {},
		`{"detail":"Not Found"}`: {},
		`<html>`:                 {},
		``:                       {},
		`{"total_slots":4`:       {},
		`[{"total_slots":4}]`:    {},
		`{"total_slots":4.5}`:    {},
		`{"total_slots":999999999999999999999999}`: {},
	} {
		if got := slotsOf([]byte(body)); got != want {
			t.Errorf("%s: got %+v, want %+v", body, got, want)
		}
	}
}
