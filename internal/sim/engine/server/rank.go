package server

import (
	"fmt"
	"net/http"
	"strconv"
)

// headerRank names the data-parallel rank that is to serve a request, as vLLM
// and SGLang have it.
const headerRank = "X-Data-Parallel-Rank"

// anyRank leaves the choice to the engine.
const anyRank = -1

// rankOf is the rank that a request names. One that does not exist is a problem.
func (s *Server) rankOf(h http.Header) (int, error) {
	text := h.Get(headerRank)
	if text == "" {
		return anyRank, nil
	}
	rank, err := strconv.Atoi(text)
	if ranks := s.opts.DataParallel; err != nil || rank < 0 || rank >= ranks {
		return 0, malformed("", fmt.Sprintf("%s: want a rank from 0 to %d, got %q", headerRank, ranks-1, text))
	}
	return rank, nil
}
