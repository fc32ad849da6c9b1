package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/zeebo/xxh3"

	"skyserve/internal/sim/engine"
)

// scoreBody is the request body of /score: a text, and one or several to compare it with. Both names of
// vLLM are accepted.
type scoreBody struct {
	Model     string          `json:"model"`
	Text1     json.RawMessage `json:"text_1"`
	Text2     json.RawMessage `json:"text_2"`
	Queries   json.RawMessage `json:"queries"`
	Documents json.RawMessage `json:"documents"`
}

type scoreList struct {
	ID     string  `json:"id"`
	Object string  `json:"object"`
	Model  string  `json:"model"`
	Data   []score `json:"data"`
	Usage  struct {
		PromptTokens int `json:"prompt_tokens"`
		TotalTokens  int `json:"total_tokens"`
	} `json:"usage"`
}

type score struct {
	Index  int     `json:"index"`
	Object string  `json:"object"`
	Score  float64 `json:"score"`
}

// serveScore returns scores like those of serveRerank, in the order of the texts.
func (s *Server) serveScore(w http.ResponseWriter, r *http.Request) {
	var b scoreBody
	if err := s.readBody(w, r, &b); err != nil {
		writeError(w, err)
		return
	}
	list, err := s.scores(&b)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) scores(b *scoreBody) (*scoreList, error) {
	model, a, err := s.resolve(b.Model)
	if err != nil {
		return nil, err
	}
	first, second := b.Text1, b.Text2
	if first == nil {
		first, second = b.Queries, b.Documents
	}
	queries, err := readInputs(first)
	if err != nil {
		return nil, malformed("text_1", "text_1: must be a string or an array of strings, got "+excerpt(first))
	}
	documents, err := readInputs(second)
	if err != nil {
		return nil, malformed("text_2", "text_2: must be a string or an array of strings, got "+excerpt(second))
	}
	if len(queries) != 1 && len(queries) != len(documents) {
		return nil, malformed("text_1", fmt.Sprintf("text_1: must have one text, or as many as text_2 (%d), got %d", len(documents), len(queries)))
	}
	list := &scoreList{ID: fmt.Sprintf("score-%016x", rand.Uint64()), Object: "list", Model: model}
	for i, document := range documents {
		query := queries[min(i, len(queries)-1)]
		list.Data = append(list.Data, score{i, "score", relevance(query, document, a)})
		list.Usage.PromptTokens += engine.CountTokens(query) + engine.CountTokens(document)
	}
	list.Usage.TotalTokens = list.Usage.PromptTokens
	return list, nil
}

// relevance returns a number from 0 to 1 that depends only on its arguments.
func relevance(query, text string, a adapter) float64 {
	h := xxh3.HashString128(query + "\x00" + text)
	return rand.New(rand.NewPCG(h.Hi^uint64(a), h.Lo)).Float64()
}

// rendered is a prompt as the engine would run it, in vLLM's format.
type rendered struct {
	TokenIDs []engine.Token `json:"token_ids"`
}

// serveRender tokenizes a chat, or a completion, for which vLLM returns a list.
func (s *Server) serveRender(list bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b body
		err := s.readBody(w, r, &b)
		if err == nil {
			_, _, err = s.resolve(b.Model)
		}
		var t tokenization
		if err == nil {
			t, err = s.tokenize(&b)
		}
		switch {
		case err != nil:
			writeError(w, err)
		case list:
			writeJSON(w, http.StatusOK, []rendered{{t.Tokens}})
		default:
			writeJSON(w, http.StatusOK, rendered{t.Tokens})
		}
	}
}

// serveInputTokens counts the tokens that a request to /v1/responses would have.
func (s *Server) serveInputTokens(w http.ResponseWriter, r *http.Request) {
	var b responseBody
	err := s.readBody(w, r, &b)
	var q *responseRequest
	if err == nil {
		q, err = s.readResponse(r, &b)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "response.input_tokens", "input_tokens": len(q.job.request.Prompt)})
}

// serveVersion returns the version in vLLM's format.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": simulatedVersion})
}

// simulatedVersion is the version of vLLM whose API the simulated engine follows.
const simulatedVersion = "0.33.0"
