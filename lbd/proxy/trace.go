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
	// StartSpan starts a request's span at a time, as part of the trace in its header.
	StartSpan(header http.Header, at time.Time) TraceSpan
}

// TraceSpan is a started span of a request. It belongs to one goroutine.
type TraceSpan interface {
	// StartChild starts a child span at a time. outward means that it covers a call to another process;
	// Inject adds the request of this call to the trace.
	StartChild(name string, outward bool, at time.Time) TraceSpan
	// Inject adds a request that is sent within the span to its trace.
	Inject(header http.Header)
	// SetAttribute sets an attribute: a string, an int, a float64 or a bool.
	SetAttribute(key string, value any)
	// Fail marks the span as failed, with the reason.
	Fail(reason string)
	// End ends the span.
	End(at time.Time)
	// Trace returns the trace id in hex; empty when the trace is not sampled.
	Trace() string
}

// Keys of span attributes, from OpenTelemetry's conventions where they define one.
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
	keyAttempt   = "skyserve.try"
	keyMatch     = "skyserve.prefix_match_bytes"
	keyPrompt    = "skyserve.prompt_bytes"
	keyContinued = "skyserve.continued"
)

// requestSpans contains a request's spans; without a tracer its methods do nothing.
type requestSpans struct {
	request      TraceSpan // nil = not traced
	attempt      TraceSpan // of the current attempt; nil between attempts
	waitingSince time.Time // time since which the request has been queued or is being decided
}

// start starts the request's span.
func (p *requestSpans) start(t Tracer, header http.Header, at time.Time) {
	if t != nil {
		p.request, p.waitingSince = t.StartSpan(header, at), at
	}
}

// endQueue ends the queue span.
func (p *requestSpans) endQueue(v *action) {
	if p.request == nil {
		return
	}
	now := time.Now()
	queueSpan := p.request.StartChild("queue", false, p.waitingSince)
	queueSpan.SetAttribute(keyReason, v.reason)
	queueSpan.End(now)
}

// startAttempt starts the span of an attempt.
func (p *requestSpans) startAttempt(v *action, extended bool) {
	if p.request == nil {
		return
	}
	s := p.request.StartChild(string(v.kind), true, time.Now())
	target := keyReplica
	if v.kind == core.ActionForward {
		target = keyPeer
	}
	s.SetAttribute(target, v.target)
	s.SetAttribute(keyReason, v.reason)
	if d := v.decision; d != nil {
		s.SetAttribute(keyPolicy, d.Policy)
		s.SetAttribute(keyAttempt, d.Attempt)
		s.SetAttribute(keyMatch, d.MatchBytes)
		s.SetAttribute(keyPrompt, d.PromptBytes)
	}
	if extended {
		s.SetAttribute(keyContinued, true)
	}
	p.attempt = s
}

// injectHeaders adds the request to a target to the trace.
func (p *requestSpans) injectHeaders(h http.Header) {
	if p.attempt != nil {
		p.attempt.Inject(h)
	}
}

// setStatus records the status of the current attempt.
func (p *requestSpans) setStatus(status int) {
	if p.attempt != nil {
		p.attempt.SetAttribute(keyStatus, status)
	}
}

// setFailure records the cause of the current attempt's failure.
func (p *requestSpans) setFailure(cause string) {
	if p.attempt != nil {
		p.attempt.Fail(cause)
	}
}

// endAttempt ends the current attempt's span. If the request has not ended, core decides again.
func (p *requestSpans) endAttempt() {
	if p.attempt == nil {
		return
	}
	p.waitingSince = time.Now()
	p.attempt.End(p.waitingSince)
	p.attempt = nil
}

// traceID returns the id of the request's trace; empty when it is not sampled.
func (p *requestSpans) traceID() string {
	if p.request == nil {
		return ""
	}
	return p.request.Trace()
}

// endTrace ends the request's spans with its outcome.
func (x *exchange) endTrace(status int, outcome string) {
	x.spans.endAttempt()
	s := x.spans.request
	if s == nil {
		return
	}
	s.SetAttribute(keyRequest, x.inFlight.id)
	s.SetAttribute(keyModel, x.model)
	s.SetAttribute(keyTier, string(x.tier))
	s.SetAttribute(keyOutcome, outcome)
	s.SetAttribute(keyStatus, status)
	if x.from != "" {
		s.SetAttribute(keyFrom, x.from)
	}
	if !x.firstTokenAt.IsZero() {
		s.SetAttribute(keyTTFT, millis(x.firstTokenAt.Sub(x.startedAt)))
	}
	u := &x.answer.Usage
	for _, n := range []struct {
		key string
		openai.Figure
	}{{keyInput, u.Prompt}, {keyCached, u.Cached}, {keyOutput, u.Output}} {
		if n.Known {
			s.SetAttribute(n.key, n.Value)
		}
	}
	if status >= http.StatusInternalServerError || outcome == record.StateFailed {
		s.Fail(outcome)
	}
	s.End(time.Now())
	x.spans.request = nil
}
