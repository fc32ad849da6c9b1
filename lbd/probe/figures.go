package probe

import (
	"skyserve/lbd/policy"
)

// EngineFigures are the figures of an engine's metrics page or load endpoint. A figure that is missing or
// implausible is unknown.
type EngineFigures struct {
	// Pending and Running count requests: waiting for the running batch, and in it.
	Pending policy.Maybe[int]
	Running policy.Maybe[int]
	// KV is the used share of KV memory, 0..1.
	KV policy.Maybe[float64]
	// HitTokens of QueryTokens prompt tokens came from the prefix cache since
	// the engine started (vLLM, SGLang; older vLLM counts blocks).
	HitTokens   policy.Maybe[float64]
	QueryTokens policy.Maybe[float64]
	// HitRate is the engine's own recent rate, 0..1 (SGLang, older vLLM, TensorRT-LLM).
	HitRate policy.Maybe[float64]
	// Beat is a gauge that differs after nearly every update of the gauges: SGLang's generation throughput,
	// TensorRT-LLM's iteration latency.
	Beat policy.Maybe[float64]
	// Asleep: the engine has released its memory and cannot serve requests (vLLM).
	Asleep bool
}

// sameGauges reports whether two pages may be of the same update of the engine's gauges. Counters
// are not compared: SGLang increases them between two updates.
func (f *EngineFigures) sameGauges(o *EngineFigures) bool {
	return f.Pending == o.Pending && f.Running == o.Running && f.KV == o.KV && f.HitRate == o.HitRate && f.Beat == o.Beat
}

// family is an engine program, as identified by the names of its metrics.
type family int8

// The families. All engines without known metrics are unknownFamily.
const (
	unknownFamily family = iota
	vllm
	sglang
	llamaCPP
	lmdeploy
	tgi
	tensorRT
)

// updatesRarely reports whether the engine updates its gauges only at some of its steps. SGLang
// does it at each prefill and every 40 decode steps; TensorRT-LLM leaves those of its last step when
// it becomes idle.
func (f family) updatesRarely() bool { return f == sglang || f == tensorRT }

// mayBeSlow reports whether the engine computes its metrics between two steps, so that they may take
// longer than a probe while the engine serves requests.
func (f family) mayBeSlow() bool { return f == llamaCPP || f == tensorRT }

// The figures that a page may contain, as indices of figures. Metrics of different engines with the same
// meaning share one. The older name of a metric has its own, because a page may contain both.
const (
	figureWaiting = iota
	figureSwapped
	figureAPIWaiting
	figurePrefillBootstrap
	figurePrefillPrealloc
	figureDecodePrealloc
	figureDecodeTransfer
	figureRunning
	figurePrefillInflight
	figureKV
	figureOldKV
	figureHits
	figureQueries
	figureOldHits
	figureOldQueries
	figureHitRate
	figureBeat
	figureAwake
	figureCount
	noFigure = -1
)

// figureOf returns the index of a metric's figure, or noFigure.
func figureOf(name []byte) int {
	switch string(name) {
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "lmdeploy:num_requests_waiting", "tgi_queue_size", "trtllm_num_requests_waiting":
		return figureWaiting
	case "vllm:num_requests_swapped":
		return figureSwapped
	case "lmdeploy:num_api_requests_waiting":
		return figureAPIWaiting
	case "sglang:num_prefill_bootstrap_queue_reqs":
		return figurePrefillBootstrap
	case "sglang:num_prefill_prealloc_queue_reqs":
		return figurePrefillPrealloc
	case "sglang:num_decode_prealloc_queue_reqs":
		return figureDecodePrealloc
	case "sglang:num_decode_transfer_queue_reqs":
		return figureDecodeTransfer
	case "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing", "lmdeploy:num_requests_running", "tgi_batch_current_size", "trtllm_num_requests_running":
		return figureRunning
	case "sglang:num_prefill_inflight_queue_reqs":
		return figurePrefillInflight
	case "vllm:kv_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio", "lmdeploy:gpu_cache_usage_perc", "trtllm_kv_cache_utilization":
		return figureKV
	case "vllm:gpu_cache_usage_perc":
		return figureOldKV
	case "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total":
		return figureHits
	case "vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total":
		return figureQueries
	case "vllm:gpu_prefix_cache_hits_total":
		return figureOldHits
	case "vllm:gpu_prefix_cache_queries_total":
		return figureOldQueries
	case "sglang:cache_hit_rate", "vllm:gpu_prefix_cache_hit_rate", "trtllm_kv_cache_hit_rate":
		return figureHitRate
	case "sglang:gen_throughput", "trtllm_iteration_latency_seconds":
		return figureBeat
	case "vllm:engine_sleep_state":
		return figureAwake
	}
	return noFigure
}

