package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// maxRefusalBytes limits the body of a refusal: rejections of engines have a few hundred bytes.
const maxRefusalBytes = 64 << 10

// refusal is the response of a target that rejected a request which another target may serve. If
// every target rejects the request, the client receives the last refusal.
type refusal struct {
	status int
	header http.Header
	body   []byte
}

// readRefusal reads a refusal. The caller closes the body.
func readRefusal(resp *http.Response) *refusal {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes)) // a truncated body is forwarded as received
	return &refusal{status: resp.StatusCode, header: resp.Header, body: body}
}

// failureOf returns a failure if the request should be retried at another target, or nil if the response
// is for the client.
func (x *exchange) failureOf(resp *http.Response) *failure {
	status := resp.StatusCode
	if status == http.StatusOK {
		return x.foreignResponse(resp)
	}
	f := &failure{cause: fmt.Sprintf("%s returned %d", x.current.target, status), kind: failureStatus}
	f.kills = killsOf(resp.Header, x.current.peer)
	switch {
	case f.kills > 0:
		return f
	case x.rejectsKey(status):
		f.cause, f.keyRejected = fmt.Sprintf("%s rejects the API key that the balancer has for it (%d)", x.current.target, status), true
		if !x.headerSent {
			f.refusal = refusalOf(&openai.Error{Status: http.StatusBadGateway, Kind: openai.TypeServer, Code: core.RejectRefused, Message: f.cause + ": ask the operator to correct it"})
		}
		return f
	case x.isRefusal(resp):
		f.lacksModel = status == http.StatusNotFound && x.current.peer == nil
		if !x.headerSent && x.isEngineRefusal(resp) {
			f.refusal = readRefusal(resp)
		}
		return f
	case status >= 500:
		f.timedOut, f.broken = status == http.StatusGatewayTimeout, true
		return f
	case status == http.StatusNoContent || status == http.StatusResetContent || status/100 == 3:
		return f // no content, or a redirect, which is not for the client
	case x.needsConfirmation(status, x.lacksEndpoint(resp)):
		v := x.current
		f.unconfirmed, f.refusal, x.unconfirmed = true, readRefusal(resp), &v
		return f
	}
	return nil
}

// refusalOf returns a refusal with an error of the balancer.
func refusalOf(e *openai.Error) *refusal {
	return &refusal{status: e.Status, header: http.Header{"Content-Type": {"application/json"}}, body: e.Body()}
}

// rejectsKey reports whether a replica rejected the key that this balancer has for it. The client must
// not be informed that its own key is wrong.
func (x *exchange) rejectsKey(status int) bool {
	k := x.current.rank.replica
	return k != nil && k.authorization != nil && (status == http.StatusUnauthorized || status == http.StatusForbidden)
}

// isRefusal reports whether the target rejected the request for a reason that does not apply to
// other targets: it does not accept this balancer's credentials, does not have the model, or is
// full.
func (x *exchange) isRefusal(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusPaymentRequired: // the account of a provider has no credit
		return x.current.rank.replica != nil && x.current.rank.external != nil
	case http.StatusNotFound:
		return x.lacksModel(resp)
	}
	return false
}

// isEngineRefusal reports whether a refusal may be forwarded to the client. A client must not be
// informed that a peer rejects this balancer's credentials.
func (x *exchange) isEngineRefusal(resp *http.Response) bool {
	own := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	return x.current.peer == nil || !own || resp.Header.Get(headerReplica) != ""
}

// lacksModel reports whether a 404 means that the target does not have the model.
func (x *exchange) lacksModel(resp *http.Response) bool {
	if x.pinned {
		return false // only this target can have the response that the request continues
	}
	return openai.Names404Model(peekBody(resp))
}

// peekBody returns the beginning of a response's body, which can still be read.
func peekBody(resp *http.Response) []byte {
	head, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes)) // as in readRefusal
	resp.Body = &rereadBody{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	return head
}

