package proxy

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/policy"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// exchange is one request of a client or peer, from its arrival to its end. It belongs to one
// goroutine. Other goroutines use only its inFlight, its bodies (transports read them) and, in the timer of
// guardHTTP2Write, ctl.
type exchange struct {
	rt       *Runtime
	w        http.ResponseWriter
	req      *http.Request
	endpoint *openai.Endpoint
	sender
	inFlight         inFlight
	model            string
	split            string      // the split that the client requested; empty = it requested the model itself
	adapter          string      // core.Request.Adapter
	body             *sharedBody // as sent without a continuation; nil once the request cannot be retried
	continuationBody *sharedBody // as sent for a continuation; nil before that
	upgradeModel     string      // name of the model at the engine, for a WebSocket
	decoded          bool        // the client sent the body with a content encoding

	promptTokens        int  // estimated
	countedPrompt       int  // promptTokens if Runtime.points counted them at the arrival (see telemetry.Point), else 0
	maxOutput           int  // maximum tokens of the response; 0 = no limit
	parallelAnswers     int  // number of responses generated in parallel; 0 = none
	maxGenerated        int  // maximum number of tokens that any attempt generated
	pinned              bool // only one target can serve the request: core.Request.PinnedTo
	streamWanted        bool // the client requested a stream
	hideUsage           bool // the balancer requested the usage from the engine, and the client did not
	hideUsageSoFar      bool // the same for the usage so far in each event: see tokencounts.go
	usageSoFarRequested bool // the usage so far was requested from the current target
	namesMaxTokens      bool // the client sent max_tokens, possibly as null
	showsUsage          bool // the client receives the number of tokens of the response
	countMatters        bool // the number of output tokens must be exact: the client receives it, or has set a limit for it
	hidesCache          bool // cached token counts are hidden from the client
	unparsed            bool // a non-streamed response was forwarded without being parsed
	masking             bool // everything sent to the client passes through mask
	mask                openai.CacheMask
	answer              openai.Answer
	transcript          openai.Transcript // answer.Transcript points here if there is one
	transcriptMemory    quota.MemoryUse   // memory of its text
	splice              *openai.Splice    // nil until another target continues the response

	latestAction  action       // the latest action
	current       action       // the action of the current attempt
	spans         requestSpans // the spans of the request and its attempts
	errorCode     string       // the code of the error with which the balancer responded; empty if it did not
	ctl           *http.ResponseController
	headerSent    bool                // the response header was sent to the client
	sentToken     bool                // the current attempt has sent a token
	firstTokenAt  time.Time           // time of the first token
	latestTokenAt time.Time           // time of the latest token
	itl           prometheus.Observer // of the model; nil before the first token
	deadlineDue   time.Time           // when to set the write deadline again
	stallTimer    *time.Timer         // of a write over HTTP/2; nil if there was none
	reservation   quota.Reservation   // of the client's key; inactive if it has none
	price         *service.TokenPrice // of the model, when the request arrived
	cost          *service.NanoUSD    // once the request has ended; nil if it is unknown
	used          telemetry.Usage     // once the request has ended
	servedBy      rank                // the rank that generates the response; no replica if that is a peer
	lastFailure   *failure            // failure of the latest failed attempt
	hadFault      bool                // an attempt failed for a reason other than a rejection
	unconfirmed   *action             // the attempt whose client error another target must confirm; nil if there is none
	fallback      *fallback           // of a request that its own model could not serve; else nil
	peerKills     int                 // engines of the current peer that crashed serving the request, from killsComment
	startedAt     time.Time
}

// serveInference serves a request to an inference endpoint.
func (r *Runtime) serveInference(w http.ResponseWriter, req *http.Request, e *openai.Endpoint) {
	x := &exchange{rt: r, w: w, req: req, endpoint: e, ctl: http.NewResponseController(w), startedAt: time.Now()}
	x.deadlineDue = x.startedAt.Add(r.limits.StallTimeout / 8) // as in extendWriteDeadline; serveRequest has set the first deadline
	defer x.recoverPanic()
	defer x.setFinalWriteDeadline()
	x.inFlight.id = requestID(req.Header.Get(headerRequestID))
	x.spans.start(r.tracer, req.Header, x.startedAt)
	defer x.releaseQuota()
	defer x.endFallback()
	request, refused := x.admitAny()
	if refused != nil {
		x.refuseExchange(refused)
		return
	}
	ctx, stop := context.WithCancelCause(req.Context())
	defer stop(nil)
	defer x.release()
	x.inFlight.actions, x.inFlight.cancel = make(chan action, 4), stop
	if x.reservation.Active() {
		x.inFlight.reservation = &x.reservation
	}
	if !x.submit(request) {
		x.refuseExchange(errDraining())
		return
	}
	x.runExchange(ctx)
	x.endEarlyStream()
}

