package proxy

import (
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

// errSilent is why a try ends whose target said nothing for too long.
var errSilent = errors.New("no answer in time")

// NewTransport makes the transport that carries requests to replicas: many
// connections kept to few hosts, no goroutine and no buffer for a stream that
// waits, nothing compressed, no proxy taken from the environment. How long a
// target may take is the proxy's business, not the transport's. allow is asked about
// each address before it is connected to; nil = all may be.
func NewTransport(allow func(netip.Addr) error) *wire.Transport {
	return wire.New(wire.Options{Allow: allow})
}

// failure is a try that did not serve its request. Its cause is fit for
// clients: it holds no address, and nothing of the request or the answer.
type failure struct {
	cause       string
	err         error    // for the log; nil when the cause says it all
	why         why      // its kind
	unreachable bool     // no connection came about
	silent      bool     // the target took too long
	broke       bool     // see core.Outcome.Broke
	kills       int      // engines of a peer that died of the request
	refusal     *refusal // nil if it is not passed on
}

// try is one attempt at a target. It says whether the request has ended; if it
// has not, core was told and will decide again.
func (x *exchange) try(ctx context.Context) (ended bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.inFlight.currentTry.Store(&cancel)
	x.begin()
	x.path.leave(&x.sent, x.extended())
	defer x.path.back()
	watch := x.watch(cancel)
	defer watch.Stop()
	resp, ended := x.ask(ctx)
	if resp == nil {
		return ended
	}
	defer resp.Body.Close()
	if isStream(resp) {
		return x.relayStream(ctx, resp, watch)
	}
	return x.relayWhole(ctx, resp, watch)
}

func isStream(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
}

// ask sends the request to its target and gives the answer, or none where it is
// not to be passed on. It has a frame of its own, which is gone while the answer
// is relayed: what a stack holds then is held for every stream.
//
//go:noinline
func (x *exchange) ask(ctx context.Context) (resp *http.Response, ended bool) {
	resp, err := x.send(ctx)
	if err != nil {
		return nil, x.interrupted(ctx, err)
	}
	x.path.answered(resp.StatusCode)
	if x.refusesCounts(resp) {
		return x.ask(ctx)
	}
	switch {
	case x.sent.peer != nil && resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(headerBounce) != "":
		x.path.failed(whyBounced.String())
		x.sent.failed(whyBounced)
		x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventBounced, Outcome: &core.Outcome{Kills: killsOf(resp.Header, x.sent.peer)}}, x.failedBy(x.sent.target+" gave it back"))
	case x.failed(resp):
	case x.wrote && refusesContinuation(resp.StatusCode):
		discard(resp.Body)
		resp.Body.Close()
		x.declined(&failure{cause: fmt.Sprintf("%s refused to go on with it (%d)", x.sent.target, resp.StatusCode), why: whyUnable})
		return nil, true
	case x.wrote && (!isStream(resp) || resp.StatusCode != http.StatusOK):
		x.fail(&failure{cause: fmt.Sprintf("%s answered %d instead of going on", x.sent.target, resp.StatusCode), why: whyStatus})
	case isStream(resp) && encoded(resp.Header):
		x.fail(&failure{cause: x.sent.target + " encoded its stream, which it was not asked to", why: whyAnswer})
		resp.Body.Close() // its rest may be long in coming
		return nil, false
	default:
		return resp, false
	}
	discard(resp.Body)
	resp.Body.Close()
	return nil, false
}

// failed reports whether an answer is a failure of its target. If so it steps core.
func (x *exchange) failed(resp *http.Response) bool {
	f := x.fault(resp)
	if f == nil {
		return false
	}
	x.fail(f)
	return true
}

// watch stops a try whose target is silent for too long; Reset lets it wait on.
func (x *exchange) watch(cancel context.CancelCauseFunc) *time.Timer {
	wait := x.rt.limits.Answer
	if x.streamWanted {
		wait = x.rt.limits.FirstByte
	}
	return time.AfterFunc(wait, func() { cancel(errSilent) })
}

// send opens the exchange with the target.
func (x *exchange) send(ctx context.Context) (*http.Response, error) {
	if c := x.sent.counted(); c != nil {
		c.sent.Add(1)
	}
	switch {
	case x.sent.rank.replica != nil:
		x.counts = x.sent.rank
		if !x.mayExtend() {
			return nil, errCannotContinue
		}
		out := x.outgoing(ctx, x.counts.base)
		x.counts.mark(out.Header)
		return x.counts.transport.RoundTrip(out)
	case x.sent.peer != nil:
		x.counts = rank{}
		out := x.outgoing(ctx, x.sent.peer.base)
		x.markForwarded(out.Header)
		return x.sent.peer.transport.RoundTrip(out)
	}
	return nil, errRemoved
}

