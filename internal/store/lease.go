package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// leaseRecord is the value of a lease's key.
type leaseRecord struct {
	Holder string `json:"holder"`
	// Term is unique to one acquisition, so that a holder recognises its own write if its
	// acknowledgement was lost.
	Term string `json:"tenure"`
	// TTLMillis is the holder's ttl; others wait at least this long.
	TTLMillis int64 `json:"ttl_ms"`
}

// observation is what a candidate observed of another's lease: its last revision, and since
// when by the candidate's own monotonic clock. No clock of another host is used.
type observation struct {
	revision uint64
	since    time.Time
}

// expired records the revision observed at now and reports whether it has not changed for
// the whole ttl.
func (o *observation) expired(revision uint64, now time.Time, ttl time.Duration) bool {
	if revision != o.revision {
		o.revision, o.since = revision, now
		return false
	}
	return now.Sub(o.since) >= ttl
}

// Lease is a named lease held by one holder.
type Lease struct {
	s     *Store
	key   string
	value []byte
	ttl   time.Duration
	token uint64

	mu       sync.Mutex
	revision uint64
	until    time.Time
	lost     bool
}

// LeasePrefix is the prefix of the keys of leases. The revision of a key changes whenever
// its lease is renewed.
const LeasePrefix = "lease."

// LeaseKey returns the key of the lease called name.
func LeaseKey(name string) string { return LeasePrefix + name }

// Acquire waits until holder has the lease called name: at once if nobody holds it, else
// when its holder releases it or has not renewed it for a ttl by this process's monotonic
// clock. It keeps waiting through outages of the store and returns only with the lease, or
// with the error of ctx. Renew the lease about three times per ttl.
func (s *Store) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (*Lease, error) {
	if !keyRE.MatchString(name) || ttl <= 0 {
		return nil, fmt.Errorf("acquiring lease %q for %s: want a name of letters, digits and _/=-. and a ttl above 0, got %s", name, holder, ttl)
	}
	value, err := json.Marshal(leaseRecord{Holder: holder, Term: rand.Text(), TTLMillis: ttl.Milliseconds()})
	if err != nil {
		return nil, fmt.Errorf("acquiring lease %q: %w", name, err)
	}
	l := &Lease{s: s, key: LeaseKey(name), value: value, ttl: ttl}
	interval := min(max(ttl/10, 5*time.Millisecond), 500*time.Millisecond)
	var seen observation
	for {
		if l.try(ctx, &seen) {
			return l, nil
		}
		_, _, next := s.connection()
		pause(ctx, next, interval)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("acquiring lease %q for %s: %w", name, holder, ctx.Err())
		}
	}
}

// try makes one attempt and reports success. Any failure, including an outage, only means
// that it must be retried.
func (l *Lease) try(ctx context.Context, seen *observation) bool {
	start := l.s.now()
	value, revision, err := l.s.Get(ctx, l.key)
	switch {
	case errors.Is(err, ErrNotFound):
		revision, err = l.s.Create(ctx, l.key, l.value)
	case err != nil:
		return false
	case string(value) == string(l.value):
		// An earlier attempt of ours was applied, but its acknowledgement was lost.
	case seen.expired(revision, l.s.now(), max(l.ttl, recordTTL(value))):
		// The clock is read after the value. A holder counts its ttl from before its write,
		// so its lease ends before this one begins.
		revision, err = l.s.CompareAndSwap(ctx, l.key, l.value, revision)
	default:
		return false
	}
	if err != nil {
		return false
	}
	l.token, l.revision, l.until = revision, revision, start.Add(l.ttl)
	return true
}

// recordTTL returns the ttl in a record, 0 if it is not a lease record.
func recordTTL(value []byte) time.Duration {
	var r leaseRecord
	if json.Unmarshal(value, &r) != nil {
		return 0
	}
	return time.Duration(r.TTLMillis) * time.Millisecond
}

// Token returns the fencing token: it is greater than that of every earlier holder, and
// constant through renewals. Receivers of the holder's requests must refuse a token smaller
// than the greatest they have seen.
func (l *Lease) Token() uint64 { return l.token }

// Valid reports whether the lease is certainly still held: not lost, and renewed less than a
// ttl ago by this process's clock. Once it is false the holder must stop acting, whatever
// Renew returns later.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost && l.s.now().Before(l.until)
}

// Renew extends the lease by a ttl from now. It fails with ErrLeaseLost if there is another
// holder, and with ErrUnavailable if the store does not respond; then it may be retried
// until Valid returns false.
func (l *Lease) Renew(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return fmt.Errorf("renewing %s: %w", l.key, ErrLeaseLost)
	}
	start := l.s.now()
	revision, err := l.s.CompareAndSwap(ctx, l.key, l.value, l.revision)
	if errors.Is(err, ErrConflict) {
		revision, err = l.resolveConflict(ctx)
	}
	if err != nil {
		return err
	}
	l.revision, l.until = revision, start.Add(l.ttl)
	return nil
}

// resolveConflict resolves a conflict: the newer value may be our own, written by a renewal whose
// acknowledgement was lost.
func (l *Lease) resolveConflict(ctx context.Context) (uint64, error) {
	value, revision, err := l.s.Get(ctx, l.key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	if err == nil && string(value) == string(l.value) {
		revision, err = l.s.CompareAndSwap(ctx, l.key, l.value, revision)
		if !errors.Is(err, ErrConflict) {
			return revision, err
		}
	}
	l.lost = true
	return 0, fmt.Errorf("renewing %s: %w", l.key, ErrLeaseLost)
}

// Release releases the lease so that the next holder need not wait. Releasing a lost lease
// is not an error.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return nil
	}
	err := l.s.deleteAt(ctx, l.key, l.revision)
	if errors.Is(err, ErrConflict) {
		err = nil
	}
	if err == nil {
		l.lost = true
	}
	return err
}
