package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

const shortTTL = 60 * time.Millisecond

// A lease expires only if its value has not changed for a whole ttl, by the candidate's own clock.
func TestObservationExpiresAfterTTL(t *testing.T) {
	t0 := time.Unix(1000, 0)
	var o observation
	steps := []struct {
		revision uint64
		at       time.Duration
		want     bool
	}{
		{7, 0, false}, // the first observation starts the ttl, regardless of the age of the value
		{7, 9 * time.Second, false},
		{8, 9500 * time.Millisecond, false}, // renewed: restarts the ttl
		{8, 19 * time.Second, false},
		{8, 19500 * time.Millisecond, true},
		{2, 20 * time.Second, false}, // a restored store counts as a change
	}
	for i, s := range steps {
		if got := o.expired(s.revision, t0.Add(s.at), 10*time.Second); got != s.want {
			t.Fatalf("step %d: expired %v, want %v", i, got, s.want)
		}
	}
}

func acquire(t *testing.T, s *Store, holder string) *Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), "controller", holder, shortTTL)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestExpiredLeaseIsAcquired(t *testing.T) {
	srv := serve(t, t.TempDir())
	a, b := connect(t, srv), connect(t, srv)
	first := acquire(t, a, "a")
	if err := first.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := acquire(t, b, "b") // a does not renew its lease any more
	if second.Token() <= first.Token() {
		t.Fatalf("token %d is not greater than %d", second.Token(), first.Token())
	}
	if first.Valid() {
		t.Fatal("two holders at the same time")
	}
	if err := first.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("Renew of a lost lease returned %v", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatalf("Release of a lost lease returned %v", err)
	}
	if err := second.Renew(t.Context()); err != nil {
		t.Fatalf("the former holder affected the new one: %v", err)
	}
}

func TestReleasedLeaseIsAcquiredAtOnce(t *testing.T) {
	srv := serve(t, t.TempDir())
	a, b := connect(t, srv), connect(t, srv)
	first, err := a.Acquire(t.Context(), "controller", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first.Valid() {
		t.Fatal("valid after release")
	}
	second, err := b.Acquire(t.Context(), "controller", "b", time.Hour) // would block for an hour
	if err != nil || second.Token() <= first.Token() {
		t.Fatalf("%v, token %d after %d", err, second.Token(), first.Token())
	}
}

// While the holder renews its lease, a candidate waits until its context ends.
func TestRenewedLeaseIsNotAcquired(t *testing.T) {
	srv := serve(t, t.TempDir())
	a, b := connect(t, srv), connect(t, srv)
	held := acquire(t, a, "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, "controller", "b", time.Hour)
		done <- err
	}()
	for range 20 {
		if err := held.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("candidate: %v", err)
	}
}

// A renewal whose acknowledgement was lost is identified as the holder's own.
func TestRenewAfterLostAcknowledgement(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	l, err := st.Acquire(t.Context(), "controller", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.CompareAndSwap(t.Context(), l.key, l.value, l.revision); err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Fatalf("Renew after a lost acknowledgement returned %v", err)
	}
}

// Valid depends on the holder's own clock, not on responses of the store.
func TestLeaseIsValidForItsTTL(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	var offset atomic.Int64
	base := time.Now()
	st.now = func() time.Time { return base.Add(time.Duration(offset.Load())) }
	l, err := st.Acquire(t.Context(), "controller", "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {59 * time.Second, true}, {time.Minute, false}} {
		offset.Store(int64(c.at))
		if l.Valid() != c.want {
			t.Fatalf("valid at %s: %v", c.at, !c.want)
		}
	}
	if err := l.Renew(t.Context()); err != nil || !l.Valid() {
		t.Fatalf("renewed: %v, valid %v", err, l.Valid())
	}
}

func TestAcquireRejectsInvalidArguments(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	if _, err := st.Acquire(t.Context(), "a b", "x", time.Second); err == nil {
		t.Fatal("a name with a space was accepted")
	}
	if _, err := st.Acquire(t.Context(), "a", "x", 0); err == nil {
		t.Fatal("ttl 0 was accepted")
	}
}

// An acquisition whose acknowledgement was lost counts for others from when it was written. The holder may
// not count it from when it finds it: until then another may have waited for the whole ttl.
func TestAcquireWritesAgainAfterLostAcknowledgement(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	l := &Lease{s: st, key: LeaseKey("controller"), value: []byte(`{"holder":"a"}`), ttl: time.Minute, stepTimeout: opTimeout}
	written := must[uint64](t)(st.Put(t.Context(), l.key, l.value)) // its acknowledgement was lost
	var other, own observation
	other.expired(written, st.now(), l.ttl)
	if !l.tryAcquire(t.Context(), &own) {
		t.Fatal("the lease was not acquired")
	}
	_, revision, err := st.Get(t.Context(), l.key)
	if err != nil || other.expired(revision, st.now().Add(l.ttl), l.ttl) || l.Token() != revision {
		t.Errorf("token %d at revision %d, %v: another holder can acquire the lease before it ends", l.Token(), revision, err)
	}
}

// A write that hangs does not hide from the holder that its lease has expired.
func TestValidDoesNotWaitForRenew(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	l, err := st.Acquire(t.Context(), "controller", "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	expires := l.Expires()
	l.renewing.Lock() // as while a write is in progress
	st.now = func() time.Time { return expires }
	if l.Valid() || !l.Expires().Equal(expires) {
		t.Errorf("valid %t, expires %s, want false, %s", l.Valid(), l.Expires(), expires)
	}
	l.renewing.Unlock()
	if err := l.Release(t.Context()); err != nil || !l.Expires().IsZero() {
		t.Errorf("released: %v, expires %s", err, l.Expires())
	}
}
