package server

import (
	"encoding/json"
	"net/http"
)

// rankLoad is the load of a data-parallel rank in SGLang's /v1/loads.
type rankLoad struct {
	Rank       int     `json:"dp_rank"`
	Running    int     `json:"num_running_reqs"`
	Waiting    int     `json:"num_waiting_reqs"`
	UsedTokens int     `json:"num_used_tokens"`
	MaxTokens  int     `json:"max_total_num_tokens"`
	TokenUsage float64 `json:"token_usage"`
}

// serveLoads serves the current load of each rank, like SGLang.
func (s *Server) serveLoads(w http.ResponseWriter, r *http.Request) {
	if s.opts.Flavor != FlavorSGLang {
		serveNotFound(w, r)
		return
	}
	loads := []rankLoad{}
	for rank, l := range s.driver.loads() {
		loads = append(loads, rankLoad{rank, l.Running, l.Pending, l.KVActive, l.KVCapacity, utilisation(rank, &l)})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"loads": loads}) // a disconnected prober will retry
}
