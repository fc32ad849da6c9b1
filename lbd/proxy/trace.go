package proxy

import (
	"net/http"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// Tracer follows requests as spans: stretches of time that tell of what they
// belong to. Nothing it does may block or fail.
type Tracer interface {
	// Begin begins a request's span at a time, as part of the trace that its
	// header names.
	Begin(header http.Header, at time.Time) Span
}

// Span is a stretch of a request's way that has begun. It belongs to one
// goroutine.
type Span interface {
	// Child begins a part of it at a time; outward says that it is spent on
	// another process, which Mark tells of it.
	Child(name string, outward bool, at time.Time) Span
	// Mark makes a request that is sent in it part of its trace.
	Mark(header http.Header)
	// Set tells something of it: a string, an int, a float64 or a bool.
	Set(key string, value any)
	// Fail says in words that it failed.
	Fail(why string)
	// End ends it.
	End(at time.Time)
	// Trace is the trace's id in hex; empty when it is not recorded.
	Trace() string
}

// Keys of what spans tell, those of OpenTelemetry's conventions where it has one.
const (
	keyModel     = "gen_ai.request.model"
	keyInput     = "gen_ai.usage.input_tokens"
	keyOutput    = "gen_ai.usage.output_tokens"
	keyStatus    = "http.response.status_code"
	keyRequest   = "skyserve.request.id"
	keyTier      = "skyserve.tier"
	keyFrom      = "skyserve.from"
	keyOutcome   = "skyserve.outcome"
	keyTTFT      = "skyserve.ttft_ms"
	keyCached    = "skyserve.cached_tokens"
	keyReplica   = "skyserve.replica"
	keyPeer      = "skyserve.peer"
	keyPolicy    = "skyserve.policy"
	keyReason    = "skyserve.reason"
	keyTry       = "skyserve.try"
	keyMatch     = "skyserve.prefix_match_bytes"
	keyPrompt    = "skyserve.prompt_bytes"
	keyContinued = "skyserve.continued"
)

// path is a request's spans; without a tracer all of it does nothing.
type path struct {
	request Span      // nil = not followed
	try     Span      // of the target at hand; nil between tries
	waits   time.Time // since when the request is held, or being decided about
}

// begin begins the request's span.
func (p *path) begin(t Tracer, header http.Header, at time.Time) {
	if t != nil {
		p.request, p.waits = t.Begin(header, at), at
	}
}

// decided ends the time that the request was held.
func (p *path) decided(v *action) {
	if p.request == nil {
		return
	}
	now := time.Now()
	held := p.request.Child("queue", false, p.waits)
	held.Set(keyReason, v.reason)
	held.End(now)
}

// leave begins a try.
func (p *path) leave(v *action, extended bool) {
	if p.request == nil {
		return
	}
	s := p.request.Child(string(v.kind), true, time.Now())
	target := keyReplica
	if v.kind == core.ActionForward {
		target = keyPeer
	}
	s.Set(target, v.target)
	s.Set(keyReason, v.reason)
	if d := v.decision; d != nil {
		s.Set(keyPolicy, d.Policy)
		s.Set(keyTry, d.Try)
		s.Set(keyMatch, d.MatchBytes)
		s.Set(keyPrompt, d.PromptBytes)
	}
	if extended {
		s.Set(keyContinued, true)
	}
	p.try = s
}

// mark tells the target which trace its request is part of.
func (p *path) mark(h http.Header) {
	if p.try != nil {
		p.try.Mark(h)
	}
}

// answered notes the status of the try at hand.
func (p *path) answered(status int) {
	if p.try != nil {
		p.try.Set(keyStatus, status)
	}
}

// failed says why the try at hand failed.
func (p *path) failed(cause string) {
	if p.try != nil {
		p.try.Fail(cause)
	}
}

// back ends the try at hand: what follows is decided anew.
func (p *path) back() {
	if p.try == nil {
		return
	}
	p.waits = time.Now()
	p.try.End(p.waits)
	p.try = nil
}

// trace is the id of the request's trace; empty when it is not recorded.
func (p *path) trace() string {
	if p.request == nil {
		return ""
	}
	return p.request.Trace()
}

// traced ends the request's spans with what became of it.
func (x *exchange) traced(status int, outcome string) {
	x.path.back()
	s := x.path.request
	if s == nil {
		return
	}
	s.Set(keyRequest, x.inFlight.id)
	s.Set(keyModel, x.model)
	s.Set(keyTier, string(x.tier))
	s.Set(keyOutcome, outcome)
	s.Set(keyStatus, status)
	if x.from != "" {
		s.Set(keyFrom, x.from)
	}
	if !x.first.IsZero() {
		s.Set(keyTTFT, millis(x.first.Sub(x.began)))
	}
	u := &x.answer.Usage
	for _, n := range []struct {
		key string
		openai.Figure
	}{{keyInput, u.Prompt}, {keyCached, u.Cached}, {keyOutput, u.Output}} {
		if n.Known {
			s.Set(n.key, n.Value)
		}
	}
	if status >= http.StatusInternalServerError || outcome == record.StateFailed {
		s.Fail(outcome)
	}
	s.End(time.Now())
	x.path.request = nil
}
