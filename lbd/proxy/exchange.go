package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/buffer"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/policy"
	"skyserve/lbd/quota"
	"skyserve/lbd/record"
)

// exchange is one request of a client or peer, from its arrival to its end. It
// belongs to one goroutine; others know only its inFlight.
type exchange struct {
	rt       *Runtime
	w        http.ResponseWriter
	req      *http.Request
	endpoint *openai.Endpoint
	origin
	inFlight inFlight
	model    string
	body     *sharedBody // as it is sent first; nil once no try can follow
	restBody *sharedBody // as it is sent for the rest of an answer; nil before that

	promptTokens     int  // estimated
	bound            int  // of an answer's tokens; 0 = none was set
	answers          int  // that are generated at once; 0 = none are
	generated        int  // tokens, in the try that generated most, as of its end
	held             bool // only one target can serve it: core.Request.Holder
	streamWanted     bool // the client asks for a stream
	hideUsage        bool // the client did not ask for the usage that the engine was asked for
	hideCounts       bool // nor for the usage so far with each event
	counting         bool // the target at hand was asked for that
	bounded          bool // the client says of max_tokens what it wants, if only null
	showsUsage       bool // the client is told how many tokens the answer has
	countMatters     bool // how many tokens the client has bounds the rest of the answer, or is told
	hidesCache       bool // the client is not told what was cached
	unread           bool // the answer, in one piece, passed without being read
	masking          bool // all that goes to the client from now on passes mask
	mask             openai.CacheMask
	answer           openai.Answer
	transcript       openai.Transcript // what answer.Transcript points to, where it does
	transcriptMemory quota.MemoryUse   // of its text
	splice           *openai.Splice    // nil until another target goes on with the answer

	decided     action // the latest
	sent        action // the try at hand
	path        path   // its spans and the request's
	ctl         *http.ResponseController
	wrote       bool                // the answer's header has gone to the client
	talks       bool                // a token came in the try at hand
	first       time.Time           // of the first token
	latest      time.Time           // of the latest one
	itl         prometheus.Observer // of the model; nil before the first token
	until       time.Time           // when the write deadline must be set anew
	stall       *time.Timer         // of a write over HTTP/2; nil where there was none
	reservation quota.Reservation   // of the client's key; nobody's where it has none
	counts      rank                // who generates what passes; no replica where it is a peer
	last        *failure            // of the latest try that failed
	faulted     bool                // a try failed and was not refused
	peerKills   int                 // engines of the current peer that died of it, from killsComment
	began       time.Time
}

// infer serves a request that asks an engine for something.
func (r *Runtime) infer(w http.ResponseWriter, req *http.Request, e *openai.Endpoint) {
	x := &exchange{rt: r, w: w, req: req, endpoint: e, ctl: http.NewResponseController(w), began: time.Now()}
	x.until = x.began.Add(r.limits.Stall / 8) // as extend has it: serve set the first deadline
	defer x.recovered()
	defer x.lastWrite()
	x.inFlight.id = requestID(req.Header.Get(headerRequestID))
	x.path.begin(r.tracer, req.Header, x.began)
	defer x.releaseQuota()
	request, refused := x.admit()
	if refused != nil {
		x.refuse(refused)
		return
	}
	ctx, stop := context.WithCancelCause(req.Context())
	defer stop(nil)
	defer x.release()
	x.inFlight.actions, x.inFlight.stop = make(chan action, 4), stop
	if x.reservation.Active() {
		x.inFlight.reservation = &x.reservation
	}
	if !x.arrive(request) {
		x.refuse(errDraining())
		return
	}
	x.run(ctx)
}

