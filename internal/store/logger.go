package store

import (
	"fmt"
	"log/slog"
	"sync"
)

// logger hands the NATS server's talk to slog and remembers its first fatal
// word: an embedded server must report, never end, the process it lives in.
type logger struct {
	to    *slog.Logger
	mu    sync.Mutex
	fatal error
}

func newLogger(to *slog.Logger) *logger {
	if to == nil {
		to = slog.New(slog.DiscardHandler)
	}
	return &logger{to: to.With("component", "store")}
}

// Noticef logs start-up chatter, which is of interest only when debugging.
func (l *logger) Noticef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Warnf logs a warning.
func (l *logger) Warnf(format string, v ...any) { l.to.Warn(fmt.Sprintf(format, v...)) }

// Errorf logs an error.
func (l *logger) Errorf(format string, v ...any) { l.to.Error(fmt.Sprintf(format, v...)) }

// Debugf logs at debug level.
func (l *logger) Debugf(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Tracef logs at debug level.
func (l *logger) Tracef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Fatalf logs an error and keeps the first one for Serve to return.
func (l *logger) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	l.mu.Lock()
	if l.fatal == nil {
		l.fatal = err
	}
	l.mu.Unlock()
	l.to.Error(err.Error())
}

func (l *logger) firstFatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
