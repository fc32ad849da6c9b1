package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape reads GET /metrics like Prometheus.
func scrape(t *testing.T, b *bench) map[string]float64 {
	t.Helper()
	status, text := b.get("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil || status != 200 {
		t.Fatalf("GET /metrics: %d, %v in\n%s", status, err, text)
	}
	values := map[string]float64{}
	for name, f := range families {
		m := f.GetMetric()[0]
		if l := m.GetLabel(); len(l) != 1 || l[0].GetName() != "model_name" || l[0].GetValue() != b.server.opts.Model {
			t.Errorf("%s has the labels %v", name, l)
		}
		values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		if f.GetType() == dto.MetricType_UNTYPED || f.GetHelp() == "" {
			t.Errorf("%s has no type or help", name)
		}
	}
	return values
}

// loaded sends two requests to a server that runs one at a time, and advances time by a second.
func loaded(t *testing.T, opts Options, test func(t *testing.T, b *bench)) {
	opts, err := opts.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	opts.Profile.MaxRunning = 1
	bubble(t, opts, func(t *testing.T, b *bench) {
		for range 2 {
			resp := b.send(textPath, `{"prompt":"`+strings.Repeat(" word", 100)+`","max_tokens":60,"stream":true}`)
			defer resp.Body.Close()
			go func() { _, _ = resp.Body.Read(make([]byte, 1)) }()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		test(t, b)
	})
}

func TestMetricsOfVLLM(t *testing.T) {
	loaded(t, Options{LegacyMetrics: true, Model: `a "quoted\" name`}, func(t *testing.T, b *bench) {
		got := scrape(t, b)
		l := b.server.driver.loads()[0]
		kv := float64(l.KVActive) / 21_000
		for name, want := range map[string]float64{
			"vllm:num_requests_running":       1,
			"vllm:num_requests_waiting":       1,
			"vllm:kv_cache_usage_perc":        kv,
			"vllm:gpu_cache_usage_perc":       kv,
			"vllm:prefix_cache_queries_total": 100,
			"vllm:prefix_cache_hits_total":    0,
			"vllm:prompt_tokens_total":        100,
			"vllm:generation_tokens_total":    float64(l.GeneratedTokens),
			"vllm:num_preemptions_total":      0,
		} {
			if value, ok := got[name]; !ok || value != want {
				t.Errorf("%s = %g (%v), want %g", name, value, ok, want)
			}
		}
		// 45 ms + 100/2000 s of prefill, then 16 steps of about 54.3 ms.
		if l.GeneratedTokens != 17 || l.KVActive != 117 {
			t.Errorf("after a second: %d tokens, %d in the KV memory; want 17 and 117", l.GeneratedTokens, l.KVActive)
		}
	})
}

func TestMetricsOfSGLang(t *testing.T) {
	loaded(t, Options{Flavor: FlavorSGLang}, func(t *testing.T, b *bench) {
		got := scrape(t, b)
		for name, want := range map[string]float64{
			"sglang:num_running_reqs": 1, "sglang:num_queue_reqs": 1, "sglang:cache_hit_rate": 0,
			"sglang:token_usage": 117.0 / 21_000, "sglang:gen_throughput": 17,
		} {
			if value, ok := got[name]; !ok || value != want {
				t.Errorf("%s = %g (%v), want %g", name, value, ok, want)
			}
		}
		time.Sleep(time.Minute)
		if got := scrape(t, b); got["sglang:num_running_reqs"] != 0 || got["sglang:cache_hit_rate"] != 99.0/200 {
			t.Errorf("after all: %v", got)
		}
	})
}

func TestLoadsOfSGLang(t *testing.T) {
	loaded(t, Options{Flavor: FlavorSGLang}, func(t *testing.T, b *bench) {
		status, text := b.get("/v1/loads?include=core")
		want := `{"loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":1,"num_used_tokens":117,"max_total_num_tokens":21000,"token_usage":0.005571428571428572}]}`
		if strings.TrimSpace(text) != want || status != 200 {
			t.Errorf("%d, %s\nwant %s", status, text, want)
		}
	})
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		if status, _ := b.get("/v1/loads"); status != 404 {
			t.Errorf("of vLLM: %d", status)
		}
	})
}

func TestEngineWithoutMetrics(t *testing.T) {
	bubble(t, Options{Flavor: FlavorNone}, func(t *testing.T, b *bench) {
		status, text := b.get("/metrics")
		if errorOf(t, text); status != 404 {
			t.Errorf("GET /metrics: %d", status)
		}
	})
}

func TestOldMetricsAreOptional(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		if _, ok := scrape(t, b)["vllm:gpu_cache_usage_perc"]; ok {
			t.Error("the former name is present")
		}
	})
}

func BenchmarkScrape(b *testing.B) {
	s, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		m := metricWriter{labels: s.labels(), loads: s.driver.loads()}
		s.writeVLLM(&m)
	}
}
