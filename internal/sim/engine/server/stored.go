package server

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// routeStored adds the routes of stored responses.
func (s *Server) routeStored(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/responses/input_tokens", s.gated(s.serveInputTokens)) // beside GET /v1/responses/{id}
	for route, serve := range map[string]func(http.ResponseWriter, conversation){
		"GET /v1/responses/{id}":             func(w http.ResponseWriter, c conversation) { writeJSON(w, http.StatusOK, &c.document) },
		"DELETE /v1/responses/{id}":          s.deleteResponse,
		"POST /v1/responses/{id}/cancel":     cancelResponse,
		"GET /v1/responses/{id}/input_items": listInput,
	} {
		mux.HandleFunc(route, s.gated(func(w http.ResponseWriter, r *http.Request) {
			c, known := s.stored.find(r.PathValue("id"))
			if !known {
				(&problem{
					status: http.StatusNotFound, kind: "invalid_request_error", param: "response_id",
					message: fmt.Sprintf("response_id: response %q not found", r.PathValue("id")),
				}).writeError(w)
				return
			}
			serve(w, c)
		}))
	}
}

func (s *Server) deleteResponse(w http.ResponseWriter, c conversation) {
	s.stored.dropConversation(c.id)
	writeJSON(w, http.StatusOK, map[string]any{"id": c.id, "object": "response", "deleted": true})
}

// cancelResponse always fails: only background responses can be cancelled, and this server has none.
func cancelResponse(w http.ResponseWriter, c conversation) {
	malformed("response_id", fmt.Sprintf("response_id: %q is complete: only a background response can be cancelled", c.id)).writeError(w)
}

// listInput lists the input items of a response, a text as the equivalent message. Items of previous
// responses are not included.
func listInput(w http.ResponseWriter, c conversation) {
	var items []map[string]any
	var text string
	if json.Unmarshal(c.input, &text) == nil {
		items = []map[string]any{{"type": "message", "role": "user", "content": []map[string]any{{"type": "input_text", "text": text}}}}
	} else if err := json.Unmarshal(c.input, &items); err != nil {
		explainJSON(err).writeError(w)
		return
	}
	list := map[string]any{"object": "list", "data": items, "has_more": false, "first_id": nil, "last_id": nil}
	for i, item := range items {
		if _, named := item["id"]; !named {
			item["id"] = fmt.Sprintf("item_%s_%d", c.id, i)
		}
		if i == 0 {
			list["first_id"] = item["id"]
		}
		list["last_id"] = item["id"]
	}
	writeJSON(w, http.StatusOK, list)
}