// admit reads a request and makes of it what core must know.
func (x *exchange) admit() (*core.Request, *openai.Error) {
	origin, refused := x.rt.identify(x.req)
	x.origin = origin
	if refused != nil {
		return nil, refused
	}
	x.hidesCache = x.rt.hidesCache(&x.origin)
	if refused := x.admitByQuota(); refused != nil {
		return nil, refused
	}
	mem := x.hold()
	buf, err := x.readBody(&mem)
	if err != nil {
		return nil, errBody(err, x.rt.limits.MaxBody)
	}
	release := func() {
		buf.Release()
		mem.Release()
	}
	c, stands, refused := x.rt.understand(buf.B)
	var holder string
	if refused == nil && x.endpoint.Stored {
		holder, refused = x.rt.holderOf(x.req.Context(), &c, &x.origin)
	}
	if refused != nil {
		release()
		return nil, refused
	}
	x.model, x.held = stands.Model, holder != ""
	if x.fingerprint == 0 { // a client's
		x.fingerprint = c.Fingerprint(x.endpoint, stands)
	}
	x.setSession(x.req, &c)
	x.answer.Rendering = openai.Render(x.rt.seedOf(x.tenant), x.endpoint, &c, stands)
	if refused := x.refuseGuarded(&c); refused != nil {
		release()
		x.release()
		return nil, refused
	}
	x.answer.KeyBytesLeft = x.rt.limits.MaxKeyedAnswer
	x.promptTokens = (x.answer.Rendering.Len() + 3) / 4
	x.bound, x.answers = c.MaxOutput(x.endpoint), c.Answers(x.endpoint)
	if refused := errDenied(x.reservation.Reserve(x.promptTokens, x.bound, x.answers, x.rt.Elapsed())); refused != nil {
		release()
		x.release()
		return nil, refused
	}
	if err := x.rewrite(&c, stands, buf, &mem); err != nil {
		release()
		x.release()
		return nil, errNoMemory(err)
	}
	return &core.Request{
		Model: x.model, Tenant: x.tenant, Session: x.session, Tier: x.tier, Prompt: x.answer.Rendering.Key(),
		PromptTokens: x.promptTokens, MaxTokens: x.bound, Answers: answersForCore(x.answers), Hop: x.hop, From: x.from, SessionAge: x.sessionAge, Wait: x.wait,
		Holder: holder, Fingerprint: x.fingerprint, Kills: x.kills,
	}, nil
}

// readBody reads the request's body, in as much time as a slow client may take.
func (x *exchange) readBody(mem *quota.MemoryUse) (*buffer.Buffer, error) {
	_ = x.ctl.SetReadDeadline(time.Now().Add(x.rt.limits.Body)) // a reader without deadlines blocks as it likes
	if err := mem.Set(x.onItsWay()); err != nil {
		return nil, err
	}
	buf, err := readBody(x.w, x.req, x.rt.limits.MaxBody, mem)
	if err != nil {
		mem.Release()
		return nil, err
	}
	_ = x.ctl.SetReadDeadline(time.Time{}) // else the client would be thought gone when it passes
	return buf, mem.Set(int64(cap(buf.B)))
}

// onItsWay is how many bytes of the body may have come that nobody has read: over HTTP/2
// the server takes in a window of them.
func (x *exchange) onItsWay() int64 {
	window := int64(x.rt.limits.StreamWindow)
	switch {
	case x.req.ProtoMajor < 2:
		return 0
	case x.req.ContentLength >= 0:
		return min(window, x.req.ContentLength)
	}
	return window
}

// rewrite makes the declared changes to a body where it stands, and takes it over. It
// fails where there is no memory for a larger body. What c was read from is overwritten.
func (x *exchange) rewrite(c *openai.Call, stands openai.ResolvedModel, buf *buffer.Buffer, mem *quota.MemoryUse) error {
	ch := c.Changes(x.endpoint, stands)
	x.streamWanted, x.hideUsage = ch.Stream, ch.HideUsage
	x.hideCounts = x.wantsCounts == "" && !ch.AsksCounts
	x.bounded = ch.NamesMaxTokens
	x.showsUsage = !x.hideUsage && x.wantsCounts != countsAny
	x.countMatters = x.showsUsage || ch.SetsBounds
	if grown := openai.Growth(ch.Edits, len(buf.B)); grown > cap(buf.B)-len(buf.B) {
		size := buffer.SizeFor(len(buf.B) + grown)
		if err := mem.Set(int64(size)); err != nil {
			return err
		}
		buf.GrowTo(size)
	}
	buf.B = openai.ApplyInPlace(buf.B, ch.Edits)
	x.body = share(buf, *mem)
	x.body.counts = ch.Counts
	if ch.Continuable {
		x.keepTranscript()
	}
	return nil
}

