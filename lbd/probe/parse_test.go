package probe

import (
	"fmt"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

func known[T any](v T) policy.Maybe[T] { return policy.Known(v) }

// totalOf parses a page.
func totalOf(page []byte) EngineFigures {
	var p Page
	p.Parse(page)
	return p.Total()
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       EngineFigures
	}{
		{"nothing", "", EngineFigures{}},
		{"vllm", `# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="0",model_name="m"} 17.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.5e+06
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2e+06
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
`, EngineFigures{Pending: known(3), Running: known(17), KV: known(0.25), HitTokens: known(1.5e6), QueryTokens: known(2e6)}},
		{
			"sglang", `sglang:num_queue_reqs{model_name="m"} 2
sglang:num_running_reqs{model_name="m"} 4
sglang:token_usage{model_name="m"} 0.5
sglang:cache_hit_rate{model_name="m"} 0.75`,
			EngineFigures{Pending: known(2), Running: known(4), KV: known(0.5), HitRate: known(0.75)},
		},
		{"behind histograms", `# TYPE vllm:a histogram
vllm:a_bucket{le="#1"} 3
vllm:a_sum 4
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting 3
# TYPE vllm:b histogram
vllm:b_count 4`, EngineFigures{Pending: known(3)}},
		{"without a comment behind a histogram", `# TYPE vllm:a histogram
vllm:a_bucket{le="1"} 3
vllm:a_count 4
vllm:num_requests_waiting 3
# TYPE vllm:b histogram
vllm:num_requests_running 4
# TYPE vllm:kv_cache_usage_perc histogram
# TYPE vllm:gpu_cache_usage_perc untyped
vllm:gpu_cache_usage_perc 0.5
`, EngineFigures{Pending: known(3), Running: known(4), KV: known(0.5)}},
		{"older names of hits", "vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 20\nvllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 5\n", EngineFigures{HitTokens: known(5.0), QueryTokens: known(20.0)}},
		{"newer names of hits win", "vllm:gpu_prefix_cache_queries_total 20\nvllm:prefix_cache_queries_total 30\n", EngineFigures{QueryTokens: known(30.0)}},
		{"vllm V0", `vllm:num_requests_waiting{model_name="m"} 1.0
vllm:num_requests_swapped{model_name="m"} 2.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.25
`, EngineFigures{Pending: known(3), HitRate: known(0.25)}},
		{"vllm V0 without prefix cache", "vllm:gpu_prefix_cache_hit_rate{model_name=\"m\"} -1.0\n", EngineFigures{}},
		{"swapped unknown", "vllm:num_requests_waiting 1\nvllm:num_requests_swapped NaN\n", EngineFigures{}},
		{"swapped alone", "vllm:num_requests_swapped 1\n", EngineFigures{}},
		{"several API servers", `vllm:num_requests_waiting{engine="0",model_name="m",pid="10"} 2
vllm:num_requests_waiting{engine="0",model_name="m",pid="11"} 3
vllm:num_requests_waiting{engine="1",model_name="m",pid="10"} 4
vllm:num_requests_waiting{engine="1",model_name="m",pid="11"} 4
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="10"} 0.25
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="11"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m",pid="10"} 1
`, EngineFigures{Pending: known(7), KV: known(0.75)}},
		{"awake", `vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0
`, EngineFigures{}},
		{"asleep", `vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1
`, EngineFigures{Asleep: true}},
		{"one rank asleep", `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1
vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0
`, EngineFigures{Asleep: true}},
		{"sglang, all schedulers", `sglang:num_queue_reqs{dp_rank="0",engine_type="unified",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 4
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 4
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",moe_ep_rank="0",pp_rank="1",tp_rank="0"} 3
sglang:num_queue_reqs{dp_rank="1",engine_type="unified",moe_ep_rank="0",pp_rank="0",tp_rank="2"} 1
sglang:num_queue_reqs{dp_rank="1",engine_type="unified",moe_ep_rank="0",pp_rank="0",tp_rank="3"} 1
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="0",tp_rank="1"} 0.5
sglang:token_usage{dp_rank="1",tp_rank="2"} 1
`, EngineFigures{Pending: known(5), KV: known(0.75)}},
		{"sglang without data parallelism", `sglang:num_running_reqs{pp_rank="0",tp_rank="0"} 16
sglang:num_running_reqs{pp_rank="1",tp_rank="0"} 16
`, EngineFigures{Running: known(16)}},
		{"sglang, prefill engine", `sglang:num_queue_reqs{tp_rank="0"} 1
sglang:num_prefill_bootstrap_queue_reqs{tp_rank="0"} 2
sglang:num_prefill_bootstrap_queue_reqs{tp_rank="1"} 2
sglang:num_prefill_prealloc_queue_reqs{tp_rank="0"} 3
sglang:num_running_reqs{tp_rank="0"} 5
sglang:num_prefill_inflight_queue_reqs{tp_rank="0"} 4
`, EngineFigures{Pending: known(6), Running: known(9)}},
		{"sglang, decode engine", `sglang:num_queue_reqs{tp_rank="0"} 1
sglang:num_decode_prealloc_queue_reqs{tp_rank="0"} 2
sglang:num_decode_transfer_queue_reqs{tp_rank="0"} 3
`, EngineFigures{Pending: known(6)}},
		{"sglang's counters", `sglang:prompt_tokens_total{model_name="m"} 200
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50
sglang:cache_hit_rate{model_name="m"} 0.0
sglang:gen_throughput{model_name="m"} 17.5
`, EngineFigures{HitTokens: known(150.0), QueryTokens: known(200.0), Beat: known(17.5)}},
		{"llama.cpp", `# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
llamacpp:requests_deferred 3
llamacpp:kv_cache_usage_ratio 0.5
llamacpp:n_busy_slots_per_decode 3.87
`, EngineFigures{Pending: known(3), Running: known(4), KV: known(0.5)}},
		{"LMDeploy", `lmdeploy:num_requests_running{engine="0",model_name="m"} 8.0
lmdeploy:num_requests_waiting{engine="0",model_name="m"} 2.0
lmdeploy:num_api_requests_waiting{engine="0",model_name="m"} 1.0
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
`, EngineFigures{Pending: known(3), Running: known(8), KV: known(0.25)}},
		{"TGI", "tgi_queue_size 3\ntgi_batch_current_size 8\ntgi_batch_current_max_tokens 2048\ntgi_queue 1\n", EngineFigures{Pending: known(3), Running: known(8)}},
		{"TensorRT-LLM", `trtllm_num_requests_running{model_name="m"} 5.0
trtllm_num_requests_waiting{model_name="m"} 3.0
trtllm_kv_cache_utilization{model_name="m"} 0.6
trtllm_kv_cache_hit_rate{model_name="m"} 0.0
trtllm_iteration_latency_seconds{model_name="m"} 0.0155
`, EngineFigures{Pending: known(3), Running: known(5), KV: known(0.6), HitRate: known(0.0), Beat: known(0.0155)}},
		{"rank beyond sense", "vllm:num_requests_waiting{engine=\"99999999999999999999\"} 3\n", EngineFigures{Pending: known(3)}},
		{"older name of KV", "vllm:gpu_cache_usage_perc 0.5\n", EngineFigures{KV: known(0.5)}},
		{"newer name of KV wins", "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.75\n", EngineFigures{KV: known(0.75)}},
		{"ranks", `vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
`, EngineFigures{Pending: known(3), KV: known(0.5)}},
		{"one rank unknown", `vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} NaN
vllm:num_requests_running{engine="0"} 5
`, EngineFigures{Running: known(5)}},
		{"priorities beside their total", `sglang:num_queue_reqs{model_name="m",priority=""} 5
sglang:num_queue_reqs{model_name="m",priority="1"} 3
sglang:num_queue_reqs{priority="2",model_name="m"} 2
`, EngineFigures{Pending: known(5)}},
		{"labels that mislead", `vllm:num_requests_waiting{a="} 9",b="\"} 8",c="\\"} 7` + "\n", EngineFigures{Pending: known(7)}},
		{"time stamps, tabs and returns", "vllm:num_requests_waiting\t4 1700000000000\r\nvllm:num_requests_running 5\r\n", EngineFigures{Pending: known(4), Running: known(5)}},
		{"other names", "vllm:num_requests_waiting_total 4\nvllm:num_requests 5\nv\ns 1\n", EngineFigures{}},
		{"empty value", "vllm:num_requests_waiting\nvllm:num_requests_running{\n", EngineFigures{}},
		{"no number", "vllm:num_requests_waiting lots\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc -Inf\n", EngineFigures{}},
		{"below zero", "vllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc -0.5\n", EngineFigures{}},
		{"beyond sense", "vllm:num_requests_waiting 1e300\nvllm:kv_cache_usage_perc 40\n", EngineFigures{}},
		{"rounded up", "vllm:kv_cache_usage_perc 1.0000001\n", EngineFigures{KV: known(1.0)}},
		{"endless number", "vllm:num_requests_waiting 1" + strings.Repeat("0", 99) + "\n", EngineFigures{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := totalOf([]byte(c.page)); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// vllmPage is a page as long as vLLM's, in its order: a few gauges and counters,
// then histograms, which make up nearly all of it.
func vllmPage(size int) []byte {
	const labels = `engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"`
	var b strings.Builder
	family := func(name, kind string) {
		fmt.Fprintf(&b, "# HELP %s What an operator wants to know of %s, in a sentence.\n# TYPE %s %s\n", name, name, name, kind)
	}
	for _, m := range []struct {
		name, kind string
		value      float64
	}{
		{"vllm:num_requests_running", "gauge", 12},
		{"vllm:num_requests_waiting", "gauge", 2},
		{"vllm:kv_cache_usage_perc", "gauge", 0.8231707317073171},
		{"vllm:prefix_cache_queries_total", "counter", 8.1264e6},
		{"vllm:prefix_cache_hits_total", "counter", 5.73104e6},
		{"vllm:num_preemptions_total", "counter", 3},
	} {
		family(m.name, m.kind)
		fmt.Fprintf(&b, "%s{%s} %v\n", m.name, labels, m.value)
	}
	for i := 0; b.Len() < size; i++ {
		name := fmt.Sprintf("vllm:request_phase_%d_time_seconds", i)
		family(name, "histogram")
		for le := 0; le < 20 && b.Len() < size; le++ {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%d.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", name, le, 100*i+le)
		}
		fmt.Fprintf(&b, "%s_count{%s} %d.0\n%s_sum{%s} %d.5\n", name, labels, i, name, labels, i)
	}
	return []byte(b.String())
}

func TestParseAllocatesNothing(t *testing.T) {
	page := vllmPage(30 << 10)
	var p Page
	if n := testing.AllocsPerRun(10, func() { p.Parse(page); p.Total() }); n != 0 {
		t.Errorf("got %v allocations a page, want none", n)
	}
	if got := totalOf(page); got.Pending != known(2) || got.Running != known(12) {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 60 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			page := vllmPage(size)
			b.SetBytes(int64(len(page)))
			b.ReportAllocs()
			var p Page
			for b.Loop() {
				p.Parse(page)
				p.Total()
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("vllm:num_requests_waiting{a=\"}\"} 3\n"))
	f.Add([]byte("sglang:token_usage 0.5 12\r\nsglang:num_queue_reqs NaN"))
	f.Add([]byte("vllm:num_requests_waiting{a=\"\\"))
	f.Add([]byte("sglang:num_queue_reqs{priority=\""))
	f.Add([]byte("# TYPE x histogram\nx_bucket{le=\"#\"} 1\nx_sum 1\n\nx_count 2\n# HELP\nvllm:num_requests_waiting 1"))
	f.Fuzz(func(t *testing.T, page []byte) {
		got := totalOf(page)
		for name, n := range map[string]policy.Maybe[int]{"pending": got.Pending, "running": got.Running} {
			if n.Value < 0 || n.Value > maxCount || (!n.Known && n.Value != 0) {
				t.Errorf("%s: %+v", name, n)
			}
		}
		for name, s := range map[string]policy.Maybe[float64]{"kv": got.KV, "hit rate": got.HitRate} {
			if !(s.Value >= 0 && s.Value <= 1) || (!s.Known && s.Value != 0) {
				t.Errorf("%s: %+v", name, s)
			}
		}
		// A separate line affects only its own figure.
		more := append(append([]byte("# a comment\nother 1\n"), page...), "\n# a comment\nother 2\n"...)
		if again := totalOf(more); again != got {
			t.Errorf("with other lines around: %+v, without: %+v", again, got)
		}
	})
}

func TestKindOf(t *testing.T) {
	for page, want := range map[string]service.EngineKind{
		"":                                 "",
		"# TYPE x gauge\nx 1\n":            "",
		"vllm:num_requests_waiting 0\n":    service.EngineVLLM,
		"up 1\nsglang:num_queue_reqs 0\n":  service.EngineSGLang,
		"up{engine=\"vllm:x\"} 1\n":        "",
		"# HELP vllm:x y\nprocess_cpu 1\n": "",
	} {
		if got := KindOf([]byte(page)); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
}
