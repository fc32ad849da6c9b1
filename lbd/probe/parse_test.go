package probe

import (
	"fmt"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

func known[T any](v T) policy.Maybe[T] { return policy.Known(v) }

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
			if got := Parse([]byte(c.page)); got != c.want {
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
	if n := testing.AllocsPerRun(10, func() { Parse(page) }); n != 0 {
		t.Errorf("got %v allocations a page, want none", n)
	}
	if got := Parse(page); got.Pending != known(2) || got.Running != known(12) {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 60 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			page := vllmPage(size)
			b.SetBytes(int64(len(page)))
			b.ReportAllocs()
			for b.Loop() {
				Parse(page)
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
		got := Parse(page)
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
		if again := Parse(more); again != got {
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
