package trace

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"skyserve/lbd/proxy"
)

// Environment variables of OpenTelemetry that enable traces and set their destination. The SDK
// reads the others itself.
const (
	EnvEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	EnvTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envDisabled       = "OTEL_SDK_DISABLED"
	envExporter       = "OTEL_TRACES_EXPORTER"
	envService        = "OTEL_SERVICE_NAME"
	envProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
)

// tracesPath is a collector's path for traces, below its base URL.
const tracesPath = "v1/traces"

// Options configure a Tracer.
type Options struct {
	// Endpoint is the collector's base URL (http://127.0.0.1:4318); empty = from the environment.
	Endpoint string
	// Service, Balancer, Region and Version identify the process in every span.
	Service, Balancer, Region, Version string
	// Logger receives failures, at most one per minute; nil = none.
	Logger *slog.Logger
}

// Endpoint returns the URL for traces: below the base URL, or from the environment; source is the
// variable that was used. Empty = tracing is disabled. It returns an error if the value is not a
// URL, or the protocol is not supported.
func Endpoint(base string) (to, source string, err error) {
	if strings.EqualFold(os.Getenv(envDisabled), "true") || os.Getenv(envExporter) == "none" {
		return "", "", nil
	}
	switch {
	case base != "":
		to = base
	case os.Getenv(EnvTracesEndpoint) != "":
		to, source = os.Getenv(EnvTracesEndpoint), EnvTracesEndpoint
	case os.Getenv(EnvEndpoint) != "":
		to, source = os.Getenv(EnvEndpoint), EnvEndpoint
	default:
		return "", "", nil
	}
	u, err := url.Parse(to)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", source, fmt.Errorf("must be a URL such as http://127.0.0.1:4318") // the value may contain a password
	}
	protocol := envTracesProtocol
	if os.Getenv(protocol) == "" {
		protocol = envProtocol
	}
	if p := os.Getenv(protocol); p == "grpc" {
		return "", protocol, fmt.Errorf("must be http/protobuf or http/json, got %q: traces are sent only over HTTP", p)
	}
	if source == EnvTracesEndpoint {
		return u.String(), source, nil // the URL already includes the path
	}
	return u.JoinPath(tracesPath).String(), source, nil
}

// Tracer sends spans; it is a proxy.Tracer. It must be closed.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	counts   *counts
}

// headers propagates a trace in a request's headers.
var headers propagation.TraceContext

// New returns a tracer configured by the options and the environment; nil without an error if
// tracing is disabled. The collector need not be reachable.
func New(ctx context.Context, o Options) (*Tracer, error) {
	to, source, err := Endpoint(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("reading the endpoint of traces: %s: %w", cmp.Or(source, "balancer.traces"), err)
	}
	if to == "" {
		return nil, nil
	}
	c := newCounts(o.Logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(c.failed))
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to))
	if err != nil {
		return nil, fmt.Errorf("creating the trace exporter: %w", err)
	}
	attrs, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", cmp.Or(os.Getenv(envService), "skyserve")),
		attribute.String("service.namespace", o.Service),
		attribute.String("service.instance.id", o.Balancer),
		attribute.String("service.version", o.Version),
		attribute.String("cloud.region", o.Region),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("reading OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(c.over(exporter)), sdk.WithResource(attrs), sdk.WithSpanProcessor(c))
	return &Tracer{provider: p, tracer: p.Tracer("skyserve/lbd"), counts: c}, nil
}

// Collect registers the span metrics.
func (t *Tracer) Collect(reg *prometheus.Registry) { t.counts.collect(reg) }

// Close sends the buffered spans, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("sending the last spans: %w", err)
	}
	return nil
}

// StartSpan starts the span of a request, in the trace of its headers.
func (t *Tracer) StartSpan(header http.Header, at time.Time) proxy.TraceSpan {
	ctx := headers.Extract(context.Background(), propagation.HeaderCarrier(header))
	return t.start(ctx, "request", trace.SpanKindServer, at)
}

func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind, at time.Time) *span {
	ctx, s := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(at))
	return &span{tracer: t, ctx: ctx, span: s}
}
