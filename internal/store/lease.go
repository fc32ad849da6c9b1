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
	// AcquisitionID is unique to one acquisition: it identifies the holder's own write if the
	// acknowledgement of that write was lost. Stored records contain it under a former name.
	AcquisitionID string `json:"tenure"`
	// TTLMillis is the holder's ttl; others wait at least this long.
	TTLMillis int64 `json:"ttl_ms"`
}

// observation is the last revision that a candidate observed of another holder's lease, and
// when it first observed that revision. The time is that of the candidate's own monotonic
// clock. No clock of another host is used.
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
	// base is the token base at the acquisition: see tokenBaseKey.
	base uint64
	// stepTimeout is the timeout of each step of an acquisition.
	stepTimeout time.Duration

	// renewing is held during a renewal, and guards revision. mu guards the fields until and lost. It is never
	// held during a write: Valid returns at once while a write hangs.
	renewing sync.Mutex
	revision uint64
	mu       sync.Mutex
	until    time.Time
	lost     bool
}

// LeasePrefix is the prefix of the keys of leases. The revision of a key changes whenever
// its lease is renewed.
const LeasePrefix = "lease."

// LeaseKey returns the key of the lease called name.
func LeaseKey(name string) string { return LeasePrefix + name }

// Acquire waits until holder holds the lease called name. It acquires a lease that has no holder, that its holder
// releases, or that its holder has not renewed for the longer of the two holders' ttls. That time is measured by this
// process's monotonic clock. Acquire fails at once for an invalid name or ttl. It retries during outages of the store,
// and otherwise returns only the lease or the error of ctx. Renew the lease about three times per ttl.
func (s *Store) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (*Lease, error) {
	if !keyRE.MatchString(name) || ttl <= 0 {
		return nil, fmt.Errorf("acquiring lease %q for %s: the name must be letters, digits and _ / = - . and the ttl above 0, got ttl %s", name, holder, ttl)
	}
	value, err := json.Marshal(leaseRecord{Holder: holder, AcquisitionID: rand.Text(), TTLMillis: ttl.Milliseconds()})
	if err != nil {
		return nil, fmt.Errorf("acquiring lease %q: %w", name, err)
	}
	l := &Lease{s: s, key: LeaseKey(name), value: value, ttl: ttl}
	interval := min(max(ttl/10, 5*time.Millisecond), 500*time.Millisecond)
	// A request that was lost with the leader of a cluster must not wait for opTimeout.
	l.stepTimeout = min(max(ttl/3, time.Second), opTimeout)
	var seen observation
	for {
		if l.tryAcquire(ctx, &seen) {
			return l, nil
		}
		_, _, next := s.connectionState()
		pause(ctx, next, interval)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("acquiring lease %q for %s: %w", name, holder, ctx.Err())
		}
	}
}

// tryAcquire attempts to acquire the lease once, and reports whether it did. After any failure, including an outage,
// the caller retries. It takes five round trips between members of a cluster if the client's member does not lead the state stream:
// one to read the record, one to read the token base, two to write and one to check. Each of these steps has a timeout
// of its own. A candidate that waits reads only the record: it needs the token base only once the lease is free.
func (l *Lease) tryAcquire(ctx context.Context, seen *observation) bool {
	value, revision, err := l.read(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		revision = 0
	case err != nil:
		return false
	case string(value) == string(l.value):
		// An earlier attempt of this process was applied, but its acknowledgement was lost. Others count the
		// ttl from that attempt, so the record is written again.
	case seen.expired(revision, l.s.now(), max(l.ttl, recordTTL(value))):
		// The clock is read after the value, and the holder counts its ttl from before its
		// write. So the holder's lease ends before this one begins.
	default:
		return false
	}
	base, err := l.readBase(ctx)
	if err != nil {
		return false
	}
	start := l.s.now()
	if revision, err = l.write(ctx, base, revision); err != nil {
		return false
	}
	l.token, l.base, l.revision, l.until = base+revision, base, revision, start.Add(l.ttl)
	return true
}

// read returns the record and its revision. It returns ErrNotFound if there is no record.
func (l *Lease) read(ctx context.Context) (value []byte, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.stepTimeout)
	defer cancel()
	return l.s.Get(ctx, l.key)
}

// readBase returns the token base.
func (l *Lease) readBase(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.stepTimeout)
	defer cancel()
	return l.s.tokenBase(ctx)
}

// write writes the record if its revision is the given one, 0 = there is none, and returns its new revision. base is
// the token base before. It fails if a restore changed the base meanwhile, because it is then unknown to which base the
// revision belongs.
func (l *Lease) write(ctx context.Context, base, revision uint64) (next uint64, err error) {
	octx, cancel := context.WithTimeout(ctx, l.stepTimeout)
	defer cancel()
	if revision == 0 {
		next, err = l.s.Create(octx, l.key, l.value)
	} else {
		next, err = l.s.CompareAndSwap(octx, l.key, l.value, revision)
	}
	if err != nil {
		return 0, err
	}
	after, err := l.readBase(ctx)
	if err == nil && after != base {
		err = fmt.Errorf("writing %s: %w: the store was restored", l.key, ErrConflict)
	}
	return next, err
}

// recordTTL returns the ttl in a record, 0 if it is not a lease record.
func recordTTL(value []byte) time.Duration {
	var r leaseRecord
	if json.Unmarshal(value, &r) != nil {
		return 0
	}
	return time.Duration(r.TTLMillis) * time.Millisecond
}

