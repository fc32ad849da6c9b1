package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors for callers to test with errors.Is. Every error of this package wraps one of them,
// the error of the caller's context, or the error of NATS.
var (
	// ErrUnavailable means that the store cannot be reached. A write that failed with it
	// may have been applied: read before retrying.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNotFound means that a key has no value.
	ErrNotFound = errors.New("key not found")
	// ErrConflict means that the key was written by another client first.
	ErrConflict = errors.New("revision conflict")
	// ErrLeaseLost means that the lease has another holder, or none.
	ErrLeaseLost = errors.New("lease lost")
)

// wrap adds the operation to an error and maps errors of NATS to those of this package.
func wrap(ctx context.Context, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	if kind := kindOf(err); kind != nil && !errors.Is(err, kind) {
		return fmt.Errorf("%s: %w: %w", what, kind, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// kindOf returns the error of this package that err corresponds to, nil for none.
func kindOf(err error) error {
	switch {
	case errors.Is(err, ErrUnavailable):
		return ErrUnavailable
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		return ErrNotFound
	case errors.Is(err, jetstream.ErrKeyRevisionMismatch), errors.Is(err, jetstream.ErrKeyExists):
		return ErrConflict
	}
	if isOutage(err) {
		return ErrUnavailable
	}
	return nil
}

// outages are the errors of all layers that mean that the store does not respond.
var outages = []error{
	nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrTimeout,
	nats.ErrNoServers, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionDraining,
	jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled, jetstream.ErrStreamNotFound,
	jetstream.ErrBucketNotFound, context.DeadlineExceeded,
}

func isOutage(err error) bool {
	for _, o := range outages {
		if errors.Is(err, o) {
			return true
		}
	}
	return isServerFailure(err)
}

// isServerFailure reports whether the server responded with a 5xx error of the JetStream
// API, as on a full disk.
func isServerFailure(err error) bool {
	var answer *jetstream.APIError
	return errors.As(err, &answer) && answer.Code >= http.StatusInternalServerError
}

// Limits of createBackoff.
const (
	makeRetryMin = time.Second
	makeRetryMax = 30 * time.Second
)

// createBackoff is the backoff of attempts to create a stream: on a full disk each failed
// attempt leaks a file descriptor in the server.
type createBackoff struct {
	mu     sync.Mutex
	failed error // the last failure; nil if the last attempt succeeded
	wait   time.Duration
	next   time.Time // the earliest time of the next attempt
}

// refuses returns the last failure while it is too early for another attempt, else nil.
func (b *createBackoff) refuses(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil && now.Before(b.next) {
		return b.failed
	}
	return nil
}

// recordResult records the result of an attempt.
func (b *createBackoff) recordResult(now time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !isServerFailure(err) {
		b.failed, b.wait = nil, 0
		return
	}
	b.failed, b.wait = err, min(max(2*b.wait, makeRetryMin), makeRetryMax)
	b.next = now.Add(b.wait)
}
