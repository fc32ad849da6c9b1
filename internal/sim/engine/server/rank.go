package server

import (
	"fmt"
	"net/http"
	"strconv"
)

// headerRank selects the data-parallel rank for a request, as in vLLM and SGLang.
const headerRank = "X-Data-Parallel-Rank"

// anyRank lets the engine choose.
const anyRank = -1

// rankOf returns the rank that a request selects. An invalid rank is a problem.
func (s *Server) rankOf(h http.Header) (int, error) {
	text := h.Get(headerRank)
	if text == "" {
		return anyRank, nil
	}
	rank, err := strconv.Atoi(text)
	if ranks := s.opts.DataParallel; err != nil || rank < 0 || rank >= ranks {
		return 0, malformed("", fmt.Sprintf("%s: must be a rank from 0 to %d, got %q", headerRank, ranks-1, text))
	}
	return rank, nil
}
