package openai

import (
	"encoding/json"
)

// Types of error, as OpenAI's clients know them.
const (
	TypeInvalid    = "invalid_request_error"
	TypeAuth       = "authentication_error"
	TypePermission = "permission_error"
	TypeRateLimit  = "rate_limit_error"
	TypeServer     = "server_error"
)

// Error is an error as clients see it.
type Error struct {
	Status     int
	Kind       string
	Code       string
	Param      string
	Message    string
	RetryAfter int // seconds; 0 = not said
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Body is the error in OpenAI's shape.
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
	b, _ := json.Marshal(map[string]shape{"error": s}) // strings always marshal
	return b
}

// Event is the error as an event of a stream; named: it is of type error.
func (e *Error) Event(named bool) []byte {
	event := "data: " + string(e.Body()) + "\n\n"
	if named {
		event = "event: error\n" + event
	}
	return []byte(event)
}

// statusBadRequest is the HTTP status of an error in what the client sent.
const statusBadRequest = 400

// Invalid is an error in a parameter that the client sent.
func Invalid(param, code, message string) *Error {
	return &Error{Status: statusBadRequest, Kind: TypeInvalid, Param: param, Code: code, Message: message}
}
