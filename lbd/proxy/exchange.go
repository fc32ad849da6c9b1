package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// exchange is one request of a client or peer, from its arrival to its end. It
// belongs to one goroutine; only its flight is known to others.
type exchange struct {
	rt       *Runtime
	w        http.ResponseWriter
	req      *http.Request
	endpoint *endpoint
	origin
	flight flight
	model  string
	body   *sharedBody // as it is sent first; nil once no try can follow
	rest   *sharedBody // as it is sent for the rest of an answer; nil before that

	promptTokens int  // estimated
	bound        int  // of an answer's tokens; 0 = none was set
	answers      int  // that are generated at once; 0 = none are
	generated    int  // tokens, in the try that generated most, as of its end
	held         bool // only one target can serve it: core.Request.Holder
	streamWanted bool // the client asks for a stream
	hideUsage    bool // the client did not ask for the usage that the engine was asked for
	hideCounts   bool // nor for the usage so far with each event
	counting     bool // the target at hand was asked for that
	bounded      bool // the client says of max_tokens what it wants, if only null
	tellsUsage   bool // the client is told how many tokens the answer has
	countMatters bool // how many tokens the client has bounds the rest of the answer, or is told
	hidesCache   bool // the client is not told what was cached
	unread       bool // the answer, in one piece, passed without being read
	masking      bool // all that goes to the client from now on passes mask
	mask         cacheMask
	answer       answer
	spoken       spoken // what answer.spoken points to, where it does
	seam         *seam  // nil until another target goes on with the answer

	told      verdict // the latest
	sent      verdict // the try at hand
	path      path    // its spans and the request's
	ctl       *http.ResponseController
	wrote     bool                // the answer's header has gone to the client
	talks     bool                // a token came in the try at hand
	first     time.Time           // of the first token
	latest    time.Time           // of the latest one
	itl       prometheus.Observer // of the model; nil before the first token
	until     time.Time           // when the write deadline must be set anew
	stall     *time.Timer         // of a write over HTTP/2; nil where there was none
	visit     visit               // of the client's key; nobody's where it has none
	counts    rank                // who generates what passes; no replica where it is a peer
	last      *failure            // of the latest try that failed
	faulted   bool                // a try failed and was not refused
	peerKills int                 // engines of the current peer that died of it, from killsComment
	began     time.Time
}

// infer serves a request that asks an engine for something.
func (r *Runtime) infer(w http.ResponseWriter, req *http.Request, e *endpoint) {
	x := &exchange{rt: r, w: w, req: req, endpoint: e, ctl: http.NewResponseController(w), began: time.Now()}
	x.until = x.began.Add(r.limits.Stall / 8) // as extend has it: serve set the first deadline
	defer x.recovered()
	defer x.lastWrite()
	x.flight.id = requestID(req.Header.Get(headerRequestID))
	x.path.begin(r.tracer, req.Header, x.began)
	defer x.checkOut()
	request, refused := x.admit()
	if refused != nil {
		x.refuse(refused)
		return
	}
	ctx, stop := context.WithCancelCause(req.Context())
	defer stop(nil)
	defer x.letGo()
	x.flight.verdicts, x.flight.stop = make(chan verdict, 4), stop
	if x.visit.account != nil {
		x.flight.visit = &x.visit
	}
	if !x.arrive(request) {
		x.refuse(errDraining())
		return
	}
	x.run(ctx)
}

// admit reads a request and makes of it what core must know.
func (x *exchange) admit() (*core.Request, *apiError) {
	origin, refused := x.rt.identify(x.req)
	x.origin = origin
	if refused != nil {
		return nil, refused
	}
	x.hidesCache = x.rt.hidesCache(&x.origin)
	if refused := x.checkIn(); refused != nil {
		return nil, refused
	}
	mem := x.hold()
	buf, err := x.readBody(&mem)
	if err != nil {
		return nil, errBody(err, x.rt.limits.MaxBody)
	}
	letGo := func() {
		buf.release()
		mem.release()
	}
	c, stands, refused := x.rt.understand(buf.b)
	var holder string
	if refused == nil && x.endpoint.stored {
		holder, refused = x.rt.holderOf(x.req.Context(), &c, &x.origin)
	}
	if refused != nil {
		letGo()
		return nil, refused
	}
	x.model, x.held = stands.model, holder != ""
	if x.fingerprint == 0 { // a client's
		x.fingerprint = c.fingerprint(x.endpoint, stands)
	}
	x.setSession(x.req, &c)
	x.answer.key = renderKey(x.rt.seedOf(x.tenant), x.endpoint, &c, stands)
	if refused := x.refuseGuarded(&c); refused != nil {
		letGo()
		x.letGo()
		return nil, refused
	}
	x.answer.room = x.rt.limits.MaxKeyedAnswer
	x.promptTokens = (x.answer.key.hash.Len() + 3) / 4
	x.bound, x.answers = c.bound(x.endpoint), c.answers(x.endpoint)
	if refused := x.visit.reserve(x.promptTokens, x.bound, x.answers, x.rt.Elapsed()); refused != nil {
		letGo()
		x.letGo()
		return nil, refused
	}
	continuable := c.continuable(x.endpoint)
	counts, err := x.rewrite(&c, stands, buf, &mem) // which overwrites what c was read from
	if err != nil {
		letGo()
		x.letGo()
		return nil, errNoMemory(err)
	}
	x.body = share(buf, mem)
	x.body.counts = counts
	if continuable {
		x.listen()
	}
	return &core.Request{
		Model: x.model, Tenant: x.tenant, Session: x.session, Tier: x.tier, Prompt: x.answer.key.hash.Key(),
		PromptTokens: x.promptTokens, MaxTokens: x.bound, Answers: answersForCore(x.answers), Hop: x.hop, From: x.from, SessionAge: x.sessionAge, Wait: x.wait,
		Holder: holder, Fingerprint: x.fingerprint, Kills: x.kills,
	}, nil
}