// arrive hands the request to core; it reports false when the balancer drains.
func (x *exchange) arrive(request *core.Request) bool {
	r := x.rt
	ok := r.arrive(&x.inFlight, request, &record.Request{
		At: x.began.UTC(), Balancer: r.self.ID, Region: r.self.Region, Model: x.model, Tier: x.tier,
		Tenant: x.tenant, Session: x.session, PromptBytes: x.answer.Rendering.Len(), PromptEstimate: x.promptTokens,
		From: x.from, Hop: x.hop, State: record.StateQueued, Tries: make([]record.Try, 0, 1),
	})
	if !ok {
		return false
	}
	if x.from != "" {
		r.metrics.forwarded.WithLabelValues("in").Inc()
		return true
	}
	r.stats.arrivals.add(r.Elapsed(), 1)
	r.points.add(x.model, x.tier, tally{requests: 1})
	return true
}

// release gives back what the exchange borrowed.
func (x *exchange) release() {
	x.dropBody()
	x.transcript.Release()
	if x.answer.Rendering != nil {
		x.answer.Rendering.Release()
		x.answer.Rendering = nil
	}
}

// dropBody lets go of the request's body: no try can follow.
func (x *exchange) dropBody() {
	if x.body != nil {
		x.body.release()
		x.body = nil
	}
	if x.restBody != nil {
		x.restBody.release()
		x.restBody = nil
	}
}

// run does what core says until the request has ended.
func (x *exchange) run(ctx context.Context) {
	for {
		if ctx.Err() != nil {
			x.cancelled()
			return
		}
		select {
		case <-ctx.Done():
		case x.decided = <-x.inFlight.actions:
			if x.carryOut(ctx) {
				return
			}
		}
	}
}

// carryOut carries an action out; it says whether the request has ended.
func (x *exchange) carryOut(ctx context.Context) (ended bool) {
	x.path.decided(&x.decided)
	if x.decided.kind == core.ActionReject || x.decided.kind == core.ActionBounce {
		x.turnedAway()
		return true
	}
	x.sent = x.decided
	return x.try(ctx)
}

// turnedAway ends a request that no target is to serve.
func (x *exchange) turnedAway() {
	switch {
	case x.wrote:
		x.abandoned(x.decided)
	case x.decided.kind == core.ActionReject && x.refused():
		x.passRefusal()
		x.end(x.last.refusal.status, record.StateRejected)
	case x.decided.kind == core.ActionReject:
		x.markKills(x.w.Header())
		e := rejection(x.decided.reason, x.last)
		x.reply(e)
		x.end(e.Status, record.StateRejected)
	default:
		x.w.Header().Set(headerBounce, "1")
		x.markKills(x.w.Header())
		x.reply(rejection(core.RejectNoReplica, nil))
		x.end(http.StatusServiceUnavailable, record.StateBounced)
	}
}

// cancelled ends a request whose client has gone, or that core aborted: then
// the client is told.
func (x *exchange) cancelled() {
	if x.splice != nil {
		x.continuation(continuedCancelled)
	}
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventCancelled, Outcome: x.partly()}, nil)
	if !x.wrote && x.req.Context().Err() == nil {
		e := &openai.Error{Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "aborted", Message: errAborted.Error()}
		x.reply(e)
		x.end(e.Status, record.StateCancelled)
		return
	}
	x.end(statusClientClosed, record.StateCancelled)
	panic(http.ErrAbortHandler) // a client that closed its half only must not take what it has for an answer
}