// admitAny admits a request of any kind and returns it as a core.Request.
func (x *exchange) admitAny() (*core.Request, *openai.Error) {
	if x.endpoint.Upgrades {
		return x.admitUpgrade()
	}
	return x.admit()
}

// admit reads a request with a body.
func (x *exchange) admit() (*core.Request, *openai.Error) {
	from, refused := x.rt.identify(x.req)
	x.sender = from
	if refused != nil {
		return nil, refused
	}
	x.hidesCache = x.rt.hidesCache(&x.sender)
	if refused := x.admitByQuota(); refused != nil {
		return nil, refused
	}
	mem := x.useMemory()
	buf, err := x.readBody(&mem)
	if err != nil {
		return nil, errBody(err, x.rt.limits.BodyTimeout)
	}
	release := func() {
		buf.Release()
		mem.Release()
	}
	c, resolved, divided, refused := x.resolveCall(buf.B)
	var holder storedAt
	if refused == nil && x.endpoint.Continues {
		holder, refused = x.rt.holderOf(x.req.Context(), &c, &x.sender)
	}
	if refused != nil {
		release()
		return nil, refused
	}
	x.setSession(x.req, x.endpoint, &c)
	if divided != nil {
		resolved = x.resolveSplit(divided, holder.model)
	}
	x.model, x.adapter, x.pinned = resolved.Model, resolved.Adapter, holder.target != ""
	if x.fingerprint == 0 { // the request is from a client
		x.fingerprint = c.Fingerprint(x.endpoint, resolved)
	}
	x.answer.Rendering = openai.Render(x.rt.seedOf(x.tenant), x.endpoint, &c, resolved)
	if refused := x.refuseGuarded(&c); refused != nil {
		release()
		x.release()
		return nil, refused
	}
	x.answer.RemainingKeyBytes, x.answer.Messages = x.rt.limits.MaxKeyedResponse, x.endpoint.Messages
	if !x.endpoint.Opaque {
		x.promptTokens = (x.answer.Rendering.Len() + 3) / 4
	}
	x.maxOutput, x.parallelAnswers = c.MaxOutput(x.endpoint), c.Answers(x.endpoint)
	if refused := x.reserveQuota(); refused != nil {
		release()
		x.release()
		return nil, refused
	}
	if err := x.applyEdits(&c, resolved, buf, &mem); err != nil {
		release()
		x.release()
		return nil, errNoMemory(err)
	}
	return x.coreRequest(holder.target), nil
}

// coreRequest returns the admitted request for core; holder is the only target that can serve it, if
// any.
func (x *exchange) coreRequest(holder string) *core.Request {
	return &core.Request{
		Model: x.placedModel(), Adapter: x.placedAdapter(), Tenant: x.tenant, Session: x.session, Tier: x.tier, Prompt: x.answer.Rendering.Key(),
		Streamed: x.streamWanted, PromptTokens: x.promptTokens, MaxTokens: x.maxOutput, Completions: coreAnswers(x.parallelAnswers), Hop: x.hop, From: x.from, SessionAge: x.sessionAge,
		MaxWait: cmp.Or(x.maxWait, x.fallbackWait()), PinnedTo: holder, Fingerprint: x.fingerprint, Kills: x.kills,
		TimeToDeadline: x.due, Age: x.age,
	}
}