// familyOf returns the family of a metric that figureOf knows.
func familyOf(name []byte) family {
	switch {
	case name[0] == 'v':
		return vllm
	case name[0] == 's':
		return sglang
	case name[0] == 'l' && name[1] == 'l':
		return llamaCPP
	case name[0] == 'l':
		return lmdeploy
	case name[1] == 'g':
		return tgi
	}
	return tensorRT
}

// mayHoldFigure is a quick check that returns false for nearly all lines without a figure.
func mayHoldFigure(line []byte) bool {
	if len(line) <= len("llamacpp:") {
		return false
	}
	switch line[0] {
	case 'v':
		c := line[len("vllm:")]
		return c == 'n' || c == 'k' || c == 'g' || c == 'p' || c == 'e'
	case 's':
		c := line[len("sglang:")]
		return c == 'n' || c == 't' || c == 'c' || c == 'g' || c == 'p'
	case 'l':
		c := line[len("llamacpp:")] // and lmdeploy:
		return c == 'r' || c == 'k' || c == 'n' || c == 'g'
	case 't':
		return line[1] == 'r' || line[1] == 'g' && (line[4] == 'q' || line[4] == 'b')
	}
	return false
}

// series accumulates the series of one figure.
type series struct {
	sum     float64
	n       int
	highest float64 // of the copies
	copies  int
	invalid bool // a value is implausible, so the figure is unknown
}

// addValue adds the value of a series. A copy is a series of the same requests as the other copies,
// such as that of a tensor-parallel rank: the highest counts.
func (s *series) addValue(v float64, ok, isCopy bool) {
	s.invalid = s.invalid || !ok
	switch {
	case !isCopy:
		s.sum += v
		s.n++
	case s.copies == 0 || v > s.highest:
		s.highest = v
		s.copies++
	default:
		s.copies++
	}
}

// addRank adds the series of a data-parallel rank.
func (s *series) addRank(rank *series) {
	s.sum += rank.sum
	s.n += rank.n
	if rank.copies > 0 {
		s.sum += rank.highest
		s.n++
	}
	s.invalid = s.invalid || rank.invalid
}

// seen reports whether the page contains the figure.
func (s *series) seen() bool { return s.n > 0 }

// maxCount bounds a plausible count: no engine has a billion requests.
const maxCount = 1e9

func (s *series) count() policy.Maybe[int] {
	if !s.seen() || s.invalid || s.sum < 0 || s.sum > maxCount {
		return policy.Maybe[int]{}
	}
	return policy.Known(int(s.sum))
}

func (s *series) total() policy.Maybe[float64] {
	if !s.seen() || s.invalid || s.sum < 0 {
		return policy.Maybe[float64]{}
	}
	return policy.Known(s.sum)
}

// shareTolerance is how far rounding can raise a share above 1.
const shareTolerance = 0.01

// share returns the mean of the ranks.
func (s *series) share() policy.Maybe[float64] {
	if !s.seen() || s.invalid {
		return policy.Maybe[float64]{}
	}
	mean := s.sum / float64(s.n)
	if mean < 0 || mean > 1+shareTolerance {
		return policy.Maybe[float64]{}
	}
	return policy.Known(min(mean, 1))
}

// figures accumulates the series of a page.
type figures [figureCount]series

// addRank adds the figures of a data-parallel rank.
func (all *figures) addRank(rank *figures) {
	for i := range all {
		all[i].addRank(&rank[i])
	}
}

// read returns the figures of the accumulated series.
func (all *figures) read() EngineFigures {
	f := EngineFigures{
		Pending: all.countWith(figureWaiting, figureSwapped, figureAPIWaiting, figurePrefillBootstrap, figurePrefillPrealloc, figureDecodePrealloc, figureDecodeTransfer),
		// A prefill in flight has been computed and is sent to its decode engine.
		Running: all.countWith(figureRunning, figurePrefillInflight),
		KV:      all.either(figureKV, figureOldKV).share(),
		HitRate: all[figureHitRate].share(), Beat: all[figureBeat].total(),
	}
	f.HitTokens, f.QueryTokens = all.either(figureHits, figureOldHits).total(), all.either(figureQueries, figureOldQueries).total()
	awake := &all[figureAwake]
	f.Asleep = awake.seen() && !awake.invalid && awake.sum < float64(awake.n)
	return f
}

// countWith returns the sum of a figure's count and the counts of the figures in further that the page
// contains. It is unknown if one of these counts is.
func (all *figures) countWith(figure int, further ...int) policy.Maybe[int] {
	sum := all[figure].count()
	for _, i := range further {
		if !all[i].seen() {
			continue
		}
		more := all[i].count()
		sum = policy.Maybe[int]{Value: sum.Value + more.Value, Known: sum.Known && more.Known}
	}
	if !sum.Known {
		return policy.Maybe[int]{}
	}
	return sum
}

// either returns the series of a figure, or of its older name if the page has only that.
func (all *figures) either(figure, older int) *series {
	if all[figure].seen() {
		return &all[figure]
	}
	return &all[older]
}
