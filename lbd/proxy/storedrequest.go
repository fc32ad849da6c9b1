package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// pathResponses is the path prefix of stored responses.
const pathResponses = "/v1/responses/"

// Limits of a request about a stored response. The engine does not run the model for it.
const (
	storedRequestTimeout = 30 * time.Second // from sending the request until the first byte; an engine looks the response up in memory
	maxStoredRequestBody = 64 << 10         // such requests need no body
)

// storedRequest is a request about a stored response (GET or DELETE /v1/responses/{id}, POST .../cancel, GET
// .../input_items). Only the engine that holds the response can serve it. core is not involved, because
// there is nothing to decide.
type storedRequest struct {
	rt            *Runtime
	w             http.ResponseWriter
	req           *http.Request
	path          string // below pathResponses, as sent to the engine
	id            string // id of the response
	sender        sender
	holder        storedAt
	reservation   quota.Reservation // of the client's key; inactive if it has none
	peer          *peer             // the peer that holds the response; nil if a replica holds it
	region        service.Region    // region of the replica
	usesEngineKey bool              // the replica receives the balancer's key and not the client's
}

// storedRequestMethods are the methods of the paths below a response's id.
var storedRequestMethods = map[string][]string{
	"":             {http.MethodGet, http.MethodDelete},
	"/cancel":      {http.MethodPost},
	"/input_items": {http.MethodGet},
}

// serveStored serves a request about a stored response. The balancer that received it from the client
// sends it to the replica, or to the peer that has the replica.
func (r *Runtime) serveStored(w http.ResponseWriter, req *http.Request) {
	q := &storedRequest{rt: r, w: w, req: req, path: strings.TrimPrefix(req.URL.Path, pathResponses)}
	id, _, _ := strings.Cut(q.path, "/")
	q.id = id
	methods := storedRequestMethods[q.path[len(id):]]
	if len(methods) == 0 || id == "" {
		r.refuseRequest(w, req, r.errNoPath(req))
		return
	}
	if !r.allowMethod(w, req, methods...) {
		return
	}
	if refused := q.serveStored(); refused != nil {
		q.setLimitHeaders()
		r.refuseRequest(w, req, refused)
	}
}

// serveStored admits the request like any other request of its key, and serves it. Its error is for the
// client.
func (q *storedRequest) serveStored() (refused *openai.Error) {
	if q.sender, refused = q.rt.identify(q.req); refused != nil {
		return refused
	}
	if q.reservation, refused = q.rt.admitByQuota(&q.sender); refused != nil {
		return refused
	}
	defer func() { q.reservation.Release(q.rt.Elapsed()) }()
	if refused = q.findHolder(); refused != nil {
		return refused
	}
	return q.forwardRequest()
}

// setLimitHeaders writes the remaining limits of the key to the response's header.
func (q *storedRequest) setLimitHeaders() {
	if q.sender.account != nil {
		q.sender.account.WriteHeaders(q.w.Header(), q.rt.Elapsed())
	}
}

// errNoResponse rejects a request about a response that no replica has.
func errNoResponse() *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Param: "response_id", Code: "response_not_found",
		Message: "response_id: no replica has this response",
	}
}

// findHolder determines the holder of the response. For a peer's request it considers only this balancer's
// own replicas, so that the request is not forwarded twice.
func (q *storedRequest) findHolder() *openai.Error {
	response := responseID{q.sender.tenant, q.id}
	at, known := q.rt.storedResponses.find(response)
	switch {
	case known && q.sender.from != "":
		known = q.rt.servesItself(at)
	case known:
		known = q.rt.urlOf(at.target) == at.url
	}
	if !known && q.sender.from == "" && len(q.id) <= maxResponseID && q.rt.forwards() {
		var refused *openai.Error
		if at, refused = q.rt.locateResponse(q.req.Context(), response); refused != nil {
			return refused
		}
		known = at.target != ""
	}
	if !known {
		return errNoResponse()
	}
	q.holder = at
	return nil
}

// forwardRequest forwards the request and its response. Its error is for the client; it returns nil once the
// response has started.
func (q *storedRequest) forwardRequest() *openai.Error {
	ctx, cancel := context.WithCancelCause(q.req.Context())
	defer cancel(nil)
	mem := q.rt.memory.Use(q.sender.tenant)
	defer mem.Release()
	if q.req.ContentLength != 0 {
		if err := mem.Set(maxStoredRequestBody); err != nil {
			return errNoMemory(err)
		}
	}
	out, transport, err := q.outgoing(ctx)
	if err != nil {
		return errBody(err, q.rt.limits.BodyTimeout)
	}
	if transport == nil {
		return errNoResponse() // the target was removed meanwhile
	}
	silence := time.AfterFunc(storedRequestTimeout, func() { cancel(errSilent) }) // started after the client's body was read
	defer silence.Stop()
	resp, err := transport.RoundTrip(out)
	if err != nil {
		return q.holderError(ctx)
	}
	defer resp.Body.Close()
	if q.rejectsBalancer(resp) {
		refused := q.errHolderRejects(resp.StatusCode)
		q.rt.log.Warn("request about a stored response failed", "request", out.Header.Get(headerRequestID), "target", q.holder.target, "cause", refused.Message)
		return refused
	}
	q.reservation.Settle(q.holder.model, telemetry.Usage{Requests: 1}.Priced(q.rt.models.Load().price(q.holder.model)), q.rt.Elapsed())
	q.forgetIfDeleted(resp.StatusCode)
	q.forwardResponse(resp, silence)
	return nil
}

// rejectsBalancer reports whether the holder rejects this balancer's credentials, not the client's. A response of a
// peer's engine names the replica.
func (q *storedRequest) rejectsBalancer(resp *http.Response) bool {
	denied := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	return denied && (q.usesEngineKey || q.peer != nil && resp.Header.Get(headerReplica) == "")
}

