package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"skyserve/internal/telemetry"
)

// The lock of restores is a key in the bucket of the token floor, which no restore replaces. Its value identifies the
// restore that runs; empty = none.
const (
	restoreLockKey = "restore"
	// restoreLockRenewal is the interval at which a running restore writes the key again.
	restoreLockRenewal = time.Second
	// restoreLockTTL is the time without a write after which a restore counts as ended. It is longer than an outage that
	// a restore survives.
	restoreLockTTL = 30 * time.Second
	// restoreLockPoll is the interval at which another restore reads the key, to see whether it is renewed.
	restoreLockPoll = 100 * time.Millisecond
)

// errRestoreLockLost ends a restore that was suspended, or had no connection, while another one began.
var errRestoreLockLost = errors.New("another restore has begun, because this one did not write for " + restoreLockTTL.String() + "; when that one has ended, repeat this one if its backup is the right one")

// lockRestore excludes other restores until unlock is called. The returned context ends when another restore took the
// lock because this one did not renew it. lockRestore fails with telemetry.ErrRestoreRunning while another restore renews
// the lock. A restore that has not renewed it for ttl counts as ended.
func (s *Store) lockRestore(ctx context.Context, ttl time.Duration) (locked context.Context, unlock func(), err error) {
	b, id := s.tokenFloorBucket(), []byte(rand.Text())
	revision, err := s.acquireRestoreLock(ctx, b, id, ttl)
	if errors.Is(err, ErrConflict) {
		err = telemetry.ErrRestoreRunning
	}
	if err != nil {
		return nil, nil, err
	}
	locked, end := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for sleep(locked, restoreLockRenewal) {
			next, err := renewRestoreLock(context.WithoutCancel(ctx), b, id, revision)
			switch {
			case err == nil:
				revision = next
			case errors.Is(err, errRestoreLockLost):
				end(err)
			}
		}
	}()
	unlock = func() {
		end(nil)
		<-renewed
		// A failure leaves the lock to expire.
		_, _ = b.CompareAndSwap(context.WithoutCancel(ctx), restoreLockKey, nil, revision)
	}
	return locked, unlock, nil
}

// renewRestoreLock writes the lock again. If the response to an earlier write was lost, it returns the revision of that
// write.
func renewRestoreLock(ctx context.Context, b *Bucket, id []byte, revision uint64) (next uint64, err error) {
	next, err = b.CompareAndSwap(ctx, restoreLockKey, id, revision)
	if !errors.Is(err, ErrConflict) {
		return next, err
	}
	value, current, err := b.Get(ctx, restoreLockKey)
	if err == nil && !bytes.Equal(value, id) {
		err = errRestoreLockLost
	}
	return current, err
}

// acquireRestoreLock writes the lock and returns its revision. It fails with telemetry.ErrRestoreRunning or ErrConflict
// if another restore holds the lock.
func (s *Store) acquireRestoreLock(ctx context.Context, b *Bucket, id []byte, ttl time.Duration) (revision uint64, err error) {
	var seen observation
	for first := uint64(0); ; {
		value, current, err := b.Get(ctx, restoreLockKey)
		switch {
		case errors.Is(err, ErrNotFound):
			return b.Create(ctx, restoreLockKey, id)
		case err != nil:
			return 0, err
		case len(value) == 0, seen.expired(current, s.now(), ttl):
			return b.CompareAndSwap(ctx, restoreLockKey, id, current)
		case first != 0 && current != first:
			return 0, telemetry.ErrRestoreRunning
		}
		if first = current; !sleep(ctx, restoreLockPoll) {
			return 0, ctx.Err()
		}
	}
}
