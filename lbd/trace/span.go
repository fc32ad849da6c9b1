package trace

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"skyserve/lbd/proxy"
)

// span implements proxy.Span.
type span struct {
	tracer *Tracer
	ctx    context.Context // contains the span, for its children
	span   trace.Span
}

// StartChild starts a child span.
func (s *span) StartChild(name string, outward bool, at time.Time) proxy.TraceSpan {
	kind := trace.SpanKindInternal
	if outward {
		kind = trace.SpanKindClient
	}
	return s.tracer.start(s.ctx, name, kind, at)
}

// Inject writes the span into a request's headers and replaces another one.
func (s *span) Inject(h http.Header) {
	h.Del("Tracestate") // Inject does not overwrite it when empty
	headers.Inject(s.ctx, propagation.HeaderCarrier(h))
}

// SetAttribute sets an attribute, if the span is recorded.
func (s *span) SetAttribute(key string, value any) {
	if !s.span.IsRecording() {
		return
	}
	k := attribute.Key(key)
	switch v := value.(type) {
	case string:
		s.span.SetAttributes(k.String(v))
	case int:
		s.span.SetAttributes(k.Int(v))
	case float64:
		s.span.SetAttributes(k.Float64(v))
	case bool:
		s.span.SetAttributes(k.Bool(v))
	}
}

// Fail marks the span as failed.
func (s *span) Fail(reason string) { s.span.SetStatus(codes.Error, reason) }

// End ends the span.
func (s *span) End(at time.Time) { s.span.End(trace.WithTimestamp(at)) }

// Trace returns the trace's id; empty if the span is not recorded.
func (s *span) Trace() string {
	if !s.span.IsRecording() {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}
