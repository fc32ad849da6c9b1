package acme

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// toZap returns a zap logger, for certmagic, that writes to a slog logger.
func toZap(log *slog.Logger) *zap.Logger { return zap.New(&core{handler: log.Handler()}) }

// core is a zapcore.Core that passes everything to a slog.Handler.
type core struct {
	handler slog.Handler
	fields  []zapcore.Field
}

// levelOf converts a level of zap to one of slog.
func levelOf(l zapcore.Level) slog.Level {
	switch {
	case l < zapcore.InfoLevel:
		return slog.LevelDebug
	case l < zapcore.WarnLevel:
		return slog.LevelInfo
	case l < zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Enabled implements zapcore.Core.
func (c *core) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), levelOf(l))
}

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{handler: c.handler, fields: slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c *core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(values)
	}
	r := slog.NewRecord(e.Time, levelOf(e.Level), "certificates: "+e.Message, 0)
	for _, key := range slices.Sorted(maps.Keys(values.Fields)) {
		r.AddAttrs(slog.Any(key, values.Fields[key]))
	}
	return c.handler.Handle(context.Background(), r)
}

// Sync implements zapcore.Core.
func (*core) Sync() error { return nil }
