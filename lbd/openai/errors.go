package openai

import (
	"encoding/json"
)

// Types of error in OpenAI's API.
const (
	TypeInvalid    = "invalid_request_error"
	TypeAuth       = "authentication_error"
	TypePermission = "permission_error"
	TypeRateLimit  = "rate_limit_error"
	TypeServer     = "server_error"
)

// Error is an error as sent to clients.
type Error struct {
	Status     int
	Kind       string
	Code       string
	Param      string
	Message    string
	RetryAfter int // seconds; 0 = none
	// Challenge is the header WWW-Authenticate; empty = none.
	Challenge string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Body returns the error in OpenAI's format.
func (e *Error) Body() []byte {
	type shape struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	s := shape{Message: e.Message, Type: e.Kind}
	if e.Param != "" {
		s.Param = &e.Param
	}
	if e.Code != "" {
		s.Code = &e.Code
	}
	b, _ := json.Marshal(map[string]shape{"error": s}) // encoding strings cannot fail
	return b
}

// statusBadRequest is the HTTP status of an invalid request.
const statusBadRequest = 400

// Invalid returns an error for a parameter of the client.
func Invalid(param, code, message string) *Error {
	return &Error{Status: statusBadRequest, Kind: TypeInvalid, Param: param, Code: code, Message: message}
}
