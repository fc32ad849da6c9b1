package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The errors that callers react to; every error of this package wraps one of
// them, the caller's own context error, or the cause as NATS states it.
var (
	// ErrUnavailable says that the store cannot be reached now. A write that
	// failed with it may still have happened: read before deciding again.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNotFound says that a key has no value.
	ErrNotFound = errors.New("key not found")
	// ErrConflict says that somebody else wrote the key first.
	ErrConflict = errors.New("revision conflict")
	// ErrLeaseLost says that the lease belongs to somebody else, or to nobody.
	ErrLeaseLost = errors.New("lease lost")
)

// wrap names what was being done and sorts NATS's many errors into ours.
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

// kindOf is the error of this package that err amounts to, nil for none.
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

// outages are the errors that mean "no answer", whichever layer noticed.
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
	return false
}
