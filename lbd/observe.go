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

// lastSpans bounds the time to send what is buffered of traces at the end: a
// collector that is gone must hold nothing up.
const lastSpans = 2 * time.Second

// follow has requests traced where the configuration or the environment asks for
// it.
func (b *balancer) follow(ctx context.Context, o *proxy.Options) error {
	t, err := trace.New(ctx, trace.Options{
		Endpoint: b.cfg.Balancer.Traces, Service: b.cfg.Service, Balancer: b.cfg.ID, Region: string(b.cfg.Region),
		Version: b.opts.Version, Logger: b.log,
	})
	if err != nil {
		return &ConfigError{Key: "balancer.traces", Problem: err.Error()}
	}
	if t != nil { // a nil pointer in the interface would be a tracer
		b.tracer, o.Tracer = t, t
	}
	return nil
}

// sendLastSpans ends the traces.
func (b *balancer) sendLastSpans() {
	if b.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	if err := b.tracer.Close(ctx); err != nil {
		b.log.Warn("traces end early", "err", err)
	}
}

// register begins the registry of what /metrics tells; docs/metrics.md lists it.
func (b *balancer) register() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "skyserve_build_info", Help: "1; the labels tell which balancer this is, and what it was built from.",
	}, []string{"version", "go_version", "service", "balancer", "region"})
	info.WithLabelValues(cmp.Or(b.opts.Version, "unknown"), runtime.Version(), b.cfg.Service, b.cfg.ID, string(b.cfg.Region)).Set(1)
	reg.MustRegister(info)
	b.runtime.Collect(reg)
	if b.tracer != nil {
		b.tracer.Collect(reg)
	}
	return reg
}