// readBody reads the request's body within the time limit for slow clients.
func (x *exchange) readBody(mem *quota.MemoryUse) (*buffer.Buffer, error) {
	_ = x.ctl.SetReadDeadline(time.Now().Add(x.rt.limits.BodyTimeout)) // a reader without deadlines may block
	if err := mem.Set(x.receiveWindow()); err != nil {
		return nil, err
	}
	limit := x.rt.limits.MaxBody
	if x.endpoint.Form {
		limit = x.rt.limits.MaxForm
	}
	var buf *buffer.Buffer
	var err error
	if encoding := contentEncoding(x.req.Header); encoding == "" {
		buf, err = readBody(x.w, x.req, nil, limit, mem)
	} else {
		buf, err = x.readEncoded(encoding, limit, mem)
	}
	if err != nil {
		mem.Release()
		return nil, err
	}
	_ = x.ctl.SetReadDeadline(time.Time{}) // otherwise the client would count as disconnected at the deadline
	if rest, marked := bytes.CutPrefix(buf.B, []byte(byteOrderMark)); marked && !x.endpoint.Form {
		buf.B = append(buf.B[:0], rest...) // in place: the buffer keeps its capacity
	}
	return buf, mem.Set(int64(cap(buf.B)))
}

// byteOrderMark may begin a JSON body in UTF-8 (RFC 8259, section 8.1, lets a parser ignore it). vLLM and SGLang ignore
// it; other engines reject it, so it is not forwarded.
const byteOrderMark = "\xef\xbb\xbf"

// readEncoded is readBody for a body with a content encoding.
func (x *exchange) readEncoded(encoding string, limit int64, mem *quota.MemoryUse) (*buffer.Buffer, error) {
	body, memory, err := decodeBody(http.MaxBytesReader(x.w, x.req.Body, limit), encoding, limit)
	if err != nil {
		return nil, err
	}
	if err := mem.Set(mem.Bytes() + memory); err != nil {
		return nil, err
	}
	defer func() { body.close() }()
	x.decoded = true
	return readBody(x.w, x.req, body, limit, mem)
}

// receiveWindow returns the maximum number of bytes of the body that were received but not read. Over
// HTTP/2, that is the size of a window.
func (x *exchange) receiveWindow() int64 {
	window := int64(x.rt.limits.StreamWindow)
	switch {
	case x.req.ProtoMajor < 2:
		return 0
	case x.req.ContentLength >= 0:
		return min(window, x.req.ContentLength)
	}
	return window
}

// applyEdits applies the edits of c.Changes to a body in place and takes ownership of the body. If there is no
// memory for a larger body, it returns an error, and the caller keeps the body. applyEdits overwrites the
// memory from which c was parsed.
func (x *exchange) applyEdits(c *openai.Call, resolved openai.ResolvedModel, buf *buffer.Buffer, mem *quota.MemoryUse) error {
	ch := c.Changes(x.endpoint, resolved)
	x.streamWanted, x.hideUsage = ch.Stream, ch.HideUsage
	x.hideUsageSoFar = x.requestedCounts == "" && !ch.CountsRequested
	x.namesMaxTokens = ch.NamesMaxTokens
	x.showsUsage = !x.hideUsage && x.requestedCounts != countsAny
	x.countMatters = x.showsUsage || ch.SetsBounds
	if grown := openai.Growth(ch.Edits, len(buf.B)); grown > cap(buf.B)-len(buf.B) {
		size := buffer.SizeFor(len(buf.B) + grown)
		if err := mem.Set(int64(size)); err != nil {
			return err
		}
		buf.GrowTo(size)
	}
	buf.B = openai.ApplyInPlace(buf.B, ch.Edits)
	x.body = newSharedBody(buf, *mem)
	x.body.counts = ch.Counts
	if ch.Continuable {
		x.startTranscript()
	}
	return nil
}

// submit passes the request to core. It returns false when the balancer is draining.
func (x *exchange) submit(request *core.Request) bool {
	r := x.rt
	ok := r.submitRequest(&x.inFlight, request, &record.RequestRecord{
		At: x.startedAt.UTC(), Balancer: r.self.ID, Region: r.self.Region, Model: x.model, Split: x.split, Tier: x.tier,
		Tenant: x.tenant, Session: x.session, PromptBytes: x.answer.Rendering.Len(), PromptEstimate: x.promptTokens,
		From: x.from, Hop: x.hop, State: record.StateQueued, Attempts: make([]record.Attempt, 0, 1),
	})
	if !ok {
		return false
	}
	if x.from != "" {
		r.metrics.forwarded.WithLabelValues("in").Inc()
		return true
	}
	r.stats.arrivals.addCount(r.Elapsed(), 1)
	if x.endpoint.EstimatesTokens() {
		x.countedPrompt = x.promptTokens
	}
	r.points.addTally(x.model, x.tier, tally{requests: 1, prompt: int64(x.countedPrompt)})
	return true
}

