package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"

	"skyserve/lbd/core"
)

// statusClientGone is what is counted for a client that left (nginx's 499);
// nobody is there to read it.
const statusClientGone = 499

// Types of error, as OpenAI's clients know them.
const (
	typeInvalid    = "invalid_request_error"
	typeAuth       = "authentication_error"
	typePermission = "permission_error"
	typeRateLimit  = "rate_limit_error"
	typeServer     = "server_error"
)

// apiError is an error as clients see it.
type apiError struct {
	status     int
	kind       string
	code       string
	param      string
	message    string
	retryAfter int // seconds; 0 = not said
}

func (e *apiError) Error() string { return e.message }

// body is the error in OpenAI's shape.
func (e *apiError) body() []byte {
	type shape struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	s := shape{Message: e.message, Type: e.kind}
	if e.param != "" {
		s.Param = &e.param
	}
	if e.code != "" {
		s.Code = &e.code
	}
	b, _ := json.Marshal(map[string]shape{"error": s}) // strings always marshal
	return b
}

// write answers with the error.
func (e *apiError) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	b := e.body()
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.status)
	_, _ = w.Write(b) // a client that has gone reads nothing
}

func invalid(param, code, message string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: typeInvalid, param: param, code: code, message: message}
}

// rejections maps core's reasons to answers. A queue moves within a second;
// capacity takes longer to come.
var rejections = map[string]apiError{
	core.RejectNoReplica: {
		status: http.StatusServiceUnavailable, kind: typeServer, retryAfter: 5,
		message: "no replica serves this model now, here or at a peer",
	},
	core.RejectWait: {
		status: http.StatusServiceUnavailable, kind: typeServer, retryAfter: 2,
		message: "no replica had room for the request in the time that it may wait",
	},
	core.RejectQueueFull: {
		status: http.StatusTooManyRequests, kind: typeRateLimit, retryAfter: 1,
		message: "too many requests are waiting",
	},
	core.RejectTooManyTry: {
		status: http.StatusBadGateway, kind: typeServer,
		message: "every try failed",
	},
	core.RejectRetries: {
		status: http.StatusServiceUnavailable, kind: typeServer, retryAfter: 2,
		message: "the replica failed, and too many requests are being tried again already",
	},
	core.RejectFailed: {
		status: http.StatusBadGateway, kind: typeServer,
		message: "the replica failed and the request cannot be tried elsewhere",
	},
	core.RejectRefused: {
		status: http.StatusBadGateway, kind: typeServer,
		message: "every replica refused the request",
	},
	core.RejectKills: {
		status: http.StatusBadRequest, kind: typeInvalid, // official clients retry 5xx
		message: "engines died while they served this request or an identical one: it is not retried",
	},
	core.RejectHolder: errNoHolder,
	core.RejectDuplicate: {
		status: http.StatusConflict, kind: typeInvalid,
		message: "a request with this id is in flight",
	},
}

// rejection is the answer to a rejected request whose last failure was last:
// when that was a target that stayed silent, it is 504.
func rejection(reason string, last *failure) *apiError {
	e, ok := rejections[reason]
	if !ok {
		e = apiError{status: http.StatusServiceUnavailable, kind: typeServer, message: "the request was rejected"}
	}
	if e.code == "" {
		e.code = reason
	}
	if last != nil {
		e.message += "; the last failure: " + last.cause
		if last.silent && e.status == http.StatusBadGateway {
			e.status, e.code = http.StatusGatewayTimeout, "deadline"
		}
	}
	return &e
}

// errDraining answers new requests while the balancer finishes what it has.
func errDraining() *apiError {
	return &apiError{
		status: http.StatusServiceUnavailable, kind: typeServer, code: "draining", retryAfter: 1,
		message: "this balancer is shutting down",
	}
}
