package server

import (
	"net/http"

	"skyserve/internal/sim/engine"
)

// tokenization is the response of /tokenize, in vLLM's format.
type tokenization struct {
	Count       int            `json:"count"`
	MaxModelLen int            `json:"max_model_len"`
	Tokens      []engine.Token `json:"tokens"` // null if there are more than MaxModelLen
}

// serveTokenize counts the tokens of a prompt or of a rendered chat.
func (s *Server) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var b body
	if err := s.readBody(w, r, &b); err != nil {
		writeError(w, err)
		return
	}
	if _, _, err := s.resolve(b.Model); err != nil {
		writeError(w, err)
		return
	}
	t, err := s.tokenize(&b)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, t)
}

func (s *Server) tokenize(b *body) (tokenization, error) {
	t := tokenization{MaxModelLen: s.opts.Profile.KVTokens}
	text, ids, err := b.text()
	switch {
	case err != nil:
		return t, err
	case ids != nil:
		t.Count, t.Tokens = len(ids), ids
	default:
		t.Count = engine.CountTokens(text)
		if t.Count <= t.MaxModelLen {
			t.Tokens = engine.Tokenize(make([]engine.Token, 0, t.Count), text)
		}
	}
	return t, nil
}

// text returns the text of a body's chat or prompt, or the token IDs of its prompt.
func (b *body) text() (text string, ids []engine.Token, err error) {
	if b.Messages != nil {
		text, _, err = b.render()
		return text, nil, err
	}
	return readPrompt(b.Prompt)
}
