package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Statuses with a type of error of their own in Anthropic's API.
const (
	statusUnauthorized = 401
	statusForbidden    = 403
	statusNotFound     = 404
	statusTooLarge     = 413
	statusTooMany      = 429
	statusUnavailable  = 503
	statusTimeout      = 504
)

// IsMessagesPath reports whether a path belongs to Anthropic's Messages API: clients expect that
// API's errors and headers there.
func IsMessagesPath(path string) bool {
	rest, ok := strings.CutPrefix(path, pathMessages)
	return ok && (rest == "" || rest[0] == '/')
}

// MessagesBody returns the error in the format of Anthropic's API.
func (e *Error) MessagesBody(requestID string) []byte {
	type detail struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	b, _ := json.Marshal(struct {
		Type      string `json:"type"`
		Error     detail `json:"error"`
		RequestID string `json:"request_id"`
	}{"error", detail{e.messagesType(), e.Message}, requestID}) // encoding strings cannot fail
	return b
}

// messagesType returns the type of the error in Anthropic's API. For an overload that API has the
// status 529. Its clients retry 503 like 529, and 503 is the status of every other endpoint.
func (e *Error) messagesType() string {
	switch e.Status {
	case statusUnauthorized:
		return TypeAuth
	case statusForbidden:
		return TypePermission
	case statusNotFound:
		return "not_found_error"
	case statusTooLarge:
		return "request_too_large"
	case statusTooMany:
		return TypeRateLimit
	case statusUnavailable:
		return "overloaded_error"
	case statusTimeout:
		return "timeout_error"
	}
	if e.Kind == TypeInvalid {
		return TypeInvalid
	}
	return "api_error"
}

// ErrorEvent returns an error as the last event of a stream of the endpoint.
func (e *Endpoint) ErrorEvent(err *Error, requestID string) []byte {
	if e.Messages {
		return e.errorEvent(err.MessagesBody(requestID))
	}
	return e.errorEvent(err.Body())
}

// errorEvent returns an event with the body of an error, which has one line.
func (e *Endpoint) errorEvent(body []byte) []byte {
	event := ""
	if e.Messages || !e.MarksEnd {
		event = "event: error\n"
	}
	return []byte(event + "data: " + string(body) + "\n\n")
}

// ErrorResponseEvent returns an engine's or the balancer's error response as the last event of a stream
// of the endpoint. body is its body; without an error in the endpoint's format, the event contains an
// error with the status, and with the message of the other format, if there is one.
func (e *Endpoint) ErrorResponseEvent(status int, body []byte, requestID string) []byte {
	var shape struct {
		Error json.RawMessage `json:"error"`
	}
	var whole bytes.Buffer
	hasError := json.Unmarshal(body, &shape) == nil && kindOf(shape.Error) == '{'
	if hasError && (!e.Messages || IsMessagesError(body)) && json.Compact(&whole, body) == nil {
		return e.errorEvent(whole.Bytes())
	}
	kind := TypeServer
	if status/100 == 4 {
		kind = TypeInvalid
	}
	var other struct{ Message string }
	if !hasError || json.Unmarshal(shape.Error, &other) != nil || other.Message == "" {
		other.Message = fmt.Sprintf("the engine returned status %d: %s", status, Clip(body))
	}
	return e.ErrorEvent(&Error{Status: status, Kind: kind, Code: "engine_error", Message: other.Message}, requestID)
}

// IsMessagesError reports whether a body is an error in the format of Anthropic's API.
func IsMessagesError(body []byte) (is bool) {
	members(body, func(key, value []byte) { is = is || string(key) == `"type"` && string(value) == `"error"` })
	return is
}
