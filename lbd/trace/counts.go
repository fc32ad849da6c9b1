package trace

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// logEvery is the minimum time between two logged failures: an unreachable collector fails every
// few seconds.
const logEvery = time.Minute

// counts counts spans. Spans that ended but were neither sent nor lost are still buffered, or were
// dropped because the buffer was full.
type counts struct {
	log               *slog.Logger
	ended, sent, lost atomic.Int64

	mu       sync.Mutex
	loggedAt time.Time
}

func newCounts(log *slog.Logger) *counts {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &counts{log: log}
}

// failed logs a failure of the SDK, at most once every logEvery.
func (c *counts) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.loggedAt.IsZero() || now.Sub(c.loggedAt) >= logEvery {
		c.loggedAt = now
		c.log.Warn("sending traces failed", "err", err, "lost", c.lost.Load())
	}
}

// OnStart does nothing.
func (c *counts) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd counts a span.
func (c *counts) OnEnd(sdk.ReadOnlySpan) { c.ended.Add(1) }

// Shutdown does nothing.
func (c *counts) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (c *counts) ForceFlush(context.Context) error { return nil }

// counted is an exporter that counts its spans.
type counted struct {
	sdk.SpanExporter
	counts *counts
}

func (c *counts) over(e sdk.SpanExporter) sdk.SpanExporter { return counted{e, c} }

// ExportSpans sends spans and counts them.
func (e counted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.counts.lost.Add(int64(len(spans)))
		return err
	}
	e.counts.sent.Add(int64(len(spans)))
	return nil
}

var descSpans = prometheus.NewDesc("skyserve_trace_spans_total",
	"Total number of trace spans by state: ended, sent to the collector, or lost because sending failed. Spans in neither of the last two states are buffered, or were dropped because the buffer was full. Exported only if tracing is enabled.", []string{"state"}, nil)

// Describe sends the only description.
func (c *counts) Describe(ch chan<- *prometheus.Desc) { ch <- descSpans }

// Collect sends the current counts.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	for _, s := range []struct {
		state string
		n     *atomic.Int64
	}{{"ended", &c.ended}, {"sent", &c.sent}, {"lost", &c.lost}} {
		ch <- prometheus.MustNewConstMetric(descSpans, prometheus.CounterValue, float64(s.n.Load()), s.state)
	}
}

func (c *counts) collect(reg *prometheus.Registry) { reg.MustRegister(c) }
