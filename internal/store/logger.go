package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// logger hands the NATS server's talk to slog and remembers its first fatal
// word: an embedded server must report, never end, the process it lives in.
type logger struct {
	to    *slog.Logger
	now   func() time.Time
	mu    sync.Mutex
	fatal error
	said  map[string]time.Time // when each warning or error was last logged
}

// What is logged again, each with its reason.
const (
	// sayAgain is how long the same warning or error is logged once: a full disk makes the
	// server repeat it at every write.
	sayAgain = 10 * time.Minute
	// saidMax bounds the texts that are remembered.
	saidMax = 256
)

func newLogger(to *slog.Logger) *logger {
	if to == nil {
		to = slog.New(slog.DiscardHandler)
	}
	return &logger{to: to.With("component", "store"), now: time.Now, said: map[string]time.Time{}}
}

// once logs a text unless it was logged a moment ago.
func (l *logger) once(level slog.Level, text string) {
	l.mu.Lock()
	now := l.now()
	last, known := l.said[text]
	again := known && now.Sub(last) < sayAgain
	if !again {
		if len(l.said) >= saidMax {
			clear(l.said)
		}
		l.said[text] = now
	}
	l.mu.Unlock()
	if !again {
		l.to.Log(context.Background(), level, text)
	}
}

// Noticef logs start-up chatter, which is of interest only when debugging.
func (l *logger) Noticef(format string, v ...any) { l.to.Debug(fmt.Sprintf(format, v...)) }

// Warnf logs a warning.
func (l *logger) Warnf(format string, v ...any) { l.once(slog.LevelWarn, fmt.Sprintf(format, v...)) }

// Errorf logs an error.
func (l *logger) Errorf(format string, v ...any) {
	l.once(slog.LevelError, fmt.Sprintf(format, v...))
}

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
