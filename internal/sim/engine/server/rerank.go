package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"

	"skyserve/internal/sim/engine"
)

type rerankBody struct {
	Model     string          `json:"model"`
	Query     string          `json:"query"`
	Documents json.RawMessage `json:"documents"`
	TopN      *int            `json:"top_n"`
}

// reranking is the response of /v1/rerank, in vLLM's format.
type reranking struct {
	ID      string   `json:"id"`
	Model   string   `json:"model"`
	Results []ranked `json:"results"`
	Usage   struct {
		TotalTokens int `json:"total_tokens"`
	} `json:"usage"`
}

type ranked struct {
	Index          int            `json:"index"`
	Document       map[string]any `json:"document"`
	RelevanceScore float64        `json:"relevance_score"`
}

// serveRerank returns scores from 0 to 1 that depend only on query, document and the model's name,
// highest first. They take no model time.
func (s *Server) serveRerank(w http.ResponseWriter, r *http.Request) {
	var b rerankBody
	if err := s.readBody(w, r, &b); err != nil {
		writeError(w, err)
		return
	}
	list, err := s.rerank(&b)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) rerank(b *rerankBody) (*reranking, error) {
	model, a, err := s.resolve(b.Model)
	if err != nil {
		return nil, err
	}
	var documents []string
	if firstByte(b.Documents) != '[' || json.Unmarshal(b.Documents, &documents) != nil {
		return nil, malformed("documents", "documents: must be an array of strings, got "+excerpt(b.Documents))
	}
	if len(documents) < 1 || len(documents) > maxInputs {
		return nil, malformed("documents", fmt.Sprintf("documents: must contain 1 to %d strings, got %d", maxInputs, len(documents)))
	}
	top := len(documents)
	if b.TopN != nil {
		if *b.TopN < 1 {
			return nil, malformed("top_n", fmt.Sprintf("top_n: must be at least 1, got %d", *b.TopN))
		}
		top = min(top, *b.TopN)
	}
	list := &reranking{ID: fmt.Sprintf("rerank-%016x", rand.Uint64()), Model: model}
	for i, text := range documents {
		list.Results = append(list.Results, ranked{i, map[string]any{"text": text}, relevance(b.Query, text, a)})
		list.Usage.TotalTokens += engine.CountTokens(b.Query) + engine.CountTokens(text)
	}
	slices.SortStableFunc(list.Results, func(x, y ranked) int { return cmp.Compare(y.RelevanceScore, x.RelevanceScore) })
	list.Results = list.Results[:top]
	return list, nil
}
