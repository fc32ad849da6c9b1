package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/wire"
)

// errSilent is the cause of an attempt that ends by a timeout.
var errSilent = errors.New("no response within the timeout")

// NewTransport returns the transport for replicas: many connections kept open to few hosts, no
// goroutine and no buffer for an idle stream, no compression, no proxy from the environment. Timeouts
// are set by the proxy, not by the transport. allow is called for each address before connecting; nil
// = all addresses are allowed.
func NewTransport(allow func(netip.Addr) error) *wire.Transport {
	return wire.NewTransport(wire.Options{Allow: allow})
}

// failure is a failed attempt. Its cause may be shown to clients: it names the target by its id, which is
// HOST:PORT if a replica was added without one, and contains no part of the request or the response.
type failure struct {
	cause       string
	err         error       // for the log; nil when the cause is complete
	kind        failureKind // its cause in metrics
	unreachable bool        // the connection could not be opened
	timedOut    bool        // the target did not respond in time
	broken      bool        // see core.Outcome.EngineMayHaveDied
	kills       int         // engines of a peer that crashed serving the request
	refusal     *refusal    // for the client if every target rejects the request; nil if the attempt failed otherwise
	unproven    bool        // the target is not proven to continue streams
	lacksModel  bool        // see core.Outcome.LacksModel
	unconfirmed bool        // a client error that another target has to confirm: core.Outcome.FaultUnclear
	keyRejected bool        // a replica rejected the API key that this balancer has for it
}

// logArgs returns the cause for a log line, with the error if there is one.
func (f *failure) logArgs() []any {
	if f.err == nil {
		return []any{"cause", f.cause}
	}
	return []any{"cause", f.cause, "err", f.err}
}

// attempt makes one attempt at a target. It reports whether the request has ended; if not, core has been
// informed and will decide again.
func (x *exchange) attempt(ctx context.Context) (ended bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.inFlight.currentAttempt.Store(&cancel)
	x.resetAttempt()
	x.spans.startAttempt(&x.current, x.isContinuation())
	defer x.spans.endAttempt()
	watch := x.startTimeout(cancel)
	defer watch.Stop()
	x.reportSent()
	resp, ended := x.requestTarget(ctx)
	if resp == nil {
		return ended
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return x.relaySocket(ctx, resp, watch)
	}
	if isStream(resp) {
		return x.relayStream(ctx, resp, watch)
	}
	return x.relayWhole(ctx, resp, watch)
}

func isStream(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
}

func isJSON(resp *http.Response) bool { return mediaType(resp) == "application/json" }

// mediaType returns the content type of a response without its parameters, in lower case; empty if it has none.
func mediaType(resp *http.Response) string {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// requestTarget sends the request to its target and returns the response, or nil if it must not be forwarded.
// It is a separate function so that its stack frame is free while the response is relayed; otherwise every
// stream would keep this memory.
//
//go:noinline
func (x *exchange) requestTarget(ctx context.Context) (resp *http.Response, ended bool) {
	resp, err := x.sendRequest(ctx)
	if err != nil {
		return nil, x.handleInterrupted(ctx, err)
	}
	x.spans.setStatus(resp.StatusCode)
	if x.refusesCounts(resp) {
		return x.requestTarget(ctx)
	}
	switch {
	case x.current.peer != nil && resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(headerBounce) != "":
		x.spans.setFailure(failureBounced.String())
		x.current.countFailure(failureBounced)
		out := &core.Outcome{Kills: killsOf(resp.Header, x.current.peer), LacksModel: resp.Header.Get(headerBounce) == bounceNoModel}
		x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventBounced, Outcome: out}, x.recordFailure(x.current.target+" bounced the request"))
	case x.reportFault(resp):
	case x.headerSent && refusesContinuation(resp.StatusCode):
		discard(resp.Body)
		resp.Body.Close()
		x.endDeclined(&failure{cause: fmt.Sprintf("%s rejected the continuation (%d)", x.current.target, resp.StatusCode), kind: failureCannotContinue})
		return nil, true
	case x.headerSent && (!isStream(resp) || resp.StatusCode != http.StatusOK):
		x.reportFailure(&failure{cause: fmt.Sprintf("%s returned %d instead of a continuation", x.current.target, resp.StatusCode), kind: failureStatus})
	case isStream(resp) && encoded(resp.Header):
		x.reportFailure(&failure{cause: x.current.target + " sent a compressed stream that was not requested", kind: failureErrorResponse})
		resp.Body.Close() // the remaining body may take long to arrive
		return nil, false
	default:
		return resp, false
	}
	discard(resp.Body)
	resp.Body.Close()
	return nil, false
}

