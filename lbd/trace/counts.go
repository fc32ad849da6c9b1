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

// logEvery bounds how often failures are told: a collector that is gone fails
// every few seconds.
const logEvery = time.Minute

// counts counts spans on their way: what ended and was neither sent nor lost is
// buffered, or was dropped because the buffer was full.
type counts struct {
	log               *slog.Logger
	ended, sent, lost atomic.Int64

	mu   sync.Mutex
	told time.Time
}

func newCounts(log *slog.Logger) *counts {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &counts{log: log}
}

// failed tells of a failure of the SDK, unless one was told a moment ago.
func (c *counts) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.told.IsZero() || now.Sub(c.told) >= logEvery {
		c.told = now
		c.log.Warn("traces are not sent", "err", err, "lost", c.lost.Load())
	}
}

// OnStart is of no interest.
func (c *counts) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd counts a span.
func (c *counts) OnEnd(sdk.ReadOnlySpan) { c.ended.Add(1) }

// Shutdown has nothing to end.
func (c *counts) Shutdown(context.Context) error { return nil }

// ForceFlush has nothing to send.
func (c *counts) ForceFlush(context.Context) error { return nil }

// counted is an exporter whose spans are counted.
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
	"Spans that ended, were sent to the collector, or were lost on the way there; what is missing waits, or found the buffer full. Only where traces are sent.", []string{"state"}, nil)

// Describe sends the one description.
func (c *counts) Describe(ch chan<- *prometheus.Desc) { ch <- descSpans }

// Collect sends the present counts.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	for _, s := range []struct {
		state string
		n     *atomic.Int64
	}{{"ended", &c.ended}, {"sent", &c.sent}, {"lost", &c.lost}} {
		ch <- prometheus.MustNewConstMetric(descSpans, prometheus.CounterValue, float64(s.n.Load()), s.state)
	}
}

func (c *counts) collect(reg *prometheus.Registry) { reg.MustRegister(c) }
