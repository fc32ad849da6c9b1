package probe

import (
	"bytes"
	"math"
	"strconv"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// Figures is what an engine's metrics page says. What the page does not hold,
// or holds as something other than a sensible number, is unknown.
type Figures struct {
	// Pending and Running count requests: waiting outside, and in, the running batch.
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

// The figures that a page may hold, as indices of page.
const (
	pagePending = iota
	pageRunning
	pageKV
	pageOldKV
	pageHits
	pageQueries
	pageHitRate
	pageCount
	pageNone = -1
)

// figureOf tells which figure a metric is.
func figureOf(name []byte) int {
	switch string(name) {
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
		return pagePending
	case "vllm:num_requests_running", "sglang:num_running_reqs":
		return pageRunning
	case "vllm:kv_cache_usage_perc", "sglang:token_usage":
		return pageKV
	case "vllm:gpu_cache_usage_perc":
		return pageOldKV
	case "vllm:prefix_cache_hits_total":
		return pageHits
	case "vllm:prefix_cache_queries_total":
		return pageQueries
	case "sglang:cache_hit_rate":
		return pageHitRate
	}
	return pageNone
}

// series gathers the series of one figure, one a data-parallel rank.
type series struct {
	sum float64
	n   int
	invalid bool // a rank's value made no sense, so the whole is unknown
}

func (s *series) add(v float64, ok bool) {
	s.sum += v
	s.n++
	s.invalid = s.invalid || !ok
}

// maxCount bounds what is believed of a count: no engine holds a billion requests.
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

// shareTolerance is how far above 1 rounding can carry a share.
const shareTolerance = 0.01

// share is the mean over the ranks.
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

// KindOf tells by a metrics page which engine wrote it: vllm, sglang, or empty
// where it says nothing of that.
func KindOf(page []byte) service.EngineKind {
	switch {
	case bytes.Contains(page, []byte("\nvllm:")) || bytes.HasPrefix(page, []byte("vllm:")):
		return service.EngineVLLM
	case bytes.Contains(page, []byte("\nsglang:")) || bytes.HasPrefix(page, []byte("sglang:")):
		return service.EngineSGLang
	}
	return ""
}

// Parse reads a metrics page in Prometheus' text format, in place and without
// allocating. Counts of several series (data-parallel ranks) are summed, shares
// averaged; one series that makes no sense makes its figure unknown.
func Parse(page []byte) Figures {
	var all [1]figures
	parsePage(page, all[:], false)
	return all[0].read()
}

// ParseRanks reads a metrics page into the figures of each data-parallel rank.
// What the page does not tell by rank, or tells of others, is left out.
func ParseRanks(page []byte, ranks []Figures) {
	all := make([]figures, len(ranks))
	parsePage(page, all, true)
	for i := range all {
		ranks[i] = all[i].read()
	}
}

// figures gathers what a page says.
type figures [pageCount]series

// parsePage reads a page into one set of figures, or, by rank, into that of
// each.
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

// histogramSize is how much of page, which begins behind a comment, is samples of
// the histogram that the comment announces; 0 where it announces none. Histograms
// make up nearly all of a page and hold no figure. As the samples of a metric are
// in one piece, those up to the next comment are all of it if the last one is.
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

// nextComment is where the next line that is a comment begins, at the end where
// there is none.
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

// read is what the series gathered say.
func (all *figures) read() Figures {
	f := Figures{
		Pending: all[pagePending].count(), Running: all[pageRunning].count(),
		KV:        all[pageKV].share(),
		HitTokens: all[pageHits].total(), QueryTokens: all[pageQueries].total(),
		HitRate: all[pageHitRate].share(),
	}
	if all[pageKV].n == 0 {
		f.KV = all[pageOldKV].share()
	}
	return f
}

// mayHoldFigure is false for nearly all of the lines that hold no figure, at a glance.
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

// parseLine adds a sample line's value to its series; comments, other metrics
// and what is no sample are passed over.
func parseLine(line []byte, all []figures, byRank bool) {
	if !mayHoldFigure(line) {
		return
	}
	end := 0
	for end < len(line) && line[end] != '{' && line[end] != ' ' && line[end] != '\t' {
		end++
	}
	figure := figureOf(line[:end])
	if figure == pageNone {
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
		all[rank][figure].add(parseValue(rest))
	}
}

// labelsSize is the length of the label set that b begins with, braces
// included; all of b when it does not end.
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

// rankLabels is how a series names its data-parallel rank: vLLM's label and
// SGLang's, first in the set or later.
var rankLabels = [][]byte{[]byte(`{engine="`), []byte(`,engine="`), []byte(`{dp_rank="`), []byte(`,dp_rank="`)}

// rankOf is the rank, below n, that a label set names, or -1.
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

// isPerPriority says whether a series counts only the requests of one priority.
// SGLang exports those beside the total, whose priority is empty.
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

// maxNumberBytes bounds the digits of a number; float64 needs at most 24.
const maxNumberBytes = 32

// parseValue reads the first word of b as a finite number.
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