// readBody reads the request's body, in as much time as a slow client may take.
func (x *exchange) readBody(mem *held) (*pooled, error) {
	_ = x.ctl.SetReadDeadline(time.Now().Add(x.rt.limits.Body)) // a reader without deadlines blocks as it likes
	if err := mem.set(x.onItsWay()); err != nil {
		return nil, err
	}
	buf, err := readBody(x.w, x.req, x.rt.limits.MaxBody, mem)
	if err != nil {
		mem.release()
		return nil, err
	}
	_ = x.ctl.SetReadDeadline(time.Time{}) // else the client would be thought gone when it passes
	return buf, mem.set(int64(cap(buf.b)))
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

// rewrite makes the declared changes to a body where it stands: the real name for an
// alias, and a stream's usage asked for. counts is the change that asks for the usage so
// far with each event. It fails where there is no memory for a larger body.
func (x *exchange) rewrite(c *call, stands modelName, buf *pooled, mem *held) (counts edit, err error) {
	var edits []edit
	if name, _ := c.modelName(); string(name) != stands.model && stands.adapter == "" {
		edits = append(edits, c.rename(stands.model))
	}
	x.streamWanted = c.asksStream()
	if x.endpoint.streams && x.streamWanted {
		if e, needed := c.askUsage(); needed {
			edits = append(edits, e)
			x.hideUsage = true
		}
	}
	x.hideCounts = x.wantsCounts == "" && !c.asksCounts()
	x.bounded = c.maxTokens != span{}
	x.tellsUsage = !x.hideUsage && x.wantsCounts != countsAny
	x.countMatters = x.tellsUsage || c.setsBounds()
	if x.streamWanted && c.continuable(x.endpoint) {
		counts = c.askCounts(edits)
	}
	if grown := growth(edits, len(buf.b)); grown > cap(buf.b)-len(buf.b) {
		_, size := sizeClass(len(buf.b) + grown)
		if err := mem.set(int64(size)); err != nil {
			return edit{}, err
		}
		buf.growTo(size)
	}
	buf.b = spliceIn(buf.b, edits)
	return counts, nil
}

// arrive hands the request to core; it reports false when the balancer drains.
func (x *exchange) arrive(request *core.Request) bool {
	r := x.rt
	ok := r.arrive(&x.flight, request, &DecisionRecord{
		At: x.began.UTC(), Balancer: r.self.ID, Region: r.self.Region, Model: x.model, Tier: x.tier,
		Tenant: x.tenant, Session: x.session, PromptBytes: x.answer.key.hash.Len(), PromptEstimate: x.promptTokens,
		From: x.from, Hop: x.hop, State: stateQueued, Tries: make([]Try, 0, 1),
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

// letGo gives back what the exchange borrowed.
func (x *exchange) letGo() {
	x.dropBody()
	x.spoken.release()
	if x.answer.key != nil {
		releaseRenderer(x.answer.key)
		x.answer.key = nil
	}
}

// dropBody lets go of the request's body: no try can follow.
func (x *exchange) dropBody() {
	if x.body != nil {
		x.body.release()
		x.body = nil
	}
	if x.rest != nil {
		x.rest.release()
		x.rest = nil
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
		case x.told = <-x.flight.verdicts:
			if x.obey(ctx) {
				return
			}
		}
	}
}

// obey carries a verdict out; it says whether the request has ended.
func (x *exchange) obey(ctx context.Context) (ended bool) {
	x.path.decided(&x.told)
	if x.told.kind == core.ActionReject || x.told.kind == core.ActionBounce {
		x.turnedAway()
		return true
	}
	x.sent = x.told
	return x.try(ctx)
}

// turnedAway ends a request that no target is to serve.
func (x *exchange) turnedAway() {
	switch {
	case x.wrote:
		x.abandoned(x.told)
	case x.told.kind == core.ActionReject && x.refused():
		x.passRefusal()
		x.end(x.last.refusal.status, stateRejected)
	case x.told.kind == core.ActionReject:
		x.markKills(x.w.Header())
		e := rejection(x.told.reason, x.last)
		x.reply(e)
		x.end(e.status, stateRejected)
	default:
		x.w.Header().Set(headerBounce, "1")
		x.markKills(x.w.Header())
		x.reply(rejection(core.RejectNoReplica, nil))
		x.end(http.StatusServiceUnavailable, stateBounced)
	}
}

// cancelled ends a request whose client has gone, or that core aborted: then
// the client is told.
func (x *exchange) cancelled() {
	if x.seam != nil {
		x.continuation(continuedCancelled)
	}
	x.rt.stepFlight(&x.flight, core.Event{Kind: core.EventCancelled, Outcome: x.partly()}, nil)
	if !x.wrote && x.req.Context().Err() == nil {
		e := &apiError{status: http.StatusServiceUnavailable, kind: typeServer, code: "aborted", message: errAborted.Error()}
		x.reply(e)
		x.end(e.status, stateCancelled)
		return
	}
	x.end(statusClientGone, stateCancelled)
	panic(http.ErrAbortHandler) // a client that closed its half only must not take what it has for an answer
}

// finished ends a request that was served.
func (x *exchange) finished(status int, complete bool) {
	out := &core.Outcome{PromptTokens: x.answer.usage.prompt, CachedTokens: x.answer.usage.cached, OutputTokens: policy.Known(x.outputTokens())}
	out.ClientError = status/100 == 4
	if x.seam != nil {
		out.Elsewhere = x.seam.said
		x.continuation(continuedWhole)
	}
	x.observeEvents(complete)
	if complete {
		out.Key = x.answer.finish()
	}
	x.rt.stepFlight(&x.flight, core.Event{Kind: core.EventFinished, Outcome: out}, nil)
	x.end(status, stateFinished)
}

// broke ends a request whose target failed after the client had seen some of
// its answer, and that nobody can go on with.
func (x *exchange) broke(status int, f *failure) {
	if x.seam != nil {
		x.continuation(continuedBroken)
		x.seam = nil
	}
	x.fail(f)
	x.end(status, stateFailed)
}

// fail tells core that the try at hand failed.
func (x *exchange) fail(f *failure) {
	x.last = f
	x.faulted = x.faulted || f.refusal == nil
	x.path.failed(f.cause)
	x.sent.failed(f.why)
	retryable := !x.wrote || x.seam != nil
	x.rt.log.Warn("a try failed", "request", x.flight.id, "target", x.sent.target, "cause", f.cause, "error", f.err, "retryable", retryable)
	out := &core.Outcome{}
	if !f.unreachable && f.refusal == nil { // else no engine began it
		out = x.partly()
	}
	out.Retryable, out.Unreachable, out.Broke = retryable, f.unreachable, f.broke && x.sent.peer == nil
	out.Refused, out.Kills, out.Cause = f.refusal != nil, f.kills, f.cause
	x.rt.stepFlight(&x.flight, core.Event{Kind: core.EventFailed, Outcome: out}, x.failedBy(f.cause))
	if f.broke && x.sent.rank.replica != nil && x.rt.suspect != nil {
		x.rt.suspect(x.sent.rank.cfg.ID)
	}
}

// failedBy notes in the request's record why the try at hand ended.
func (x *exchange) failedBy(cause string) func(*DecisionRecord) {
	return func(d *DecisionRecord) { d.failed(cause, x.rt.Elapsed()-x.flight.arrived) }
}

// outputTokens is how many tokens the answer has: the engine's word, else what
// was counted.
func (x *exchange) outputTokens() int { return x.answer.usage.output.Or(x.answer.tokens) }

// refuse answers a request that core never hears of.
func (x *exchange) refuse(e *apiError) {
	if x.from != "" && (e.status == http.StatusNotFound || e.status == http.StatusServiceUnavailable) {
		e.status = http.StatusServiceUnavailable // the peer knows other places
		x.w.Header().Set(headerBounce, "1")
	}
	if x.endsConnection(e.status) {
		x.w.Header().Set("Connection", "close")
	}
	if e.status != http.StatusRequestTimeout { // the time for its body is over
		x.rt.limitRest(x.w)
	}
	x.reply(e)
	x.close(e.status, outcomeRefused)
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
func (x *exchange) reply(e *apiError) {
	h := x.w.Header()
	h.Set(headerRequestID, x.flight.id)
	h.Set(headerRegion, string(x.rt.self.Region))
	x.announce(h)
	x.wrote = true
	x.extend(time.Now())
	e.write(x.w)
}
