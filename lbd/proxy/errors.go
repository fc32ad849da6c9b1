package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// statusClientClosed is the status counted for a client that disconnected (nginx's 499). It is never
// sent.
const statusClientClosed = 499

// writeError responds to a request with an error, in the format of the API of its path.
func writeError(w http.ResponseWriter, path, id string, e *openai.Error) {
	h := w.Header()
	h.Set(headerRequestID, id)
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Status == http.StatusUnsupportedMediaType {
		h.Set("Accept-Encoding", acceptedEncodings) // RFC 9110, section 15.5.16
	}
	if e.Challenge != "" {
		h.Set("Www-Authenticate", e.Challenge)
	}
	b := e.Body()
	if openai.IsMessagesPath(path) {
		h.Set(headerMessagesID, id)
		b = e.MessagesBody(id)
	}
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(b) // an error means that the client disconnected
}

// rejections maps core's rejection reasons to responses. Clients may retry after a second if the
// queue was full; new capacity takes longer.
var rejections = map[string]openai.Error{
	core.RejectNoReplica: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 5,
		Message: "no ready replica serves this model, here or at a peer",
	},
	core.RejectWaitExceeded: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 2,
		Message: "the request timed out in the queue: every ready replica of the model is full",
	},
	core.RejectStartExceeded: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 30,
		Message: "no replica of this model became ready in time; one may still be starting",
	},
	core.RejectQueueFull: {
		Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, RetryAfter: 1,
		Message: "too many requests are queued",
	},
	core.RejectRetriesExhausted: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "every attempt failed",
	},
	core.RejectRetryBudget: {
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 2,
		Message: "the replica failed, and the retry budget is exhausted",
	},
	core.RejectFailed: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "the replica failed, and the request cannot be retried",
	},
	core.RejectRefused: {
		Status: http.StatusBadGateway, Kind: openai.TypeServer,
		Message: "every replica rejected the request",
	},
	core.RejectKills: {
		Status: http.StatusBadRequest, Kind: openai.TypeInvalid, // official clients retry 5xx
		Message: "engines crashed while serving this request or an identical one: it is not retried; change the request, or report its id to the operator",
	},
	core.RejectPinnedGone: errNoHolder,
	core.RejectDuplicate: {
		Status: http.StatusConflict, Kind: openai.TypeInvalid,
		Message: "a request with this id is already in flight",
	},
}

// errNotReady is the rejection of a request that waited for too long while no replica was ready.
var errNotReady = openai.Error{
	Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, RetryAfter: 2,
	Message: "the request timed out in the queue: no replica of the model is ready",
}

// rejection returns the response to a rejected request. last is its last failure, nil if it had none. If its
// target timed out, 504 replaces 502.
func rejection(reason string, last *failure) *openai.Error {
	return rejectionAs(rejections[reason], reason, last)
}

// rejectionAs is rejection with the response to use; the zero value is that of an unknown reason.
func rejectionAs(e openai.Error, reason string, last *failure) *openai.Error {
	if e.Status == 0 {
		e = openai.Error{Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Message: "the request was rejected"}
	}
	if e.Code == "" {
		e.Code = reason
	}
	if last != nil {
		e.Message += "; last failure: " + last.cause
		if last.timedOut && e.Status == http.StatusBadGateway {
			e.Status, e.Code = http.StatusGatewayTimeout, "deadline"
		}
	}
	return &e
}

// rejection returns the response to a request that core rejected.
func (x *exchange) rejection() *openai.Error {
	if x.latestAction.reason == core.RejectNoAdapter {
		return errNoAdapter(x.model, x.adapter)
	}
	reason := x.latestAction.reason
	if reason == core.RejectWaitExceeded && !x.rt.hasReady(x.model) {
		return rejectionAs(errNotReady, reason, x.lastFailure)
	}
	return rejection(reason, x.lastFailure)
}

// hasReady reports whether a replica of a model is ready, here or at a peer to which this balancer forwards.
func (r *Runtime) hasReady(model string) bool {
	v := r.View()
	return slices.ContainsFunc(v.Replicas, func(rep core.ReplicaView) bool { return rep.Model == model && rep.Ready && !rep.Draining }) ||
		r.forwards() && slices.ContainsFunc(v.Peers, func(p core.PeerView) bool {
			return p.Live && slices.ContainsFunc(p.Models, func(m core.ModelLoad) bool { return m.Model == model && m.Replicas > 0 })
		})
}

// codeNoModel is the error code of requests whose model does not exist.
const codeNoModel = "model_not_found"

// errNoAdapter rejects a request for an adapter that no replica serves any more.
func errNoAdapter(model, adapter string) *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Param: "model", Code: codeNoModel,
		Message: fmt.Sprintf("model: %q does not exist: no replica of %q serves this adapter: use another name from GET /v1/models", adapter, model),
	}
}

// codeDraining is the error code of requests that a draining balancer rejects.
const codeDraining = "draining"

// errDraining rejects new requests while the balancer drains.
func errDraining() *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: codeDraining, RetryAfter: 1,
		Message: "this balancer is shutting down",
	}
}
