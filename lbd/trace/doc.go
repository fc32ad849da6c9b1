// Package trace exports the proxy's request spans to an OpenTelemetry collector, over OTLP and
// HTTP.
//
// Spans join the trace in a client's W3C traceparent header. They are propagated to engines and
// other balancers, so that a forwarded request is one trace. The SDK's environment variables apply:
// the sampler (OTEL_TRACES_SAMPLER), headers and certificates of the exporter
// (OTEL_EXPORTER_OTLP_*) and the batch sizes (OTEL_BSP_*).
//
// Requests never wait for a collector: spans are dropped when the buffer is full or sending fails.
// Read tracer.go first.
package trace
