package probe

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

func TestFiguresOfEachRank(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       []EngineFigures
	}{
		{"nothing", "", make([]EngineFigures, 2)},
		{"vllm", `vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:kv_cache_usage_perc{model_name="m",engine="1"} 0.25
vllm:kv_cache_usage_perc{model_name="m",engine="0"} NaN
`, []EngineFigures{{Pending: known(3)}, {Pending: known(4), KV: known(0.25)}}},
		{"sglang", `sglang:num_running_reqs{dp_rank="1",model_name="m",tp_rank="0"} 7
sglang:num_queue_reqs{model_name="m",dp_rank="0"} 2
sglang:num_queue_reqs{dp_rank="1",priority="2"} 9
`, []EngineFigures{{Pending: known(2)}, {Running: known(7)}}},
		{"others' ranks", `vllm:num_requests_waiting{engine="2"} 3
vllm:num_requests_waiting{engine="-1"} 3
vllm:num_requests_waiting{engine="x"} 3
vllm:num_requests_waiting{engine="1} 3
`, make([]EngineFigures, 2)},
		{"not by rank", "vllm:num_requests_waiting 3\nvllm:num_requests_waiting{model_name=\"m\"} 4\n", make([]EngineFigures, 2)},
	} {
		var p Page
		p.Parse([]byte(c.page))
		got := []EngineFigures{p.Rank(0), p.Rank(1)}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestEachRankIsReportedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		e.pages["/metrics"] = "vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"1\"} 5\nvllm:num_requests_running{engine=\"1\"} 2\n"
		var got reports
		p := New(Options{Sink: got.take, Transport: e})
		defer p.Close()
		cfg := service.ReplicaConfig{ID: "us-0", URL: "http://engine", Model: "llama", DataParallel: 3}
		p.Start(cfg)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		want := map[string]core.ProbeReport{
			"us-0/0": {Ready: true, Pending: known(1)},
			"us-0/1": {Ready: true, Pending: known(5), Running: known(2)},
			"us-0/2": {Ready: true},
		}
		if len(got.all) != len(want) {
			t.Fatalf("%d reports of one look", len(got.all))
		}
		for _, ev := range got.all {
			r := *ev.Report
			r.Age = 0
			if r != want[ev.Target] {
				t.Errorf("%s: got %+v, want %+v", ev.Target, r, want[ev.Target])
			}
		}
		// Its figures are unknown once it stops responding.
		got.drain()
		e.set(func(e *engine) { e.err = refused() })
		time.Sleep(120 * time.Millisecond)
		synctest.Wait()
		reports := got.drain()
		if len(reports) < 3 {
			t.Fatalf("%d reports of a dead engine of 3 ranks", len(reports))
		}
		for _, r := range reports {
			if r.Ready || r.Pending.Known || r.Reason != "connection refused" {
				t.Errorf("got %+v", r)
			}
		}
		// With another number of ranks it starts again.
		cfg.DataParallel = 1
		e.set(func(e *engine) { e.err = nil })
		p.Start(cfg)
		got.drain()
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if r := got.drain(); len(r) != 1 || !r[0].Ready || r[0].Pending != known(6) {
			t.Errorf("as one replica: %+v", r)
		}
	})
}
