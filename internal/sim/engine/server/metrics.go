package server

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/internal/sim/engine"
)

// throughput stores the last reading of the counter of generated tokens, to compute the rate since
// then.
type throughput struct {
	mu     sync.Mutex
	at     time.Time
	tokens int64
	rate   float64
}

// throughputWindow is the minimum interval of a rate.
const throughputWindow = time.Second

// update returns the tokens per second of wall time, given the counter now.
func (t *throughput) update(now time.Time, tokens int64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if passed := now.Sub(t.at); passed >= throughputWindow {
		t.rate = float64(tokens-t.tokens) / passed.Seconds()
		t.at, t.tokens = now, tokens
	}
	return t.rate
}

// serveMetrics returns metrics in Prometheus text format with the names of the flavor. It is scraped
// ten times per second, so it avoids a metrics library.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if s.opts.Flavor == FlavorNone {
		serveNotFound(w, r)
		return
	}
	m := metricWriter{labels: s.labels(), loads: s.driver.loads()}
	if s.opts.Flavor == FlavorSGLang {
		s.writeSGLang(&m)
	} else {
		s.writeVLLM(&m)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(m.buf))) // as the servers of vLLM and SGLang do
	_, _ = w.Write(m.buf)                                      // a disconnected scraper will retry
}

// labels returns the label set of every rank. An engine with several ranks has a series per rank,
// labelled engine by vLLM and dp_rank by SGLang.
func (s *Server) labels() []string {
	model := `model_name="` + labelEscaper.Replace(s.opts.Model) + `"} `
	if s.opts.DataParallel == 1 {
		return []string{"{" + model}
	}
	label := "engine"
	if s.opts.Flavor == FlavorSGLang {
		label = "dp_rank"
	}
	labels := make([]string, s.opts.DataParallel)
	for rank := range labels {
		labels[rank] = "{" + label + `="` + strconv.Itoa(rank) + `",` + model
	}
	return labels
}

func (s *Server) writeVLLM(m *metricWriter) {
	m.addMetric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", running)
	m.addMetric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", pending)
	m.addMetric("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", utilisation)
	if s.opts.LegacyMetrics {
		m.addMetric("vllm:gpu_cache_usage_perc", "gauge", "GPU KV-cache usage. 1 means 100 percent usage.", utilisation)
	}
	m.addMetric("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", count(func(l *engine.Load) int64 { return l.QueriedTokens }))
	m.addMetric("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", count(func(l *engine.Load) int64 { return l.HitTokens }))
	m.addMetric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", promptTokens)
	m.addMetric("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", generatedTokens)
	m.addMetric("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions from the engine.", count(func(l *engine.Load) int64 { return l.Preempted }))
}

func (s *Server) writeSGLang(m *metricWriter) {
	now := time.Now()
	m.addMetric("sglang:num_running_reqs", "gauge", "The number of running requests.", running)
	m.addMetric("sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", pending)
	m.addMetric("sglang:num_used_tokens", "gauge", "The number of used tokens.", count(func(l *engine.Load) int64 { return int64(l.KVActive) }))
	m.addMetric("sglang:token_usage", "gauge", "The token usage.", utilisation)
	m.addMetric("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", hitRate)
	m.addMetric("sglang:gen_throughput", "gauge", "The generation throughput (token/s).", func(rank int, l *engine.Load) float64 {
		return s.throughput[rank].update(now, l.GeneratedTokens)
	})
	m.addMetric("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.", promptTokens)
	m.addMetric("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.", generatedTokens)
}

// figure returns the value of a metric for a rank.
type figure func(rank int, l *engine.Load) float64

// count returns a figure from a counter or count of the load.
func count(of func(*engine.Load) int64) figure {
	return func(_ int, l *engine.Load) float64 { return float64(of(l)) }
}

var (
	running         = count(func(l *engine.Load) int64 { return int64(l.Running) })
	pending         = count(func(l *engine.Load) int64 { return int64(l.Pending) })
	promptTokens    = count(func(l *engine.Load) int64 { return l.PromptTokens })
	generatedTokens = count(func(l *engine.Load) int64 { return l.GeneratedTokens })
)

func hitRate(_ int, l *engine.Load) float64 {
	if l.QueriedTokens == 0 {
		return 0
	}
	return float64(l.HitTokens) / float64(l.QueriedTokens)
}

// utilisation returns the share of the KV memory used by running requests. Cached blocks without a
// running request count as free, as in the real engines.
func utilisation(_ int, l *engine.Load) float64 { return float64(l.KVActive) / float64(l.KVCapacity) }

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// metricWriter collects lines in Prometheus text format.
type metricWriter struct {
	buf    []byte
	labels []string      // by rank
	loads  []engine.Load // by rank
}

func (m *metricWriter) addMetric(name, kind, help string, of figure) {
	for _, s := range []string{"# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"} {
		m.buf = append(m.buf, s...)
	}
	for rank := range m.loads {
		m.buf = append(append(m.buf, name...), m.labels[rank]...)
		m.buf = strconv.AppendFloat(m.buf, of(rank, &m.loads[rank]), 'g', -1, 64)
		m.buf = append(m.buf, '\n')
	}
}