// release frees the resources of the exchange.
func (x *exchange) release() {
	x.releaseBody()
	x.transcript.Release()
	if x.answer.Rendering != nil {
		x.answer.Rendering.Release()
		x.answer.Rendering = nil
	}
}

// releaseBody releases the request's body. The request can no longer be retried.
func (x *exchange) releaseBody() {
	if x.body != nil {
		x.body.release()
		x.body = nil
	}
	if x.continuationBody != nil {
		x.continuationBody.release()
		x.continuationBody = nil
	}
}

// runExchange executes core's actions until the request has ended.
func (x *exchange) runExchange(ctx context.Context) {
	for {
		if ctx.Err() != nil {
			x.endCancelled()
			return
		}
		if x.awaitAction(ctx) && x.execute(ctx) {
			return
		}
	}
}

// execute executes an action. It reports whether the request has ended.
func (x *exchange) execute(ctx context.Context) (ended bool) {
	x.spans.endQueue(&x.latestAction)
	if x.latestAction.kind == core.ActionReject || x.latestAction.kind == core.ActionBounce {
		if x.latestAction.kind == core.ActionReject && x.fallBack() {
			return false
		}
		x.endUnserved()
		return true
	}
	x.current = x.latestAction
	return x.attempt(ctx)
}

// endUnserved ends a request that no target will serve.
func (x *exchange) endUnserved() {
	switch {
	case x.headerSent:
		x.endAbandonedStream(x.latestAction)
	case x.latestAction.kind == core.ActionReject && x.allRefused():
		x.forwardRefusal()
		x.finalize(x.lastFailure.refusal.status, record.StateRejected)
	case x.latestAction.kind == core.ActionReject:
		x.setKillsHeader(x.w.Header())
		e := x.rejection()
		x.replyError(e)
		x.finalize(e.Status, record.StateRejected)
	default:
		x.w.Header().Set(headerBounce, bounceUnplaced)
		x.setKillsHeader(x.w.Header())
		x.replyError(rejection(core.RejectNoReplica, nil))
		x.finalize(http.StatusServiceUnavailable, record.StateBounced)
	}
}

// endCancelled ends a request whose client has disconnected, or that the balancer aborted. After an abort the
// client receives an error, or its connection is closed if the header was already sent.
func (x *exchange) endCancelled() {
	if x.splice != nil {
		x.countContinuation(continuedCancelled)
	}
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventCancelled, Outcome: x.partialOutcome()}, nil)
	if !x.headerSent && x.req.Context().Err() == nil {
		e := &openai.Error{Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "aborted", Message: errAborted.Error()}
		x.replyError(e)
		x.finalize(e.Status, record.StateCancelled)
		return
	}
	x.finalize(statusClientClosed, record.StateCancelled)
	panic(http.ErrAbortHandler) // a client that closed only its write side must be able to detect a partial response
}

// endServed ends a request that was served.
func (x *exchange) endServed(status int, complete bool) {
	out := &core.Outcome{PromptTokens: x.answer.Usage.Prompt, CachedTokens: x.answer.Usage.Cached, OutputTokens: policy.Known(x.outputTokens())}
	if x.endpoint.Opaque && x.outputTokens() == 0 {
		out.OutputTokens = x.answer.Usage.Output
	}
	out.UnstreamedTokens = x.unstreamedTokens()
	out.ClientError = status/100 == 4
	if x.splice != nil {
		out.EarlierTokens = x.splice.TokensBefore
		x.countContinuation(continuedWhole)
	}
	x.observeEvents(complete)
	if complete {
		out.Key = x.answer.Finish()
	}
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventFinished, Outcome: out}, nil)
	x.finalize(status, record.StateFinished)
}

// endBroken ends a request whose target failed after the client had received part of the response, and
// that no other target can continue.
func (x *exchange) endBroken(status int, f *failure) {
	if x.splice != nil {
		x.countContinuation(continuedBroken)
		x.splice = nil
	}
	x.reportFailure(f)
	x.finalize(status, record.StateFailed)
}

