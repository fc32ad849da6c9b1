package server

import (
	"net/http"

	"github.com/zeebo/xxh3"
)

// adapter is what lies behind a model name: the base model (0), or a LoRA
// adapter, by a hash that sets its answers and its cache entries apart.
type adapter uint64

// adapters maps every name the server answers to.
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

// resolve finds the model of a request. A request that names none gets the
// main one; an unknown name is a 404.
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

// serveModels lists every name: aliases point to the main model by their root,
// adapters by their parent.
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
