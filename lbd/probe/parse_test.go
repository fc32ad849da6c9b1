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
		want       Figures
	}{
		{"nothing", "", Figures{}},
		{"vllm", `# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="0",model_name="m"} 17.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.5e+06
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2e+06
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
`, Figures{Pending: known(3), Running: known(17), KV: known(0.25), HitTokens: known(1.5e6), QueryTokens: known(2e6)}},
		{
			"sglang", `sglang:num_queue_reqs{model_name="m"} 2
sglang:num_running_reqs{model_name="m"} 4
sglang:token_usage{model_name="m"} 0.5
sglang:cache_hit_rate{model_name="m"} 0.75`,
			Figures{Pending: known(2), Running: known(4), KV: known(0.5), HitRate: known(0.75)},
		},
		{"older name of KV", "vllm:gpu_cache_usage_perc 0.5\n", Figures{KV: known(0.5)}},
		{"newer name of KV wins", "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.75\n", Figures{KV: known(0.75)}},
		{"ranks", `vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
`, Figures{Pending: known(3), KV: known(0.5)}},
		{"one rank unknown", `vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} NaN
vllm:num_requests_running{engine="0"} 5
`, Figures{Running: known(5)}},
		{"priorities beside their total", `sglang:num_queue_reqs{model_name="m",priority=""} 5
sglang:num_queue_reqs{model_name="m",priority="1"} 3
sglang:num_queue_reqs{priority="2",model_name="m"} 2
`, Figures{Pending: known(5)}},
		{"labels that mislead", `vllm:num_requests_waiting{a="} 9",b="\"} 8",c="\\"} 7` + "\n", Figures{Pending: known(7)}},
		{"time stamps, tabs and returns", "vllm:num_requests_waiting\t4 1700000000000\r\nvllm:num_requests_running 5\r\n", Figures{Pending: known(4), Running: known(5)}},
		{"other names", "vllm:num_requests_waiting_total 4\nvllm:num_requests 5\nv\ns 1\n", Figures{}},
		{"empty value", "vllm:num_requests_waiting\nvllm:num_requests_running{\n", Figures{}},
		{"no number", "vllm:num_requests_waiting lots\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc -Inf\n", Figures{}},
		{"below zero", "vllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc -0.5\n", Figures{}},
		{"beyond sense", "vllm:num_requests_waiting 1e300\nvllm:kv_cache_usage_perc 40\n", Figures{}},
		{"rounded up", "vllm:kv_cache_usage_perc 1.0000001\n", Figures{KV: known(1.0)}},
		{"endless number", "vllm:num_requests_waiting 1" + strings.Repeat("0", 99) + "\n", Figures{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Parse([]byte(c.page)); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// vllmPage is a page as long as vLLM's: histograms make up nearly all of it.
func vllmPage(size int) []byte {
	var b strings.Builder
	b.WriteString("vllm:num_requests_running{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 12.0\n")
	for i := 0; b.Len() < size-1000; i++ {
		if i%20 == 0 {
			fmt.Fprintf(&b, "# HELP vllm:time_%d_seconds Histogram of something that takes time, in seconds.\n# TYPE vllm:time_%d_seconds histogram\n", i, i)
		}
		fmt.Fprintf(&b, "vllm:time_%d_seconds_bucket{engine=\"0\",le=\"%d.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", i/20, i%20, i*7)
	}
	b.WriteString("vllm:num_requests_waiting{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 2.0\n")
	b.WriteString("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 0.8231707317073171\n")
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
	page := vllmPage(30 << 10)
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		Parse(page)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("vllm:num_requests_waiting{a=\"}\"} 3\n"))
	f.Add([]byte("sglang:token_usage 0.5 12\r\nsglang:num_queue_reqs NaN"))
	f.Add([]byte("vllm:num_requests_waiting{a=\"\\"))
	f.Add([]byte("sglang:num_queue_reqs{priority=\""))
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
		// What stands on a line of its own changes nothing but itself.
		more := append(append([]byte("# a comment\nother 1\n"), page...), "\nother 2\n"...)
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
