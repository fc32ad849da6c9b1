package probe

import (
	"bytes"
	"math"
	"strconv"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

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

// Page parses metrics pages in Prometheus' text format, in place and, after the first page, without
// allocating. Counts of several data-parallel ranks are summed, shares averaged; one implausible
// series makes its figure unknown. The zero value is an empty page.
type Page struct {
	family family
	ranks  []figures // by data-parallel rank
	rest   figures   // of series without a rank
}

// Parse replaces the page.
func (p *Page) Parse(page []byte) {
	p.family, p.ranks, p.rest = unknownFamily, p.ranks[:0], figures{}
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
		p.parseLine(line)
	}
}

// Total returns the figures of the whole engine.
func (p *Page) Total() EngineFigures {
	var all figures
	all.addRank(&p.rest)
	for i := range p.ranks {
		all.addRank(&p.ranks[i])
	}
	return p.read(&all)
}

// Rank returns the figures of one data-parallel rank. Figures without a rank are ignored.
func (p *Page) Rank(rank int) EngineFigures {
	if rank >= len(p.ranks) {
		return EngineFigures{}
	}
	var all figures
	all.addRank(&p.ranks[rank])
	return p.read(&all)
}

// read returns the figures of accumulated series. SGLang sets its hit rate to zero while it decodes, so
// a zero is unknown.
func (p *Page) read(all *figures) EngineFigures {
	f := all.read()
	if p.family == sglang && f.HitRate.Value == 0 {
		f.HitRate = policy.Maybe[float64]{}
	}
	return f
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

// parseLine adds a sample line's value to its series; it ignores comments, other metrics and
// invalid lines.
func (p *Page) parseLine(line []byte) {
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
	p.family = familyOf(line)
	rest, l := line[end:], labels{rank: -1}
	if len(rest) > 0 && rest[0] == '{' {
		var size int
		if l, size = readLabels(rest); l.part || l.other {
			return
		}
		rest = rest[size:]
	}
	v, ok := parseValue(rest)
	p.rank(l.rank)[figure].addValue(v, ok, l.isCopy)
}

// rank returns the figures of a rank; -1 = none.
func (p *Page) rank(rank int) *figures {
	if rank < 0 {
		return &p.rest
	}
	for len(p.ranks) <= rank {
		p.ranks = append(p.ranks, figures{})
	}
	return &p.ranks[rank]
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
