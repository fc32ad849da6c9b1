// Package trace sends what the proxy tells of requests to an OpenTelemetry
// collector, over OTLP and HTTP.
//
// Spans join the trace that a client's W3C traceparent header names, and engines
// and other balancers are told of it in turn, so that a forwarded request is one
// trace. What the SDK reads from the environment holds here too: the sampler
// (OTEL_TRACES_SAMPLER), headers and certificates of the exporter
// (OTEL_EXPORTER_OTLP_*) and the sizes of batches (OTEL_BSP_*).
//
// Nothing waits for a collector: spans that find the buffer full are dropped, and
// those that cannot be sent are given up. Read tracer.go first.
package trace