// reportFault reports whether a response is a failure of its target. If so, it reports the failure to core.
func (x *exchange) reportFault(resp *http.Response) bool {
	f := x.failureOf(resp)
	if f == nil {
		return false
	}
	x.reportFailure(f)
	return true
}

// startTimeout returns a timer that stops an attempt whose target times out; Reset extends it.
func (x *exchange) startTimeout(cancel context.CancelCauseFunc) *time.Timer {
	wait := x.rt.limits.ResponseTimeout
	if x.streamWanted {
		wait = x.rt.limits.FirstByteTimeout
	}
	return time.AfterFunc(wait, func() { cancel(errSilent) })
}

// sendRequest sends the request to the target.
func (x *exchange) sendRequest(ctx context.Context) (*http.Response, error) {
	if c := x.current.targetCounts(); c != nil {
		c.sent.Add(1)
	}
	switch {
	case x.current.rank.replica != nil:
		x.servedBy = x.current.rank
		if err := x.proveContinuationHere(ctx); err != nil {
			return nil, err
		}
		if x.servedBy.external != nil {
			resp, err := x.servedBy.transport.RoundTrip(x.outgoingExternal(ctx))
			if err != nil {
				return nil, err
			}
			return withoutAccount(resp), nil
		}
		out := x.outgoing(ctx, x.servedBy.base)
		x.servedBy.authorize(out.Header)
		x.servedBy.setRankHeader(out.Header)
		return x.transmit(x.servedBy.transport, out)
	case x.current.peer != nil:
		x.servedBy = rank{}
		out := x.outgoing(ctx, x.current.peer.base)
		x.markForwarded(out.Header)
		return x.transmit(x.current.peer.transport, out)
	}
	return nil, errRemoved
}

// errRemoved is the error of an attempt whose target was removed after it was chosen.
var errRemoved = errors.New("the target was removed")

// outgoing returns the request to send to the target.
func (x *exchange) outgoing(ctx context.Context, base *url.URL) *http.Request {
	in := x.req
	header := make(http.Header, len(in.Header)+8)
	copyHeaders(header, in.Header)
	header.Del("Accept-Encoding") // a compressed response could not be parsed while it is forwarded
	if x.decoded {
		header.Del("Content-Encoding")
	}
	if x.keysRequired {
		dropKeys(header)
	}
	header[headerRequestID] = []string{x.inFlight.id}
	if _, given := header[headerIdempotency]; !given {
		// Allows the transport a retry on another connection if an idle one was closed (engines
		// close idle connections after seconds). A nil value is not sent.
		header[headerIdempotency] = nil
	}
	x.spans.injectHeaders(header)
	if x.endpoint.Upgrades {
		return x.outgoingUpgrade(ctx, base, header)
	}
	body := x.body
	if x.continuationBody != nil {
		body = x.continuationBody
	}
	x.usageSoFarRequested = x.shouldRequestCounts(body)
	x.answer.AskedForCounts = x.usageSoFarRequested
	withUsageSoFar := x.usageSoFarRequested && x.current.peer == nil
	out := &http.Request{
		Method: in.Method, Header: header, Host: base.Host,
		URL:  &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + x.endpoint.Path, RawQuery: in.URL.RawQuery},
		Body: body.open(withUsageSoFar), ContentLength: body.size(withUsageSoFar),
	}
	out.GetBody = func() (io.ReadCloser, error) { return body.open(withUsageSoFar), nil }
	return out.WithContext(ctx)
}

