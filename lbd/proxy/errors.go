package proxy

import (
	"net/http"
	"strconv"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// statusClientClosed is what is counted for a client that left (nginx's 499);
// nobody is there to read it.
const statusClientClosed = 499

// writeError answers with an error.
func writeError(w http.ResponseWriter, e *openai.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	b := e.Body()
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(b) // a client that has gone reads nothing
}

// rejections maps core's reasons to answers. A queue moves within a second;
// capacity takes longer to come.
var rejections = map[string]openai.Error{
	core.RejectNoReplica: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 5,
		Message: "no replica serves this model now, here or at a peer",
	},
	core.RejectWait: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 2,
		Message: "no replica had room for the request in the time that it may wait",
	},
	core.RejectQueueFull: {
		Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, RetryAfter: 1,
		Message: "too many requests are waiting",
	},
	core.RejectTooManyTry: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "every try failed",
	},
	core.RejectRetries: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 2,
		Message: "the replica failed, and too many requests are being tried again already",
	},
	core.RejectFailed: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "the replica failed and the request cannot be tried elsewhere",
	},
	core.RejectRefused: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "every replica refused the request",
	},
	core.RejectKills: {
		Status: http.StatusBadRequest, Kind: openai.TypeInvalid, // official clients retry 5xx
		Message: "engines died while they served this request or an identical one: it is not retried",
	},
	core.RejectHolder: errNoHolder,
	core.RejectDuplicate: {
		Status: http.StatusConflict, Kind: openai.TypeInvalid,
		Message: "a request with this id is in flight",
	},
}

// rejection is the answer to a rejected request whose last failure was last:
// when that was a target that stayed silent, it is 504.
func rejection(reason string, last *failure) *openai.Error {
	e, ok := rejections[reason]
	if !ok {
		e = openai.Error{Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Message: "the request was rejected"}
	}
	if e.Code == "" {
		e.Code = reason
	}
	if last != nil {
		e.Message += "; the last failure: " + last.cause
		if last.silent && e.Status == http.StatusBadGateway {
			e.Status, e.Code = http.StatusGatewayTimeout, "deadline"
		}
	}
	return &e
}

// errDraining answers new requests while the balancer finishes what it has.
func errDraining() *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "draining", RetryAfter: 1,
		Message: "this balancer is shutting down",
	}
}