// lacksEndpoint reports whether a response means that the engine does not serve the Messages API:
// older engines, and other kinds, return the 404 of an unknown path. It replaces their message by one
// with the next step. A 404 in the format of that API is from an engine that serves it.
func (x *exchange) lacksEndpoint(resp *http.Response) bool {
	if !x.endpoint.Messages || resp.StatusCode != http.StatusNotFound || openai.IsMessagesError(peekBody(resp)) {
		return false
	}
	body := errNoEndpoint(x.endpoint.Path, x.model).MessagesBody(x.inFlight.id)
	resp.Body.Close()
	resp.Header = http.Header{"Content-Type": {"application/json"}}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// errNoEndpoint is the error of a request whose engines do not serve its path.
func errNoEndpoint(path, model string) *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Code: "not_found",
		Message: "the engine of " + model + " does not serve " + path + ": update it (vLLM and SGLang serve it in current versions), or use /v1/chat/completions",
	}
}

// needsConfirmation reports whether a client error is forwarded only if another target confirms it. One
// replica of several may reject valid requests, because of its version or its flags. A target whose
// latest request was served is trusted once, so that most client errors need no second request. A target
// that lacks the endpoint is not trusted: its trust comes from requests to other endpoints.
func (x *exchange) needsConfirmation(status int, lacksEndpoint bool) bool {
	c := x.current.targetCounts()
	if status/100 != 4 || x.headerSent || x.pinned || x.unconfirmed != nil || c == nil {
		return false
	}
	return (lacksEndpoint || !c.trusted.CompareAndSwap(true, false)) && x.rt.hasOtherTarget(x.placedModel(), x.from == "")
}

// hasOtherTarget reports whether more than one target serves a model. peers: peers count too.
func (r *Runtime) hasOtherTarget(model string, peers bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, rep := range r.replicas {
		if rep.cfg.Model == model {
			n++
		}
	}
	if peers {
		for _, models := range r.peerModels {
			if slices.Contains(models, model) {
				n++
			}
		}
	}
	return n > 1
}

// updateTrust updates targetCount.trusted when a response is forwarded: the target served the request,
// or it confirmed the client error of another target.
func (x *exchange) updateTrust(status int) {
	c := x.current.targetCounts()
	switch {
	case c == nil:
	case status == http.StatusOK:
		if !c.trusted.Load() { // a write for each request would slow down other CPUs that read it
			c.trusted.Store(true)
		}
		x.countContradicted()
	case x.unconfirmed != nil && status/100 == 4:
		c.trusted.Store(true)
		x.unconfirmed.targetCounts().trusted.Store(true)
	}
}

// countContradicted counts a failure of the target whose client error the current target contradicts: it
// serves the request.
func (x *exchange) countContradicted() {
	if x.unconfirmed == nil {
		return
	}
	x.unconfirmed.countFailure(failureStatus)
	x.rt.log.Warn("a target rejected a request that another one serves: compare their engine versions and flags", "request", x.inFlight.id, "target", x.unconfirmed.target, "served_by", x.current.target)
	x.unconfirmed = nil
}

// allRefused reports whether core rejected the request after every attempted target rejected it, or when
// no other target could confirm or contradict a client error. Then the client receives the last refusal.
func (x *exchange) allRefused() bool {
	if x.lastFailure != nil && x.lastFailure.unconfirmed && x.latestAction.reason != core.RejectKills {
		return true
	}
	switch x.latestAction.reason {
	case core.RejectRefused, core.RejectNoAdapter, core.RejectRetriesExhausted, core.RejectRetryBudget:
		return x.lastFailure != nil && x.lastFailure.refusal != nil && !x.hadFault
	}
	return false
}

// forwardRefusal responds with the last refusal.
func (x *exchange) forwardRefusal() {
	f, h := x.lastFailure.refusal, x.w.Header()
	for name, values := range f.header {
		f.header[name] = slices.Clone(values)
	}
	copyHeaders(h, f.header)
	x.setResponseHeaders(h, f.header)
	x.setKillsHeader(h)
	x.setLimitHeaders(h)
	h["Content-Length"] = []string{strconv.Itoa(len(f.body))}
	x.headerSent = true
	x.extendWriteDeadline(time.Now())
	x.w.WriteHeader(f.status)
	_, _ = x.w.Write(f.body) // an error means that the client disconnected
}
