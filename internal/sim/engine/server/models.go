package server

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"
)

// adapter identifies the target of a model name: 0 = the base model, otherwise the hash of a LoRA
// adapter, which separates its responses and cache entries.
type adapter uint64

// served contains the served names. Adapters can be loaded and unloaded while the server runs.
type served struct {
	mu       sync.Mutex
	adapters map[string]adapter // by every served name
	order    []string           // the names, in the order of the list
}

// newServed returns the names in the options.
func newServed(o Options) *served {
	s := &served{adapters: map[string]adapter{o.Model: 0}, order: o.names()}
	for _, name := range o.Aliases {
		s.adapters[name] = 0
	}
	for _, name := range o.LoRA {
		s.adapters[name] = adapterOf(name)
	}
	return s
}

func adapterOf(name string) adapter { return adapter(xxh3.HashString(name)) }

// lookUp returns the adapter of a served name.
func (s *served) lookUp(name string) (adapter, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, known := s.adapters[name]
	return a, known
}

// list returns the served names, and which of them are adapters.
func (s *served) list() (names []string, isAdapter map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isAdapter = map[string]bool{}
	for name, a := range s.adapters {
		isAdapter[name] = a != 0
	}
	return slices.Clone(s.order), isAdapter
}

// load adds an adapter. It returns false if the name is served already.
func (s *served) load(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.adapters[name]; taken {
		return false
	}
	s.adapters[name] = adapterOf(name)
	s.order = append(s.order, name)
	return true
}

// unload removes an adapter. It returns false if the name is not that of an adapter.
func (s *served) unload(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adapters[name] == 0 {
		return false
	}
	delete(s.adapters, name)
	s.order = slices.DeleteFunc(s.order, func(n string) bool { return n == name })
	return true
}

// adapterRequest is the body of vLLM's requests to load and unload an adapter. The path is ignored: a
// simulated adapter has no weights.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

// serveLoadAdapter loads an adapter, as vLLM's POST /v1/load_lora_adapter.
func (s *Server) serveLoadAdapter(w http.ResponseWriter, r *http.Request) {
	s.changeAdapter(w, r, func(name string) error {
		if !s.served.load(name) {
			return malformed("lora_name", fmt.Sprintf("the adapter `%s` is already loaded", name))
		}
		return nil
	})
}

// serveUnloadAdapter unloads an adapter, as vLLM's POST /v1/unload_lora_adapter.
func (s *Server) serveUnloadAdapter(w http.ResponseWriter, r *http.Request) {
	s.changeAdapter(w, r, func(name string) error {
		if !s.served.unload(name) {
			return &problem{status: http.StatusNotFound, kind: "invalid_request_error", param: "lora_name", message: fmt.Sprintf("the adapter `%s` is not loaded", name)}
		}
		return nil
	})
}

// changeAdapter reads the name of an adapter and applies a change.
func (s *Server) changeAdapter(w http.ResponseWriter, r *http.Request, change func(name string) error) {
	var request adapterRequest
	err := s.readBody(w, r, &request)
	if err == nil && request.Name == "" {
		err = malformed("lora_name", "lora_name is required")
	}
	if err == nil {
		err = change(request.Name)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// resolve returns the model of a request: the main model if the request has none, a 404 for an unknown
// name.
func (s *Server) resolve(name string) (model string, a adapter, err error) {
	if name == "" {
		return s.opts.Model, 0, nil
	}
	a, known := s.served.lookUp(name)
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
	names, isAdapter := s.served.list()
	for _, name := range names {
		card := modelCard{
			ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "skyserve",
			Root: s.opts.Model, MaxModelLen: s.opts.Profile.KVTokens,
		}
		if isAdapter[name] {
			card.Root, card.Parent = name, &s.opts.Model
		}
		list.Data = append(list.Data, card)
	}
	writeJSON(w, http.StatusOK, list)
}