// finished ends a request that was served.
func (x *exchange) finished(status int, complete bool) {
	out := &core.Outcome{PromptTokens: x.answer.Usage.Prompt, CachedTokens: x.answer.Usage.Cached, OutputTokens: policy.Known(x.outputTokens())}
	out.ClientError = status/100 == 4
	if x.splice != nil {
		out.Elsewhere = x.splice.TokensBefore
		x.continuation(continuedWhole)
	}
	x.observeEvents(complete)
	if complete {
		out.Key = x.answer.Finish()
	}
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventFinished, Outcome: out}, nil)
	x.end(status, record.StateFinished)
}

// broke ends a request whose target failed after the client had seen some of
// its answer, and that nobody can go on with.
func (x *exchange) broke(status int, f *failure) {
	if x.splice != nil {
		x.continuation(continuedBroken)
		x.splice = nil
	}
	x.fail(f)
	x.end(status, record.StateFailed)
}

// fail tells core that the try at hand failed.
func (x *exchange) fail(f *failure) {
	x.last = f
	x.faulted = x.faulted || f.refusal == nil
	x.path.failed(f.cause)
	x.sent.failed(f.why)
	retryable := !x.wrote || x.splice != nil
	x.rt.log.Warn("a try failed", "request", x.inFlight.id, "target", x.sent.target, "cause", f.cause, "error", f.err, "retryable", retryable)
	out := &core.Outcome{}
	if !f.unreachable && f.refusal == nil { // else no engine began it
		out = x.partly()
	}
	out.Retryable, out.Unreachable, out.Broke = retryable, f.unreachable, f.broke && x.sent.peer == nil
	out.Refused, out.Kills, out.Cause = f.refusal != nil, f.kills, f.cause
	x.rt.stepFor(&x.inFlight, core.Event{Kind: core.EventFailed, Outcome: out}, x.failedBy(f.cause))
	if f.broke && x.sent.rank.replica != nil && x.rt.suspect != nil {
		x.rt.suspect(x.sent.rank.cfg.ID)
	}
}

// failedBy notes in the request's record why the try at hand ended.
func (x *exchange) failedBy(cause string) func(*record.Request) {
	return func(d *record.Request) { d.Failed(cause, x.rt.Elapsed()-x.inFlight.arrived) }
}

// outputTokens is how many tokens the answer has: the engine's word, else what
// was counted.
func (x *exchange) outputTokens() int { return x.answer.Usage.Output.Or(x.answer.Tokens) }

// refuse answers a request that core never hears of.
func (x *exchange) refuse(e *openai.Error) {
	if x.from != "" && (e.Status == http.StatusNotFound || e.Status == http.StatusServiceUnavailable) {
		e.Status = http.StatusServiceUnavailable // the peer knows other places
		x.w.Header().Set(headerBounce, "1")
	}
	if x.endsConnection(e.Status) {
		x.w.Header().Set("Connection", "close")
	}
	if e.Status != http.StatusRequestTimeout { // the time for its body is over
		x.rt.limitUnreadBody(x.w)
	}
	x.reply(e)
	x.close(e.Status, outcomeRefused)
}

// close tells those who watch how a request ended.
func (x *exchange) close(status int, outcome string) {
	x.ended(status, outcome)
	x.logged(status, outcome)
	x.traced(status, outcome)
}

// endsConnection says whether the client shall connect anew after a refusal: what
// is left of its body is not worth reading, or the balancer drains. Over HTTP/2 a
// body is let go of by itself, and other streams share the connection.
func (x *exchange) endsConnection(status int) bool {
	switch status {
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		return x.req.ProtoMajor == 1
	}
	return status == http.StatusServiceUnavailable
}

// reply answers with an error of our own.
func (x *exchange) reply(e *openai.Error) {
	h := x.w.Header()
	h.Set(headerRequestID, x.inFlight.id)
	h.Set(headerRegion, string(x.rt.self.Region))
	x.announce(h)
	x.wrote = true
	x.extend(time.Now())
	writeError(x.w, e)
}