// Token returns the fencing token: it is greater than that of every earlier holder, also after a restore of an older
// backup into the same store, and constant through renewals. Receivers of the holder's requests must reject a token
// smaller than the greatest that they have received.
func (l *Lease) Token() uint64 { return l.token }

// Valid reports whether the lease is still held: it is not lost, and was renewed less than a
// ttl ago by this process's clock. Once Valid returns false the holder must stop acting; it may
// act again only after a later Renew has succeeded and Valid returns true. Valid never waits for
// a Renew that is in progress.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost && l.s.now().Before(l.until)
}

// Expires returns the time from which Valid returns false, unless the lease is renewed before. No other
// holder can acquire the lease earlier. It is the zero time once the lease is lost.
func (l *Lease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return time.Time{}
	}
	return l.until
}

// markLost records that the lease is lost.
func (l *Lease) markLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// isLost reports whether the lease is lost.
func (l *Lease) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Renew extends the lease by a ttl from now. It fails with ErrLeaseLost if there is another holder or none, or if it
// finds that a backup was restored since Acquire. It fails with ErrUnavailable if the store does not respond; then it
// may be retried. While the lease is valid, Renew repeats a request that is not answered soon: one lost request does
// not end the lease.
func (l *Lease) Renew(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if l.isLost() {
		return fmt.Errorf("renewing %s: %w", l.key, ErrLeaseLost)
	}
	r := renewal{Lease: l, revision: l.revision, answers: make(chan renewalAnswer)}
	revision, start, err := r.write(ctx)
	if err == nil && (r.conflict || !l.Valid()) {
		err = l.checkNotRestored(ctx)
	}
	if err != nil {
		return err
	}
	l.revision = revision
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = start.Add(l.ttl)
	return nil
}

// renewal is one call of Renew: requests to write the record again. At most one of those with the same revision is
// applied.
type renewal struct {
	*Lease
	revision uint64 // of the record
	answers  chan renewalAnswer
	inFlight int  // requests without an answer
	conflict bool // a request was rejected
}

// renewalAnswer is the answer to one request, and when the request was sent.
type renewalAnswer struct {
	revision uint64
	start    time.Time
	err      error
}

// write writes the record again, and returns its new revision and when that request was sent. While the lease is valid,
// it sends another request every quarter of a ttl: a lease that is renewed each third of its ttl has two more attempts
// before it expires. Earlier requests continue: repetitions do not delay the answer of a store with slow writes.
func (r *renewal) write(ctx context.Context) (revision uint64, start time.Time, err error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	repeat := time.NewTicker(max(r.ttl/4, time.Millisecond))
	defer repeat.Stop()
	r.send(octx)
	for {
		select {
		case <-octx.Done():
			err = octx.Err()
		case a := <-r.answers:
			r.inFlight--
			if err = a.err; errors.Is(err, ErrConflict) {
				err = r.resolveConflict(octx)
				break
			}
			if err == nil {
				return a.revision, a.start, nil
			}
			if r.inFlight > 0 {
				err = nil
			}
		case <-repeat.C:
			switch {
			case r.Valid():
				r.send(octx)
			case r.inFlight == 0:
				err = fmt.Errorf("%w: a request of an earlier renewal may still be in progress", ErrUnavailable)
			}
		}
		if err != nil {
			return 0, start, wrap(ctx, err, "renewing %s", r.key)
		}
	}
}

// send sends a request.
func (r *renewal) send(ctx context.Context) {
	r.inFlight++
	a := renewalAnswer{start: r.s.now()}
	revision := r.revision
	go func() {
		a.revision, a.err = r.s.CompareAndSwap(ctx, r.key, r.value, revision)
		select {
		case r.answers <- a:
		case <-ctx.Done():
		}
	}()
}

// resolveConflict resolves a conflict: it may be with an earlier request of this holder whose answer was lost, or which
// a cluster still processes. In the first case it sends another request. In the second it returns nil, and the caller
// waits. It fails with ErrLeaseLost if there is another holder or none.
func (r *renewal) resolveConflict(ctx context.Context) error {
	r.conflict = true
	value, revision, err := r.s.Get(ctx, r.key)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && string(value) != string(r.value):
		r.markLost()
		return ErrLeaseLost
	case err == nil && revision != r.revision:
		r.revision = revision
		r.send(ctx)
	case err != nil && r.inFlight == 0:
		return err
	}
	return nil
}

// checkNotRestored marks a lease as lost if the store was restored since its acquisition: another holder may have had a
// greater token, and the record that was renewed may be that of a backup.
func (l *Lease) checkNotRestored(ctx context.Context) error {
	base, err := l.s.tokenBase(ctx)
	if err == nil && base != l.base {
		l.markLost()
		err = fmt.Errorf("renewing %s: %w", l.key, ErrLeaseLost)
	}
	return err
}

// Release releases the lease so that the next holder does not have to wait for a ttl. Afterwards the lease is lost to
// this holder. Releasing a lost lease is not an error. After an error the holder must stop acting, too: the lease may have
// been released (ErrUnavailable), or else expires after its ttl.
func (l *Lease) Release(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if l.isLost() {
		return nil
	}
	err := l.s.deleteAt(ctx, l.key, l.revision)
	if errors.Is(err, ErrConflict) {
		err = nil
	}
	if err == nil {
		l.markLost()
	}
	return err
}
