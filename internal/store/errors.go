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

// Errors for callers to test with errors.Is. The error of an operation wraps one of them, the error of the caller's
// context or that of NATS. The error of an object may also wrap that of the CloudBucket or a *ReadError, the error of a
// backup one of package telemetry. Errors about invalid arguments, files, directories and stored data that cannot be
// decoded wrap none of these.
var (
	// ErrUnavailable means that the store does not respond or cannot write. A write that
	// failed with it may have been applied: read the key before a retry.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNotFound means that a key has no value, or that a part of an object is missing or damaged.
	ErrNotFound = errors.New("key not found")
	// ErrConflict means that the key was written by another client first.
	ErrConflict = errors.New("revision conflict")
	// ErrLeaseLost means that the lease has another holder, or none, or that a backup was restored since.
	ErrLeaseLost = errors.New("lease lost")
)

// damagedError is the error of a part of an object whose content is not what was stored. It is ErrNotFound, because the
// content is lost.
type damagedError struct{ error }

// Is implements errors.Is.
func (damagedError) Is(target error) bool { return target == ErrNotFound }

// wrap adds the operation to an error, and the error of this package that corresponds to it. Once ctx has ended, it returns
// the error of ctx instead of err.
func wrap(ctx context.Context, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	operation := fmt.Sprintf(format, args...)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", operation, ctx.Err())
	}
	if kind := kindOf(err); kind != nil && !errors.Is(err, kind) {
		return fmt.Errorf("%s: %w: %w", operation, kind, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
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

// outageErrors are the errors of all layers that mean that the store does not respond.
var outageErrors = []error{
	nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrTimeout,
	nats.ErrNoServers, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionDraining,
	jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled, jetstream.ErrStreamNotFound,
	nats.ErrStreamNotFound /* of a watch */, jetstream.ErrBucketNotFound, context.DeadlineExceeded,
}

func isOutage(err error) bool {
	for _, o := range outageErrors {
		if errors.Is(err, o) {
			return true
		}
	}
	return isServerFailure(err)
}

// isServerFailure reports whether the server returned a 5xx error of the JetStream API, as on
// a full disk.
func isServerFailure(err error) bool {
	var apiError *jetstream.APIError
	return errors.As(err, &apiError) && apiError.Code >= http.StatusInternalServerError
}

// Limits of createBackoff.
const (
	createRetryMin = time.Second
	createRetryMax = 30 * time.Second
)

// createBackoff is the backoff between attempts to create a stream: on a full disk each
// failed attempt leaks a file descriptor of the server.
type createBackoff struct {
	mu     sync.Mutex
	failed error // the server's failure of the last attempt; nil if it succeeded or failed for another reason
	wait   time.Duration
	next   time.Time // the earliest time of the next attempt
}

// recentFailure returns the last failure until the backoff ends, then nil.
func (b *createBackoff) recentFailure(now time.Time) error {
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
	b.failed, b.wait = err, min(max(2*b.wait, createRetryMin), createRetryMax)
	b.next = now.Add(b.wait)
}