// errRemoved is why a try fails whose target was removed as it was chosen.
var errRemoved = errors.New("its address is no longer known")

// errCannotContinue is why a try fails whose target would begin an answer anew that
// it is to go on with.
var errCannotContinue = errors.New("its engine goes on with no answer")

// outgoing is the request as the target gets it.
func (x *exchange) outgoing(ctx context.Context, base *url.URL) *http.Request {
	in := x.req
	header := make(http.Header, len(in.Header)+8)
	copyHeaders(header, in.Header)
	header.Del("Accept-Encoding") // a compressed answer could not be read as it passes
	if x.keyed {
		header.Del("Authorization") // the balancer's own keys are no engine's business; other keys are the engine's
	}
	header[headerRequestID] = []string{x.inFlight.id}
	if _, given := header[headerIdempotency]; !given {
		// Lets the transport use another connection when an idle one turns out
		// closed (engines close theirs after seconds); nil is not sent.
		header[headerIdempotency] = nil
	}
	x.path.mark(header)
	body := x.body
	if x.restBody != nil {
		body = x.restBody
	}
	x.counting = x.asks(body)
	x.answer.AskedForCounts = x.counting
	counts := x.counting && x.sent.peer == nil
	out := &http.Request{
		Method: in.Method, Header: header, Host: base.Host,
		URL:  &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + x.endpoint.Path, RawQuery: in.URL.RawQuery},
		Body: body.open(counts), ContentLength: body.size(counts),
	}
	out.GetBody = func() (io.ReadCloser, error) { return body.open(counts), nil }
	return out.WithContext(ctx)
}

// interrupted handles a try that ended before its answer began, or in the
// middle of it while nothing of it had been passed on.
func (x *exchange) interrupted(ctx context.Context, err error) (ended bool) {
	if x.req.Context().Err() != nil || errors.Is(context.Cause(ctx), errAborted) {
		x.cancelled()
		return true
	}
	x.fail(x.failureOf(ctx, err))
	return false
}

// failureOf puts an error of a transport in words.
func (x *exchange) failureOf(ctx context.Context, err error) *failure {
	if errors.Is(context.Cause(ctx), errSilent) {
		return &failure{cause: x.sent.target + " was silent for too long", why: whySilent, silent: true, broke: true, kills: x.peerKills}
	}
	if errors.Is(err, errCannotContinue) {
		return &failure{cause: x.sent.target + " runs an engine that cannot go on with an answer", why: whyUnable}
	}
	var op *net.OpError
	var again *wire.RepeatError
	unreachable := errors.Is(err, errRemoved) || errors.As(err, &op) && op.Op == "dial"
	cause, why := x.sent.target+" broke the connection", whyBroken
	if unreachable {
		cause, why = x.sent.target+" cannot be reached", whyUnreachable
	}
	return &failure{cause: cause, err: err, why: why, unreachable: unreachable, broke: !unreachable || errors.As(err, &again), kills: x.peerKills}
}

// unfit says why an answer in one piece is none: it is empty, JSON without its end,
// or an error of the target under a status that says otherwise.
func (x *exchange) unfit(resp *http.Response, body []byte) *failure {
	if resp.StatusCode == http.StatusOK && len(body) == 0 {
		return &failure{cause: x.sent.target + " answered with nothing", why: whyAnswer}
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if resp.StatusCode != http.StatusOK || encoded(resp.Header) || strings.TrimSpace(kind) != "application/json" {
		return nil
	}
	fault, err := openai.CheckWhole(body)
	if err != nil {
		return &failure{cause: x.sent.target + " broke off in the middle of its answer", err: err, why: whyBroken, broke: true}
	}
	if fault {
		return &failure{cause: x.sent.target + " answered with an error", why: whyAnswer, broke: true}
	}
	return nil
}

// encoded says whether a body is not what its content type says, but compressed or
// the like.
func encoded(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e != "" && !strings.EqualFold(e, "identity")
}

// discard reads the rest of a short body so that its connection can be used
// again.
func discard(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10) // what fails here only costs a connection
}
