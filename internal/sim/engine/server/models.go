package server

import (
	"net/http"

	"github.com/zeebo/xxh3"
)

// adapter identifies the target of a model name: 0 = the base model, otherwise the hash of a LoRA
// adapter, which separates its responses and cache entries.
type adapter uint64

// adapters maps every served name to its adapter.
func adapters(o Options) map[string]adapter {
	m := map[string]adapter{o.Model: 0}
	for _, name := range o.Aliases {
		m[name] = 0
	}
	for _, name := range o.LoRA {
		m[name] = adapter(xxh3.HashString(name))
	}
	return m
}

// resolve returns the model of a request: the main model if the request has none, a 404 for an unknown
// name.
func (s *Server) resolve(name string) (model string, a adapter, err error) {
	if name == "" {
		return s.opts.Model, 0, nil
	}
	a, known := s.models[name]
	if !known {
		return "", 0, &problem{
			status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
			message: "the model `" + name + "` does not exist",
		}
	}
	return name, a, nil
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

// serveModels lists every name: the root of an alias is the main model, and so is the parent of an
// adapter.
func (s *Server) serveModels(w http.ResponseWriter, _ *http.Request) {
	list := modelList{Object: "list"}
	for _, name := range s.opts.names() {
		card := modelCard{
			ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "skyserve",
			Root: s.opts.Model, MaxModelLen: s.opts.Profile.KVTokens,
		}
		if s.models[name] != 0 {
			card.Root, card.Parent = name, &s.opts.Model
		}
		list.Data = append(list.Data, card)
	}
	writeJSON(w, http.StatusOK, list)
}
