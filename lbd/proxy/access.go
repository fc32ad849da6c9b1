package proxy

import (
	"context"
	"log/slog"
	"time"

	"skyserve/lbd/openai"
)

// logAccess writes the access log line of the request. Of the client's data, it contains only the
// request's id and the model's name. It contains no keys.
func (x *exchange) logAccess(status int, outcome string) {
	log, level := x.rt.log, slog.LevelDebug
	if x.rt.accessLog {
		level = slog.LevelInfo
	}
	ctx := context.Background()
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	add := func(a ...slog.Attr) { attrs = append(attrs, a...) }
	add(slog.String("request", x.inFlight.id), slog.String("path", x.endpoint.Path), slog.Int("status", status), slog.String("outcome", outcome))
	if x.errorCode != "" {
		add(slog.String("code", x.errorCode))
	}
	if x.model != "" {
		add(slog.String("model", x.model), slog.String("tier", string(x.tier)))
	}
	if x.from != "" {
		add(slog.String("from", x.from))
	}
	if d := x.current.decision; d != nil {
		add(slog.String("target", x.current.target), slog.String("policy", d.Policy), slog.String("reason", d.Reason),
			slog.Int("tries", d.Attempt+1), slog.Float64("queue_ms", millis(d.Waited)))
	}
	if !x.firstTokenAt.IsZero() {
		add(slog.Float64("ttft_ms", millis(x.firstTokenAt.Sub(x.startedAt))))
	}
	add(slog.Float64("e2e_ms", millis(time.Since(x.startedAt))))
	u := &x.answer.Usage
	for _, n := range []struct {
		key string
		openai.Figure
	}{{"prompt_tokens", u.Prompt}, {"cached_tokens", u.Cached}, {"output_tokens", u.Output}} {
		if n.Known {
			add(slog.Int(n.key, n.Value))
		}
	}
	if x.cost != nil {
		add(slog.Float64("cost_usd", x.cost.USD()))
	}
	if id := x.spans.traceID(); id != "" {
		add(slog.String("trace", id))
	}
	log.LogAttrs(ctx, level, "request", attrs...)
}
