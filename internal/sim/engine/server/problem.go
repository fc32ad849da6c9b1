package server

import (
	"encoding/json"
	"net/http"
)

// problem is an error response in OpenAI's format with a status.
type problem struct {
	status  int
	message string
	kind    string // OpenAI's "type"
	param   string // the invalid field, or ""
	code    string // OpenAI's "code", or ""
}

func (p *problem) Error() string { return p.message }

// malformed returns a problem for an invalid request (400).
func malformed(param, message string) *problem {
	return &problem{status: http.StatusBadRequest, message: message, kind: "invalid_request_error", param: param}
}

// errorBody is the body of an error response.
type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// writeError sends the problem as the response.
func (p *problem) writeError(w http.ResponseWriter) {
	writeJSON(w, p.status, errorBody{errorDetail{
		Message: p.message, Type: p.kind, Param: orNull(p.param), Code: orNull(p.code),
	}})
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// writeJSON sends a JSON response. A disconnected client is not an error.
func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}