// handleInterrupted handles an attempt that ended before its response began, or midway before anything
// was forwarded.
func (x *exchange) handleInterrupted(ctx context.Context, err error) (ended bool) {
	if x.req.Context().Err() != nil || errors.Is(context.Cause(ctx), errAborted) {
		x.endCancelled()
		return true
	}
	x.reportFailure(x.failureFromError(ctx, err))
	return false
}

// failureFromError converts an error of a transport to a failure.
func (x *exchange) failureFromError(ctx context.Context, err error) *failure {
	if errors.Is(context.Cause(ctx), errSilent) {
		return &failure{cause: x.current.target + " did not respond in time", kind: failureTimeout, timedOut: true, broken: true, kills: x.peerKills}
	}
	if unproven := (errNoProof{}); errors.As(err, &unproven) {
		return &failure{cause: x.current.target + " cannot continue a response: " + unproven.reason, err: err, kind: failureCannotContinue, unproven: true}
	}
	var op *net.OpError
	var again *wire.RetryError
	unreachable := errors.Is(err, errRemoved) || errors.As(err, &op) && op.Op == "dial"
	cause, why := x.current.target+" closed the connection early", failureDisconnected
	if unreachable {
		cause, why = x.current.target+" is unreachable", failureUnreachable
	}
	return &failure{cause: cause, err: err, kind: why, unreachable: unreachable, broken: !unreachable || errors.As(err, &again), kills: x.peerKills}
}

// invalidResponse returns a failure if a response in one piece is invalid: it is empty, truncated JSON, or an
// error with a success status.
func (x *exchange) invalidResponse(resp *http.Response, body []byte) *failure {
	if resp.StatusCode == http.StatusOK && len(body) == 0 {
		return &failure{cause: x.current.target + " returned an empty response", kind: failureErrorResponse}
	}
	if resp.StatusCode != http.StatusOK || encoded(resp.Header) || !isJSON(resp) {
		return nil
	}
	fault, err := openai.CheckWhole(body)
	if err != nil {
		return &failure{cause: x.current.target + " returned a truncated response", err: err, kind: failureDisconnected, broken: true}
	}
	if fault {
		return &failure{cause: x.current.target + " returned an error", kind: failureErrorResponse, broken: true}
	}
	return nil
}

// bodyStarts are the first bytes of JSON and of server-sent events.
var bodyStarts = [...]string{"{", "[", "data:", "event:", ":"}

// foreignResponse returns a failure if a response with status 200 is not one of an engine: for example, a reverse
// proxy in front of it sent a page. Some engines send JSON and streams with another content type, therefore the body
// counts too.
func (x *exchange) foreignResponse(resp *http.Response) *failure {
	kind := mediaType(resp)
	switch {
	case kind == "", kind == "application/json", isStream(resp):
		return nil
	case kind == "application/octet-stream": // tensors, which requests with encoding_format: bytes receive
		return nil
	case x.endpoint.Opaque && kind != "text/html":
		return nil
	}
	head := bytes.TrimLeft(peekBody(resp), " \t\r\n")
	for _, start := range bodyStarts {
		if bytes.HasPrefix(head, []byte(start)) {
			return nil
		}
	}
	cause := fmt.Sprintf("%s returned 200 with the content type %s instead of JSON: a server in front of the engine may have responded", x.current.target, openai.Clip([]byte(kind)))
	return &failure{cause: cause, kind: failureErrorResponse}
}

// encoded reports whether a body has a content encoding, such as compression.
func encoded(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e != "" && !strings.EqualFold(e, "identity")
}

// discard reads the remaining bytes of a short body, so that its connection can be reused.
func discard(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10) // after an error, only the connection is lost
}
