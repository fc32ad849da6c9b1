package proxy

import (
	"net/http"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// Tracer traces requests as spans. Its methods must not block or fail.
type Tracer interface {
	// Begin starts a request's span at a time, as part of the trace in its header.
	Begin(header http.Header, at time.Time) Span
}

// Span is a started span of a request. It belongs to one goroutine.
type Span interface {
	// Child starts a child span at a time. outward means that it covers a call to another process,
	// whose request Mark adds to the trace.
	Child(name string, outward bool, at time.Time) Span
	// Mark adds a request that is sent within the span to its trace.
	Mark(header http.Header)
	// Set sets an attribute: a string, an int, a float64 or a bool.
	Set(key string, value any)
	// Fail marks the span as failed, with the reason.
	Fail(why string)
	// End ends the span.
	End(at time.Time)
	// Trace returns the trace id in hex; empty when the trace is not sampled.
	Trace() string
}

// Keys of span attributes, those of OpenTelemetry's conventions if there is one.
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

// path contains a request's spans; without a tracer its methods do nothing.
type path struct {
	request Span      // nil = not traced
	try     Span      // of the current attempt; nil between attempts
	waits   time.Time // since when the request is queued or being decided
}

// begin starts the request's span.
func (p *path) begin(t Tracer, header http.Header, at time.Time) {
	if t != nil {
		p.request, p.waits = t.Begin(header, at), at
	}
}

// decided ends the queue span.
func (p *path) decided(v *action) {
	if p.request == nil {
		return
	}
	now := time.Now()
	held := p.request.Child("queue", false, p.waits)
	held.Set(keyReason, v.reason)
	held.End(now)
}

// leave starts the span of an attempt.
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

// mark adds the request to a target to the trace.
func (p *path) mark(h http.Header) {
	if p.try != nil {
		p.try.Mark(h)
	}
}

// answered records the status of the current attempt.
func (p *path) answered(status int) {
	if p.try != nil {
		p.try.Set(keyStatus, status)
	}
}

// failed records why the current attempt failed.
func (p *path) failed(cause string) {
	if p.try != nil {
		p.try.Fail(cause)
	}
}

// back ends the current attempt's span: the request is decided again.
func (p *path) back() {
	if p.try == nil {
		return
	}
	p.waits = time.Now()
	p.try.End(p.waits)
	p.try = nil
}

// trace returns the id of the request's trace; empty when it is not sampled.
func (p *path) trace() string {
	if p.request == nil {
		return ""
	}
	return p.request.Trace()
}

// traced ends the request's spans with its outcome.
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
