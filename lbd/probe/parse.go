package probe

import (
	"bytes"
	"math"
	"strconv"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// EngineFigures are the figures of an engine's metrics page. A figure that is missing or implausible is
// unknown.
type EngineFigures struct {
	// Pending and Running count requests: waiting for the running batch, and in it.
	Pending policy.Maybe[int]
	Running policy.Maybe[int]
	// KV is the used share of KV memory, 0..1.
	KV policy.Maybe[float64]
	// HitTokens of QueryTokens prompt tokens came from the prefix cache since
	// the engine started (vLLM).
	HitTokens   policy.Maybe[float64]
	QueryTokens policy.Maybe[float64]
	// HitRate is the engine's own recent rate, 0..1 (SGLang).
	HitRate policy.Maybe[float64]
}

// The figures that a page may contain, as indices of figures.
const (
	figurePending = iota
	figureRunning
	figureKV
	figureOldKV
	figureHits
	figureQueries
	figureHitRate
	figureCount
	noFigure = -1
)

// figureOf returns the index of a metric's figure, or noFigure.
func figureOf(name []byte) int {
	switch string(name) {
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
		return figurePending
	case "vllm:num_requests_running", "sglang:num_running_reqs":
		return figureRunning
	case "vllm:kv_cache_usage_perc", "sglang:token_usage":
		return figureKV
	case "vllm:gpu_cache_usage_perc":
		return figureOldKV
	case "vllm:prefix_cache_hits_total":
		return figureHits
	case "vllm:prefix_cache_queries_total":
		return figureQueries
	case "sglang:cache_hit_rate":
		return figureHitRate
	}
	return noFigure
}

// series sums the series of one figure, one per data-parallel rank.
type series struct {
	sum     float64
	n       int
	invalid bool // a rank's value is implausible, so the figure is unknown
}

func (s *series) addValue(v float64, ok bool) {
	s.sum += v
	s.n++
	s.invalid = s.invalid || !ok
}

// maxCount bounds a plausible count: no engine has a billion requests.
const maxCount = 1e9

func (s *series) count() policy.Maybe[int] {
	if s.n == 0 || s.invalid || s.sum < 0 || s.sum > maxCount {
		return policy.Maybe[int]{}
	}
	return policy.Known(int(s.sum))
}

func (s *series) total() policy.Maybe[float64] {
	if s.n == 0 || s.invalid || s.sum < 0 {
		return policy.Maybe[float64]{}
	}
	return policy.Known(s.sum)
}

// shareTolerance is how far rounding can raise a share above 1.
const shareTolerance = 0.01

// share returns the mean of the ranks.
func (s *series) share() policy.Maybe[float64] {
	if s.n == 0 || s.invalid {
		return policy.Maybe[float64]{}
	}
	mean := s.sum / float64(s.n)
	if mean < 0 || mean > 1+shareTolerance {
		return policy.Maybe[float64]{}
	}
	return policy.Known(min(mean, 1))
}

// KindOf returns the engine that wrote a metrics page: vllm, sglang, or empty if unknown.
func KindOf(page []byte) service.EngineKind {
	switch {
	case bytes.Contains(page, []byte("\nvllm:")) || bytes.HasPrefix(page, []byte("vllm:")):
		return service.EngineVLLM
	case bytes.Contains(page, []byte("\nsglang:")) || bytes.HasPrefix(page, []byte("sglang:")):
		return service.EngineSGLang
	}
	return ""
}

// Parse parses a metrics page in Prometheus' text format, in place and without allocating. Counts
// of several series (data-parallel ranks) are summed, shares averaged; one implausible series makes
// its figure unknown.
func Parse(page []byte) EngineFigures {
	var all [1]figures
	parsePage(page, all[:], false)
	return all[0].read()
}

// ParseRanks parses a metrics page into the figures of each data-parallel rank. Figures without a
// rank, or of other ranks, are ignored.
func ParseRanks(page []byte, ranks []EngineFigures) {
	all := make([]figures, len(ranks))
	parsePage(page, all, true)
	for i := range all {
		ranks[i] = all[i].read()
	}
}

// figures accumulates the series of a page.
type figures [figureCount]series

// parsePage parses a page into one set of figures or, if byRank, into one set per rank.
func parsePage(page []byte, all []figures, byRank bool) {
	for len(page) > 0 {
		line := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			line, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		if len(line) > 0 && line[0] == '#' {
			page = page[histogramSize(line, page):]
			continue
		}
		parseLine(line, all, byRank)
	}
}

var (
	typePrefix      = []byte("# TYPE ")
	histogramSuffix = []byte(" histogram")
)

// histogramSize returns the number of bytes at the start of page (the text after a comment) that
// are samples of the histogram that the comment announces; 0 if it announces none. Histograms make
// up nearly all of a page and contain no figure. The samples of a metric are contiguous, so if the
// last sample before the next comment belongs to the histogram, all of them do.
func histogramSize(comment, page []byte) int {
	name, ok := bytes.CutSuffix(comment, histogramSuffix)
	if !ok {
		return 0
	}
	if name, ok = bytes.CutPrefix(name, typePrefix); !ok {
		return 0
	}
	samples := bytes.TrimRight(page[:nextComment(page)], "\n")
	last, ok := bytes.CutPrefix(samples[bytes.LastIndexByte(samples, '\n')+1:], name)
	if !ok || !bytes.HasPrefix(last, []byte("_bucket")) && !bytes.HasPrefix(last, []byte("_sum")) && !bytes.HasPrefix(last, []byte("_count")) {
		return 0
	}
	return len(samples)
}

// nextComment returns the start of the next comment line, or the end of page if there is none.
func nextComment(page []byte) int {
	for at := 0; ; at++ {
		i := bytes.IndexByte(page[at:], '#')
		if i < 0 {
			return len(page)
		}
		if at += i; at == 0 || page[at-1] == '\n' {
			return at
		}
	}
}

// read returns the figures of the accumulated series.
func (all *figures) read() EngineFigures {
	f := EngineFigures{
		Pending: all[figurePending].count(), Running: all[figureRunning].count(),
		KV:        all[figureKV].share(),
		HitTokens: all[figureHits].total(), QueryTokens: all[figureQueries].total(),
		HitRate: all[figureHitRate].share(),
	}
	if all[figureKV].n == 0 {
		f.KV = all[figureOldKV].share()
	}
	return f
}

// mayHoldFigure is a quick check that returns false for nearly all lines without a figure.
func mayHoldFigure(line []byte) bool {
	const vllm, sglang = len("vllm:"), len("sglang:")
	switch {
	case len(line) <= sglang:
		return false
	case line[0] == 'v':
		c := line[vllm]
		return c == 'n' || c == 'k' || c == 'g' || c == 'p'
	case line[0] == 's':
		c := line[sglang]
		return c == 'n' || c == 't' || c == 'c'
	}
	return false
}

// parseLine adds a sample line's value to its series; it ignores comments, other metrics and
// invalid lines.
func parseLine(line []byte, all []figures, byRank bool) {
	if !mayHoldFigure(line) {
		return
	}
	end := 0
	for end < len(line) && line[end] != '{' && line[end] != ' ' && line[end] != '\t' {
		end++
	}
	figure := figureOf(line[:end])
	if figure == noFigure {
		return
	}
	rest, rank := line[end:], 0
	if byRank {
		rank = -1
	}
	if len(rest) > 0 && rest[0] == '{' {
		size := labelsSize(rest)
		if isPerPriority(rest[:size]) {
			return
		}
		if byRank {
			rank = rankOf(rest[:size], len(all))
		}
		rest = rest[size:]
	}
	if rank >= 0 {
		all[rank][figure].addValue(parseValue(rest))
	}
}

// labelsSize returns the length of the label set at the start of b, including braces; all of b if
// the set is not closed.
func labelsSize(b []byte) int {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i + 1
			}
		}
	}
	return len(b)
}

