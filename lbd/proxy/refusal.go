package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

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
		return nil
	}
	f := &failure{cause: fmt.Sprintf("%s returned %d", x.current.target, status), kind: failureStatus}
	f.kills = killsOf(resp.Header, x.current.peer)
	switch {
	case f.kills > 0:
		return f
	case x.isRefusal(resp):
		if !x.headerSent && x.isEngineRefusal(resp) {
			f.refusal = readRefusal(resp)
		}
		return f
	case status >= 500:
		f.timedOut, f.broken = status == http.StatusGatewayTimeout, true
		return f
	case status == http.StatusNoContent || status == http.StatusResetContent || status/100 == 3:
		return f // no content, or a redirect, which is not for the client
	}
	return nil
}

// isRefusal reports whether the target rejected the request for a reason that does not apply to
// other targets: it does not accept this balancer's credentials, does not have the model, or is
// full.
func (x *exchange) isRefusal(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusNotFound:
		return x.targetLacks(resp)
	}
	return false
}

// isEngineRefusal reports whether a refusal may be forwarded to the client. A client must not be
// informed that a peer rejects this balancer's credentials.
func (x *exchange) isEngineRefusal(resp *http.Response) bool {
	own := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	return x.current.peer == nil || !own || resp.Header.Get(headerReplica) != ""
}

// targetLacks reports whether a 404 is about the target: it does not have the model, or it does not
// serve a path that other replicas of the model serve. Any other 404 is about the request and
// forwarded.
func (x *exchange) targetLacks(resp *http.Response) bool {
	if x.pinned {
		return false // only this target can have the response that the request continues
	}
	head, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes)) // as in readRefusal
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	switch openai.SubjectOf404(head) {
	case openai.AboutModel:
		return true
	case openai.AboutRequest:
		return false
	}
	return x.rt.servesPath(x.model, x.endpoint)
}

// recordServed records that a replica serves a path.
func (k rank) recordServed(e *openai.Endpoint) {
	if k.replica == nil {
		return
	}
	if _, known := k.count.served.Load(e); !known {
		k.count.served.Store(e, struct{}{})
	}
}

// servesPath reports whether any replica of a model has served a path.
func (r *Runtime) servesPath(model string, e *openai.Endpoint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rep := range r.replicas {
		if _, known := rep.count.served.Load(e); known && rep.cfg.Model == model {
			return true
		}
	}
	return false
}

// allRefused reports whether core rejected the request after every attempted target rejected it. Then
// the client receives the last refusal.
func (x *exchange) allRefused() bool {
	switch x.latestAction.reason {
	case core.RejectRefused, core.RejectRetriesExhausted, core.RejectRetryBudget:
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
	x.w.WriteHeader(f.status)
	_, _ = x.w.Write(f.body) // an error means that the client disconnected
}
