package store

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// logger forwards the NATS server's logs to slog and keeps its first fatal error: the
// embedded server must not exit the process.
type logger struct {
	to         *slog.Logger
	now        func() time.Time
	mu         sync.Mutex
	fatal      error
	lastLogged map[string]time.Time // when each warning or error was last logged
}

// Limits of repeated messages, each with its reason.
const (
	// relogAfter is the minimum time between two logs of the same warning or error: on a full
	// disk the server logs it at every write.
	relogAfter = 10 * time.Minute
	// maxLogged is the maximum number of messages remembered.
	maxLogged = 256
)

func newLogger(to *slog.Logger) *logger {
	if to == nil {
		to = slog.New(slog.DiscardHandler)
	}
	return &logger{to: to.With("component", "store"), now: time.Now, lastLogged: map[string]time.Time{}}
}

// once logs a message unless it was logged recently.
func (l *logger) once(level slog.Level, text string) {
	l.mu.Lock()
	now := l.now()
	last, known := l.lastLogged[text]
	repeated := known && now.Sub(last) < relogAfter
	if !repeated {
		if len(l.lastLogged) >= maxLogged {
			clear(l.lastLogged)
		}
		l.lastLogged[text] = now
	}
	l.mu.Unlock()
	if !repeated {
		l.to.Log(context.Background(), level, text)
	}
}

// Noticef logs notices, such as the start of a listener or the change of a leader, at debug level.
func (l *logger) Noticef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// routesUnverified is a warning of the server about members that connect to each other. It does not hold here:
// the TLS configuration verifies their certificates itself (identity.Party), by role instead of by host name.
const routesUnverified = "TLS certificate chain and hostname of solicited routes will not be verified"

// Warnf logs a warning.
func (l *logger) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	if strings.HasPrefix(text, routesUnverified) {
		l.to.Debug("members verify each other by the role in their certificates")
		return
	}
	l.once(slog.LevelWarn, text)
}

// Errorf logs an error.
func (l *logger) Errorf(format string, v ...any) {
	l.once(slog.LevelError, fmt.Sprintf(format, v...))
}

// Debugf logs at debug level.
func (l *logger) Debugf(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Tracef logs at debug level.
func (l *logger) Tracef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Fatalf logs an error and keeps the first one, which Serve returns.
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