// rankLabels are the labels of a data-parallel rank, vLLM's and SGLang's, as the first label or a
// later one.
var rankLabels = [][]byte{[]byte(`{engine="`), []byte(`,engine="`), []byte(`{dp_rank="`), []byte(`,dp_rank="`)}

// rankOf returns the rank, below n, in a label set, or -1.
func rankOf(labels []byte, n int) int {
	for _, label := range rankLabels {
		i := bytes.Index(labels, label)
		if i < 0 {
			continue
		}
		text, _, closed := bytes.Cut(labels[i+len(label):], []byte{'"'})
		if rank, err := strconv.Atoi(string(text)); closed && err == nil && rank >= 0 && rank < n {
			return rank
		}
		return -1
	}
	return -1
}

var (
	priorityFirst = []byte(`{priority="`)
	priorityLater = []byte(`,priority="`)
)

// isPerPriority reports whether a series counts only the requests of one priority. SGLang exports
// these in addition to the total, whose priority is empty.
func isPerPriority(labels []byte) bool {
	i := bytes.Index(labels, priorityFirst)
	if i < 0 {
		i = bytes.Index(labels, priorityLater)
	}
	if i < 0 {
		return false
	}
	after := i + len(priorityFirst)
	return after < len(labels) && labels[after] != '"'
}

// maxNumberBytes is the maximum length of a number; float64 needs at most 24 bytes.
const maxNumberBytes = 32

// parseValue parses the first word of b as a finite number.
func parseValue(b []byte) (v float64, ok bool) {
	b = bytes.TrimLeft(b, " \t")
	if i := bytes.IndexAny(b, " \t\r"); i >= 0 {
		b = b[:i]
	}
	if len(b) == 0 || len(b) > maxNumberBytes {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, false
	}
	return v, true
}
