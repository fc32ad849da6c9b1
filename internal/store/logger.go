package store

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// logger forwards the NATS server's logs to slog and keeps its first fatal error: the
// embedded server must not exit the process.
type logger struct {
	to         *slog.Logger
	now        func() time.Time
	started    time.Time
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
	return &logger{to: to.With("component", "store"), now: time.Now, started: time.Now(), lastLogged: map[string]time.Time{}}
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

// expectedWarnings are the beginnings of warnings that do not apply to a store of this package. They are logged at debug
// level.
var expectedWarnings = []string{
	// The TLS configuration verifies the members' certificates itself (identity.Party), by role instead of by host name.
	"TLS certificate chain and hostname of solicited routes will not be verified",
	// All clients of the store use this option.
	`Clients that are not using "TLS Handshake First" option will fail to connect`,
}

// startWarnings are the beginnings of warnings that every cluster logs while its members start one after the other. They
// are logged at info level for startTime.
var startWarnings = []string{"Waiting for routing to be established", "JetStream has not established contact with a meta leader"}

// startTime is the time that the start of a cluster takes: some seconds, and more on a busy machine.
const startTime = 30 * time.Second

// Warnf logs a warning.
func (l *logger) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	isOneOf := func(beginnings []string) bool {
		return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(text, b) })
	}
	switch {
	case isOneOf(expectedWarnings):
		l.once(slog.LevelDebug, text)
	case isOneOf(startWarnings) && l.now().Sub(l.started) < startTime:
		l.to.Info(text)
	default:
		l.once(slog.LevelWarn, text)
	}
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
