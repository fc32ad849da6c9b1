package server

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/lbd/engine"
)

// throughput remembers the last look at the counter of generated tokens, to
// give the rate since then.
type throughput struct {
	mu     sync.Mutex
	at     time.Time
	tokens int64
	rate   float64
}

// throughputWindow is the shortest time that a rate is taken over.
const throughputWindow = time.Second

// see is the rate of tokens a second of wall time, given the counter now.
func (t *throughput) see(now time.Time, tokens int64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if passed := now.Sub(t.at); passed >= throughputWindow {
		t.rate = float64(tokens-t.tokens) / passed.Seconds()
		t.at, t.tokens = now, tokens
	}
	return t.rate
}

// serveMetrics answers in Prometheus's text format under the names of the
// flavor. It is scraped ten times a second, so it is written by hand.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if s.opts.Flavor == FlavorNone {
		serveNotFound(w, r)
		return
	}
	l := s.driver.snapshot()
	m := metricWriter{label: `{model_name="` + labelEscaper.Replace(s.opts.Model) + `"} `}
	if s.opts.Flavor == FlavorSGLang {
		s.writeSGLang(&m, l)
	} else {
		s.writeVLLM(&m, l)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.buf) // a scraper that is gone asks again
}

func (s *Server) writeVLLM(m *metricWriter, l engine.Load) {
	m.add("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(l.Running))
	m.add("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(l.Pending))
	m.add("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", utilisation(l))
	if s.opts.OldMetrics {
		m.add("vllm:gpu_cache_usage_perc", "gauge", "GPU KV-cache usage. 1 means 100 percent usage.", utilisation(l))
	}
	m.add("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", float64(l.QueriedTokens))
	m.add("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(l.HitTokens))
	m.add("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(l.PromptTokens))
	m.add("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(l.GeneratedTokens))
	m.add("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions from the engine.", float64(l.Preempted))
}

func (s *Server) writeSGLang(m *metricWriter, l engine.Load) {
	hits := 0.0
	if l.QueriedTokens > 0 {
		hits = float64(l.HitTokens) / float64(l.QueriedTokens)
	}
	m.add("sglang:num_running_reqs", "gauge", "The number of running requests.", float64(l.Running))
	m.add("sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", float64(l.Pending))
	m.add("sglang:num_used_tokens", "gauge", "The number of used tokens.", float64(l.KVActive))
	m.add("sglang:token_usage", "gauge", "The token usage.", utilisation(l))
	m.add("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", hits)
	m.add("sglang:gen_throughput", "gauge", "The generation throughput (token/s).", s.throughput.see(time.Now(), l.GeneratedTokens))
	m.add("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(l.PromptTokens))
	m.add("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(l.GeneratedTokens))
}

// utilisation is the share of the KV memory that running requests use. What
// the cache only remembers counts as free, as it does in the real engines.
func utilisation(l engine.Load) float64 { return float64(l.KVActive) / float64(l.KVCapacity) }

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// metricWriter collects lines of Prometheus's text format.
type metricWriter struct {
	buf   []byte
	label string
}

func (m *metricWriter) add(name, kind, help string, value float64) {
	for _, s := range []string{"# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n", name, m.label} {
		m.buf = append(m.buf, s...)
	}
	m.buf = strconv.AppendFloat(m.buf, value, 'g', -1, 64)
	m.buf = append(m.buf, '\n')
}