// reportFailure reports to core that the current attempt failed.
func (x *exchange) reportFailure(f *failure) {
	x.lastFailure = f
	x.hadFault = x.hadFault || f.refusal == nil
	x.spans.setFailure(f.cause)
	retryable := !x.headerSent || x.splice != nil
	level := slog.LevelWarn
	if f.unconfirmed {
		level = slog.LevelDebug // most 4xx responses are caused by the client, not by the target
	} else {
		x.current.countFailure(f.kind)
	}
	args := append([]any{"request", x.inFlight.id, "target", x.current.target, "retryable", retryable}, f.logArgs()...)
	x.rt.log.Log(x.req.Context(), level, "upstream attempt failed", args...)
	out := &core.Outcome{}
	if !f.unreachable && f.refusal == nil && !f.unproven { // otherwise no engine started it
		out = x.partialOutcome()
	}
	out.Retryable, out.Unreachable, out.EngineMayHaveDied = retryable, f.unreachable, f.broken && x.current.peer == nil
	out.Refused, out.FaultUnclear, out.Kills, out.Cause = f.refusal != nil, f.unconfirmed || f.unproven, f.kills, f.cause
	out.LacksModel = f.lacksModel
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventFailed, Outcome: out}, x.recordFailure(f.cause))
	if (f.broken || f.keyRejected) && x.current.rank.replica != nil && x.rt.suspect != nil {
		x.rt.suspect(x.current.rank.cfg.ID)
	}
	if f.lacksModel && x.current.rank.replica != nil && x.rt.recheck != nil {
		x.rt.recheck(x.current.rank.cfg.ID)
	}
}

// recordFailure returns an edit of the request's record that stores the cause of the end of the
// current attempt.
func (x *exchange) recordFailure(cause string) func(*record.RequestRecord) {
	return func(d *record.RequestRecord) { d.Failed(cause, x.rt.Elapsed()-x.inFlight.arrived) }
}

// outputTokens returns the number of tokens of the response, as reported by the engine or otherwise
// counted.
func (x *exchange) outputTokens() int { return x.answer.Usage.Output.Or(x.answer.Tokens) }

// unstreamedTokens returns the number of output tokens that are counted only at the end of the response.
func (x *exchange) unstreamedTokens() int { return max(0, x.outputTokens()-x.answer.Tokens) }

// refuseExchange rejects a request before it is submitted to core.
func (x *exchange) refuseExchange(e *openai.Error) {
	if x.from != "" && (e.Status == http.StatusNotFound || e.Status == http.StatusServiceUnavailable) {
		e.Status = http.StatusServiceUnavailable // the peer has other targets
		reason := bounceUnplaced
		if e.Code == codeNoModel {
			reason = bounceNoModel
		}
		x.w.Header().Set(headerBounce, reason)
	}
	if x.endsConnection(e) {
		x.w.Header().Set("Connection", "close")
	}
	if e.Status != http.StatusRequestTimeout { // otherwise the time for its body has already expired
		x.rt.finishBody(x.w, x.req)
	}
	x.replyError(e)
	x.reportEnd(e.Status, outcomeRefused)
}

// reportEnd reports the end of a request to metrics, the access log and traces.
func (x *exchange) reportEnd(status int, outcome string) {
	x.countEnded(status, outcome)
	x.logAccess(status, outcome)
	x.endTrace(status, outcome)
}

// endsConnection reports whether to close the client's connection after a rejection: reading the
// remaining body costs more than a new connection, or the balancer drains. Over HTTP/2 a body is
// discarded separately, and other streams share the connection.
func (x *exchange) endsConnection(e *openai.Error) bool {
	switch e.Status {
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		return x.req.ProtoMajor == 1
	}
	return e.Code == codeDraining // its body has been read
}

// replyError responds with an error of the balancer.
func (x *exchange) replyError(e *openai.Error) {
	h := x.w.Header()
	h.Set(headerRegion, string(x.rt.self.Region))
	x.setLimitHeaders(h)
	x.headerSent, x.errorCode = true, e.Code
	x.extendWriteDeadline(time.Now())
	writeError(x.w, x.endpoint.Path, x.inFlight.id, e)
}