// errHolderRejects returns the error for a holder that rejects this balancer's credentials.
func (q *storedRequest) errHolderRejects(status int) *openai.Error {
	credential := "the API key that the balancer has for it"
	if q.peer != nil {
		credential = "the peer token of the balancer"
	}
	return &openai.Error{
		Status: http.StatusBadGateway, Kind: openai.TypeServer, Code: "replica_failed",
		Message: fmt.Sprintf("%s, which holds the response, rejects %s (%d): ask the operator to correct it", q.holder.target, credential, status),
	}
}

// holderError returns the error for a holder that did not respond.
func (q *storedRequest) holderError(ctx context.Context) *openai.Error {
	e := &openai.Error{Status: http.StatusBadGateway, Kind: openai.TypeServer, Code: "replica_failed", Message: q.holder.target + ", which holds the response, did not respond"}
	if errors.Is(context.Cause(ctx), errSilent) {
		e.Status, e.Code = http.StatusGatewayTimeout, "deadline"
	}
	return e
}

// outgoing returns the request to send to the holder. transport is nil if the target was removed.
func (q *storedRequest) outgoing(ctx context.Context) (out *http.Request, transport http.RoundTripper, err error) {
	r, ctl := q.rt, http.NewResponseController(q.w)
	_ = ctl.SetReadDeadline(time.Now().Add(r.limits.BodyTimeout)) // a reader without deadlines may block
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.req.Body, maxStoredRequestBody))
	if err != nil {
		return nil, nil, err
	}
	_ = ctl.SetReadDeadline(time.Time{}) // otherwise the client would count as disconnected at the deadline
	h := make(http.Header, len(q.req.Header)+8)
	copyHeaders(h, q.req.Header)
	h.Del("Accept-Encoding") // the response is forwarded unchanged
	if q.sender.keysRequired {
		dropKeys(h)
	}
	h[headerRequestID] = []string{requestID(q.req.Header.Get(headerRequestID))}
	q.req.Header.Set(headerRequestID, h.Get(headerRequestID))
	r.mu.Lock()
	k, p := r.ranks[q.holder.target], r.peers[q.holder.target]
	r.mu.Unlock()
	var base *url.URL
	switch {
	case k.replica != nil:
		base, transport, q.region, q.usesEngineKey = k.base, k.transport, k.cfg.Region, k.authorization != nil
		k.authorize(h)
		k.setRankHeader(h)
	case p != nil:
		base, transport, q.peer = p.base, p.transport, p
		q.markForwarded(h)
	default:
		return nil, nil, nil
	}
	out, err = http.NewRequestWithContext(ctx, q.req.Method, "", strings.NewReader(string(body)))
	if err != nil {
		return nil, nil, err
	}
	if len(body) == 0 {
		out.Body, out.GetBody = nil, nil
	}
	out.Header, out.Host = h, base.Host
	out.URL = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + pathResponses + q.path, RawQuery: q.req.URL.RawQuery}
	return out, transport, nil
}

// markForwarded sets the headers that identify the request to a peer.
func (q *storedRequest) markForwarded(h http.Header) {
	hop := core.HopRemote
	if q.peer.cfg.Region == q.rt.self.Region {
		hop = core.HopLocal
	}
	h[headerHop], h[headerFrom] = []string{string(hop)}, []string{q.rt.self.ID}
	if q.rt.self.PeerToken != "" {
		h[headerPeerToken] = []string{q.rt.self.PeerToken}
	}
	if q.sender.tenant != "" {
		h[headerTenant] = []string{q.sender.tenant}
	}
}

// forgetIfDeleted removes the holder of a deleted response. An engine without such a route also returns 404, so
// only requests to the path of the response itself count.
func (q *storedRequest) forgetIfDeleted(status int) {
	plain := q.path == q.id
	gone := q.req.Method == http.MethodGet && status == http.StatusNotFound
	deleted := q.req.Method == http.MethodDelete && status == http.StatusOK
	if plain && (gone || deleted) {
		q.rt.storedResponses.dropResponse(responseID{q.sender.tenant, q.id})
	}
}

// forwardResponse forwards the response as it arrives. It may be a stream; silence is the timer for the time
// between two pieces.
func (q *storedRequest) forwardResponse(resp *http.Response, silence *time.Timer) {
	h := q.w.Header()
	copyHeaders(h, resp.Header)
	h.Set(headerRequestID, q.req.Header.Get(headerRequestID))
	region, replica := string(q.region), q.holder.target
	if q.peer != nil {
		region, replica = resp.Header.Get(headerRegion), resp.Header.Get(headerReplica)
	}
	h.Set(headerRegion, region)
	h.Set(headerReplica, replica)
	q.setLimitHeaders()
	if !isStream(resp) && resp.ContentLength >= 0 {
		h["Content-Length"] = resp.Header["Content-Length"]
	}
	q.w.WriteHeader(resp.StatusCode)
	ctl, buf := http.NewResponseController(q.w), make([]byte, 32<<10)
	hides, mask := q.rt.hidesCache(&q.sender), openai.CacheMask{}
	for {
		silence.Reset(q.rt.limits.IdleTimeout)
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if hides {
				mask.Hide(buf[:n])
			}
			_ = ctl.SetWriteDeadline(time.Now().Add(q.rt.limits.StallTimeout)) // a writer without deadlines may block
			if _, gone := q.w.Write(buf[:n]); gone != nil {
				return
			}
			_ = ctl.Flush() // the next write returns the error of a disconnected client
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // a truncated response must not appear complete
		}
	}
}
