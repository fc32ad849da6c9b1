package lbd

import (
	"cmp"
	"context"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"skyserve/lbd/proxy"
	"skyserve/lbd/trace"
)

// flushSpansTimeout limits the time to send buffered traces at shutdown: an unreachable collector must not
// delay the shutdown.
const flushSpansTimeout = 2 * time.Second

// setUpTracing enables tracing if the configuration or the environment sets an endpoint.
func (b *balancer) setUpTracing(ctx context.Context, o *proxy.Options) error {
	t, err := trace.New(ctx, trace.Options{
		Endpoint: b.cfg.Balancer.Traces, Service: b.cfg.Service, Balancer: b.cfg.ID, Region: string(b.cfg.Region),
		Version: b.opts.Version, Logger: b.log,
	})
	if err != nil {
		return &ConfigError{Key: "balancer.traces", Problem: err.Error()}
	}
	if t != nil { // a nil pointer in the interface would count as a tracer
		b.tracer, o.Tracer = t, t
	}
	return nil
}

// sendLastSpans flushes and ends the traces.
func (b *balancer) sendLastSpans() {
	if b.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushSpansTimeout)
	defer cancel()
	if err := b.tracer.Close(ctx); err != nil {
		b.log.Warn("flushing traces failed", "err", err)
	}
}

// newRegistry returns the registry of /metrics; docs/metrics.md lists its metrics.
func (b *balancer) newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "skyserve_build_info", Help: "1; the labels identify the balancer and its build.",
	}, []string{"version", "go_version", "service", "balancer", "region"})
	info.WithLabelValues(cmp.Or(b.opts.Version, "unknown"), runtime.Version(), b.cfg.Service, b.cfg.ID, string(b.cfg.Region)).Set(1)
	reg.MustRegister(info)
	b.runtime.RegisterMetrics(reg)
	if b.tracer != nil {
		b.tracer.Collect(reg)
	}
	return reg
}
