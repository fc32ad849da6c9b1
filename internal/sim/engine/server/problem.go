package server

import (
	"encoding/json"
	"net/http"
)

// problem is an error as a client sees it: OpenAI's shape and a status.
type problem struct {
	status  int
	message string
	kind    string // OpenAI's "type"
	param   string // the field that is wrong, or ""
	code    string // OpenAI's "code", or ""
}

func (p *problem) Error() string { return p.message }

// malformed is a request that cannot be understood (400).
func malformed(param, message string) *problem {
	return &problem{status: http.StatusBadRequest, message: message, kind: "invalid_request_error", param: param}
}

// errorBody is the document of an error.
type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
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

// writeJSON answers with a document. A client that is gone is no error.
func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}
