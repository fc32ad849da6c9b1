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
	return isServerFailure(err)
}

// isServerFailure says whether the server answered that it could not do its part, as on a
// full disk: the 5xx of the JetStream API.
func isServerFailure(err error) bool {
	var answer *jetstream.APIError
	return errors.As(err, &answer) && answer.Code >= http.StatusInternalServerError
}

// Limits of makeBackoff.
const (
	makeRetryMin = time.Second
	makeRetryMax = 30 * time.Second
)

// makeBackoff spaces attempts to make a stream that the server fails to make: each costs
// it a file descriptor for good where its disk is full.
type makeBackoff struct {
	mu     sync.Mutex
	failed error // the last failure; nil when there was none
	wait   time.Duration
	next   time.Time // no attempt before
}

// refuses is the last failure while it is too early for another attempt.
func (b *makeBackoff) refuses(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil && now.Before(b.next) {
		return b.failed
	}
	return nil
}

// note keeps how an attempt ended.
func (b *makeBackoff) note(now time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !isServerFailure(err) {
		b.failed, b.wait = nil, 0
		return
	}
	b.failed, b.wait = err, min(max(2*b.wait, makeRetryMin), makeRetryMax)
	b.next = now.Add(b.wait)
}
